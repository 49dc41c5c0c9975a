"""Memory estimates of fine-tuning, from the sizes of an encoder alone."""

import dataclasses
from typing import Any

import jax
from ml_collections import ConfigDict

from xlm.experiment import fine_tuning as builders
from xlm.experiment.memory import activation_sizes
from xlm.experiment.pretrained import read_settings
from xlm.experiment.task_kinds import KINDS
from xlm.experiment.task_settings import task_settings
from xlm.models.encoder import EncoderSettings
from xlm.training.memory import state_bytes
from xlm.training.sharding import make_abstract_mesh, num_batch_shards

# By name: layers, width, heads, width of the MLP, pieces, and whether LayerNorm comes first, as in
# config.json of the published models. All have 512 positions for text.
_ENCODERS = {
    "xlmr_base": (12, 768, 12, 3072, 250_002, False),
    "xlmr_large": (24, 1024, 16, 4096, 250_002, False),
    "xlmr_xl": (36, 2560, 32, 10_240, 250_880, True),
}
ENCODERS = tuple(_ENCODERS)


@dataclasses.dataclass(frozen=True)
class FineTuningEstimate:
    """Memory of one device.

    Attributes:
      state: bytes of the parts that do not depend on the batch.
      examples: examples of a part of the batch on one device, ascending.
      accumulation_steps: parts of the batch with so many examples each.
      lengths: tokens that rows are padded to, ascending.
      activations: [examples][lengths] bytes.
    """

    state: dict[str, int]
    examples: tuple[int, ...]
    accumulation_steps: tuple[int, ...]
    lengths: tuple[int, ...]
    activations: tuple[tuple[int, ...], ...]

    def total(self, row: int, column: int) -> int:
        """Bytes for the `row`-th number of examples at the `column`-th length."""
        total = sum(self.state.values()) + self.activations[row][column]
        # The sum over the parts, beside the gradients of the part in work.
        return total + (self.state["gradients"] if self.accumulation_steps[row] > 1 else 0)


def estimate(config: ConfigDict, num_devices: int, encoder: str = "") -> FineTuningEstimate:
    """Estimate the memory of a device for a config of configs/finetune.

    `train.batch_size` is taken in 1, 2, 4, ... parts (`train.accumulation_steps`), as far as it
    divides over parts and devices. No weights are read.

    Args:
      config: of the run; of its `init_from` the sizes are read.
      num_devices: devices that share the batch; each holds all parameters.
      encoder: one of `ENCODERS` in place of `init_from`.

    Raises:
      ValueError: the task is of a kind that trains no encoder with a head, there is no such
        encoder, its positions are too few, or the batch does not divide over the devices.
    """
    options = task_settings(config)
    if options.task.kind not in KINDS:
        raise ValueError(
            f"task.name is {options.name!r}, of kind {options.task.kind}; memory is estimated for "
            f"{', '.join(sorted(KINDS))}"
        )
    objective = builders.with_head(config, _encoder_settings(config, encoder))
    mesh = make_abstract_mesh(builders.MESH, num_devices)
    functions = builders.train_functions(config, objective, mesh, num_steps=1000)
    state = state_bytes(functions.abstract_state, functions.stage)
    del state["extra state"]  # of which fine-tuning has none

    batch, shards = config.train.batch_size, num_batch_shards(mesh)
    if batch % shards:
        raise ValueError(
            f"train.batch_size is {batch}, must be a multiple of the {shards} devices that share it"
        )
    parts = [2**power for power in range(batch.bit_length()) if batch // shards % 2**power == 0]
    examples = [batch // shards // one for one in parts]
    activations = [
        tuple(
            activation_bytes(objective.encoder.settings, one, length) for length in options.lengths
        )
        for one in examples
    ]
    return FineTuningEstimate(
        state,
        tuple(reversed(examples)),
        tuple(reversed(parts)),
        options.lengths,
        tuple(reversed(activations)),
    )


def advice(config: ConfigDict) -> str:
    """Words on the memory that a run needs on each device, and on the keys that reduce it."""
    number = jax.device_count()
    found = estimate(config, number)
    row = found.accumulation_steps.index(config.train.accumulation_steps)
    return (
        f"xlm estimate-memory has {found.total(row, -1) / 1e9:.2f} GB on each of {number} "
        f"devices for rows of {found.lengths[-1]} tokens; lower train.batch_size, raise "
        "train.accumulation_steps, or set model.remat to full or model.dtype to bfloat16"
    )


def table(found: FineTuningEstimate) -> str:
    """Format an estimate as two Markdown tables, in GB of 10^9 bytes."""
    heads, cells = zip(*((part, f"{size / 1e9:.2f}") for part, size in found.state.items()),
                       strict=True)  # fmt: skip
    lines = [f"| {' | '.join(heads)} |", "|" + "---:|" * len(heads), f"| {' | '.join(cells)} |", ""]
    lengths = " | ".join(f"{length} tokens" for length in found.lengths)
    lines += [
        f"| train.accumulation_steps | examples at once | {lengths} |",
        "|" + "---:|" * (2 + len(found.lengths)),
    ]
    for row, (parts, examples) in enumerate(
        zip(found.accumulation_steps, found.examples, strict=True)
    ):
        totals = [f"{found.total(row, i) / 1e9:.2f}" for i in range(len(found.lengths))]
        lines.append(f"| {parts} | {examples} | {' | '.join(totals)} |")
    return "\n".join(lines)


def _encoder_settings(config: ConfigDict, encoder: str) -> EncoderSettings:
    if not encoder:
        keeps_decoder = task_settings(config).cross_attention
        found = read_settings(
            config.init_from, keeps_decoder=keeps_decoder, objective=config.objective
        )
        return builders.encoder_settings(config, found)
    layers, width, heads, mlp, pieces, is_pre = _ENCODERS[encoder]
    model: dict[str, Any] = config.model.to_dict()
    published = EncoderSettings(
        vocab_size=pieces,
        embedding_size=width,
        hidden_size=width,
        num_layers=layers,
        num_heads=heads,
        mlp_size=mlp,
        max_length=512,
        norm_position="pre" if is_pre else "post",
        embedding_norm=not is_pre,
        **model,
    )
    return builders.encoder_settings(config, published)


def activation_bytes(settings: EncoderSettings, examples: int, length: int) -> int:
    """Return the bytes of the activations of examples of `length` tokens on a device."""
    found = activation_sizes(settings, examples, length, logits=0).bytes()
    # Crossed pairs are encoded once and decoded once.
    return 2 * found if settings.cross_attention else found
