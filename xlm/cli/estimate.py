"""Estimate memory, hours, money and epochs of a run before renting anything.

    xlm estimate --config=configs/one_gpu.py:24gb_day,TEXT --target=rtx4090 --price=0.4
    xlm estimate --config=configs/one_gpu.py:laptop_night,TEXT --target=here
    xlm estimate --config=configs/vocap_paper.py:vocap_500k_knn --devices=1,8,256

It runs on any machine in seconds, without data, and allocates nothing of the model's size. The
vocabulary has `vocab.target_size` pieces. --target=here runs some steps on the devices of this
machine instead. Steps and epochs count the rows in --workdir, or else follow from the sizes of the
text's files. Each number has its basis. --price is per device and hour, in any currency.

The state's memory is exact, activations are estimated (`xlm/training/memory.py`). Leave a fifth
free for the compiler's temporary memory. A refresh of the neighbour index is not included. It needs
copies of the table's rows instead of activations (docs/output_layer.md). A run with
`optimizer.stages` or `phases` has a line for each. --layout adds a table with the sharding of every
array. With `output_layer.kind` "auto", the command estimates the time of a step on such GPUs for
each layer, takes the fastest, and prints the times.

    xlm estimate --config=configs/finetune/xnli.py --encoder=xlmr_large

For fine-tuning, the sizes come from `init_from`, without reading its weights, or from a published
model. A table has the memory for each length and each `train.accumulation_steps`, by default on one
device.
"""

import itertools

import jax
from absl import flags
from ml_collections import config_flags

from xlm.common import tables
from xlm.experiment import costs, memory, output_layers, phase_runs, schema, task_schema
from xlm.training import compilation

_CONFIG = config_flags.DEFINE_config_file("config", None, "A run, e.g. configs/vocap_paper.py.")
_DEVICES = flags.DEFINE_list(
    "devices", None, "Numbers of devices, by default 1 and 8, for fine-tuning 1."
)
_ENCODER = flags.DEFINE_enum(
    "encoder", None, memory.ENCODERS, "Published encoder, instead of init_from."
)
_TARGET = flags.DEFINE_enum(
    "target", None, ("here", *costs.CHIPS), "Chip that runs it; here: the devices of this machine."
)
_PRICE = flags.DEFINE_float("price", None, "Price per device and hour.", lower_bound=0)
_WORKDIR = flags.DEFINE_string("workdir", None, "A run with prepared rows to count.")
_COMPILE = flags.DEFINE_bool("compile", False, "Also print the command that compiles the step.")
_LAYOUT = flags.DEFINE_bool("layout", False, "Also print how each parameter is split.")

OPTIONS = {"required": ("config",)}


def main(_) -> None:
    if wrong := [one for one in _DEVICES.value or () if not one.isdecimal() or not int(one)]:
        raise ValueError(f"--devices: {wrong[0]!r} must be a whole number of at least 1")
    if _TARGET.value == "here":
        compilation.use_cache()
        if compilation.is_of_cpu():
            compilation.keep_freed()  # as training does
    if "task" in _CONFIG.value:
        if _TARGET.value or _PRICE.value:
            raise ValueError("--target and --price are for pre-training; leave them out")
        _print_fine_tuning()
    elif _ENCODER.value:
        raise ValueError("--encoder is for configs of configs/finetune; leave it out")
    else:
        _print_pretraining()


def _print_fine_tuning() -> None:
    config = task_schema.checked(_CONFIG.value)
    if not (_ENCODER.value or config.init_from):
        raise ValueError(
            "no encoder; give --encoder, one of " + ", ".join(memory.ENCODERS) + ", or "
            "--config.init_from"
        )
    for number in map(int, _DEVICES.value or ["1"]):
        found = memory.estimate_fine_tuning(config, number, _ENCODER.value or "")
        model = config.model
        print(
            f"devices: {number}, train.batch_size: {config.train.batch_size}, model.dtype: "
            f"{model.dtype}, model.remat: {model.remat}; GB of each device\n"
        )
        print(memory.table(found) + "\n")


def _print_pretraining() -> None:
    whole = schema.checked(_CONFIG.value)
    configs = {one.name: one.config for one in phase_runs.phases_of(whole) if not one.merges}
    rows, layouts, choices = [], [], []
    here = _TARGET.value == "here"
    default = [jax.device_count()] if here else [1] if _TARGET.value else [1, 8]
    devices = list(map(int, _DEVICES.value or default))
    num_stages = len(whole.optimizer.stages) + 1
    runs = itertools.product(devices, (configs or {"": whole}).items(), range(num_stages))
    target = _TARGET.value or ""
    backend = jax.default_backend() if here else "tpu" if target.startswith("v") else "gpu"
    for number, (phase, config), stage in runs:
        estimate = memory.estimate(config, number, stage, backend)
        sizes = estimate.bytes()
        name = f" {phase}" if phase else ""
        name += f" ({estimate.stage})" if num_stages > 1 else ""
        parts = {part: sizes[part] / 1e9 for part in memory.PARTS}
        total = sum(sizes.values()) / 1e9
        row = {"devices": f"{number}{name}", "mesh": estimate.mesh, **parts, "all, GB": total}
        rows.append(row)
        if stage == num_stages - 1:
            layouts.append(estimate.layout)
        if config.output_layer.kind == "auto" and stage == num_stages - 1:
            found = output_layers.choice(config, memory.absent_rows(config), number, backend)
            choices.append(found[1])
    print("\n".join([tables.markdown(rows, ".2f", left=0), *choices]), flush=True)
    price, workdir = _PRICE.value or 0.0, _WORKDIR.value or ""
    for number in devices:
        print("\n" + costs.report(configs or {"": whole}, number, target, price, workdir))
        if _COMPILE.value:
            preset = config_flags.get_config_filename(flags.FLAGS["config"]).partition(",")[0]
            preset += f"#{next(iter(configs))}" if configs else ""
            chip = target if target in ("h200", "v5e", "v5p", "v6e") else "h100"  # its targets
            print(f"\npython -m benchmarks.compile --preset={preset} --target={chip}:{number}")
    if _LAYOUT.value:
        print("\n\n".join(["", *layouts]))
