"""The commands of README.md, as printed, in miniature."""

import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

from absl.testing import absltest

from benchmarks import recording_data
from tests import processes

ROOT = pathlib.Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
# This suite itself, and what fetches packages.
NOT_RUN = ("bash scripts/test.sh", ".venv/bin/pip install")
# Flags that make a command small; the last of a flag counts.
SMALL_VOCABULARY = (
    "--config.vocab.target_size=600",
    "--config.vocab.sizes=(100,200,300,400,500)",
    "--config.vocab.compare=()",
)
SMALL = {
    "bash scripts/quickstart.sh --corpus": (
        *("--config", "configs/quickstart.py:runlocal", "--config.corpus.languages=('en','sw')"),
        *("--workdir", "runs/own", *SMALL_VOCABULARY),
    ),
    "bash scripts/quickstart.sh": (
        *("--config", "configs/quickstart.py:runlocal", "--workdir", "runs/quickstart"),
    ),
    "python build_vocab.py": SMALL_VOCABULARY,
    "python finetune.py": (
        *("--config.train.epochs=1", "--config.train.evaluations=1"),
        "--config.task.test_languages=('en','de')",
    ),
}


def commands() -> list[str]:
    """The lines of all blocks of shell commands, in their order, without comments."""
    blocks = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    lines = "".join(blocks).replace("\\\n", "").splitlines()
    return [line.partition(" #")[0].strip() for line in lines if line.strip()]


class ReadmeTest(absltest.TestCase):
    def test_all_commands(self):
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        own = folder / "own"
        own.mkdir()
        for name in ("en", "sw"):
            shutil.copy(ROOT / "corpus" / f"{name}.txt", own)
        recording_data.write_tasks(folder / "data")
        (folder / "mine.txt").write_text("the dog sees\n", encoding="utf-8")
        # The scripts would make an environment otherwise.
        environment = {**processes.environment(), "PYTHON": sys.executable}
        places = {
            r"\bTEXT\b": own, r"\bDIR\b": own, r"\bDATA\b": folder / "data",
            r"(?<![\w/])(runs/|mine\.txt|tags\.jsonl)": f"{folder}/\\1",
        }  # fmt: skip
        run = []
        for command in commands():
            if command.startswith(NOT_RUN):
                continue
            small = next((flags for start, flags in SMALL.items() if command.startswith(start)), ())
            full = shlex.join([*shlex.split(command), *small])
            for pattern, place in places.items():
                full = re.sub(pattern, str(place), full)
            words = shlex.split(full)
            if words[0] == "python":
                words[0] = sys.executable
            done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, f"{full}\n{done.stdout}\n{done.stderr}")
            run.append(command)
            if command == "bash scripts/quickstart.sh":
                self.check_quickstart(done.stdout, folder / "runs" / "quickstart")
        self.assertLen(run, 7)
        self.assertTrue((folder / "runs" / "table" / "report.md").exists())
        self.assertLen((folder / "tags.jsonl").read_text("utf-8").splitlines(), 1)

    def check_quickstart(self, printed: str, workdir: pathlib.Path):
        # It prints the commands that README.md lists.
        listed = re.findall(r"^python (\w+\.py) ", README.partition("## Only a tokenizer")[0], re.M)
        self.assertEqual(re.findall(r"^\$ \S+ (\w+\.py) ", printed, re.M), listed)
        # And makes all that its table names.
        rows = re.findall(r"^\| `([\w/.]+)`", README.partition("## Only a tokenizer")[0], re.M)
        self.assertContainsSubset(["vocab/spm.model", "report/report.md"], rows)
        for name in rows:
            self.assertTrue((workdir / name).exists(), name)


if __name__ == "__main__":
    absltest.main()
