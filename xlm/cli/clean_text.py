"""Clean text by rules, and report what each took: repeated lines, HTML, other languages, ...

    xlm clean TEXT --output=DIR --repeated_lines=10 --html

TEXT is a folder of <lang>.txt or <lang>.jsonl files (docs/corpus_format.md). DIR gets the same
languages as <lang>.txt, and report.html. Rerun the command to resume. docs/cleaning.md has the
rules. A run applies them by the section `clean` of its config.
"""

import contextlib
import pathlib
from collections.abc import Sequence

from absl import flags

from input_pipeline import preparation_beam
from input_pipeline.cleaning import tasks
from input_pipeline.cleaning.settings import CleaningSettings
from input_pipeline.sources import CorpusSpec
from xlm.common import artifacts, html_report, outputs, schema
from xlm.common.processes import Workers

_WORKERS = flags.DEFINE_integer("num_workers", 1, "Processes that clean.", lower_bound=1)
_BEAM = flags.DEFINE_list("beam", None, "Flags of Apache Beam, which then cleans: --runner=...")
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
    beam = contextlib.nullcontext(preparation_beam.Pipelines(_BEAM.value)) if _BEAM.value else None
    with (
        outputs.folder(_OUTPUT.value, [argv[1]]) as aside,
        beam or Workers(_WORKERS.value, "--num_workers") as workers,
    ):
        work = outputs.parts(aside, artifacts.fingerprint(argv[1]))
        tasks.clean(spec, settings, work, aside, workers)
    print(f"report: {_OUTPUT.value}/{html_report.PAGE}")
