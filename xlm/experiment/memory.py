"""Memory estimates from a config, for pre-training and for fine-tuning."""

import copy
import dataclasses
import math
import pathlib
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh
from ml_collections import ConfigDict

from input_pipeline.packed_dataset import PackedDataset, SpecialIds
from knn_sampling.exact_layers import BlockwiseSoftmax, FullSoftmax
from knn_sampling.output_layer import OutputLayer
from knn_sampling.sampled_layers import NCE, KNNSampling, NegativeSampling, TargetSampling
from xlm.common import places, tables
from xlm.common.schema import settings
from xlm.experiment import fine_tuning, model, objectives, output_layers
from xlm.experiment.masked_lm import encoder_of, masked_lm_of, packed_term
from xlm.experiment.pretrained import read_settings
from xlm.experiment.streams import check_batches
from xlm.experiment.task_kinds import KINDS
from xlm.experiment.task_settings import task_settings
from xlm.interop import vocabulary
from xlm.models.attention import LONGEST_AT_ONCE
from xlm.models.encoder import CROSS_ATTENTION, EncoderSettings
from xlm.models.layout import SEQUENCES
from xlm.objectives.cross_mlm import CrossMLM
from xlm.objectives.objective import Objective
from xlm.objectives.replaced_token import ReplacedToken
from xlm.training.memory import ActivationSizes, state_bytes
from xlm.training.settings import MeshSettings
from xlm.training.sharding import make_abstract_mesh, num_batch_shards
from xlm.training.state import parameter_table
from xlm.training.step import TrainFunctions

PARTS = ("parameters", "optimizer", "auxiliary state", "gradients", "activations")
# By name: layers, width, heads, width of the MLP, pieces, and whether LayerNorm comes first, as in
# config.json of the published models. All have 512 positions for text.
_ENCODERS = {
    "xlmr_base": (12, 768, 12, 3072, 250_002, False),
    "xlmr_large": (24, 1024, 16, 4096, 250_002, False),
    "xlmr_xl": (36, 2560, 32, 10_240, 250_880, True),
}
ENCODERS = tuple(_ENCODERS)


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Memory of one device, in bytes.

    Attributes:
      state: of each part that does not depend on the batch.
      examples: examples of a part of the batch on the device, ascending.
      accumulation_steps: parts of the batch, for each number of examples.
      lengths: tokens of a row, ascending.
      activations: [examples][lengths].
      mesh, layout, stage: of a pre-training: devices along data, fsdp and model, a table of the
        parameters' sharding, the trained parameters with their steps.
    """

    state: dict[str, int]
    examples: tuple[int, ...]
    accumulation_steps: tuple[int, ...]
    lengths: tuple[int, ...]
    activations: tuple[tuple[int, ...], ...]
    mesh: str = ""
    layout: str = ""
    stage: str = ""

    def bytes(self, row: int = -1, column: int = -1) -> dict[str, int]:
        """Bytes of each part, for a number of examples and a length."""
        found = dict(self.state)
        # The sum of earlier parts of the batch, beside the gradients of the present one.
        found["gradients"] *= 2 if self.accumulation_steps[row] > 1 else 1
        return {**found, "activations": self.activations[row][column]}


class _AbsentRows(PackedDataset):
    """Packed dataset without sequences, for code that needs the vocabulary only."""

    def token_counts(self, language: str) -> np.ndarray:
        return np.ones(self.vocab_size, np.int64)


def absent_rows(config: ConfigDict) -> PackedDataset:
    """Return the packed dataset of a config, without sequences."""
    size = config.vocab.target_size
    if given := config.vocab.tokenizer:
        found = vocabulary.sentencepiece_model(places.fetched(given))
        size = len(vocabulary.vocabulary(found).pieces)
    return _AbsentRows(
        folder=pathlib.Path(), vocab_size=size, length=config.store.length, tokenizer="",
        special=SpecialIds(bos=0, pad=1, eos=2, unk=3, mask=4),
        statistics={"xx": {"train": {"tokens": 1}}}, parallel={},
    )  # fmt: skip


def functions_of(
    config: ConfigDict, mesh: Mesh | AbstractMesh, stage: int = -1
) -> tuple[Objective, TrainFunctions]:
    """Build the objective and the functions of a stage (`optimizer.stages`), without any text.

    Raises ValueError if the mesh, the batch or its parts do not fit the devices.
    """
    model.check_batch(config.train.batch_size, mesh)
    dataset = absent_rows(config)
    # Without text, epochs and tokens give no steps. Their number changes no size.
    config = copy.deepcopy(config)
    config.train.update(num_steps=config.train.num_steps or 1_000_000, num_epochs=0.0, num_tokens=0)
    check_batches(config, dataset, mesh)
    objective = objectives.objective(config, dataset, mesh)
    of_stages = [model.train_functions(config, objective, mesh)]
    while of_stages[-1].following is not None:
        of_stages.append(of_stages[-1].following)
    return objective, of_stages[stage]


def estimate(config: ConfigDict, num_devices: int, stage: int = -1, backend: str = "") -> Estimate:
    """Estimate the memory of each of `num_devices` in a pre-training.

    `stage` is the index of one of `optimizer.stages`, by default the last. `backend` is that of the
    devices, such as "gpu", by default this process's. Raises ValueError if the mesh, the batch or
    its parts do not fit the devices.
    """
    mesh_settings = settings(MeshSettings, config.mesh)
    mesh = make_abstract_mesh(mesh_settings, num_devices)
    backend = backend or jax.default_backend()
    if config.output_layer.kind == "auto":
        kind, _ = output_layers.choice(config, absent_rows(config), num_devices, backend)
        config = output_layers.with_kind(config, kind)
    objective, functions = functions_of(config, mesh, stage)
    state, in_stage, length = functions.abstract_state, functions.stage, config.store.length
    trained = in_stage.trained_part(state.params)

    parts, masked_lm = config.train.accumulation_steps, masked_lm_of(objective)
    rows = config.train.batch_size // (num_batch_shards(mesh) * parts)
    masks = [masked_lm.mask, *([masked_lm.mask.of_pairs()] if config.data.pair_share else [])]
    slots = max(mask.slots(length) for mask in masks)
    sequences = config.output_layer.group_size or config.train.batch_size // parts
    classes = _classes_at_once(masked_lm.output_layer, sequences * slots)
    shards = _shards(mesh_settings.table_axes()[0], mesh)
    logits = rows * slots * classes // shards
    table_bytes = 4 * math.prod(masked_lm.output_table(state.params)[0].shape) // shards
    on_device: dict[str, Any] = {
        "head_shards": _shards(mesh_settings.axes_of("heads"), mesh),
        "mlp_shards": _shards(mesh_settings.axes_of("mlp"), mesh),
        "backend": backend,
    }
    sizes = activation_sizes(masked_lm.encoder.settings, rows, length, logits, **on_device)
    # Each term of VECO has a pass, and of an exact layer its own gradient of the table. If only
    # cross-attention trains, one pass reads all of it.
    is_crossed, passes = isinstance(packed_term(objective), CrossMLM), 1
    is_cross = set(trained) == {"layers"} and set(trained["layers"]) <= set(CROSS_ATTENTION)
    if is_crossed and not is_cross:
        passes = 3 if config.data.pair_share else 2
    activations, found = sizes.bytes(passes, is_crossed=is_crossed), encoder_of(objective)
    if passes > 1 and isinstance(masked_lm.output_layer, FullSoftmax | BlockwiseSoftmax):
        activations += passes * table_bytes
    if isinstance(found, ReplacedToken):  # a discriminator beside the generator
        corrected = logits if found.settings.corrective_weight else 0
        own = activation_sizes(found.encoder.settings, rows, length, corrected, **on_device)
        activations += own.bytes() - min(own.work_bytes(), sizes.work_bytes())
    return Estimate(
        state_bytes(functions), examples=(rows,), accumulation_steps=(parts,),
        lengths=(length,), activations=((activations,),),
        mesh=" x ".join(str(mesh.shape[axis]) for axis in mesh.axis_names),
        layout=parameter_table(state.params), stage=str(in_stage),
    )  # fmt: skip


def estimate_fine_tuning(config: ConfigDict, num_devices: int, encoder: str = "") -> Estimate:
    """Estimate the memory of a device for a config of configs/finetune.

    `train.accumulation_steps` are 1, 2, 4, ... as far as the batch divides over them and the
    devices, each of which holds all parameters. Sizes are those of `init_from`, whose weights are
    not read, or of `encoder`, one of `ENCODERS`. Raises ValueError if the task trains no encoder
    with a head, there is no such encoder, its positions are too few, or the batch does not divide.
    """
    options = task_settings(config)
    if options.task.kind not in KINDS:
        raise ValueError(
            f"task.name is {options.name!r}, of kind {options.task.kind}; memory is estimated for "
            f"{', '.join(sorted(KINDS))}"
        )
    objective = fine_tuning.with_head(config, _encoder_settings(config, encoder))
    objective = fine_tuning.with_factors(config, objective)
    mesh = make_abstract_mesh(fine_tuning.MESH, num_devices)
    functions = fine_tuning.train_functions(config, objective, mesh, num_steps=1000)
    state = state_bytes(functions)
    del state["auxiliary state"]  # fine-tuning has none

    batch, shards = config.train.batch_size, num_batch_shards(mesh)
    model.check_batch(batch, mesh)
    powers = [2**power for power in reversed(range(batch.bit_length()))]
    parts = tuple(one for one in powers if batch // shards % one == 0)
    examples = tuple(batch // shards // one for one in parts)
    sizes, lengths = objective.encoder.settings, options.lengths
    texts = 2 + len(options.negative_columns) if options.task.is_embedding else 1  # of an example
    rows = [one * texts for one in examples]
    activations = tuple(
        tuple(activation_bytes(sizes, one, length) for length in lengths) for one in rows
    )
    return Estimate(state, examples, parts, lengths, activations)


def advice(config: ConfigDict) -> str:
    """Say how much memory a run needs on each device, and which keys reduce it."""
    number = jax.device_count()
    if "task" in config:
        found = estimate_fine_tuning(config, number)
        row = found.accumulation_steps.index(config.train.accumulation_steps)
        remedy = (
            "lower train.batch_size, raise train.accumulation_steps, or set model.remat to full or "
            "model.dtype to bfloat16"
        )
    else:
        found, row = estimate(config, number), 0
        remedy = (
            "lower train.batch_size (for evaluate.py evaluation.batch_size), raise "
            "train.accumulation_steps, set model.remat to full, choose another output_layer, or "
            "split the parameters by mesh.fsdp and mesh.model"
        )
    sizes = found.bytes(row)
    parts = ", ".join(f"{part} {size / 1e9:.2f}" for part, size in sizes.items())
    return (
        f"xlm estimate expects {sum(sizes.values()) / 1e9:.2f} GB ({parts}) on each of {number} "
        f"devices for rows of {found.lengths[-1]} tokens; {remedy}"
    )


def table(found: Estimate) -> str:
    """Format an estimate as two Markdown tables, in GB of 10^9 bytes."""
    rows = []
    for row, parts in enumerate(found.accumulation_steps):
        totals = {
            f"{length} tokens": f"{sum(found.bytes(row, column).values()) / 1e9:.2f}"
            for column, length in enumerate(found.lengths)
        }
        first = {"train.accumulation_steps": parts, "examples at once": found.examples[row]}
        rows.append({**first, **totals})
    state = {part: f"{size / 1e9:.2f}" for part, size in found.state.items()}
    return f"{tables.markdown([state])}\n\n{tables.markdown(rows)}"


def _shards(axes: Iterable[str], mesh: AbstractMesh) -> int:
    """Number of parts that mesh axes, without those of the batch, split a sequence into."""
    return math.prod(mesh.shape[axis] for axis in axes if axis not in SEQUENCES)


def activation_sizes(
    sizes: EncoderSettings,
    sequences: int,
    length: int,
    logits: int,
    head_shards: int = 1,
    mlp_shards: int = 1,
    backend: str = "",
) -> ActivationSizes:
    """Sizes of an encoder's activations for a device's sequences; `backend` as of `estimate`."""
    # Attention weights of a query in memory, in the average layer: local layers hold those in
    # reach, and long global ones recompute theirs by blocks.
    is_long = length > LONGEST_AT_ONCE and not sizes.has_bias
    of_kinds = (0 if is_long else length, min(length, 2 * sizes.local_window))
    layers = range(sizes.num_layers)
    keys = sum(of_kinds[sizes.is_local(i)] for i in layers) // max(sizes.num_layers, 1)
    gated = sizes.mlp_size // 2 if sizes.mlp != "gelu" else 0  # a third kernel
    return ActivationSizes(
        tokens=sequences * length, length=keys, hidden_size=sizes.hidden_size,
        mlp_size=sizes.mlp_size + gated, num_layers=sizes.num_layers, num_heads=sizes.num_heads,
        bytes_per_value=2 if sizes.dtype == "bfloat16" else 4, remat=sizes.remat,
        has_attention_weights=sizes.kernel_on(backend) == "xla",
        logits=logits, head_shards=head_shards, mlp_shards=mlp_shards,
        is_unrolled=sizes.layers_at_once_on(backend) >= sizes.num_layers > 1,
    )  # fmt: skip


def _classes_at_once(layer: OutputLayer, num_targets: int) -> int:
    """Number of classes per masked position with logits in memory at the same time."""
    if isinstance(layer, FullSoftmax):
        return layer.num_valid
    if isinstance(layer, BlockwiseSoftmax):  # a block on each of the devices that split the rows
        return min(layer.block_size * layer.sharding.num_row_shards, layer.num_valid)
    assert isinstance(layer, KNNSampling | TargetSampling | NCE | NegativeSampling)
    if not isinstance(layer, NCE | NegativeSampling) and not layer.sharding.splits_rows:
        return layer.block_size
    if isinstance(layer, KNNSampling):
        return layer.capacity
    return min(num_targets + layer.num_negatives, layer.num_valid)


def _encoder_settings(config: ConfigDict, encoder: str) -> EncoderSettings:
    if not encoder:
        keeps_decoder = task_settings(config).cross_attention
        found = read_settings(
            config.init_from, keeps_decoder=keeps_decoder, objective=config.objective
        )
        return fine_tuning.encoder_settings(config, found)
    layers, width, heads, mlp, pieces, is_pre = _ENCODERS[encoder]
    published = EncoderSettings(
        vocab_size=pieces, embedding_size=width, hidden_size=width, num_layers=layers,
        num_heads=heads, mlp_size=mlp, max_length=512, norm_position="pre" if is_pre else "post",
        embedding_norm=not is_pre,
    )  # fmt: skip
    return fine_tuning.encoder_settings(config, published)


def activation_bytes(settings: EncoderSettings, examples: int, length: int) -> int:
    """Return the bytes of the activations of examples of `length` tokens on a device."""
    found, crossed = activation_sizes(settings, examples, length, 0), settings.cross_attention
    # Crossed pairs are encoded once and decoded once.
    return found.bytes(2, is_crossed=True) if crossed else found.bytes()
