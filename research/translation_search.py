"""Decode with a finished translation run again: greedy and beams, one checkpoint and means.

    python -m research.translation_search --workdir=RUN --output=FOLDER --beams=1,5 --averaged=1,3

RUN is a working directory of finetune.py, with its checkpoints. The command translates development
and test data for each number of hypotheses in --beams, and for the mean of each number of last
checkpoints in --averaged. For each number of checkpoints it runs all beams twice. The first round
compiles, the second is timed. Results go to FOLDER/search.json, RUN by default.
"""

import dataclasses
import pathlib
import time
from collections.abc import Sequence
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from configs.finetune import translation as translation_config
from input_pipeline.tasks import translation
from xlm.common import artifacts, entry_point
from xlm.evaluation.metrics import translation as metrics
from xlm.evaluation.tasks import TaskData
from xlm.experiment import fine_tuning, translated_text
from xlm.experiment import translation as builders
from xlm.experiment.prediction import read_tokenizer, run_config
from xlm.experiment.run_folder import BEST
from xlm.experiment.task_settings import task_settings
from xlm.interop.params_file import read_params
from xlm.training import compilation
from xlm.training.checkpoint import restore_mean_params

SEARCH = "search.json"


def search(
    folder: pathlib.Path, beams: Sequence[int], averaged: Sequence[int]
) -> list[dict[str, Any]]:
    """Translate with the mean of the last `averaged` checkpoints, for each number of `beams`.

    Return a record for each choice, split and direction: `split`, `direction`, `beams`, `averaged`,
    `bleu`, `chrf`, `sentences_per_second`. Raise ValueError if the run of finetune.py in `folder`
    has not ended, or has too few checkpoints.
    """
    config = run_config(folder)
    # A run records only keys that change its results.
    config.train = {**translation_config.get_config().train.to_dict(), **config.train.to_dict()}
    notes = read_params(folder / BEST)[1]
    model = builders.model_of_notes(notes, read_tokenizer(folder, notes.tokenizer))
    mesh, objective = fine_tuning.mesh(), builders.objective(config, model)
    functions = builders.train_functions(config, objective, mesh)
    translators = {
        count: builders.translator(
            config,
            objective,
            model,
            mesh,
            dataclasses.replace(builders.decoding_settings(config), beams=count),
        )
        for count in beams
    }
    data = _data(config, model)
    found = []
    for number in averaged:
        _, params = restore_mean_params(
            folder / "checkpoints", functions, number, config.train.checkpoint_every
        )
        for turn in range(2):
            for count, translator in translators.items():
                for split, one in data:
                    start = time.monotonic()
                    outputs = translator(params, one.features)
                    seconds = time.monotonic() - start
                    if turn == 0:
                        continue
                    scores = metrics.scores(
                        [example.target for example in one.examples],
                        translated_text.detokenized(
                            model, outputs, [example.source for example in one.examples]
                        ),
                        translation.direction(one.language)[1],
                    )
                    found.append({
                        "split": split, "direction": one.language, "beams": count,
                        "averaged": number, "bleu": scores["bleu"], "chrf": scores["chrf"],
                        "sentences_per_second": len(one.examples) / seconds,
                    })  # fmt: skip
    return found


def _data(config: ConfigDict, model: builders.TranslationModel) -> list[tuple[str, TaskData]]:
    """Return the development and test data of a run, by split and direction."""
    options = task_settings(config)
    return [
        (split, builders.featured(options, model, direction, examples))
        for split in ("validation", "test")
        for direction, examples in builders.read_examples(options, split).items()
    ]


def main(_) -> None:
    given = flags.FLAGS
    compilation.use_cache()
    folder = pathlib.Path(given.workdir)
    found = search(folder, [int(n) for n in given.beams], [int(n) for n in given.averaged])
    artifacts.write_json(pathlib.Path(given.output or folder) / SEARCH, found)
    for one in found:
        print(
            f"{one['direction']}, {one['split']}: {one['beams']} beams, {one['averaged']} "
            f"checkpoints: BLEU {100 * one['bleu']:.1f}, chrF {100 * one['chrf']:.1f}, "
            f"{one['sentences_per_second']:.1f} sentences a second"
        )


if __name__ == "__main__":
    flags.DEFINE_string("workdir", None, "Working directory of a finished run of finetune.py.")
    flags.DEFINE_string("output", None, "Output folder.")
    flags.DEFINE_list("beams", ["1", "5"], "Numbers of hypotheses.")
    flags.DEFINE_list("averaged", ["1", "3"], "Numbers of averaged checkpoints.")
    entry_point.run(main, required=("workdir",))
