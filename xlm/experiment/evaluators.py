"""Builders of the evaluators during training; `evaluation` has those after it."""

from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from input_pipeline.packed_dataset import PackedDataset
from xlm.common import places
from xlm.evaluation.masked_lm import ExactMaskedLM
from xlm.evaluation.replaced_token import ReplacedTokenDetection
from xlm.evaluation.sampled_loss import SampledLoss
from xlm.evaluation.settings import sentence_layer
from xlm.experiment.data import Folders, evaluation_settings, open_packed_dataset
from xlm.experiment.masked_lm import encoder_of, has_masked_lm, masked_lm_of
from xlm.objectives.masked_lm import MaskedLM
from xlm.objectives.objective import Objective
from xlm.objectives.replaced_token import ReplacedToken
from xlm.training.progress import Evaluator


def training_evaluators(
    config: ConfigDict, objective: Objective, dataset: PackedDataset, mesh: Mesh
) -> list[Evaluator]:
    """Build the evaluators during training; none for objectives without masked LM.

    They are the exact and the sampled loss, and the discriminator's scores for replaced-token
    detection. Retrieval runs after training, and its settings are checked here. Raises ValueError
    as `detection` and `check_retrieval`.
    """
    if not has_masked_lm(objective):
        return []
    check_retrieval(config, encoder_of(objective), dataset)
    masked_lm = masked_lm_of(objective)
    evaluators: list[Evaluator] = [
        exact_masked_lm(config, masked_lm, dataset, mesh, in_training=True),
        sampled_loss(config, masked_lm, dataset, mesh),
    ]
    if found := detection(config, objective, dataset, mesh, in_training=True):
        evaluators.append(found)
    return evaluators


def detection(
    config: ConfigDict,
    objective: Objective,
    dataset: PackedDataset,
    mesh: Mesh,
    *,
    in_training: bool,
) -> ReplacedTokenDetection | None:
    """Build the evaluation of the discriminator, on fewer sequences if it runs `in_training`.

    Returns None for an objective without a discriminator. Raises ValueError if
    `evaluation.frozen_generator` is not the working directory of a run of replaced-token detection
    on the same vocabulary.
    """
    options, found = evaluation_settings(config), encoder_of(objective)
    if not isinstance(found, ReplacedToken):
        return None
    return ReplacedTokenDetection(
        found, dataset, rate=found.generator.mask.rate, batch_size=options.batch_size,
        max_sequences=options.max_sequences_in_training if in_training else options.max_sequences,
        seed=options.seed,
        frozen=_frozen_generator(options.frozen_generator, config.objective, dataset), mesh=mesh,
    )  # fmt: skip


def _frozen_generator(
    path: str, objective: str, dataset: PackedDataset
) -> tuple[ReplacedToken, Any] | None:
    """Read the generator of another run and its parameters; None without a path."""
    if not path:
        return None
    folders = Folders(places.fetched(path))
    if not (folders.train / "settings.json").exists():
        raise ValueError(
            f"evaluation.frozen_generator is {path!r}, which is no --workdir of train.py; name a "
            "run of replaced-token detection, or leave the key empty"
        )
    from xlm.experiment.pretrained import read_run

    trained = read_run(folders, objective)
    found = encoder_of(trained.objective)
    if not isinstance(found, ReplacedToken):
        raise ValueError(
            f"evaluation.frozen_generator is {path!r}, a run without a generator: its objective is "
            f"{type(found).__name__}; name one of replaced-token detection"
        )
    if open_packed_dataset(folders).tokenizer != dataset.tokenizer:
        raise ValueError(
            f"evaluation.frozen_generator is {path!r}, whose vocabulary differs from this run's "
            f"({dataset.folder}); name a run on the same vocabulary"
        )
    return found, jax.device_get(trained.params)


def exact_masked_lm(
    config: ConfigDict,
    masked_lm: MaskedLM,
    dataset: PackedDataset,
    mesh: Mesh,
    *,
    in_training: bool,
) -> ExactMaskedLM:
    """Build the exact evaluation, on fewer sequences if it runs `in_training`."""
    options = evaluation_settings(config)
    return ExactMaskedLM(
        masked_lm, dataset, num_folds=options.num_folds, batch_size=options.batch_size,
        max_sequences=options.max_sequences_in_training if in_training else options.max_sequences,
        seed=options.seed, mesh=mesh,
    )  # fmt: skip


def sampled_loss(
    config: ConfigDict, masked_lm: MaskedLM, dataset: PackedDataset, mesh: Mesh
) -> SampledLoss:
    """Build the comparison of sampled and exact loss on held-out batches as in training."""
    options = evaluation_settings(config)
    return SampledLoss(
        masked_lm,
        dataset,
        # As many sequences as training plans together: more could exceed the capacity.
        batch_size=config.train.batch_size // config.train.accumulation_steps,
        max_sequences=options.max_sequences_in_training,
        seed=options.seed,
        mesh=mesh,
    )


def check_retrieval(
    config: ConfigDict, encoder: MaskedLM | ReplacedToken, dataset: PackedDataset
) -> None:
    """Raise ValueError if parallel sets need a layer or positions that the encoder lacks."""
    num_layers = encoder.encoder.settings.num_layers
    layer = sentence_layer(evaluation_settings(config).retrieval_layer, num_layers)
    if dataset.parallel and layer > num_layers:
        raise ValueError(
            f"evaluation.retrieval_layer is {layer}, but the encoder has {num_layers} layers "
            "(model.num_layers); choose one of them, best in the middle, or 0 for the embeddings"
        )
    max_length = encoder.encoder.settings.max_length
    for name, (language, *_) in dataset.parallel.items():
        length = dataset.parallel_rows(name, language).shape[1]
        if length > max_length:
            raise ValueError(
                f"model.max_length is {max_length}, but parallel sentences have {length} tokens in "
                f"{dataset.folder} (store.parallel_length of prepare_data.py); raise "
                "model.max_length, or prepare the rows with a smaller store.parallel_length"
            )
