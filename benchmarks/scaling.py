"""Memory and collectives of a training step on many devices, and what bounds it, by compilation.

    pip install 'jax[tpu]'            # for libtpu, the compiler; no TPU is needed
    python -m benchmarks.scaling --out=scaling.jsonl
    python -m benchmarks.scaling --out=simulated.jsonl --devices=cpu:8 --models=base

Compiles the step of the paper's Base (`configs/vocap_paper.py`), or of a model of XLM-R Large's
size, for devices that need not be there: chips of a TPU, for which libtpu compiles on any machine,
or simulated ones of a CPU. Nothing is executed and no parameter allocated. Each line of the file
--out is a step; the same command goes on where it was stopped, and prints the table of all lines.

Memory is arguments (parameters, moments, index, batch), and temporaries beside them: on a TPU those
that live at once at the peak by the compiler's own count, on other devices all that it assigns. Of
a step that does not fit there is no program, and so no collective; what it would take is read off
the compiler's refusal. Collectives count what the compiled program sends,
loops included (`benchmarks/collectives.py`). A step takes at least as long as the largest of

    compute    operations of its matrix products, over the devices' peak in bfloat16
    links      bytes that a device sends, over what its links carry in one direction
    HBM        state and batch read and written once, over the bandwidth of its memory

which is what the last column names; "memory" where it does not fit. The three are bounds of an
ideal program: nothing is measured.
"""

import contextlib
import dataclasses
import json
import pathlib
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from absl import flags
from jax.experimental import topologies
from ml_collections import ConfigDict

from benchmarks.collectives import collectives_of
from configs import vocap_paper, xlm_r
from input_pipeline.stream import PACKED
from xlm.common import entry_point
from xlm.common.schema import settings
from xlm.experiment import memory, model, objectives
from xlm.objectives.objective import Batch
from xlm.training.flops import matmul_flops
from xlm.training.settings import AXES, MeshSettings
from xlm.training.sharding import batch_sharding, make_mesh

# Collectives, and arrays of each, that are listed.
_NUM_LARGEST, _NUM_SIZES = 8, 6
LAYERS = ["full", "blockwise", "knn"]
_NOT_FITTING = re.compile(
    r"(?:Used |required for HLO temporaries \()([\d.]+)([KMGT])(?: of |\) exceeds available HBM)"
)
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclasses.dataclass(frozen=True)
class Chip:
    """Data sheet of a device.

    Attributes:
      flops: peak of matrix products in bfloat16, per second.
      hbm_bytes: its memory.
      hbm_rate: bytes a second from and to it.
      link_rate: bytes a second that one of its links sends.
      is_torus: whether it has two links for each axis of a slice, or one where the axis has two
        chips; otherwise one link to a switch.
    """

    flops: float
    hbm_bytes: float
    hbm_rate: float
    link_rate: float
    is_torus: bool

    def sent_per_second(self, devices: str) -> float:
        """Bytes a second that all its links send, in devices named as in --devices."""
        if not self.is_torus or devices.startswith("cpu"):
            return self.link_rate
        axes = [int(size) for size in devices.partition(":")[2].split("x")]
        return self.link_rate * sum(min(size - 1, 2) for size in axes)


# From Google's and NVIDIA's data sheets: 2,400 and 4,800 Gbit/s of the six links of a TPU; NVLink's
# 900 GB/s of an H200, half of it in each direction, which is between the eight of a machine.
CHIPS = {
    "v4": Chip(275e12, 32 * 2**30, 1.228e12, 50e9, is_torus=True),
    "v5p": Chip(459e12, 95 * 2**30, 2.765e12, 100e9, is_torus=True),
    "H200": Chip(989e12, 141e9, 4.8e12, 450e9, is_torus=False),
}

_OUT = flags.DEFINE_string("out", None, "JSON lines of the steps, added to.", required=True)
_DEVICES = flags.DEFINE_list(
    "devices", ["v5p:2x2x2", "v5p:4x4x4"], "TPU topologies, or cpu:N for N simulated devices."
)
_MODELS = flags.DEFINE_list("models", ["base", "large"], "Of base and large.")
_VOCAB = flags.DEFINE_list("vocab_sizes", ["250000", "500000", "1000000"], "V, pieces.")
_LAYERS = flags.DEFINE_list("layers", LAYERS, "Output layers.")
_MESH = flags.DEFINE_list("mesh", [], "Axes such as fsdp=8; data has the devices that are left.")
_SET = flags.DEFINE_list("set", [], "Other keys, such as model.remat=full.")
_EFFORT = flags.DEFINE_float(
    "effort", -1.0, "How long a TPU's compiler looks for fast code; 0 for what runs have."
)
_CHIP = flags.DEFINE_enum("chip", "v5p", sorted(CHIPS), "Whose data sheet bounds the steps.")


@dataclasses.dataclass(frozen=True)
class Step:
    """Step to compile; all that a line of the results is found by.

    Attributes:
      model: "base" or "large".
      vocab_size: pieces.
      layer: `output_layer.kind`.
      devices: as of --devices.
      mesh: axes that are set, as of --mesh.
      keys: other keys that are set.
      effort: as of --effort.
    """

    model: str
    vocab_size: int
    layer: str
    devices: str
    mesh: str = ""
    keys: str = ""
    effort: float = 0.0


def config_of(step: Step) -> ConfigDict:
    """Run of these sizes by `vocap_paper`: 256 sequences of 512 tokens, k-NN in groups of 32."""
    config = vocap_paper.get_config("vocap_250k")
    if step.layer == "knn":
        name = "vocap_1m_knn" if step.vocab_size > 500_000 else "vocap_500k_knn"
        config = vocap_paper.get_config(name)
    if step.model == "large":
        config.model.update(xlm_r.get_config("large").model)
    config.vocab.target_size = step.vocab_size
    config.output_layer.kind = step.layer
    for assigned in filter(None, f"{step.mesh} {step.keys}".split()):
        key, _, value = assigned.partition("=")
        section, _, name = (key if "." in key else f"mesh.{key}").partition(".")
        config[section][name] = type(config[section][name])(value)
    return config


def devices_of(name: str) -> Sequence[Any]:
    """Devices to compile for, of `Step.devices`; those of a TPU can do nothing else.

    Raises:
      ValueError: there are fewer simulated devices, or no libtpu.
    """
    kind, _, size = name.partition(":")
    if kind == "cpu":
        if int(size) > jax.device_count():
            raise ValueError(
                f"--devices={name}: there are {jax.device_count()} devices; simulate more by "
                f"XLA_FLAGS=--xla_force_host_platform_device_count={size}"
            )
        return jax.devices()[: int(size)]
    try:
        return topologies.get_topology_desc(name, platform="tpu").devices
    except (RuntimeError, jax.errors.JaxRuntimeError) as error:
        raise ValueError(
            f"--devices={name}: {error}; install libtpu (jax[tpu]) and name a topology that it "
            "knows, or take cpu:8"
        ) from error


@contextlib.contextmanager
def _compiling_for(platform: str) -> Iterator[None]:
    """Let choices that depend on the backend be those of the platform compiled for."""
    with mock.patch.object(jax, "default_backend", return_value=platform):
        yield


def measured(config: ConfigDict, devices: Sequence[Any], effort: float) -> dict[str, Any]:
    """Compile a step and describe the program.

    Args:
      config: of a run on packed sequences.
      devices: to compile for.
      effort: of a TPU's compiler, see --effort.

    Returns:
      `flops` of matrix products of all devices; seconds to `compile`; bytes of a device: of
      `arguments`, `temporaries`, `needed` in all; `collectives`, for each kind their number, the
      number of executions, and the bytes that a device sends; of the `largest` kind, sizes of the
      arrays, bytes and executions. Without a program `needed` alone.
    """
    with _compiling_for(devices[0].platform):
        mesh = make_mesh(settings(MeshSettings, config.mesh), devices)
        store = memory.absent_rows(config)
        objective = objectives.objective(config, store, mesh)
        functions = model.train_functions(config, objective, mesh)
        shape = (config.train.batch_size, store.length)
        tokens = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=batch_sharding(mesh))
        language = jax.ShapeDtypeStruct(shape[:1], jnp.int32, sharding=batch_sharding(mesh))
        batch = Batch({"tokens": tokens, "language": language}, PACKED)
        traced = functions.train_step.trace(objective, functions.abstract_state, batch)
        found: dict[str, Any] = {"flops": matmul_flops(traced.jaxpr), "devices": len(devices)}
        found["mesh"] = " x ".join(str(mesh.shape[axis]) for axis in AXES)
        start = time.perf_counter()
        try:
            options = {"exec_time_optimization_effort": effort} if effort else None
            compiled = traced.lower().compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            if not (match := _NOT_FITTING.search(str(error))):
                raise
            return {**found, "needed": float(match[1]) * _UNITS[match[2]]}
    found["compile"] = time.perf_counter() - start
    sizes = compiled.memory_analysis()
    found["arguments"] = sizes.argument_size_in_bytes
    found["temporaries"] = sizes.temp_size_in_bytes
    outputs = sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    found["needed"] = found["arguments"] + found["temporaries"] + outputs
    if devices[0].platform == "tpu":
        # It has a program for chips with less memory than that sum, whose temporaries do not all
        # live at once; its own peak is what it refuses a program by. A CPU's leaves them out.
        found["needed"] = sizes.peak_memory_in_bytes
        found["temporaries"] = found["needed"] - found["arguments"]
    by_kind: dict[str, list[float]] = defaultdict(lambda: [0, 0, 0.0])
    collectives = collectives_of(compiled.as_text(), len(devices))
    collectives.sort(key=lambda one: -one.sent_bytes())
    for one in collectives:
        totals = by_kind[one.kind]
        totals[0] += 1
        totals[1] += one.times
        totals[2] += one.sent_bytes()
    found["collectives"] = dict(by_kind)
    found["largest"] = [
        [one.kind, one.sizes[:_NUM_SIZES], one.bytes, one.times]
        for one in collectives[:_NUM_LARGEST]
    ]
    return found


def bounds(step: Step, found: dict[str, Any], chip: Chip) -> dict[str, float]:
    """Least seconds of a step by each resource."""
    sent = sum(size for *_, size in found.get("collectives", {}).values())
    return {
        "compute": found["flops"] / found["devices"] / chip.flops,
        "links": sent / chip.sent_per_second(step.devices),
        "HBM": 2 * found.get("arguments", 0) / chip.hbm_rate,
    }


def read(path: pathlib.Path) -> dict[Step, dict[str, Any]]:
    """The results so far."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = (json.loads(line) for line in lines)
    return {Step(**one.pop("step")): one for one in found}


def table_of(results: dict[Step, dict[str, Any]], chip: Chip) -> str:
    """Format results as Markdown."""
    lines = [
        "| model | V | output layer | devices | mesh | state GB | temporaries GB | all GB | "
        "collectives: executions, MB sent | compute ms | links ms | HBM ms | bound |",
        "|---|---:|---|---|---|---:|---:|---:|---|---:|---:|---:|---|",
    ]
    for step, found in results.items():
        seconds = bounds(step, found, chip)
        fits = "collectives" in found and found["needed"] <= chip.hbm_bytes
        sent = ", ".join(
            f"{kind} {times}, {size / 1e6:,.0f}"
            for kind, (_, times, size) in sorted(found.get("collectives", {}).items())
        )
        gigabytes = [
            f"{found[name] / 1e9:.1f}" if name in found else ""
            for name in ("arguments", "temporaries", "needed")
        ]
        times = [f"{1e3 * value:.1f}" for value in seconds.values()]
        name = " ".join(filter(None, (step.model, step.keys)))
        cells = [
            name, f"{step.vocab_size:,}", step.layer, step.devices, found["mesh"], *gigabytes,
            sent, *times, max(seconds, key=seconds.__getitem__) if fits else "memory",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def wanted() -> list[Step]:
    """The steps that the flags name, those on fewer devices first."""
    mesh, keys = " ".join(_MESH.value), " ".join(_SET.value)
    return [
        Step(name, int(vocab_size), layer, devices, mesh, keys, _EFFORT.value)
        for devices in _DEVICES.value
        for name in _MODELS.value
        for vocab_size in _VOCAB.value
        for layer in _LAYERS.value
    ]


def main(_) -> None:
    path = pathlib.Path(_OUT.value)
    results = read(path)
    for step in wanted():
        if step in results:
            continue
        results[step] = measured(config_of(step), devices_of(step.devices), step.effort)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": dataclasses.asdict(step), **results[step]}) + "\n")
        print(step, results[step], flush=True)
    print(table_of(results, CHIPS[_CHIP.value]))


if __name__ == "__main__":
    entry_point.run(main, required=())
