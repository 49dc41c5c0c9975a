"""Costs of a training step under each output layer, of which `output_layer.kind = "auto"` chooses.

A roofline: seconds are FLOPs, bytes of memory and bytes sent, each over a share of the device's
rate, and summed. The rates are data sheets' (docs/performance.md), the factors those of steps that
`benchmarks/compile.py` compiled, on a CPU of softmaxes that were timed. Of VoCap's steps at 500K
the compiled times are those estimated to 3 %. Nothing here needs jax.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from knn_sampling.settings import OutputLayerSettings, num_groups

# An exact layer trains the better model, so a sampled one must make the whole step so much faster.
SPEED_UP = 1.1
# Bytes a logit of `full` at its peak; passes over a table of an update, of all rows and of some.
_HELD, _DENSE, _ROWS = 10, 7, 22


class _Device(NamedTuple):
    """FLOPs, bytes of memory and bytes sent a second that a step reaches, and bytes of memory.

    `encoder` is the rate of the encoder's FLOPs, `full` and `block` bytes that logits at once and
    in blocks move outside of products.
    """

    flops: float
    memory: float
    links: float
    size: float
    encoder: float
    full: float
    block: float


# An H100 and a v5p; one core of an AMD EPYC, whose caches hold a block.
_DEVICES = {
    "gpu": _Device(0.7 * 989e12, 0.9 * 3.35e12, 0.8 * 450e9, 80e9, 0.18 * 989e12, 24, 20),
    "tpu": _Device(0.7 * 459e12, 0.9 * 2.77e12, 0.8 * 600e9, 95e9, 0.3 * 459e12, 24, 20),
    "cpu": _Device(81e9, 0.9 * 17e9, 0.9 * 17e9, 16e9, 70e9, 350, 20),
}


@dataclasses.dataclass(frozen=True)
class Step:
    """Sizes of a step that its cost depends on.

    Attributes:
      backend: "cpu", "gpu" or "tpu".
      num_devices: devices of the mesh.
      table_shards: of them, those that a table is split over.
      sequences, tokens, targets: of the whole batch; W targets.
      parts: into which a batch is split (`train.accumulation_steps`).
      vocab_size, embedding_size: V and E of the table.
      encoder_flops: of the encoder over the batch, forwards and backwards.
      by_rows: whether the optimizer updates touched rows of the table alone.
      shards_optimizer: whether devices share the update.
    """

    backend: str
    num_devices: int
    table_shards: int
    sequences: int
    tokens: int
    targets: int
    parts: int
    vocab_size: int
    embedding_size: int
    encoder_flops: float
    by_rows: bool
    shards_optimizer: bool


def estimates(step: Step, settings: OutputLayerSettings) -> dict[str, float]:
    """Estimate the seconds of a step by kind of output layer, without those that do not fit."""
    device, width = _DEVICES[step.backend], 4 * step.embedding_size  # bytes of a row
    replicas = step.num_devices // step.table_shards
    groups = num_groups(step.sequences // step.parts, settings.group_size)
    of_group = step.targets // step.parts // groups

    def seconds(
        classes: int, rows: int, products: int, per_logit: float, flops: float = 0
    ) -> float:
        logits = step.targets * classes / step.num_devices
        table = width * rows / step.table_shards
        is_part = step.by_rows and rows < step.vocab_size
        passes = (_ROWS if is_part else _DENSE) / (replicas if step.shards_optimizer else 1)
        sent = (1.5 if step.shards_optimizer else 2) * table * (replicas - 1) / replicas
        flops += products * logits * step.embedding_size
        moved = per_logit * logits + (4 * step.parts + passes) * table
        encoder = step.encoder_flops / step.num_devices / device.encoder
        return encoder + flops / device.flops + moved / device.memory + sent / device.links

    def sampled(classes: int, flops: float = 0) -> float:
        classes = min(classes, step.vocab_size)
        rows = min(settings.row_capacity or groups * classes + step.tokens, step.vocab_size)
        rows = rows if step.parts == 1 else step.vocab_size
        return seconds(classes, rows, 8, device.block, flops)

    v = step.vocab_size
    refresh = 4 * v * v * step.embedding_size / settings.refresh_every / step.num_devices
    found = {
        "full": seconds(v, v, 6, device.full),
        "blockwise": seconds(v, v, 8, device.block),
        "knn": sampled(min(settings.capacity, of_group * (settings.k + 1)), refresh),
        "target_sampling": sampled(of_group + settings.num_negatives),
    }
    if _HELD * step.targets / step.parts * v / step.num_devices > device.size / 4:
        del found["full"]
    return found


def cheapest(found: Mapping[str, float]) -> str:
    """Return the exact kind of least seconds, or a sampled one if it is faster by `SPEED_UP`."""
    exact, sampled = (
        min(
            (one for one in found if (one in ("full", "blockwise")) == is_exact),
            key=found.__getitem__,
        )
        for is_exact in (True, False)
    )
    return sampled if found[exact] > SPEED_UP * found[sampled] else exact
