"""Every section of a config of fine-tuning and of translation, and its keys; see `schema`."""

import dataclasses
from typing import Any

from ml_collections import ConfigDict

from input_pipeline.tasks.tasks import TASKS
from xlm.common import schema
from xlm.common.schema import section
from xlm.evaluation.settings import DecodingSettings, EvaluationSettings
from xlm.experiment import schema as of_pretraining
from xlm.experiment.schema import Family
from xlm.experiment.task_settings import TaskSettings, TranslationSettings
from xlm.models.settings import EncoderSettings
from xlm.objectives.settings import LoraSettings
from xlm.training.settings import OptimizerSettings, TrainSettings


class _FineTuning:
    """What a fine-tuning run is.

    Attributes:
      init_from: working directory of train.py, or a folder of xlm import or xlm export.
      objective: the objective of the run in `init_from`, if it is of another package.
      random_init: whether the encoder gets random parameters, for comparison.
      model_name: name of the encoder in tables; "" for the last folder of `init_from`.
    """

    init_from: str = schema.key("")
    objective: str = schema.key("")
    random_init: bool = schema.key(False)
    model_name: str = schema.key("")


class _WarmUp:
    """Warm-up of fine-tuning.

    Attributes:
      warmup_share: share of all steps in which the rate rises linearly.
    """

    warmup_share: float = schema.key(0.1, at_least=0, below=1)


class _Epochs:
    """Length of fine-tuning.

    Attributes:
      epochs: passes over the training examples.
      evaluations: evaluations on development data, at equal distances.
      patience: evaluations without a better score after which training ends; 0 for never.
    """

    epochs: float = schema.key(10.0, above=0)
    evaluations: int = schema.key(10, at_least=1)
    patience: int = schema.key(0, at_least=0)


class _Collapse:
    """Answer to a model that has collapsed.

    Attributes:
      collapse_status: exit status of finetune.py if the model predicts a single class, or its
        training loss has not left its start; 0 for a warning only.
    """

    collapse_status: int = schema.key(0, at_least=0, at_most=125, effect="records")


class _Batches:
    """Batches of translation.

    Attributes:
      batch_tokens: tokens of a batch, padding included, on both sides together.
      averaged_checkpoints: last checkpoints whose mean is the model; 0 for the best parameters.
      alpha: exponent of sampling: a text of n pairs has weight n^alpha; 1 draws each pair once an
        epoch.
    """

    batch_tokens: int = schema.key(65_536, at_least=1, at_most=1 << 30)
    averaged_checkpoints: int = schema.key(10, at_least=0)
    alpha: float = schema.key(1.0, at_least=0)


class _Translating:
    """Evaluation of translation.

    Attributes:
      batch_tokens: tokens of a batch, padding included.
      examples_in_training: development examples of each direction to translate during training.
      beams_in_training: beams of these searches.
    """

    batch_tokens: int = schema.key(4096, at_least=1, at_most=1 << 30)
    examples_in_training: int = schema.key(1000, at_least=0)
    beams_in_training: int = schema.key(1, at_least=1, at_most=1 << 10)


for _one in (_FineTuning, _WarmUp, _Epochs, _Collapse, _Batches, _Translating):
    dataclasses.dataclass(frozen=True)(_one)

_OF_MODEL = ("dropout_rate", "attention_dropout_rate", "dtype", "attention", "remat")
_FINE_TUNING_OPTIMIZER: dict[str, Any] = {"learning_rate": 2e-5, "beta2": 0.999, "epsilon": 1e-8,
                          "weight_decay": 0.0, "clip_norm": 1.0}  # fmt: skip
_MUON = ("kind", "muon_learning_rate", "muon_momentum")
_STAGED = ("warmup_steps", "stages", "restart_schedule")
_SINKS = ("report", "tensorboard", "wandb", "mlflow", "hang_minutes")
_RECORDS = ("log_every", "keep_checkpoints", *_SINKS, "deterministic")
FINE_TUNING: Family = {
    "": section(_FineTuning),
    "task": section(TaskSettings),
    "model": section(EncoderSettings, only=_OF_MODEL),
    "optimizer": section(
        OptimizerSettings, LoraSettings, _WarmUp, without=(*_MUON, *_STAGED),
        **_FINE_TUNING_OPTIMIZER,
    ),
    "train": section(
        TrainSettings, _Epochs,
        only=("batch_size", "accumulation_steps", "epochs", "seed", "evaluations", "patience",
              *_RECORDS),
        batch_size=32, log_every=10, keep_checkpoints=1,
    ),
    "evaluation": section(EvaluationSettings, _Collapse, only=("batch_size", "collapse_status")),
}  # fmt: skip
TRANSLATION: Family = {
    **FINE_TUNING,
    "optimizer": section(
        OptimizerSettings, _WarmUp, without=("embedding_update", "layer_decay", *_STAGED),
        **{**_FINE_TUNING_OPTIMIZER, "learning_rate": 1e-4, "beta2": 0.98, "clip_norm": 0.0,
           "warmup_share": 0.16},
    ),
    "translation": section(TranslationSettings),
    "architecture": section(
        EncoderSettings, without=(*_OF_MODEL, "cross_attention"), embedding_size=512,
        hidden_size=512, num_layers=6, num_heads=8, mlp_size=2048, norm_position="pre",
    ),
    "decoding": section(DecodingSettings, max_length=256, early_stop=True),
    "train": section(
        TrainSettings, _Batches,
        only=("num_steps", "batch_tokens", "accumulation_steps", "averaged_checkpoints", "seed",
              "alpha", "log_every", "evaluate_every", "checkpoint_every", *_SINKS,
              "deterministic"),
        num_steps=100_000, evaluate_every=5000, checkpoint_every=1000,
    ),
    "evaluation": section(_Translating),
}  # fmt: skip


def family_of(task: Any) -> Family:
    """The sections of a task of this name."""
    is_translation = isinstance(task, str) and task in TASKS and TASKS[task].is_translation
    return TRANSLATION if is_translation else FINE_TUNING


def checked(config: ConfigDict) -> ConfigDict:
    """Return a config that has all sections and keys of its kind of tasks; see `schema.checked`."""
    section = config.get("task") if isinstance(config, ConfigDict) else None
    name = section.get("name") if isinstance(section, ConfigDict) else None
    return of_pretraining.checked(config, family_of(name))
