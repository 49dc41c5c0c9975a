"""XLM-R's analysis (Conneau et al., arXiv 1911.02116, Section 5.1) at a small size.

    python -m xlm.launch.start --config=research/configs/xlm_r.py:reference,DATA --grid=alpha \\
        --workdir=DIR

15 languages, 8,000 pieces, two layers of width 128. The argument is a run of `RUNS`, then `,DATA`,
a folder as for `configs/real_text.py`. `research/configs/xlm_r_full.py` has the paper's size.

Hardware: one CPU core and some minutes per run.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from configs import bitext, real_text, small

# Seven languages with data of all tasks (Section 3), XNLI's fifteen, and a choice beyond.
SEVEN = ("de", "en", "fr", "ru", "sw", "ur", "zh")
FIFTEEN = (*SEVEN, "ar", "bg", "el", "es", "hi", "th", "tr", "vi")
BEYOND_15 = ("af", "eu", "fa", "fi", "he", "hu", "it", "ml", "my", "nl", "ta", "te")
BEYOND_30 = (
    "az", "bn", "ca", "cs", "da", "eo", "et", "gl", "gu", "hr", "ka", "kk", "la", "lt", "lv", "mn",
    "mr", "ms", "no", "pa", "ro", "sk", "sl", "sq", "sr", "sv", "tl",
)  # fmt: skip
# Without Chinese, Japanese and Korean: their characters would fill a small vocabulary.
_15 = (*(name for name in FIFTEEN if name != "zh"), "id")
_30 = (*_15, *BEYOND_15, "pl", "pt", "uk")
LANGUAGES: dict[int, tuple[str, ...]] = {
    7: ("de", "en", "fr", "ru", "sw", "tr", "ur"),
    15: _15,
    30: _30,
    60: (*_30, *BEYOND_30, "cy", "hy", "mt"),
}
HIGH, LOW = ("en", "fr"), ("sw", "ur")  # high- and low-resource (Section 3)

# Gigabytes of CommonCrawl and of Wikipedia (VoCap, Tables 7 and 8), for the amounts of text.
GIGABYTES = {
    "af": (0.2, 0.12), "ar": (16.1, 1.29), "az": (0.8, 0.24), "bg": (7.0, 0.62), "bn": (5.5, 0.41),
    "ca": (3.0, 1.1), "cs": (14.9, 0.8), "cy": (0.4, 0.06), "da": (6.9, 0.33), "de": (99.0, 5.43),
    "el": (13.1, 0.73), "en": (731.6, 12.58), "eo": (0.5, 0.25), "es": (85.6, 3.38),
    "et": (1.4, 0.23), "eu": (1.0, 0.24), "fa": (19.0, 0.66), "fi": (5.9, 0.68), "fr": (89.9, 4.0),
    "gl": (1.5, 0.27), "gu": (0.3, 0.09), "he": (4.4, 1.11), "hi": (5.0, 0.38), "hr": (1.4, 0.28),
    "hu": (9.5, 0.8), "hy": (0.7, 0.6), "id": (17.2, 0.52), "it": (47.2, 2.69), "ka": (1.0, 0.37),
    "kk": (0.6, 0.29), "la": (0.3, 0.05), "lt": (2.3, 0.19), "lv": (1.3, 0.12), "ml": (1.3, 0.28),
    "mn": (0.4, 0.05), "mr": (0.5, 0.1), "ms": (0.7, 0.2), "mt": (0.2, 0.01), "my": (0.4, 0.15),
    "nl": (25.9, 1.38), "no": (5.5, 0.54), "pa": (0.8, 0.1), "pl": (28.6, 1.55), "pt": (39.4, 1.5),
    "ro": (11.0, 0.42), "ru": (253.3, 5.63), "sk": (13.6, 0.21), "sl": (6.2, 0.21),
    "sq": (3.0, 0.1), "sr": (7.2, 0.74), "sv": (60.4, 1.7), "sw": (0.3, 0.03), "ta": (7.9, 0.46),
    "te": (2.3, 0.44), "th": (33.0, 0.52), "tl": (1.2, 0.04), "tr": (56.4, 0.43),
    "uk": (13.4, 2.43), "ur": (3.0, 0.13), "vi": (74.5, 0.76),
}  # fmt: skip
_MOST = 3_000_000  # bytes of English text; others by the square root of their share


def _amounts(corpus: int) -> dict[str, int]:
    """Return bytes by language, by the square roots of CommonCrawl's (0) or Wikipedia's (1)."""
    most = GIGABYTES["en"][0]
    return {name: round(_MOST * math.sqrt(both[corpus] / most)) for name, both in GIGABYTES.items()}


def of_width(size: int, mlp: int) -> dict[str, int]:
    """Return the keys of a width; the feed-forward network is `mlp` times as wide."""
    return {"model.embedding_size": size, "model.hidden_size": size, "model.mlp_size": mlp * size}


BPE = {"vocab.method": "bpe"}
ALPHAS = (0.01, 0.1, 0.3, 0.5, 0.7)
_LANGUAGES = "corpus.languages"


def constant_width(pieces: int, parameters: int, squares: int, multiple: int) -> int:
    """Return the width D, a multiple of `multiple`, with V D + squares D^2 nearest to `parameters`.

    `squares` counts the matrices of D^2 in the layers.
    """
    exact = (math.sqrt(pieces**2 + 4 * squares * parameters) - pieces) / (2 * squares)
    return multiple * round(exact / multiple)


def vocabularies(at: int, width: int, sizes: tuple[int, ...], mlp: int, layers: int) -> dict:
    """Return keys by vocabulary size, all with the parameters of `at` pieces at `width`."""
    squares = layers * (4 + 2 * mlp)
    total = at * width + squares * width**2
    multiple = 48 if width > 500 else 4
    widths = {size: constant_width(size, total, squares, multiple) for size in sizes}
    return {size: {"vocab.target_size": size, **of_width(widths[size], mlp)} for size in sizes}


_PARAMETERS = vocabularies(8_000, 128, (4_000, 16_000, 32_000), 2, 2)
_WIKIPEDIA = {f"corpus.max_train_bytes_of.{name}": size for name, size in _amounts(1).items()}


def _alone(language: str) -> dict[str, Any]:
    """Return the keys of an encoder of one language, with half the pieces."""
    # Low-resource languages have 1,000 pieces: tens of kilobytes of text have no more.
    return {_LANGUAGES: (language,), "vocab.target_size": 1000 if language in LOW else 4000}


def _updates(languages: int) -> dict[str, int]:
    return {"train.num_steps": round(2400 * languages / 7)}


def named(form: str, values: Sequence[Any]) -> tuple[str, ...]:
    return tuple(form.format(value) for value in values)


# Changes to `_base`, by run.
RUNS: dict[str, dict[str, Any]] = {
    "reference": {},
    **{f"languages_{n}": {_LANGUAGES: LANGUAGES[n]} for n in (7, 30, 60)},
    **{f"only_{name}": _alone(name) for name in LANGUAGES[7]},
    **{f"only_wikipedia_{name}": {**_alone(name), **_WIKIPEDIA} for name in LOW},
    "wide_15": of_width(160, 2),
    "wide_30": {_LANGUAGES: LANGUAGES[30], **of_width(192, 2)},
    **{f"alpha_{alpha}": {"data.alpha": alpha} for alpha in (*ALPHAS, 1.0) if alpha != 0.3},
    **{f"parameters_{size // 1000}k": keys for size, keys in _PARAMETERS.items()},
    **{f"pieces_{n}k": {"vocab.target_size": 1000 * n} for n in (4, 16, 32)},
    "bpe": BPE,
    "wikipedia_7": {_LANGUAGES: LANGUAGES[7], **_WIKIPEDIA},
    "wikipedia_15": _WIKIPEDIA,
    **{f"batch_{n}": {"train.batch_size": n} for n in (8, 32)},
    **{f"batch_{n}_examples": {"train.batch_size": n, "train.num_steps": 2400 * 16 // n}
       for n in (8, 32)},
    # On average as many updates per language as with seven languages.
    "languages_15_examples": _updates(15),
    "wide_15_examples": {**of_width(160, 2), **_updates(15)},
    "languages_30_examples": {_LANGUAGES: LANGUAGES[30], **_updates(30)},
    "wide_30_examples": {_LANGUAGES: LANGUAGES[30], **of_width(192, 2), **_updates(30)},
    # Seven languages, since their loss levels off soonest.
    **{f"steps_{n}": {_LANGUAGES: LANGUAGES[7], "train.num_steps": n}
       for n in (600, 1200, 4800, 9600)},
}  # fmt: skip

# Runs by figure.
GRIDS: dict[str, tuple[str, ...]] = {
    "languages": ("languages_7", "reference", "languages_30", "languages_60"),
    "alpha": (
        "alpha_0.01", "alpha_0.1", "reference", "alpha_0.5", "alpha_0.7", "alpha_1.0",
    ),
    "vocabulary": (
        *named("parameters_{}k", (4, 16, 32)), *named("pieces_{}k", (4, 16, 32)),
        "reference",
    ),
    "capacity": ("languages_7", "reference", "languages_30", "wide_15", "wide_30"),
    "corpora": ("wikipedia_7", "languages_7", "wikipedia_15", "reference"),
    "batch": ("batch_8", "batch_32", "batch_8_examples", "batch_32_examples", "reference"),
    "steps": (
        "steps_600", "steps_1200", "languages_7", "steps_4800", "steps_9600",
    ),
    "tokenizer": ("reference", "bpe"),
    "examples": (
        "languages_7", *named("languages_{}_examples", (15, 30)),
        *named("wide_{}_examples", (15, 30)),
    ),
}  # fmt: skip


def get_config(arg: str = "") -> ConfigDict:
    """Return the config of RUN or "RUN,DATA"; the default is reference."""
    return changed(_base(), "xlm_r", RUNS, arg)


def changed(
    config: ConfigDict, name: str, runs: Mapping[str, Mapping[str, Any]], arg: str
) -> ConfigDict:
    """Apply the changes of a recipe's run to `config`; `arg` is "RUN,DATA", or "" for reference."""
    run, _, data = (arg or "reference").partition(",")
    if run not in runs:
        raise ValueError(f"{name} has no run {run!r}; there are {', '.join(runs)}")
    config.corpus.root = data
    config.update_from_flattened_dict(runs[run])
    return config


def _base() -> ConfigDict:
    """Return a small encoder of 15 languages, with text in CommonCrawl's proportions."""
    config = small.get_config()
    config.corpus.text = (
        "common_voice_text/train", "wikiann_text", "books", "thai_messages", "bible/train",
        "ntrex/train",
    )  # fmt: skip
    config.corpus.languages = LANGUAGES[15]
    config.corpus.language_codes = ConfigDict(bitext.NTREX_CODES)
    config.corpus.exclude = real_text.TESTED
    config.corpus.max_train_bytes_of = ConfigDict(_amounts(0))
    config.vocab.update(method="joint", target_size=8000, alpha=0.3, num_workers=1)
    config.store.update(length=64, num_workers=1)
    config.data.update(alpha=0.3, across_documents=True, loader="threads")
    config.model.max_length = 64
    config.output_layer.update(kind="full", full_softmax_fraction=0.0)
    # Small batches: learning from context depends on the number of steps.
    config.train.update(
        num_steps=2400, batch_size=16, log_every=50, evaluate_every=800, checkpoint_every=800,
        keep_checkpoints=1,
    )  # fmt: skip
    config.evaluation.update(max_sequences=64, max_sequences_in_training=2)
    return config
