"""Builders of fine-tuning: model, compiled functions, data, selection and prediction."""

import copy
import dataclasses
import functools
import itertools
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import msgspec
import numpy as np
from absl import logging
from jax.sharding import AbstractMesh, Mesh
from ml_collections import ConfigDict

from input_pipeline.dataset import StreamedData
from input_pipeline.packed_dataset import tokenizer_hash
from input_pipeline.tasks.batches import FeatureStream
from input_pipeline.tasks.examples import SentencePairs
from input_pipeline.tasks.features import sentence_features
from xlm.common import console
from xlm.common.schema import settings
from xlm.evaluation.search import SentenceEncoder
from xlm.evaluation.settings import sentence_layer
from xlm.evaluation.task_results import write_lines
from xlm.evaluation.tasks import Line, Predictor, TaskData
from xlm.experiment import task_data
from xlm.experiment.model import check_batch
from xlm.experiment.pretrained import Pretrained
from xlm.experiment.run_folder import ShouldStop, best_of
from xlm.experiment.task_kinds import KINDS, SEARCHES
from xlm.experiment.task_settings import TaskSettings, Tokenizer, task_settings
from xlm.interop.params_file import Encoder as Encoding
from xlm.interop.params_file import read_params, write_params
from xlm.models.encoder import Encoder, EncoderSettings, init_params
from xlm.objectives.contrastive import SentenceEmbedding, distillation_loss
from xlm.objectives.fine_tuning import CrossPairFineTuning, FineTuning, TaskLoss
from xlm.objectives.settings import LoraSettings
from xlm.training import hosts
from xlm.training.accumulation import Accumulation
from xlm.training.optimizer import wsd_decay_steps
from xlm.training.settings import MeshSettings, OptimizerSettings, TrainSettings
from xlm.training.sharding import host_parts, make_mesh
from xlm.training.signals import Stopped
from xlm.training.step import TrainFunctions, make_train_functions

MESH = MeshSettings(
    data=-1, fsdp=1, model=1, vocab_multiple=1, rules=(), shard_optimizer_over_data=False
)
# Parts of the encoder that `optimizer.frozen` can name.
_GROUPS = ("embeddings", "layers")
# Width of XLM-R Base, and its learning rate.
_WIDE, _RATE = 768, 2e-5


def with_head(
    config: ConfigDict, encoder: EncoderSettings, class_weights: tuple[float, ...] = ()
) -> FineTuning:
    """An encoder of these settings with the head of the task, and its loss.

    Raises ValueError if the task uses cross-attention that the encoder lacks, or keys do not fit.
    """
    options = task_settings(config)
    kind = KINDS[options.task.kind]
    if options.cross_attention and not encoder.cross_attention:
        raise ValueError(
            f"task.cross_attention is True, but the encoder {config.init_from!r} (init_from) has "
            'no cross-attention; start from a run of objective "veco", or its export with '
            "--part=encoder_decoder, or set task.cross_attention to False"
        )
    made: Callable[..., FineTuning] = FineTuning
    if options.cross_attention:
        made = CrossPairFineTuning
    elif options.task.is_embedding:
        made = functools.partial(
            SentenceEmbedding, num_microbatches=config.train.accumulation_steps
        )
    if wrong := [one for one in options.dimensions if not 1 <= one <= encoder.hidden_size]:
        raise ValueError(
            f"task.dimensions has {wrong[0]}, must be from 1 to the {encoder.hidden_size} of the "
            "encoder's vectors; correct it"
        )
    loss: TaskLoss = kind.loss
    keys = kind.loss_keys
    if options.teacher:
        if not options.task.is_embedding:
            raise ValueError(
                f"task.teacher is {options.teacher!r}, but {options.name} trains no vectors; set "
                "it to ''"
            )
        loss, keys = distillation_loss, ("dimensions",)
    if given := {name: getattr(options, name) for name in keys}:
        loss = functools.partial(loss, **given)
    if options.label_smoothing and "label_smoothing" not in kind.loss_keys:
        raise ValueError(
            f"task.label_smoothing is {options.label_smoothing}, but {options.name} has no "
            "classes; set it to 0"
        )
    if class_weights:  # of a kind with classes
        loss = functools.partial(loss, class_weights=class_weights)  # type: ignore[call-arg]
    by_rows = config.optimizer.embedding_update == "rows"
    return made(Encoder(encoder), kind.head(options, encoder), loss, by_rows)


def with_factors(config: ConfigDict, fine_tuning: FineTuning) -> FineTuning:
    """Add low-rank factors to the model if `optimizer.lora_rank` is above 0.

    Raises ValueError with `optimizer.frozen`, since factors freeze the whole encoder.
    """
    lora = settings(LoraSettings, config.optimizer)
    if not lora.lora_rank:
        return fine_tuning
    if config.optimizer.frozen:
        raise ValueError(
            f"optimizer.frozen is {tuple(config.optimizer.frozen)}, but with optimizer.lora_rank "
            "the whole encoder is frozen; set either back"
        )
    return dataclasses.replace(fine_tuning, lora=lora)


def encoder_settings(config: ConfigDict, pretrained: EncoderSettings) -> EncoderSettings:
    """Settings of a pre-trained encoder, with the values of the `model` section.

    Raises ValueError if rows are longer than the encoder's positions.
    """
    length = task_settings(config).max_length
    if length > pretrained.max_length:
        raise ValueError(
            f"task.max_length is {length}, but the encoder has {pretrained.max_length} positions; "
            "lower it (for questions also task.stride and task.max_query_length)"
        )
    return dataclasses.replace(pretrained, **config.model.to_dict())


def by_width(config: ConfigDict, encoder: EncoderSettings) -> ConfigDict:
    """Fill in the learning rate and the pooling that depend on the encoder's width D.

    At D >= 768 these are XLM-R's 2e-5 and the state of `<s>`. A narrower encoder gets
    2e-5 (768 / D)^2, at most 1e-3, and the mean state (docs/own_task.md).
    """
    config, width = copy.deepcopy(config), encoder.hidden_size
    if not config.optimizer.learning_rate:
        rate = float(f"{min(_RATE * max(_WIDE / width, 1) ** 2, 1e-3):.2g}")
        config.optimizer.learning_rate = rate
        logging.info("learning rate %g, for an encoder of width %d", rate, width)
    if config.task.text_pooling == "by_width":
        is_mean = width < _WIDE and not config.task.cross_attention
        config.task.text_pooling = "mean" if is_mean else "first"
    return config


def train_settings(config: ConfigDict, num_features: int) -> TrainSettings:
    """Steps and intervals of a run over `num_features` rows.

    Raises ValueError if a batch does not divide evenly over the devices.
    """
    train = config.train
    check_batch(train.batch_size, mesh())
    steps_per_epoch = math.ceil(num_features / train.batch_size)
    num_steps = max(round(train.epochs * steps_per_epoch), 1)
    interval = max(num_steps // train.evaluations, 1)
    return settings(
        TrainSettings, train, num_steps=num_steps, evaluate_every=interval,
        checkpoint_every=interval,
    )  # fmt: skip


def mesh() -> Mesh:
    """A mesh of all devices, which divide the batch among them."""
    return make_mesh(MESH)


def warmup_steps(optimizer: ConfigDict, num_steps: int) -> int:
    """Steps of warm-up by `optimizer.warmup_share`, at most those that a decay leaves.

    Raises ValueError if warm-up and decay are longer than the run.
    """
    share, decay_steps = optimizer.warmup_share, 1
    if optimizer.schedule == "wsd":
        if share + optimizer.decay_fraction > 1:
            raise ValueError(
                f"optimizer.warmup_share is {share} and optimizer.decay_fraction "
                f"{optimizer.decay_fraction}, together more than 1; lower one of them"
            )
        decay_steps = wsd_decay_steps(optimizer, num_steps)
    return min(round(share * num_steps), num_steps - decay_steps)


def train_functions(
    config: ConfigDict, fine_tuning: FineTuning, mesh: Mesh | AbstractMesh, num_steps: int
) -> TrainFunctions:
    """The compiled functions of the run.

    Raises ValueError if `optimizer.frozen` names anything but parts of the encoder.
    """
    if unknown := sorted(set(config.optimizer.frozen) - set(_GROUPS)):
        raise ValueError(
            f"optimizer.frozen names {unknown}, must be of {_GROUPS}; the head is never frozen"
        )
    optimizer = settings(
        OptimizerSettings, config.optimizer,
        warmup_steps=warmup_steps(config.optimizer, num_steps),
        frozen=("encoder",) if fine_tuning.lora else tuple(config.optimizer.frozen),
    )  # fmt: skip
    # The objective of a contrast accumulates by itself, since it compares all examples.
    is_whole = isinstance(fine_tuning, SentenceEmbedding)
    accumulation = Accumulation(1 if is_whole else config.train.accumulation_steps, warmup_steps=0)
    return make_train_functions(
        fine_tuning, optimizer, MESH, mesh, num_steps=num_steps, accumulation=accumulation
    )


def initial_params(
    fine_tuning: FineTuning, pretrained: Pretrained, seed: int, *, random: bool
) -> Callable[[], Any] | None:
    """Initialiser with the encoder's parameters and a random head; None for all random."""
    if random:
        return None

    def make() -> Any:
        encoder = {name: value for name, value in pretrained.params.items() if name != "head"}
        return fine_tuning.joined(encoder, fine_tuning.init_head(jax.random.key(seed)))

    return make


def training_data(
    config: ConfigDict, data: Sequence[TaskData], pad: int, mesh: Mesh
) -> StreamedData:
    """This host's part of the training batches."""
    options = task_settings(config)
    features = [feature for one in data for feature in one.features]
    stream = FeatureStream(
        features, config.train.batch_size, options.lengths, config.train.seed, pad
    )
    return StreamedData(stream, "threads", *host_parts(mesh))


def predictor(
    config: ConfigDict, fine_tuning: FineTuning, pad: int, mesh: Mesh | None
) -> Predictor:
    """Predictor of scores for features."""
    return Predictor(
        fine_tuning.outputs, batch_size=config.evaluation.batch_size,
        buckets=task_settings(config).lengths, pad=pad, mesh=mesh,
    )  # fmt: skip


def keeper(
    folder: pathlib.Path,
    notes: dict[str, Any],
    merged: Callable[[Any], Any] = lambda params: params,
) -> Callable[[str, Any, int, float | None], None]:
    """Return a `Selection.keep` that writes the `merged` parameters of a choice to a folder."""

    def keep(choice: str, params: Any, step: int, value: float | None) -> None:
        if hosts.is_first():
            found = {**notes, "step": step, "value": value}
            # The other hosts are elsewhere, so this one merges its own copy.
            whole = jax.device_get(merged(jax.device_get(params)))
            write_params(best_of(folder, choice), whole, found)

    return keep


def kept(folder: pathlib.Path, choices: Sequence[str]) -> dict[str, float]:
    """Scores of the parameters that a stopped run has kept, by choice."""
    paths = {choice: best_of(folder, choice) for choice in choices}
    values = {one: read_params(path)[1].value for one, path in paths.items() if path.exists()}
    return {choice: value for choice, value in values.items() if value is not None}


def run_metadata(config: ConfigDict) -> dict[str, Any]:
    """Metadata at the beginning of a run's results."""
    options, train = task_settings(config), config.train
    name = config.model_name or pathlib.Path(config.init_from).name
    varied: dict[str, Any] = {"learning_rate": config.optimizer.learning_rate}
    if options.task.is_search:
        varied = {one: getattr(options, one) for one in SEARCHES[options.task.kind].options}
    elif options.task.is_translation:
        chosen = config.translation
        varied |= {
            "batch_tokens": train.batch_tokens,
            "num_steps": train.num_steps,
            "decoder": f"{'random' if config.random_init else chosen.decoder_from} "
            f"{chosen.decoder_layers}",
            "averaged_checkpoints": train.averaged_checkpoints,
        }
    else:
        varied |= {"batch_size": train.batch_size, "epochs": train.epochs}
        if config.optimizer.frozen:
            varied["frozen"] = ", ".join(config.optimizer.frozen)
        if rank := config.optimizer.lora_rank:
            targets = ", ".join(config.optimizer.lora_targets)
            varied["lora"] = f"rank {rank}, alpha {config.optimizer.lora_alpha:g}: {targets}"
        if config.optimizer.layer_decay != 1:
            varied["layer_decay"] = config.optimizer.layer_decay
        if options.label_smoothing:
            varied["label_smoothing"] = options.label_smoothing
        if options.reads_mean:
            varied["text_pooling"] = options.text_pooling
    return {
        "task": options.name,
        **({"dataset": options.title} if options.task.is_own else {}),
        "model": f"{name}, random" if config.random_init else name,
        "setting": _setting(options),
        "seed": train.seed,
        "hyperparameters": varied,
    }


def _setting(options: TaskSettings) -> str:
    """Name the setting by the training languages, as `xlm.evaluation.xtreme_runs.SETTINGS`.

    Translate-train-all trains on translations of English into all languages of the test. Datasets
    that have such translations have no other training data in these languages.
    """
    if options.task.is_search:
        return "zero_shot"
    if options.task.is_translation:
        return "supervised"
    trained = task_data.languages(options, "train")
    if trained == ("en",):
        return "zero_shot"
    if len(trained) == 1:
        return f"transfer_from:{trained[0]}"
    tested = set(options.test_languages or options.task.languages)
    if "translate_train" in (options.task.tfds or {}) and tested <= set(trained):
        return "translate_train_all"
    return f"trained_on:{'+'.join(sorted(trained))}"


def model_notes(fine_tuning: FineTuning, pretrained: Pretrained) -> dict[str, Any]:
    """Notes beside the parameters: the encoder's settings and the tokenizer's hash."""
    return {
        "encoder": dataclasses.asdict(fine_tuning.encoder.settings),
        "tokenizer": tokenizer_hash(pretrained.tokenizer),
    }


def encoder_of_notes(found: Encoding) -> EncoderSettings:
    """Return the settings of an encoder of notes."""
    return EncoderSettings(**msgspec.structs.asdict(found))


def sentence_encoder(
    config: ConfigDict, pretrained: Pretrained, tokenizer: Tokenizer
) -> SentenceEncoder:
    """Encoder of sentences as vectors.

    Raises ValueError if the encoder has no such layer, or sentences are longer than its positions.
    """
    options, settings = task_settings(config), encoder_settings(config, pretrained.settings)
    layer = sentence_layer(options.layer, settings.num_layers)
    if layer > settings.num_layers:
        raise ValueError(
            f"task.layer is {layer}, but the encoder has {settings.num_layers} layers; "
            "choose one of them, best in the middle, or 0 for the embeddings"
        )
    encoder, params = Encoder(settings), pretrained.params
    if config.random_init:
        initial = init_params(encoder, jax.random.key(config.train.seed))
        params = jax.device_get(nn.unbox(initial))
    special = tokenizer.special
    return SentenceEncoder(
        encoder, params, layer=layer, batch_size=config.evaluation.batch_size,
        buckets=options.lengths, pad=special.pad, specials=special.special_ids(), mesh=mesh(),
    )  # fmt: skip


def sentence_vectors(
    options: TaskSettings, tokenizer: Tokenizer, encoder: SentenceEncoder, pairs: SentencePairs
) -> tuple[np.ndarray, np.ndarray]:
    """[N, D] and [M, D] vectors of the two sides of a search."""
    source, target = (
        encoder(
            sentence_features(
                side.texts, tokenizer.processor, tokenizer.special, options.max_length
            )
        )
        for side in (pairs.source, pairs.target)
    )
    return source, target


def evaluated(
    data: Mapping[str, Sequence[TaskData]],
    folder: pathlib.Path,
    score: Callable[[TaskData], tuple[dict[str, float], Sequence[Line]]],
    should_stop: ShouldStop,
    step: int,
) -> dict[str, Any]:
    """Score development and test data, and write the predictions of each language or direction.

    `score` maps data of one language to its scores and the lines of its predictions. The run has
    taken `step` steps. Returns part of the results: the scores of each split, and its numbers of
    examples. Raises Stopped if `should_stop` asked for it.
    """
    polls = itertools.count(step)
    results: dict[str, Any] = {"examples": {}}
    for split in ("validation", "test"):
        results[split] = {}
        for one in console.bar(data[split], split, len(data[split]), "sets"):
            # Several hosts agree on where to stop by a number that grows.
            if should_stop(next(polls)):
                raise Stopped(step)
            results[split][one.language], lines = score(one)
            if hosts.is_first():
                write_lines(folder / "predictions" / f"{split}.{one.language}.jsonl", lines)
        results["examples"][split] = {one.language: len(one.examples) for one in data[split]}
    return results
