"""A vocabulary of 65 languages of real text, by the method that needs the fewest tokens.

    python build_vocab.py --config=configs/vocabulary.py:DATA --workdir=runs/vocab120k
    python build_vocab.py --config=configs/vocabulary.py:DATA --workdir=runs/vocab120k_table7 \\
        --config.vocab.amounts=commoncrawl_gb.json

DATA has folders of `<lang>.txt.xz` as for `configs/real_text.py`, without news and pairs. The
second command takes the amounts of text of Eq. 3 from a JSON file of gigabytes per language (the
paper's Table 7). Results: research/reports/results_union.md. For the paper's method, whose results
are in research/reports/results_vocabularies.md, add --config.vocab.method=vocap
--config.vocab.alpha=0.7 --config.vocab.beta=0.7. `configs/vocabulary.py:runlocal` is a miniature on
the embedded corpus.

Hardware: a laptop; 2 CPU cores and 4 GB.
"""

from ml_collections import ConfigDict

from configs import small

LANGUAGES = (
    "af", "ar", "as", "az", "bg", "ca", "cs", "cy", "da", "de", "el", "en", "eo", "es", "et",
    "eu", "fa", "fi", "fr", "gl", "he", "hi", "hr", "hu", "hy", "id", "it", "ja", "ka", "kk",
    "ko", "ky", "la", "lt", "lv", "mk", "ml", "mn", "mr", "ms", "mt", "my", "nl", "no", "or",
    "pa", "pl", "pt", "ro", "ru", "sl", "sq", "sr", "sv", "sw", "ta", "tl", "tr", "tt", "ug",
    "uk", "ur", "uz", "vi", "zh",
)  # fmt: skip


def get_config(arg: str = "") -> ConfigDict:
    if arg == "runlocal":
        return small.runlocal()
    config = small.get_config()

    config.corpus.root = arg
    config.corpus.text = (
        "bible/train", "common_voice_text/train", "wikiann_text", "books", "thai_messages",
    )  # fmt: skip
    config.corpus.languages = LANGUAGES

    config.vocab.update(method="union", byte_fallback=True, sizes=())
    # Shares f^0.3; the paper's f^0.49 costs the languages with little text 6 % more tokens.
    config.vocab.update(alpha=0.3, beta=1.0)
    config.vocab.compare = ("vocap", "proportional", "uniform", "joint", "clustered")
    config.vocab.target_size = 120_000
    config.vocab.num_clusters = 8
    return config
