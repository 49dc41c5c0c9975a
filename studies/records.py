"""Results of studies, kept in the repository: what tables are made of, without the runs.

    python -m studies.records keep --study=ablation --workdir=runs/ablation
    python -m studies.records restore --study=ablation --workdir=runs/ablation

A study of many hours is done in several sittings, on machines that come and go. `keep` adds the
results of its finished runs to docs/records/STUDY.jsonl; `restore` writes them into a working
directory, where the study finds them finished: it does what is missing, trains again only the
encoders that something missing needs, and reports on all.

A line of a record is a result file of a run: its path below the working directory, its content,
the commit that it ran at, and its time. Numbers have six significant digits.
"""

import datetime
import json
import pathlib
import subprocess
from collections.abc import Sequence
from typing import Any

from absl import flags

from common import artifacts, entry_point
from studies.runs import ROOT

FOLDER = ROOT / "docs" / "records"
NAMES = ("results.json", "record.json", "pair_weights.json", "search.json")
_DIGITS = 6


def read(record: pathlib.Path) -> dict[str, dict[str, Any]]:
    """Return the lines of a record by path; none if there is no such file."""
    if not record.exists():
        return {}
    # Not splitlines(), which also cuts at what JSON leaves as it is, such as U+2028.
    lines = filter(None, record.read_text(encoding="utf-8").split("\n"))
    return {line["path"]: line for line in map(json.loads, lines)}


def keep(record: pathlib.Path, workdir: pathlib.Path, commit: str) -> int:
    """Add the results in a study's working directory to its record; return how many are new.

    A result that the record has already stays as it is recorded.
    """
    lines = read(record)
    found = sorted(path for name in NAMES for path in workdir.glob(f"*/**/{name}"))
    # Of a run with a record of its own, the report holds no more but examples of its text.
    found = [
        path
        for path in found
        if path.parent.name != "report" or not (path.parent.parent / "record.json").exists()
    ]
    before = len(lines)
    for path in found:
        place = path.relative_to(workdir).as_posix()
        when = datetime.datetime.fromtimestamp(path.stat().st_mtime, datetime.UTC)
        new = {"path": place, "commit": commit, "time": f"{when:%Y-%m-%dT%H:%MZ}"}
        content = rounded(without_sentences(artifacts.read_json(path)))
        lines.setdefault(place, {**new, "content": content})
    text = "".join(
        json.dumps(lines[place], ensure_ascii=False, separators=(",", ":")) + "\n"
        for place in sorted(lines)
    )
    artifacts.write_text(record, text)
    return len(lines) - before


def restore(record: pathlib.Path, workdir: pathlib.Path) -> int:
    """Write the results of a record into a study's working directory; return how many.

    Results that are there already are left as they are.
    """
    missing = {
        place: line for place, line in read(record).items() if not (workdir / place).exists()
    }
    for place, line in missing.items():
        artifacts.write_json(workdir / place, line["content"])
    return len(missing)


def without_sentences(results: Any) -> Any:
    """Return results without sentences of a corpus, which are not for this repository.

    They are lists of `examples`, also by pair, and source and reference of the `translations` of
    `studies.translation`. The `examples` of a fine-tuning are numbers, by language, and stay.
    """
    if not isinstance(results, dict):
        return results
    kept = {
        key: value for key, value in results.items() if key != "examples" or _is_of_numbers(value)
    }
    if "translations" in kept:
        kept["translations"] = [
            {name: one[name] for name in ("id", "prediction")} for one in kept["translations"]
        ]
    return kept


def _is_of_numbers(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_is_of_numbers(one) for one in value.values())
    return isinstance(value, int | float)


def rounded(value: Any) -> Any:
    """Return a JSON value with its numbers rounded to the digits of a record."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _commit() -> str:
    """Return the commit of the code, with a mark if files differ from it."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def main(argv: Sequence[str]) -> None:
    actions = argv[1:]
    if actions not in (["keep"], ["restore"]):
        raise ValueError(f"{' '.join(actions) or 'nothing'} is asked for, must be keep or restore")
    record = FOLDER / f"{flags.FLAGS.study}.jsonl"
    workdir = pathlib.Path(flags.FLAGS.workdir)
    if actions == ["keep"]:
        if not workdir.is_dir():
            raise ValueError(f"--workdir={workdir} is no folder; name the one of the study")
        print(f"{record}: {keep(record, workdir, _commit())} results added")
        return
    if not record.exists():
        known = ", ".join(sorted(path.stem for path in FOLDER.glob("*.jsonl"))) or "none"
        raise ValueError(f"--study={flags.FLAGS.study} has no record; there are: {known}")
    print(f"{workdir}: {restore(record, workdir)} results restored")


if __name__ == "__main__":
    flags.DEFINE_string("study", None, "Name of the record.")
    flags.DEFINE_string("workdir", None, "Working directory of the study.")
    entry_point.run(main, required=("study", "workdir"))
