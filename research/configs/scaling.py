"""Encoders of four sizes by the recipe of configs/one_gpu.py: seven languages, 4,000 pieces.

    python -m research run scaling --data=DATA --workdir=runs/scaling

DATA is a folder as for `configs/real_text.py`. To start a single run:

    for stage in build_vocab prepare_data train evaluate; do
      python $stage.py --config=research/configs/scaling.py:w128_1600,DATA --workdir=runs/w128_1600
    done

The argument is a run of `RUNS`, wWIDTH_STEPS, by default w128_1600. Up to 13M tokens are less than
an epoch of the 35 MB of text, so no run repeats much.
"""

from ml_collections import ConfigDict

from configs import one_gpu
from research.configs import xlm_r

LANGUAGES = ("de", "el", "en", "es", "fr", "hi", "ru")
LAYERS = {64: 2, 128: 2, 192: 3, 256: 4}
# In starting order, so a study that is cut short has all sizes.
_ORDER = (
    (64, 800), (128, 800), (192, 800), (64, 1600), (128, 1600), (192, 1600), (256, 800),
    (64, 3200), (128, 3200), (256, 1600), (64, 6400), (192, 3200),
)  # fmt: skip
RUNS = {f"w{width}_{steps}": (width, steps) for width, steps in _ORDER}


def get_config(arg: str = "") -> ConfigDict:
    """Return the config of RUN, "RUN,DATA" or "runlocal"."""
    if arg == "runlocal":
        return one_gpu.get_config(arg)
    name, _, data = (arg or "w128_1600").partition(",")
    if name not in RUNS:
        raise ValueError(f"scaling has no run {name!r}; there are {', '.join(RUNS)}")
    width, steps = RUNS[name]
    config = xlm_r.get_config(f"reference,{data}")
    config.corpus.update(languages=LANGUAGES, max_train_bytes=5_000_000)
    config.corpus.max_train_bytes_of = ConfigDict()
    config.vocab.target_size = 4000
    config.update_from_flattened_dict({**one_gpu.RECIPE, **one_gpu.size(LAYERS[width], width)})
    # A window of 32 tokens and a base of 100, for rows of 64, scale the published values down.
    config.model.update(
        local_window=32, rotary_theta=100.0, local_rotary_theta=100.0, unroll=LAYERS[width]
    )
    config.optimizer.warmup_steps = 100
    config.train.update(
        num_steps=steps, batch_size=32, log_every=50, evaluate_every=800, checkpoint_every=800
    )
    config.evaluation.update(max_sequences=200, max_sequences_in_training=4)
    return config
