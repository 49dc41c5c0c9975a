"""Estimate the memory of each device before renting any: parameters, optimizer, activations.

    python -m tools.estimate_memory --config=configs/vocap_paper.py:vocap_500k_knn --devices=1,8,256

Runs on any machine in seconds: no array of the model's size is allocated. It needs no data either;
the vocabulary is assumed to have `vocab.target_size` pieces. The state is exact, activations are
estimated (`training/memory.py`), and the compiler's temporary memory is not included: leave a fifth
of the memory free. A run with `optimizer.stages` has a line for each stage. --layout adds a table
with the sharding of every array.
"""

import itertools

from absl import flags
from ml_collections import config_flags

from builders import checks, memory
from common import entry_point

_CONFIG = config_flags.DEFINE_config_file("config", None, "A run, e.g. configs/vocap_paper.py.")
_DEVICES = flags.DEFINE_list("devices", ["1", "8"], "Numbers of devices.")
_LAYOUT = flags.DEFINE_bool("layout", False, "Also print how each parameter is split.")


def main(_) -> None:
    config = checks.checked(_CONFIG.value)
    if wrong := [one for one in _DEVICES.value if not one.isdecimal() or not int(one)]:
        raise ValueError(f"--devices: {wrong[0]!r} must be a whole number of at least 1")
    numbers = [int(one) for one in _DEVICES.value]
    print("| devices | mesh | " + " | ".join(memory.PARTS) + " | all, GB |")
    print("|" + "---:|" * (3 + len(memory.PARTS)))
    layouts = []
    num_stages = len(config.optimizer.stages) + 1
    for number, stage in itertools.product(numbers, range(num_stages)):
        estimate = memory.estimate(config, number, stage)
        cells = [f"{estimate.bytes[part] / 1e9:.2f}" for part in memory.PARTS]
        total = sum(estimate.bytes.values()) / 1e9
        name = f" ({estimate.stage})" if num_stages > 1 else ""
        print(f"| {number}{name} | {estimate.mesh} | {' | '.join(cells)} | {total:.2f} |")
        if stage == num_stages - 1:
            layouts.append(estimate.layout)
    if _LAYOUT.value:
        print("\n\n".join(["", *layouts]))


if __name__ == "__main__":
    entry_point.run(main, required=("config",))
