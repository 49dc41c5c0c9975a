"""Claims and studies, from the command line.

python -m research list
python -m research run C23 --data=DATA --workdir=DIR
python -m research run xlm_r figures=alpha tasks=udpos,wikiann --data=DATA --workdir=DIR
python -m research report xlm_r figures=alpha
python -m research keep xlm_r --workdir=DIR
python -m research claims
"""

import pathlib
from collections.abc import Sequence

from absl import flags

from research import claims, report, results, runner, study
from xlm.common import artifacts, entry_point

_ACTIONS = ("list", "run", "report", "keep", "claims")


def _folder(name: str) -> pathlib.Path:
    if not (value := flags.FLAGS[name].value):
        raise ValueError(f"--{name} is missing; give it (python -m research --help)")
    return pathlib.Path(value)


def _run(names: Sequence[str]) -> None:
    given, (name, *arguments) = flags.FLAGS, names
    is_study = name in study.names()
    needs_data = not is_study or "DATA" in study.find(name).config
    data = _folder("data") if needs_data else pathlib.Path()
    workdir = _folder("workdir")
    if not is_study:
        claims.run(names, data, workdir)
        return
    options = {"workers": given.workers, "pin": given.pin, "with_records": given.with_records}
    runner.run(name, arguments, data=data, workdir=workdir, **options)
    _report(names)


def _report(names: Sequence[str]) -> None:
    given, (name, *arguments) = flags.FLAGS, names
    workdir = pathlib.Path(given.workdir) if given.workdir else None
    folder = pathlib.Path(given.output) if given.output else workdir and workdir / "report"
    print(report.write(name, arguments, workdir=workdir, folder=folder))
    if folder:
        print(f"report: {(folder / f'{name}.md').absolute()}")


def main(argv: Sequence[str]) -> None:
    action, *names = argv[1:] or [""]
    if action not in _ACTIONS:
        raise ValueError(f"the action is {action or 'missing'}, must be one of {_ACTIONS}")
    if action in ("run", "report", "keep") and not names:
        raise ValueError(f"{action} needs a study: {', '.join(study.names())}, or a claim to run")
    if action == "list":
        print(claims.listing())
    elif action == "run":
        _run(names)
    elif action == "report":
        _report(names)
    elif action == "keep":
        count = results.keep(names[0], _folder("workdir"))
        print(f"{results.RECORDS / names[0]}.jsonl: results of {count} runs added")
    else:
        artifacts.write_text(claims.PAGE, claims.page())
        print(f"{claims.PAGE}: {len(claims.read())} claims")


if __name__ == "__main__":
    flags.DEFINE_string("data", None, "Data folder, DATA in configs.")
    flags.DEFINE_string("workdir", None, "Folder of all runs.")
    flags.DEFINE_string("output", None, "Folder of the report; WORKDIR/report by default.")
    flags.DEFINE_integer("workers", 2, "Parallel runs.", lower_bound=1)
    flags.DEFINE_bool("pin", True, "Whether each run has one core and one thread.")
    flags.DEFINE_bool("with_records", False, "Whether runs in the records count as done.")
    entry_point.run(main, required=())
