"""Compile bench: cost of whole training steps, compiled for GPUs and TPUs without the hardware.

    python -m benchmarks.compile --preset=vocap_500k_knn --target=h100:8 --out=compiled
    python -m benchmarks.compile --preset=mmbert_base_8192 --target=v5e:64 --set=model.remat=dots
    python -m benchmarks.compile --out=compiled --diff=benchmarks/compiled.json
    python -m benchmarks.compile --preset=xlm_r_small --target=cpu:1 --measure

Install the target's compiler in a separate folder and put it on PYTHONPATH. GPUs need
`jax-cuda13-plugin` and `jax-cuda13-pjrt` of jax's version, `nvidia-cuda-nvcc`, `nvidia-nvvm`,
`nvidia-nvjitlink` and `nvidia-cuda-runtime`, all with --no-deps. TPUs need `libtpu`. Set
JAX_PLATFORMS=cpu. Without --measure nothing is executed. No parameter is allocated.

--out keeps the text of each program. Later calls read it instead of compiling again. Times are
rooflines, not measurements: docs/compiled_steps.md has the arithmetic and its limits.
"""

import gzip
import importlib
import importlib.util
import itertools
import math
import os
import pathlib
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax.experimental import topologies
from ml_collections import ConfigDict

from benchmarks import hlo, machine
from configs import mmbert, veco, vocap_paper, xlm_r, xy_lent
from input_pipeline.stream import JOINT, PACKED
from xlm.common import artifacts, entry_point, tables
from xlm.common.schema import settings
from xlm.experiment import costs, memory, model, objectives, phase_runs
from xlm.experiment.data import data_settings, kind_of_pairs
from xlm.objectives.objective import Batch
from xlm.training.flops import matmul_flops
from xlm.training.settings import MeshSettings
from xlm.training.sharding import batch_sharding, make_mesh

# Assumptions: shares of the data sheets' rates that large products, streams and rings reach, the
# seconds of a launch, and those of a host to read the condition of a loop of unknown length.
PRODUCTS, STREAMS = costs.PRODUCTS, costs.STREAMS
LINKS, LAUNCH, LOOK = 0.8, 2e-6, 10e-6


class Chip(NamedTuple):
    """Data sheet (`xlm.experiment.costs.Chip`) with rates of sending, in bytes per second.

    `link_rate` is the rate of one link of a TPU, or of all links of a GPU within its machine.
    `far_rate` is that of a GPU in a ring across machines. `shapes` has topologies by number of
    devices.
    """

    flops: float
    hbm_rate: float
    hbm_bytes: float
    link_rate: float
    shapes: Mapping[int, str]
    far_rate: float = 0.0

    def sent_per_second(self, num_devices: int) -> float:
        """Return the bytes per second that a device sends in rings over all devices."""
        if self.far_rate or not self.shapes:
            return self.far_rate if self.far_rate and num_devices > 8 else self.link_rate
        sizes = map(int, self.shapes[num_devices].split("x"))
        return self.link_rate * sum(min(size - 1, 2) for size in sizes)


_GPUS = {1: "1x1x1", 8: "1x1x8", 64: "1x8x8", 128: "1x16x8"}
_FLAT, _CUBE = {8: "2x4", 64: "8x8", 128: "8x16"}, {8: "2x2x2", 64: "4x4x4", 128: "4x4x8"}
# NVIDIA: NVLink's 900 GB/s are the sum of both directions. Across machines, eight cards of 50 GB/s
# serve the ring of eight GPUs. Google: 200, 600 and 400 GB/s in one direction over 4, 6 and 4
# links. `cpu` is one core of an AMD EPYC: its measured float32 products and copies.
CHIPS = {
    "h100": Chip(*costs.CHIPS["h100"][:3], 450e9, _GPUS, 400e9),
    "h200": Chip(*costs.CHIPS["h200"][:3], 450e9, _GPUS, 400e9),
    "v5e": Chip(*costs.CHIPS["v5e"][:3], 50e9, _FLAT),
    "v5p": Chip(*costs.CHIPS["v5p"][:3], 100e9, _CUBE),
    "v6e": Chip(*costs.CHIPS["v6e"][:3], 100e9, _FLAT),
    "cpu": Chip(85e9, 17e9, 16e9, 17e9, {}),
}
# XLA's GpuTargetConfigProto for compute capability 9.0.
_GPU = """gpu_device_info {{ threads_per_block_limit: 1024 threads_per_warp: 32 core_count: 132
shared_memory_per_block: 49152 shared_memory_per_core: 233472 threads_per_core_limit: 2048
fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
memory_bandwidth: {rate:.0f} l2_cache_size: 52428800 clock_rate_ghz: 1.98
device_memory_size: {size:.0f} shared_memory_per_block_optin: 232448
cuda_compute_capability {{ major: 9 }} registers_per_core_limit: 65536
registers_per_block_limit: 65536 }} platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 12 }}
runtime_version {{ major: 13 minor: 0 patch: 0 }} device_description_str: "{name}" """
_HBM = 80e9
_NOT_FITTING = re.compile(r"(?:Used|HLO temporaries \() ?([\d.]+)([KMGT])")

# Recipe, argument, keys, phase, and tokens that a device of `_HBM` bytes holds at once.
PRESETS: dict[str, tuple[Any, str, dict[str, Any], str, int]] = {
    "xlm_r_base": (xlm_r, "base", {}, "", 32 * 512),
    "xlm_r_large": (xlm_r, "large", {}, "", 32 * 512),
    "xy_lent_base": (xy_lent, "base", {}, "", 32 * 512),
    "veco_base": (veco, "base", {}, "", 32 * 512),
    "xlm_r_small": (xlm_r, "small", {}, "", 1 << 20),
    "mmbert_tiny": (mmbert, "tiny", {}, "", 1 << 20),
}
_LAYERS = ("full", "blockwise", "knn", "target_sampling")
for _size, _layer in itertools.product((250_000, 500_000, 1_000_000), _LAYERS):
    _keys = {"output_layer.kind": _layer, "vocab.target_size": _size}
    if _layer in ("full", "blockwise"):
        _keys["optimizer.embedding_update"] = "dense"
    _run = "vocap_1m_knn" if _size == 1_000_000 else "vocap_500k_knn"
    _name = f"vocap_{'1m' if _size == 1_000_000 else f'{_size // 1000}k'}_{_layer}"
    PRESETS[_name] = vocap_paper, _run, _keys, "", 32 * 512
for _run, _phase in itertools.product(("base", "vocap"), (("pretrain", 1024), ("extend", 8192))):
    PRESETS[f"mmbert_{_run}_{_phase[1]}"] = mmbert, _run, {}, _phase[0], 6 * 8192

CATEGORIES = (
    "encoder products", "encoder elementwise", "saved activations", "attention", "vocabulary",
    "optimizer", "collectives", "copies", "other",
)  # fmt: skip

_PRESET = flags.DEFINE_list(
    "preset",
    [],
    f"{', '.join(PRESETS)}, or FILE.py:ARGUMENT#PHASE; by default all programs of --out.",
)
_TARGET = flags.DEFINE_list(
    "target", ["h100:8"], f"{', '.join(CHIPS)} and a number, such as v5e:64."
)
_SET = flags.DEFINE_multi_string("set", [], "Changed keys, such as model.remat=full.")
_OUT = flags.DEFINE_string("out", "compiled", "Folder for programs and their records.json.")
_DIFF = flags.DEFINE_string("diff", None, "records.json to compare with.")
_EFFORT = flags.DEFINE_float(
    "effort", 0.0, "Effort of the TPU compiler; -1 compiles 3 to 10 times faster."
)
_MEASURE = flags.DEFINE_bool("measure", False, "Also run the step; only on cpu.")


def config_of(
    preset: str, num_devices: int, keys: Sequence[str] = (), hbm_bytes: float = _HBM
) -> ConfigDict:
    """Return the config of a preset, with as many microbatches as the devices' memory needs.

    Raise ValueError if a key of `keys`, "section.name=value", is not in the config.
    """
    if preset in PRESETS:
        recipe, run, own, phase, tokens = PRESETS[preset]
    else:  # a user's config, with its own number of microbatches
        file, _, run = preset.partition(".py:")
        run, _, phase = run.partition("#")
        recipe, own, tokens = importlib.import_module(file.replace("/", ".")), {}, 1 << 40
    config = recipe.get_config(run)
    if phase:
        config = next(x.config for x in phase_runs.phases_of(config) if x.name == phase)
    config.update_from_flattened_dict(own)
    batch, group = config.train.batch_size, max(config.output_layer.group_size, 1)
    held = batch * config.store.length / num_devices
    least = max(held / (tokens * min(hbm_bytes / _HBM, 1)), config.train.accumulation_steps)
    fitting = (
        parts
        for parts in range(math.ceil(least), batch + 1)
        if batch % (parts * num_devices) == 0 and batch // parts % group == 0
    )
    config.train.accumulation_steps = next(fitting, 0)
    if not config.train.accumulation_steps:
        raise ValueError(
            f"{preset}: {batch} sequences on {num_devices} devices fit in no number of equal "
            f"microbatches with groups of {group}; give another number of devices or target"
        )
    for assigned in keys:
        key, _, value = assigned.partition("=")
        section, _, name = key.partition(".")
        if section not in config or name not in config[section]:
            raise ValueError(f"--set={assigned}: no such key; docs/keys.md lists all keys")
        of_type = type(config[section][name])
        config[section][name] = value == "True" if of_type is bool else of_type(value)
    config.train.update(num_steps=config.train.num_steps or 1_000_000, num_epochs=0.0, num_tokens=0)
    return config


def devices_of(target: str) -> Sequence[Any]:
    """Return the devices of a target such as "h100:8"; only "cpu" devices can run programs.

    Raise ValueError if the target is unknown, or its compiler is not installed.
    """
    name, _, given = target.partition(":")
    number = int(given) if given.isdecimal() else 0
    if name == "cpu" and 1 <= number <= jax.device_count():
        return jax.devices()[:number]
    if name not in CHIPS or number not in CHIPS[name].shapes:
        raise ValueError(
            f"--target={target}: give one of {', '.join(CHIPS)} and 8, 64 or 128, such as h100:8; "
            f"cpu has {jax.device_count()} devices, a number set by XLA_FLAGS="
            "--xla_force_host_platform_device_count=N"
        )
    chip, shape = CHIPS[name], CHIPS[name].shapes[number]
    try:
        if not chip.far_rate:
            return topologies.get_topology_desc(f"{name}:{shape}", platform="tpu").devices
        _find_cuda()
        text = _GPU.format(rate=chip.hbm_rate, size=chip.hbm_bytes, name=name)
        options = {"target_config": text, "topology": shape}
        return topologies.get_topology_desc(platform="cuda", **options).devices
    except (RuntimeError, jax.errors.JaxRuntimeError) as error:
        raise ValueError(
            f"--target={target}: {error}; put its compiler on PYTHONPATH (benchmarks/compile.py)"
        ) from error


def _find_cuda() -> None:
    """Let XLA find CUDA's compiler, without timing of kernels."""
    found = importlib.util.find_spec("nvidia.cu13") if importlib.util.find_spec("nvidia") else None
    flags = os.environ.get("XLA_FLAGS", "")
    if found and "xla_gpu_cuda_data_dir" not in flags:
        folder = next(iter(found.submodule_search_locations or [""]))
        os.environ["PATH"] = f"{folder}/bin:{os.environ['PATH']}"
        own = f"--xla_gpu_autotune_level=0 --xla_gpu_cuda_data_dir={folder}"
        os.environ["XLA_FLAGS"] = f"{flags} {own}"


def batches_of(config: ConfigDict, length: int, mesh: Any) -> dict[str, Batch]:
    """Return abstract batches by kind: packed sequences, rows of pairs, or joint."""
    size, layout = config.train.batch_size, batch_sharding(mesh)

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.int32, sharding=layout)

    of_text = {"tokens": array(size, length), "language": array(size)}
    layout_of_pairs = {x: array(size, length) for x in ("tokens", "segments", "positions")}
    arrays = {PACKED: of_text, kind_of_pairs(config): {**layout_of_pairs, "pair": array(size)}}
    arrays[JOINT] = {**of_text, **arrays[kind_of_pairs(config)], "task": array(size)}
    return {kind: Batch(arrays[kind], kind) for kind in kinds_of(config)}


def kinds_of(config: ConfigDict) -> list[str]:
    """Return the kinds of the batches of a config."""
    if data_settings(config).is_joint:
        return [JOINT]
    return [PACKED, *([kind_of_pairs(config)] if config.data.pair_share else [])]


def compiled(
    config: ConfigDict, devices: Sequence[Any], effort: float = 0.0, *, measure: bool = False
) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Compile the step of each kind of batch; yield the kind, facts and the program's text.

    Facts are bytes of a device's memory, estimated and assigned by the compiler, and seconds. For a
    step that does not fit, `peak` is from the compiler's error, and there is no text.
    """
    platform = devices[0].platform
    backend = "gpu" if platform == "cuda" else platform
    with mock.patch.object(jax, "default_backend", return_value=backend):
        mesh = make_mesh(settings(MeshSettings, config.mesh), devices)
        dataset = memory.absent_rows(config)
        objective = objectives.objective(config, dataset, mesh)
        functions = model.train_functions(config, objective, mesh)
        estimate = sum(memory.estimate(config, len(devices)).bytes().values())
        for kind, batch in batches_of(config, dataset.length, mesh).items():
            start = time.perf_counter()
            traced = functions.train_step.trace(objective, functions.abstract_state, batch)
            facts: dict[str, Any] = {
                "estimate": estimate, "traced_flops": matmul_flops(traced.jaxpr) / len(devices)
            }  # fmt: skip
            try:
                options = {"exec_time_optimization_effort": effort} if effort else None
                program = traced.lower().compile(compiler_options=options)
            except jax.errors.JaxRuntimeError as error:
                if not (match := _NOT_FITTING.search(str(error))):
                    raise
                facts["peak"] = float(match[1]) * 1024 ** (1 + "KMGT".index(match[2]))
                yield kind, facts, ""
                continue
            sizes = program.memory_analysis()
            facts |= {
                "compile_seconds": time.perf_counter() - start,
                "arguments": sizes.argument_size_in_bytes,
                "temporaries": sizes.temp_size_in_bytes,
                "outputs": sizes.output_size_in_bytes - sizes.alias_size_in_bytes,
                "peak": sizes.peak_memory_in_bytes,
            }
            if measure:
                # CPU seconds, since other processes share the core.
                found = costs.seconds(
                    program, functions, batch, dataset.vocab_size, time.process_time, 10
                )
                facts["measured_ms"] = 1e3 * statistics.median(found)
            yield kind, facts, program.as_text()


def category(one: hlo.Operation) -> str:
    """Return the category of an operation, of `CATEGORIES`."""
    file, path = one.where.partition(":")[0], one.path
    if one.sent:
        return "collectives"
    if not file:
        return "copies"
    if "index_in_dim" in path or (path.endswith("broadcast_in_dim") and "models/enc" in file):
        return "saved activations"
    if file.startswith("knn_sampling") or "/embeddings" in path or "/head" in path:
        return "vocabulary"
    if file.startswith("xlm/training"):
        return "optimizer"
    if re.search(r"attention\._|flash|segment|positions", path + file):
        return "attention"
    if file.startswith("xlm/models"):
        return "encoder products" if one.flops else "encoder elementwise"
    return "other"


def record_of(facts: Mapping[str, Any], text: str, chip: Chip, num_devices: int) -> dict[str, Any]:
    """Return the costs of a program: bytes, FLOPs and milliseconds per device and step.

    `repeated` has the bytes and FLOPs of operations that the compiler repeats to save memory.
    `traffic` includes repetitions, `flops` does not.
    """
    program = hlo.Program(text, num_devices)
    operations = program.operations()
    rate = LINKS * chip.sent_per_second(num_devices)
    traffic, terms, idle = (defaultdict[str, float](float) for _ in range(3))
    once: dict[str, tuple[float, float]] = {}
    sent: dict[str, list[float]] = {}
    for one in operations:
        kind = category(one)
        traffic[kind] += one.bytes * one.times
        original = re.sub(r"\.remat\d*", "", one.name)
        costs = one.bytes * one.times, one.flops * one.times
        once[original] = max(costs, once.get(original, costs))
        if not one.sent:
            seconds = max(
                one.bytes / (STREAMS * chip.hbm_rate), one.flops / (PRODUCTS * chip.flops), LAUNCH
            )
            idle[one.name] += one.times * seconds  # seconds of the links
            place = f"{one.where or one.shape[:40]}; {one.path.rpartition('/')[2] or one.opcode}"
            terms[f"{kind}; {place}"] += one.times * seconds
    busy, exposed = sum(idle.values()), 0.0
    for one in (one for one in operations if one.sent):
        seconds = one.times * one.sent / rate
        totals = sent.setdefault(one.opcode, [0, 0.0, 0.0])
        can_overlap = one.times * one.sent if one.between else 0
        sent[one.opcode] = [
            totals[0] + one.times, totals[1] + one.times * one.sent, totals[2] + can_overlap
        ]  # fmt: skip
        for name in one.between:
            hidden = min(seconds, idle[name])
            idle[name] -= hidden
            seconds -= hidden
        exposed += seconds
        terms[f"collectives; {one.where}; {one.opcode} {one.shape[:40]}"] += seconds
    looks = sum(program.open_loops.values()) * LOOK if chip.far_rate else 0.0
    whole = busy + exposed + looks
    num_bytes, flops = map(sum, zip(*once.values(), strict=True))
    return {
        **facts,
        "flops": flops,
        "traffic": {name: traffic[name] for name in CATEGORIES if traffic[name]},
        "repeated": [
            sum(traffic.values()) - num_bytes,
            sum(one.flops * one.times for one in operations) - flops,
        ],
        "sent": sent,
        "launches": sum(one.times for one in operations),
        "launches_in_open_loops": sum(one.times for one in operations if one.in_open_loop),
        "open_loops": sorted(program.open_loops.values()),
        "ms": 1e3 * whole,
        "exposed_ms": 1e3 * exposed,
        "mfu": flops / whole / chip.flops,
        "largest": {
            x: round(1e3 * terms[x], 1) for x in sorted(terms, key=terms.__getitem__)[:-7:-1]
        },
    }


def row_of(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table row of a record: GB, TFLOP and milliseconds per device."""
    row = {name: one[name] for name in ("preset", "target", "kind")}
    row["peak GB (estimate)"] = f"{one['peak'] / 1e9:.1f} ({one['estimate'] / 1e9:.1f})"
    if "ms" not in one:
        return row
    traffic, (sent, hidden) = (
        one["traffic"],
        np.sum([[0, 0, 0], *one["sent"].values()], 0)[1:] / 1e9,
    )
    return {
        **row,
        **{part: f"{traffic.get(part, 0) / 1e9:.1f}" for part in CATEGORIES},
        "traffic (repeated)": f"{sum(traffic.values()) / 1e9:.0f} ({one['repeated'][0] / 1e9:.0f})",
        "sent (can overlap)": f"{sent:.2f} ({hidden:.2f})",
        "launches (open loops)": f"{one['launches']} ({one['launches_in_open_loops']})",
        "TFLOP (repeated)": f"{one['flops'] / 1e12:.1f} ({one['repeated'][1] / 1e12:.1f})",
        "ms (sending)": f"{one['ms']:.0f} ({one['exposed_ms']:.1f})",
        "MFU": f"{one['mfu']:.0%}",
        "compiled in s": f"{one['compile_seconds']:.0f}",
        **({"measured ms": f"{one['measured_ms']:.0f}"} if "measured_ms" in one else {}),
    }


def changes(old: Any, new: Any, name: str = "") -> list[str]:
    """Return the differences of two records; for numbers, those above 1 %."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = sorted({*old, *new} - {"compile_seconds", "measured_ms", "largest"})
        parts = (changes(old.get(x), new.get(x), f"{name} {x}".strip()) for x in names)
        return list(itertools.chain(*parts))
    if isinstance(old, float | int) and isinstance(new, float | int):
        return [] if abs(new - old) <= 0.01 * abs(old) else [f"{name}: {old:.4g} -> {new:.4g}"]
    return [] if old == new else [f"{name}: {old} -> {new}"]


def programs(
    config: ConfigDict, target: str, stem: pathlib.Path
) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the items of `compiled`, read from files that begin with `stem` if they exist."""
    paths = {kind: stem.with_name(f"{stem.name}-{kind}.json") for kind in kinds_of(config)}
    if all(path.exists() for path in paths.values()):
        for kind, path in paths.items():
            text = gzip.decompress(path.with_suffix(".hlo.gz").read_bytes()).decode()
            yield kind, artifacts.read_json(path), text
        return
    options = {"effort": _EFFORT.value, "measure": _MEASURE.value}
    for kind, facts, text in compiled(config, devices_of(target), **options):
        artifacts.write_bytes(paths[kind].with_suffix(".hlo.gz"), gzip.compress(text.encode()))
        artifacts.write_json(paths[kind], facts)
        yield kind, facts, text


def main(_) -> None:
    if _MEASURE.value:
        machine.set_up(cores=1)
    out = pathlib.Path(_OUT.value)
    path = out / "records.json"
    records = artifacts.read_json(path) if path.exists() else {}
    for target, preset in itertools.product(_TARGET.value, _PRESET.value):
        name, _, number = target.partition(":")
        config = config_of(preset, int(number), _SET.value, CHIPS[name].hbm_bytes)
        label = " ".join([preset, *_SET.value])
        stem = out / "-".join([preset.replace("/", "."), name, number, *_SET.value])
        for kind, facts, text in programs(config, target, stem):
            facts = {"preset": label, "target": target, "kind": kind, **facts}
            found = record_of(facts, text, CHIPS[name], int(number)) if text else facts
            records[f"{label} {target} {kind}"] = found
            artifacts.write_json(path, records)
            for term, milliseconds in found.get("largest", {}).items():
                print(f"{label} {target} {kind}: {milliseconds} ms {term}", flush=True)
    print(tables.markdown(map(row_of, records.values()), left=3))
    if _DIFF.value:
        print("\n".join(changes(artifacts.read_json(_DIFF.value), records)))


if __name__ == "__main__":
    entry_point.run(main, required=())
