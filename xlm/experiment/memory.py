"""Memory estimates from a config alone."""

import dataclasses
import math
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh
from ml_collections import ConfigDict

from input_pipeline.packed_dataset import PackedDataset, SpecialIds
from knn_sampling.exact_layers import BlockwiseSoftmax, FullSoftmax
from knn_sampling.output_layer import OutputLayer
from knn_sampling.sampled_layers import NCE, KNNSampling, NegativeSampling, TargetSampling
from xlm.common.schema import settings
from xlm.experiment import model, objectives
from xlm.experiment.masked_lm import encoder_of, masked_lm_of, packed_term
from xlm.experiment.streams import check_batches
from xlm.interop import vocabulary
from xlm.models.encoder import CROSS_ATTENTION, EncoderSettings
from xlm.models.layout import SEQUENCES
from xlm.objectives.cross_mlm import CrossMLM
from xlm.training.memory import ActivationSizes, state_bytes
from xlm.training.settings import MeshSettings
from xlm.training.sharding import make_abstract_mesh, num_batch_shards
from xlm.training.state import parameter_table

PARTS = ("parameters", "optimizer", "extra state", "gradients", "activations")


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Memory of one device.

    Attributes:
      mesh: number of devices along data, fsdp and model.
      bytes: bytes of each of `PARTS`.
      layout: table of the parameters' sharding.
      stage: what is trained, and in which steps.
    """

    mesh: str
    bytes: dict[str, int]
    layout: str
    stage: str


class _AbsentRows(PackedDataset):
    """Packed dataset without sequences, for code that needs the vocabulary only."""

    def token_counts(self, language: str) -> np.ndarray:
        return np.ones(self.vocab_size, np.int64)


def absent_rows(config: ConfigDict) -> PackedDataset:
    """Return the packed dataset of a config, without sequences."""
    given = config.vocab.tokenizer
    return _AbsentRows(
        folder=pathlib.Path(),
        vocab_size=_num_pieces(given) if given else config.vocab.target_size,
        length=config.store.length,
        tokenizer="",
        special=SpecialIds(bos=0, pad=1, eos=2, unk=3, mask=4),
        statistics={"xx": {"train": {"tokens": 1}}},
        parallel={},
    )


def _num_pieces(tokenizer: str) -> int:
    """Return the number of pieces of an existing tokenizer."""
    model = vocabulary.sentencepiece_model(pathlib.Path(tokenizer))
    return len(vocabulary.vocabulary(model).pieces)


def estimate(config: ConfigDict, num_devices: int, stage: int = -1) -> Estimate:
    """Estimate the memory of a device when the run of `config` has `num_devices`.

    Args:
      stage: index of the stage (`optimizer.stages`), by default of the last one.

    Raises:
      ValueError: the mesh, the batch or its parts do not fit the devices.
    """
    mesh_settings = settings(MeshSettings, config.mesh)
    mesh = make_abstract_mesh(mesh_settings, num_devices)
    model.check_batch(config.train.batch_size, mesh)
    store = absent_rows(config)
    check_batches(config, store, mesh)
    objective = objectives.objective(config, store, mesh)
    of_stages = [model.train_functions(config, objective, mesh)]
    while of_stages[-1].following is not None:
        of_stages.append(of_stages[-1].following)
    state, in_stage = of_stages[stage].abstract_state, of_stages[stage].stage
    trained = in_stage.trained_part(state.params)

    parts, masked_lm = config.train.accumulation_steps, masked_lm_of(objective)
    rows = config.train.batch_size // (num_batch_shards(mesh) * parts)
    masks = (masked_lm.mask, masked_lm.mask.of_pairs()) if config.data.pair_share else ()
    slots = max(mask.slots(store.length) for mask in (masked_lm.mask, *masks))
    sequences = config.output_layer.group_size or config.train.batch_size // parts
    classes = _classes_at_once(masked_lm.output_layer, sequences * slots)
    logits = rows * slots * classes // _shards(mesh_settings.table_axes()[0], mesh)
    shards = {
        "head_shards": _shards(mesh_settings.axes_of("heads"), mesh),
        "mlp_shards": _shards(mesh_settings.axes_of("mlp"), mesh),
    }
    sizes = activation_sizes(masked_lm.encoder.settings, rows, store.length, logits, **shards)
    activations, found = sizes.bytes(), encoder_of(objective)
    if found is not masked_lm:  # a discriminator beside it, of the same layers
        of_discriminator = activation_sizes(found.encoder.settings, rows, store.length, 0, **shards)
        activations += of_discriminator.bytes() - of_discriminator.work_bytes()
    if isinstance(packed_term(objective), CrossMLM) and not _is_cross_attention(trained):
        activations *= 3 if config.data.pair_share else 2  # a pass for each term
    of_state = state_bytes(state, in_stage)
    of_state["gradients"] *= 1 if parts == 1 else 2  # those of a part, and their sum
    return Estimate(
        mesh=" x ".join(str(mesh.shape[axis]) for axis in mesh.axis_names),
        bytes={**of_state, "activations": activations},
        layout=parameter_table(state.params),
        stage=str(in_stage),
    )


def advice(config: ConfigDict) -> str:
    """Words on the memory that a run needs on each device, and on the keys that reduce it."""
    number = jax.device_count()
    found = estimate(config, number).bytes
    parts = ", ".join(f"{part} {size / 1e9:.2f}" for part, size in found.items())
    return (
        f"xlm estimate-memory has {sum(found.values()) / 1e9:.2f} GB ({parts}) on each of "
        f"{number} devices; lower train.batch_size (for evaluate.py evaluation.batch_size), raise "
        "train.accumulation_steps, set model.remat to full, choose another output_layer, or split "
        "the parameters by mesh.fsdp and mesh.model"
    )


def _shards(axes: Iterable[str], mesh: AbstractMesh) -> int:
    """Parts that mesh axes split the activations of a sequence into, if not the batch already."""
    return math.prod(mesh.shape[axis] for axis in axes if axis not in SEQUENCES)


def _is_cross_attention(trained: Mapping[str, Any]) -> bool:
    """Whether all parameters that are trained are of cross-attention, which one pass reads."""
    return set(trained) == {"layers"} and set(trained["layers"]) <= set(CROSS_ATTENTION)


def activation_sizes(
    sizes: EncoderSettings,
    sequences: int,
    length: int,
    logits: int,
    head_shards: int = 1,
    mlp_shards: int = 1,
) -> ActivationSizes:
    """Sizes of an encoder's activations for a device's sequences."""
    return ActivationSizes(
        tokens=sequences * length,
        length=length,
        hidden_size=sizes.hidden_size,
        mlp_size=sizes.mlp_size,
        num_layers=sizes.num_layers,
        num_heads=sizes.num_heads,
        bytes_per_value=2 if sizes.dtype == "bfloat16" else 4,
        remat=sizes.remat,
        has_attention_weights=sizes.kernel == "xla",
        logits=logits,
        head_shards=head_shards,
        mlp_shards=mlp_shards,
    )


def _classes_at_once(layer: OutputLayer, num_targets: int) -> int:
    """Number of classes per masked position whose logits are stored at the same time."""
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
