"""Costs of a training step under each output layer, by which `output_layer.kind = "auto"` chooses.

This is a roofline model. It divides FLOPs, bytes of memory and bytes sent by a share of the
device's rates, and adds up the seconds. Rates come from data sheets (docs/compiled_steps.md).
Factors come from steps that `benchmarks/compile.py` compiled, on a CPU from timed softmaxes. For
VoCap's steps at 500K the estimate is within 4 % of the compiled time. Nothing here needs jax.
"""

from collections.abc import Mapping
from typing import NamedTuple

from knn_sampling.settings import EXACT, OutputLayerSettings, num_groups

# An exact layer trains the better model. A sampled one must make the step faster by this factor.
SPEED_UP = 1.1
# Peak bytes per logit of `full`; passes over the table of an update of all rows, and of some.
_HELD, _DENSE, _ROWS = 10, 7, 22


class _Device(NamedTuple):
    """FLOPs, bytes moved and bytes sent a second that a step reaches, and bytes of memory.

    `encoder` is the rate of the encoder's FLOPs. Outside of products, a logit of the full softmax
    moves `full` bytes, a logit in blocks `block` bytes.
    """

    flops: float
    memory: float
    links: float
    size: float
    encoder: float
    full: float
    block: float


# An H100, a v5p, and one core of an AMD EPYC, whose caches hold a block.
_DEVICES = {
    "gpu": _Device(0.7 * 989e12, 0.9 * 3.35e12, 0.8 * 450e9, 80e9, 0.4 * 989e12, 24, 20),
    "tpu": _Device(0.7 * 459e12, 0.9 * 2.77e12, 0.8 * 600e9, 95e9, 0.3 * 459e12, 24, 20),
    "cpu": _Device(81e9, 0.9 * 17e9, 0.9 * 17e9, 16e9, 70e9, 350, 20),
}


class Step(NamedTuple):
    """Sizes of a step that determine its cost, for the whole batch and all devices.

    `table_shards` devices share a table of V rows of E. `targets` are W. The batch has `parts`
    microbatches. `encoder_flops` are those of the forward and backward pass. `by_rows` says whether
    the optimizer only updates touched rows, `shards_optimizer` whether devices share its work.
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
    """Estimate the seconds of a step by kind of output layer, without kinds that do not fit."""
    device, v = _DEVICES[step.backend], step.vocab_size
    replicas = step.num_devices // step.table_shards
    groups = num_groups(step.sequences // step.parts, settings.group_size)
    of_group = step.targets // step.parts // groups

    def seconds(
        classes: int, rows: int, products: int, per_logit: float, flops: float = 0
    ) -> float:
        logits = step.targets * classes / step.num_devices
        table = 4 * step.embedding_size * rows / step.table_shards
        passes = _ROWS if step.by_rows and rows < v else _DENSE
        moved = 4 * step.parts + passes / (replicas if step.shards_optimizer else 1)
        sent = (1.5 if step.shards_optimizer else 2) * (replicas - 1) / replicas
        flops += products * logits * step.embedding_size
        return (
            step.encoder_flops / step.num_devices / device.encoder + flops / device.flops
            + (per_logit * logits + moved * table) / device.memory + sent * table / device.links
        )  # fmt: skip

    def sampled(classes: int, flops: float = 0) -> float:
        classes = min(classes, v)
        rows = min(settings.row_capacity or groups * classes + step.tokens, v)
        return seconds(classes, rows if step.parts == 1 else v, 8, device.block, flops)

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
    """Return the fastest exact kind, or a sampled one if it is faster by `SPEED_UP`."""
    exact = min((one for one in found if one in EXACT), key=found.__getitem__)
    sampled = min((one for one in found if one not in EXACT), key=found.__getitem__)
    return sampled if found[exact] > SPEED_UP * found[sampled] else exact
