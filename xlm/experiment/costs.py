"""Costs of a pre-training before it runs: steps, epochs, hours, and the expected loss.

A roofline of the traced step gives the hours on a chip of `CHIPS`. A measurement gives the hours on
this machine. Both leave out reading, evaluating and saving.
"""

import collections
import copy
import logging
import math
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from input_pipeline.stream import PACKED
from vocap.allocation import language_probabilities
from xlm.common import tables
from xlm.common.schema import settings
from xlm.experiment import memory
from xlm.experiment.data import BYTES_PER_TOKEN, Folders, open_packed_dataset, text_tokens
from xlm.objectives.objective import Batch
from xlm.training.flops import matmul_flops
from xlm.training.settings import MeshSettings
from xlm.training.sharding import batch_sharding, make_abstract_mesh, make_mesh
from xlm.training.step import TrainFunctions


class Chip(NamedTuple):
    """Data sheet: FLOPs in bfloat16 and memory traffic in bytes, per second; bytes of memory.

    `traffic` is that beside the products, in bytes per FLOP, times D, in bfloat16: of the best and
    the worst step of the compile bench with rows of at most 1,024 tokens.
    """

    flops: float
    hbm_rate: float
    hbm_bytes: float
    traffic: tuple[float, float] = (4, 7)


# TPUs have no kernel for attention with dropout, and write its weights.
_TPU = 4, 12
# Dense products with sums in float32; memory as devices report it.
CHIPS = {
    "h100": Chip(989e12, 3.35e12, 84.9e9),
    "h200": Chip(989e12, 4.8e12, 150.7e9),
    "a100": Chip(312e12, 2.04e12, 84.9e9),
    "rtx4090": Chip(165e12, 1.01e12, 25.3e9),
    "rtx3090": Chip(71e12, 0.936e12, 25.3e9),
    "l4": Chip(121e12, 0.3e12, 23.6e9),
    "v5e": Chip(197e12, 0.819e12, 17.2e9, _TPU),
    "v5p": Chip(459e12, 2.765e12, 102e9, _TPU),
    "v6e": Chip(918e12, 1.64e12, 34.4e9, _TPU),
}
# Shares of the data sheets' rates that large products and streams reach in the compile bench.
PRODUCTS, STREAMS = 0.7, 0.9
# Held-out bits per character of small encoders by the recipe of configs/one_gpu.py: E + B / D^b for
# D tokens. The fit covers at most `LAW_TO` tokens, and at least 3 per parameter of the layers
# (research/studies/scaling.py). Its error is `LAW_ERROR` at three times as many tokens.
LAW, LAW_TO, LAW_ERROR = (1.233, 448, 0.3945), 6.6e6, 0.2

_ENOUGH = 60.0  # seconds of measured steps


def seen(config: ConfigDict, tokens: Mapping[str, int]) -> tuple[int, dict[str, float]]:
    """Return the steps of a run of one phase, and its epochs by language of text with `tokens`.

    Raises ValueError if `train.num_epochs` counts text that is unknown.
    """
    train, data = config.train, config.data
    if train.num_epochs and not tokens:
        raise ValueError(
            f"train.num_epochs is {train.num_epochs}, and there is no text to count; give "
            "--config.corpus.root, or --workdir with rows"
        )
    # Padding is negligible, so all positions count as tokens.
    of_step = train.batch_size * config.store.length
    of_step *= 1 - data.pair_share - data.contrast_share
    wanted = train.num_epochs * sum(tokens.values()) or train.num_tokens
    steps = train.num_steps or math.ceil(wanted / of_step)
    shares = language_probabilities(tokens, data.alpha) if tokens else {}
    return steps, {one: steps * of_step * shares[one] / tokens[one] for one in shares}


def _batch(config: ConfigDict, mesh: Any) -> Batch:
    """Return an abstract batch of packed sequences."""
    shape, layout = (config.train.batch_size, config.store.length), batch_sharding(mesh)
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=layout)
    language = jax.ShapeDtypeStruct(shape[:1], jnp.int32, sharding=layout)
    return Batch({"tokens": tokens, "language": language}, PACKED)


def sizes(config: ConfigDict, num_devices: int) -> tuple[float, int]:
    """Return the FLOPs of a step's matrix products on all devices, and the layers' parameters.

    Pairs of sentences count as packed sequences. A blockwise softmax counts as a full one: a trace
    does not show the length of a loop, and the loop computes the logits of a block twice.
    """
    config = copy.deepcopy(config)
    if config.output_layer.kind == "blockwise":
        config.output_layer.kind = "full"
    mesh = make_abstract_mesh(settings(MeshSettings, config.mesh), num_devices)
    objective, functions = memory.functions_of(config, mesh)
    state, batch = functions.abstract_state, _batch(config, mesh)
    layers = jax.tree.leaves(state.params.get("layers", {}))
    traced = functions.train_step.trace(objective, state, batch)
    return matmul_flops(traced.jaxpr), sum(one.size for one in layers)


def expected_loss(parameters: float, tokens: float) -> float | None:
    """Return the held-out bits a character by the law; None beyond its measurements."""
    if tokens > 3 * LAW_TO or tokens < 3 * parameters:
        return None
    constant, factor, power = LAW
    return constant + factor / tokens**power


def roofline(config: ConfigDict, chip: Chip, flops: float) -> tuple[float, float]:
    """Return the least and the most seconds of a chip for `flops` of a config's steps.

    A product of width D has D times as many FLOPs as bytes around it. So a narrow encoder moves
    more bytes per FLOP. float32 doubles them.
    """
    width = config.model.hidden_size * (1 if config.model.dtype == "bfloat16" else 0.5)
    least, most = (
        flops / (PRODUCTS * chip.flops) + flops * bytes / width / (STREAMS * chip.hbm_rate)
        for bytes in chip.traffic
    )
    return least, most


def measure(config: ConfigDict, num_steps: int, steps: int = 5) -> tuple[float, float]:
    """Run steps on random tokens on all devices of this machine; return least and most seconds."""
    logging.info("compiling a training step, which may take minutes; then it runs for at most %.0f "
                 "s or %d times", _ENOUGH, steps + 2)  # fmt: skip
    mesh = make_mesh(settings(MeshSettings, config.mesh))
    objective, functions = memory.functions_of(config, mesh)
    batch = _batch(config, mesh)
    program = functions.train_step.lower(objective, functions.abstract_state, batch).compile()
    size = memory.absent_rows(config).vocab_size
    tell = lambda one: logging.info(  # noqa: E731
        "a first answer: %.3g s for the first step, at most %.3g hours", one, num_steps * one / 3600
    )
    found = seconds(program, functions, batch, size, time.perf_counter, steps, tell)
    return min(found), max(found)


def seconds(
    program: Any, functions: TrainFunctions, batch: Batch, vocab_size: int,
    clock: Callable[[], float], steps: int, tell: Callable[[float], None] = lambda seconds: None,
) -> list[float]:  # fmt: skip
    """Time steps of a compiled program on random tokens, without the first two.

    Stops after `_ENOUGH` seconds, with at least the last time. `tell` gets the first one.
    """
    rng, state, found = np.random.default_rng(0), functions.init(np.int32(0)), []
    arrays = {name: rng.integers(5, vocab_size, x.shape) for name, x in batch.arrays.items()}
    arrays = {**arrays, "language": np.zeros(batch.num_examples)}
    arrays = {name: arrays[name].astype(np.int32) for name in batch.arrays}
    for _ in range(steps + 2):
        start = clock()
        state, _ = jax.block_until_ready(program(state, Batch(arrays, batch.kind)))
        found.append(clock() - start)
        if len(found) == 1:
            tell(found[0])
        if sum(found) > _ENOUGH:
            break
    return found[2:] or found[-1:]


def report(
    configs: Mapping[str, ConfigDict], num_devices: int, target: str, price: float, workdir: str
) -> str:
    """Return tables of the costs of phases, and the basis of the numbers.

    Args:
      configs: by name of the phase, "" for a run without phases.
      target: a chip of `CHIPS`, "here" for the devices of this machine, or "" for no times.
      price: per device and hour.
      workdir: of a run, to count its rows if there are any; "" for none.
    """
    rows: list[dict[str, Any]] = []
    is_estimated = False
    epochs = collections.defaultdict[str, dict[str, Any]](dict)
    for phase, config in configs.items():
        folders = Folders(pathlib.Path(workdir, *(("phases", phase) if phase else ())))
        has_rows = bool(workdir) and folders.has_rows
        there = open_packed_dataset(folders).statistics if has_rows else {}
        text = {one: of["train"]["tokens"] for one, of in there.items()} or text_tokens(config)
        is_estimated |= bool(text) and not has_rows
        steps, by_language = seen(config, text)
        flops, parameters = sizes(config, num_devices)
        row = {"steps": steps, "PFLOP": steps * flops / 1e15}
        row["tokens, million"] = steps * config.train.batch_size * config.store.length / 1e6
        if target:
            chip = CHIPS.get(target)
            times = roofline(config, chip, flops / num_devices) if chip else measure(config, steps)
            for name, one in zip(("least", "most"), times, strict=True):
                row[f"hours, {name}"] = steps * one / 3600
                if price:
                    row[f"price, {name}"] = row[f"hours, {name}"] * num_devices * price
        rows.append({"phase": phase, **row})
        for language, value in by_language.items():
            epochs[language] |= {"language": language, f"epochs {phase}".strip(): value}
    total = {key: sum(row[key] for row in rows) for key in rows[0] if key != "phase"}
    if len(rows) > 1:
        rows.append({"phase": "all", **total})
    basis = _basis(total, parameters, num_devices, target, is_estimated=is_estimated)
    formats = {"steps": ",", "PFLOP": ",.4g", "tokens, million": ",.1f"}
    shown = [tables.markdown(rows, formats | dict.fromkeys(total.keys() - formats, ".3g")),
             tables.markdown(epochs.values(), ".2f"), "\n".join(basis)]  # fmt: skip
    return "\n\n".join(filter(None, shown))


def _basis(
    total: Mapping[str, Any], parameters: int, num_devices: int, target: str, *, is_estimated: bool
) -> Iterator[str]:
    """Yield items on the basis of the numbers; epochs may be `is_estimated` from file sizes."""
    yield "- PFLOP: the matrix products of the traced step, with the optimizer's."
    if is_estimated:
        yield (
            f"- Epochs: from the sizes of the files at {BYTES_PER_TOKEN} bytes a token, a third "
            "either way. Give --workdir of a run with rows to count tokens."
        )
    if target == "here":
        yield (
            "- Hours: the fastest and the slowest of some steps on this machine. Reading, "
            "evaluating and saving come on top."
        )
    elif target:
        peak = 3600 * num_devices * CHIPS[target].flops / 1e15
        least, most = (total["PFLOP"] / (peak * total[f"hours, {x}"]) for x in ("most", "least"))
        yield (
            f"- Hours: {least:.0%} to {most:.0%} of the peak of {target}'s data sheet, by the "
            "traffic of steps that were compiled but not run (docs/compiled_steps.md)."
        )
    bits = parameters and expected_loss(parameters, 1e6 * total["tokens, million"])
    found = (
        f"{bits:.2f} bits a character, {LAW_ERROR} either way, on text like the law's" if bits
        else f"unknown, since the law has 3 tokens a parameter to {3 * LAW_TO / 1e6:.0f} million"
    )  # fmt: skip
    yield f"- Loss: {found} (docs/performance.md)."
