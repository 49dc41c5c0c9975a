"""XLM-R's analysis (Conneau et al., arXiv 1911.02116, Section 5.1) at the paper's size.

    python -m xlm.launch.start --config=research/configs/xlm_r_full.py:reference,DATA \\
        --grid=alpha --workdir=DIR

BERT-Base, 150K pieces, 100 languages of Wikipedia. The paper has 67.7 on XNLI. The argument is a
run of `RUNS`, then `,DATA`. DATA has folders `wikipedia` and `commoncrawl` of `<lang>.txt.gz`, and
`segmented` for the grid `tokenizer`. We have not run any of these.

The paper states the 150K pieces, BERT-Base and the names of its figures. We chose the learning
rate, updates, batch, alpha and the languages beyond XNLI's 15. We also chose the values on the axes
of alpha and of the batch, and those between the ends of the other axes.

Hardware: accelerators.
"""

from typing import Any

from ml_collections import ConfigDict

from configs import xlm_r
from research.configs.xlm_r import (
    ALPHAS,
    BEYOND_15,
    BEYOND_30,
    BPE,
    FIFTEEN,
    SEVEN,
    changed,
    named,
    of_width,
    vocabularies,
)

_30 = (*FIFTEEN, *BEYOND_15, "id", "ja", "ko")
LANGUAGES: dict[int, tuple[str, ...]] = {
    7: SEVEN,
    15: FIFTEEN,
    30: _30,
    60: (*_30, *BEYOND_30, "pl", "pt", "uk"),
    100: (),  # all languages of DATA; the paper's list is in a table of its appendix
}
_LANGUAGES, _TEXT = "corpus.languages", "corpus.text"
_CC = {_TEXT: ("commoncrawl",)}
_PARAMETERS = vocabularies(150_000, 768, (32_000, 64_000, 128_000, 256_000), 4, 12)

# Changes to `_base`, by run.
RUNS: dict[str, dict[str, Any]] = {
    "reference": {},
    **{f"languages_{n}": {_LANGUAGES: LANGUAGES[n]} for n in (7, 15, 30, 60)},
    **{f"cc_{n}": {_LANGUAGES: LANGUAGES[n], **_CC} for n in (7, 15, 30, 60, 100)},
    "wide_30": {_LANGUAGES: LANGUAGES[30], **of_width(960, 4)},
    "wide_100": of_width(1152, 4),
    **{f"alpha_{alpha}": {"data.alpha": alpha} for alpha in ALPHAS if alpha != 0.3},
    **{f"parameters_{size // 1000}k": keys for size, keys in _PARAMETERS.items()},
    **{f"pieces_{n}k": {"vocab.target_size": 1000 * n} for n in (128, 256, 512)},
    **{f"batch_{n}": {"train.batch_size": n} for n in (4096, 8192)},
    "bpe": BPE,
    "segmented": {_TEXT: ("segmented",)},
    "segmented_bpe": {_TEXT: ("segmented",), **BPE},
    **{f"steps_{n}k": {"train.num_steps": 1000 * n} for n in (50, 100, 400)},
}  # fmt: skip

# Runs by figure.
GRIDS: dict[str, tuple[str, ...]] = {
    "languages": (
        *named("languages_{}", (7, 15, 30, 60)), "reference",
        *named("cc_{}", (7, 15, 30, 60, 100)),
    ),
    "alpha": (*named("alpha_{}", (0.01, 0.1)), "reference", "alpha_0.5", "alpha_0.7"),
    "vocabulary": (
        *named("parameters_{}k", (32, 64, 128, 256)), "reference",
        *named("pieces_{}k", (128, 256, 512)),
    ),
    "capacity": ("languages_7", "languages_30", "reference", "wide_30", "wide_100"),
    "corpora": ("languages_7", "cc_7", "reference", "cc_100"),
    "batch": ("reference", "batch_4096", "batch_8192"),
    "steps": ("steps_50k", "steps_100k", "reference", "steps_400k"),
    "tokenizer": ("reference", "bpe", "segmented", "segmented_bpe"),
}  # fmt: skip


def get_config(arg: str = "") -> ConfigDict:
    """Return the config of RUN or "RUN,DATA"; the default is reference."""
    return changed(_base(), "xlm_r_full", RUNS, arg)


def _base() -> ConfigDict:
    """Return XLM-100 on Wikipedia: BERT-Base and 150K pieces (Section 3)."""
    config = xlm_r.get_config("base")
    config.corpus.text = ("wikipedia",)
    config.vocab.target_size = 150_000
    config.optimizer.learning_rate = 4e-4
    config.train.update(batch_size=2048, num_steps=200_000)
    return config
