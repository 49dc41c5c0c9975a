"""Translate a file with a run of xlm finetune, finished or not, or score given translations.

    xlm translate RUN --input=FILE --output=FILE [--language=en-de] [--decoding.beams=5]
    xlm translate RUN --input=FILE --output=FILE --references=FILE
    xlm translate RUN --input=FILE --output=FILE.tsv --back_translate

RUN is the --workdir of a run. An unfinished one translates with its best parameters or newest
checkpoint. Keys of `decoding` (docs/keys.md) that you leave out keep the run's values. --references
writes log probabilities as JSON. --back_translate writes training pairs of the opposite direction,
whose translated side begins with <bt>. Rerun the command to resume. docs/translate.md has more.
"""

import contextlib
import dataclasses
import math
import os
import pathlib

from absl import flags, logging
from ml_collections import ConfigDict, config_flags

from xlm.common import artifacts, outputs, places
from xlm.evaluation.settings import DecodingSettings
from xlm.experiment.translation_prediction import TranslationRun
from xlm.training import compilation, hosts

_INPUT = flags.DEFINE_string("input", None, "The file to translate.")
_OUTPUT = outputs.define_flags("The file to write.")
_LANGUAGE = flags.DEFINE_string("language", "", "A direction, en-de, if the run has several.")
_N_BEST = flags.DEFINE_integer("n_best", 0, "Hypotheses of a line, as JSON.", lower_bound=0)
_PREFIXES = flags.DEFINE_string("prefixes", None, "File of beginnings of the translations.")
_REFERENCES = flags.DEFINE_string("references", None, "File of translations to score.")
_BACK = flags.DEFINE_bool("back_translate", False, "Write pairs for the opposite direction.")
_MIN_SCORE = flags.DEFINE_float("min_score", -math.inf, "Least score of such a pair.")
_MAX_RATIO = flags.DEFINE_float("max_ratio", 3.0, "Most characters of a side per one of the other.")
_DECODING = config_flags.DEFINE_config_dict(
    "decoding", ConfigDict(dataclasses.asdict(DecodingSettings())), "Keys of the search."
)
_join_hosts = hosts.define_flags()

OPTIONS = {"required": ("input", "output")}


def main(argv: list[str]) -> None:
    compilation.use_cache()
    _join_hosts()
    if len(argv) != 2:
        raise ValueError(f"{len(argv) - 1} runs are named, must be one: xlm translate RUN")
    if sum(map(bool, (_PREFIXES.value, _REFERENCES.value, _BACK.value))) > 1:
        raise ValueError("give one of --prefixes, --references and --back_translate")
    limits = (_MIN_SCORE.value, _MAX_RATIO.value) if _BACK.value else ()
    workdir, targets = places.fetched(argv[1]), _PREFIXES.value or _REFERENCES.value
    inputs = [places.fetched(one) for one in filter(None, (_INPUT.value, targets))]
    with contextlib.ExitStack() as stack:
        stack.enter_context(artifacts.locked(workdir, is_shared=True))
        aside = pathlib.Path(os.devnull)
        if hosts.is_first():  # the others compute their shares of every batch
            aside = stack.enter_context(outputs.file(_OUTPUT.value, [*inputs, workdir]))
        run = TranslationRun(workdir, config_flags.get_override_values(flags.FLAGS["decoding"]))
        count = run.write(
            inputs[0], aside, _LANGUAGE.value, *inputs[1:], num_best=_N_BEST.value,
            scores=_REFERENCES.value is not None, limits=limits,
        )  # fmt: skip
    logging.info("%d lines: %s", count, _OUTPUT.value)
