"""Clean text by rules, with a report of each: repeated lines, HTML, other languages, ...

    xlm clean TEXT --output=DIR --repeated_lines=10 --html

TEXT is a folder of <lang>.txt or <lang>.jsonl files (docs/corpus_format.md). DIR gets the same
languages as <lang>.txt, and report.html. Rerun the command to resume. docs/cleaning.md has the
rules. A run applies them by the section `clean` of its config.
"""

import pathlib
from collections.abc import Sequence

from absl import flags

from input_pipeline.cleaning import tasks
from input_pipeline.cleaning.settings import CleaningSettings
from input_pipeline.sources import CorpusSpec
from xlm.common import artifacts, executors, html_report, outputs, schema

_WORKERS = flags.DEFINE_integer("num_workers", 1, "Processes that clean.", lower_bound=1)
executors.define_flags()
_OUTPUT = outputs.define_flags("The folder of the cleaned text.")
_DEFINE = {
    bool: flags.DEFINE_bool, int: flags.DEFINE_integer, float: flags.DEFINE_float,
    str: flags.DEFINE_string,
}  # fmt: skip
_RULES = {
    name: _DEFINE[one.kind](name, one.default, one.text)
    for name, one in schema.section(CleaningSettings).items()
}

OPTIONS = {"required": ("output",)}


def main(argv: Sequence[str]) -> None:
    if len(argv) != 2:
        raise ValueError(f"name one folder of text, not {argv[1:4]}: xlm clean TEXT --output=DIR")
    settings = CleaningSettings(**{name: one.value for name, one in _RULES.items()})
    if settings == CleaningSettings():
        raise ValueError(f"no rule is given; add some of --{', --'.join(_RULES)}")
    spec = CorpusSpec(root=str(pathlib.Path(argv[1]).absolute()), text=("",))
    with (
        executors.chosen(_WORKERS.value, "--num_workers", _OUTPUT.value) as executor,
        outputs.folder(_OUTPUT.value, [argv[1]]) as aside,
    ):
        work = outputs.parts(aside, artifacts.fingerprint(argv[1]))
        tasks.clean(spec, settings, work, aside, executor)
    print(f"report: {_OUTPUT.value}/{html_report.PAGE}")
