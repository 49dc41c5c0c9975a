"""The tasks of prepare_data.py as Apache Beam pipelines, one for each round.

    python prepare_data.py --config=CONFIG --workdir=DIR --plan
    python -m input_pipeline.preparation_beam --rows=DIR/rows --runner=DirectRunner ...
    python prepare_data.py --config=CONFIG --workdir=DIR

The first command writes the settings of the preparation to DIR/rows/work, the second runs the tasks
that are left, on the workers of any runner, and the third joins their results, which are byte for
byte those of prepare_data.py alone. The text and DIR must be on a file system that all workers
mount at the same path. docs/corpus_format.md says more.
"""

import argparse
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from input_pipeline import preparation
from input_pipeline.preparation import Job
from xlm.common import artifacts, declarations, packages


def main(argv: Sequence[str]) -> None:
    """Run the unfinished tasks; unknown flags are passed on to Beam."""
    parser = argparse.ArgumentParser(
        prog="python -m input_pipeline.preparation_beam",
        description="Prepares data with Apache Beam, which gets all flags not listed here.",
        allow_abbrev=False,
    )
    parser.add_argument("--rows", required=True, help="the folder DIR/rows of prepare_data --plan")
    flags, beam_flags = parser.parse_known_args(argv)
    try:
        prepare(pathlib.Path(flags.rows).absolute(), beam_flags)
    except ValueError as error:
        parser.exit(2, f"error: {error}\n")
    print(f"all tasks of {flags.rows} are done; run prepare_data.py again, which joins them")


class Pipelines:
    """Runner of tasks that write files, as `processes.Workers`, but by a pipeline for each round.

    `flags` are Beam's runner and its options, as on its command lines. Raise ValueError if Beam is
    not installed.
    """

    def __init__(self, flags: Sequence[str]):
        with packages.needed("Apache Beam", "beam"):
            import apache_beam  # noqa: F401
        self._flags = list(flags)

    def run(self, function: Callable[..., None], jobs: Sequence[tuple]) -> Sequence[None]:
        """Call a function with the arguments of each job; return when all have ended."""
        import apache_beam as beam
        from apache_beam.options.pipeline_options import PipelineOptions

        if jobs:
            with beam.Pipeline(options=PipelineOptions(self._flags)) as pipeline:
                _ = (
                    pipeline
                    | "tasks" >> beam.Create(list(jobs))
                    # Otherwise one worker would get them all, with the step that makes them.
                    | "to workers" >> beam.Reshuffle()
                    | function.__name__ >> beam.Map(lambda one: function(*one))
                )
        return [None] * len(jobs)


def prepare(folder: pathlib.Path, beam_flags: Sequence[str]) -> None:
    """Run the tasks of the preparation planned in `folder`, and wait for their end.

    Raise ValueError as `Pipelines`, or if nothing is planned, or another process is at work there.
    """
    pipelines = Pipelines(beam_flags)
    job, model = read_job(folder)

    def execute(
        function: Callable[[Job, Any], None], job: Job, tasks: Sequence[Any], _: str
    ) -> None:
        pipelines.run(function, [(job, task) for task in tasks])

    with artifacts.Stage(folder, None).held(claims=False):
        preparation.run(job, preparation.find(job), model, execute)


def read_job(folder: pathlib.Path) -> tuple[Job, bytes]:
    """Read the job and the tokenizer that `prepare_data.py --plan` wrote, or raise ValueError."""
    path = folder / preparation.WORK / "job.json"
    if not path.exists():
        raise ValueError(
            f"{path} does not exist; run prepare_data.py with --plan first; --rows is WORKDIR/rows"
        )
    remedy = "remove it, and run prepare_data.py with --plan again"
    found = declarations.read(path, preparation.JobRecord, remedy=remedy)
    job = Job(folder, found.corpus, found.store, found.tokenizer)
    return job, (path.parent / "spm.model").read_bytes()


if __name__ == "__main__":
    main(sys.argv[1:])
