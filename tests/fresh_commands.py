"""Every command and config that the documentation names, for scripts/test_fresh.sh.

Prints a line for each, seconds of CPU and the command, and writes what those of fine-tuning
are given: CHECKPOINT, a tiny encoder, and DATA. Commands with the same flags and config are printed
once.
"""

import dataclasses
import re
import shlex
import shutil
from collections.abc import Iterator

from tests import commands, docs_commands_test, tiny_tasks
from xlm.cli.main import VERBS
from xlm.interop import model_folder

_STAGES = ("build_vocab", "prepare_data", "train", "evaluate")


def found() -> Iterator[tuple[int, str, *tuple[str, ...]]]:
    """Yield seconds, module and arguments of commands; some more than once."""
    sources = ("*.py", "configs/**/*.py", "xlm/cli/*.py", "xlm/launch/*.py", "*/*_beam.py")
    paths = [path for pattern in sources for path in sorted(commands.ROOT.glob(pattern))]
    for path in [*docs_commands_test.PAGES, *paths]:
        for name, *arguments in docs_commands_test.printed(path):
            own = name == "finetune" and "--config.init_from=CHECKPOINT" in arguments
            # Configs share the folder that stands for any.
            at = f"--workdir=runs/{path.stem}" if own else "--workdir=DIR"
            arguments = [at if one == "--workdir=DIR" else _named(one) for one in arguments]
            yield 60 if own else 30, name, *arguments
    for path in paths:
        config, text = path.relative_to(commands.ROOT), path.read_text(encoding="utf-8")
        for stage in _STAGES if f"{config}:runlocal" in text else ():
            yield 120, stage, f"--config={config}:runlocal", f"--workdir=runs/{path.stem}_runlocal"
        for given in set(re.findall(rf"{config}:(?:\w+,)?tfds", text)):
            at = (f"--workdir=runs/{path.stem}_tfds", "--config.init_from=CHECKPOINT")
            yield 30, "finetune", f"--config={_named(given)}", *at


def _named(argument: str) -> str:
    """Return an argument with a task of those that a word stands for."""
    return argument.replace(":TASK,", ":mnli,").replace(":VERSION,", ":1.1,")


if __name__ == "__main__":
    settings = dataclasses.replace(tiny_tasks.SETTINGS, max_length=384, num_layers=8)
    sizes, weights = dataclasses.asdict(settings), tiny_tasks.params(settings)
    model_folder.write_model(
        commands.ROOT / "CHECKPOINT", weights, sizes, tokenizer=tiny_tasks.tokenizer()
    )
    shutil.copytree(tiny_tasks.data_folder(), commands.ROOT / "DATA")
    unlike = {}
    verbs = {module: verb for verb, module in VERBS.items()}
    for seconds, name, *arguments in found():
        is_script = "." in name or (commands.ROOT / f"{name}.py").exists()
        start = ["python", "-m", name] if is_script else ["xlm", verbs[name]]
        flags = (one if one.startswith("--config=") else one.partition("=")[0] for one in arguments)
        unlike.setdefault((name, *flags), f"{seconds} {shlex.join([*start, *arguments])}")
    print(*unlike.values(), sep="\n")
