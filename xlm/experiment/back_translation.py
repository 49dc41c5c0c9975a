"""Rounds of back-translation: two models that translate text for each other."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from absl import logging
from ml_collections import ConfigDict

from input_pipeline.tasks import translation
from xlm.common import artifacts, outputs
from xlm.experiment.experiment import Experiment
from xlm.experiment.translation_prediction import TranslationRun


def run(
    config: ConfigDict, workdir: pathlib.Path, texts: Mapping[str, pathlib.Path], rounds: int,
    limits: Sequence[float], decoding: Mapping[str, Any],
) -> list[pathlib.Path]:  # fmt: skip
    """Train models of both directions in turn; return the results of the config's, by round.

    In a round the opposite model learns first. It translates text of the target language, and the
    config's model learns from these pairs, too. From the second round on, the opposite model has
    pairs of the last one, and both models continue theirs. The same call resumes.

    Args:
      config: of a translation in one direction.
      workdir: WORKDIR/round1/de-en and so on are runs of finetune.py.
      texts: files by language: of the target, and from two rounds on of the source.
      limits: least score of a pair, and largest ratio of the lengths of its sides.
      decoding: keys of the search that translates the texts, other than the config's.
    """
    directions = tuple(config.task.train_languages)
    if len(directions) != 1:
        raise ValueError(
            f"back-translation is for one direction, and the config has {', '.join(directions)}; "
            "name one, such as translation.py:en-de,DATA"
        )
    source, target = translation.direction(directions[0])
    if missing := [one for one in (target, source)[: min(rounds, 2)] if one not in texts]:
        raise ValueError(
            f"--text has no file in {missing[0]!r}, which {rounds} rounds translate; add "
            f"--text={missing[0]}=FILE"
        )
    identity = {"texts": {k: str(v) for k, v in texts.items()}, "limits": list(limits),
                "decoding": dict(decoding), "config": config.to_dict()}  # fmt: skip
    artifacts.open_stage(workdir, artifacts.with_nulls(identity)).claim()
    forward, backward = f"{source}-{target}", f"{target}-{source}"
    made: dict[str, pathlib.Path] = {}  # the newest synthetic pairs and runs, by direction
    results, runs = [], dict[str, pathlib.Path]()
    for number in range(1, rounds + 1):
        folder = workdir / f"round{number}"
        for direction, other in ((backward, forward), (forward, backward)):
            learning = _config(config, direction, made.get(direction), runs.get(direction))
            logging.info("round %d of %d: %s", number, rounds, direction)
            experiment = Experiment(learning, folder / direction)
            results.append(experiment.evaluate())
            runs[direction] = folder / direction
            spoken = texts.get(translation.direction(direction)[0])
            if spoken is None or (direction == forward and number == rounds):
                continue
            made[other] = folder / f"{other}.tsv"
            if not made[other].exists():
                with outputs.file(str(made[other]), [spoken], overwrite=False) as aside:
                    translator = TranslationRun(runs[direction], dict(decoding))
                    translator.write(spoken, aside, direction, limits=limits)
    return results[1::2]


def _config(
    config: ConfigDict, direction: str, pairs: pathlib.Path | None, run: pathlib.Path | None
) -> ConfigDict:
    """Return the config of a direction, with synthetic pairs, that continues a run."""
    config = config.copy_and_resolve_references()
    config.task.train_languages = (direction,)
    if pairs is not None:
        config.task.train = (*config.task.train, str(pairs.absolute()))
    if run is not None:
        config.update(init_from=str(run), random_init=False)
    return config
