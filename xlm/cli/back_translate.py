"""Train a translation on text of one language, too, by rounds of back-translation.

    xlm back-translate --config=configs/finetune/translation.py:en-de,DATA --workdir=DIR \\
        --config.init_from=CHECKPOINT --text=de=news.de

A round trains the opposite direction, translates --text with it, and trains the config's direction
on these pairs as well (docs/translation.md). --rounds=2 needs text in both languages, and continues
both models. DIR/round1/en-de and so on are runs of finetune.py. --decoding.samples=1 and other keys
of `decoding` are those of translating the text. Rerun the command to resume.
"""

import dataclasses
import math

from absl import flags
from ml_collections import ConfigDict, config_flags

from xlm.cli import endings
from xlm.common import places
from xlm.evaluation import task_results
from xlm.evaluation.settings import DecodingSettings
from xlm.experiment import back_translation, schema, task_schema
from xlm.experiment.model import set_up_compilation
from xlm.experiment.task_settings import task_settings
from xlm.training.signals import exit_if_stopped

_CONFIG = config_flags.DEFINE_config_file("config", None, "configs/finetune/translation.py:en-de,D")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where the runs go.")
_TEXT = flags.DEFINE_multi_string("text", [], "Text of a language, a sentence a line: de=FILE.")
_ROUNDS = flags.DEFINE_integer("rounds", 1, "Number of rounds.", lower_bound=1)
_MIN_SCORE = flags.DEFINE_float("min_score", -math.inf, "Least score of a translated line.")
_MAX_RATIO = flags.DEFINE_float("max_ratio", 3.0, "Most characters of a side per one of the other.")
_DECODING = config_flags.DEFINE_config_dict(
    "decoding", ConfigDict(dataclasses.asdict(DecodingSettings())), "Keys of the search."
)

OPTIONS = {
    "required": ("config", "workdir"),
    "on_out_of_memory": endings.advice,
    "help_on": lambda section: schema.help_of(section, task_schema.TRANSLATION),
}


def main(_) -> None:
    config = task_schema.checked(_CONFIG.value)
    if not task_settings(config).task.is_translation:
        raise ValueError("--config is of no translation; give configs/finetune/translation.py")
    set_up_compilation(config)
    texts = dict(one.partition("=")[::2] for one in _TEXT.value)
    decoding = config_flags.get_override_values(flags.FLAGS["decoding"])
    with exit_if_stopped(), places.locked(_WORKDIR.value) as workdir:
        results = back_translation.run(
            config, workdir, {code: places.fetched(path) for code, path in texts.items()},
            _ROUNDS.value, (_MIN_SCORE.value, _MAX_RATIO.value), decoding,
        )  # fmt: skip
    for number, path in enumerate(results, 1):
        print(f"round {number}: {path}")
        print(task_results.table(task_settings(config).task, task_results.read_results(path)))
