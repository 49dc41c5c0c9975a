"""Starting points of translation models: VECO's small runs with four layers, in four languages.

    for stage in build_vocab prepare_data train; do
      python $stage.py --config=research/configs/translation.py:translation,DATA --workdir=DIR
    done

The argument is a run of `RUNS`, then `,DATA`, a folder as for `configs/bitext.py`. Decoders start
from the first two, the last two or the last of the layers.

Hardware: 2 CPU cores.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import veco

_TRANSLATION = {
    "corpus.languages": ("cs", "de", "en", "fr"),
    "corpus.language_codes": {"ces": "cs", "deu": "de", "eng": "en", "fra": "fr"},
    "corpus.parallel": ("bible/train", "ntrex/train", "tatoeba_bitext/*-*.tsv.xz"),
    "vocab.target_size": 8000,
    "model.num_layers": 4,
    "model.mlp_size": 512,
    "model.unroll": 4,
}

# Changes to `translation`, by run.
RUNS: dict[str, dict[str, Any]] = {
    "translation": {},
    "translation_xlm": veco.SMALL["small_xlm"],
    "translation_xlm_text": veco.SMALL["small_xlm_text"],
}


def get_config(arg: str = "") -> ConfigDict:
    """Return the config of RUN or "RUN,DATA"; the default is translation."""
    run, _, data = (arg or "translation").partition(",")
    if run not in RUNS:
        raise ValueError(f"translation has no run {run!r}; there are {', '.join(RUNS)}")
    config = veco.get_config(f"small,{data}")
    config.update_from_flattened_dict({**_TRANSLATION, **RUNS[run]})
    return config
