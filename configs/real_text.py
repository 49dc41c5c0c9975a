"""Twenty languages of real text and their translations: an encoder in minutes.

    for stage in build_vocab prepare_data train evaluate; do
      python $stage.py --config=configs/real_text.py:DATA --workdir=runs/real_text
    done

DATA has, per language, the Bible (`bible/train`), prompts of a speech corpus
(`common_voice_text/train`), Wikipedia sentences (`wikiann_text`), novels (`books`), messages
(`thai_messages`) and news (`ntrex/train`, and for retrieval `ntrex/dev`), as `<lang>.txt.xz`, and
pairs of short sentences (`tatoeba_bitext`). Two steps of five contrast translations of the Bible,
news and these pairs. Sentences of the folder's test sets (`TESTED`) are left out. The full softmax
takes --config.output_layer.kind=full and another --workdir that shares `vocab` and `rows`.
`configs/real_text.py:runlocal` is a miniature on the embedded corpus.

Hardware: 2 CPU cores; the vocabulary takes a minute, training 10 minutes with a simulated device
for each core (scripts/quickstart.sh). Expect an exact held-out loss of 4.56 to 4.58 nats a token,
1.7 below the unigram distribution's 6.25. Expect it to find 27 to 31 % of NTREX translations,
chance 0.5 %. Three seeds, research/reports/results_encoders.md.
"""

from ml_collections import ConfigDict

from configs import small

LANGUAGES = (
    "ar", "de", "el", "en", "es", "fi", "fr", "he", "hi", "ja",
    "ko", "ml", "my", "ru", "sw", "ta", "th", "tr", "vi", "zh",
)  # fmt: skip

# NTREX calls its files by three-letter codes.
NTREX_CODES = {
    "arb": "ar", "deu": "de", "ell": "el", "eng": "en", "spa": "es", "fin": "fi", "fra": "fr",
    "heb": "he", "hin": "hi", "jpn": "ja", "kor": "ko", "mal": "ml", "mya": "my", "rus": "ru",
    "swa": "sw", "tam": "ta", "tha": "th", "tur": "tr", "vie": "vi", "zho-CN": "zh",
}  # fmt: skip

# Test sets of encoders, kept out of training.
TESTED = (
    "tatoeba_retrieval/*.tsv.xz",
    "bucc2018/*.tsv.xz",
    "udpos/dev/*.tsv.xz",
    "udpos/test/*.tsv.xz",
    "wikiann_ner/dev/*.tsv.xz",
)


def get_config(arg: str = "") -> ConfigDict:
    if arg == "runlocal":
        return small.runlocal()
    config = small.get_config()

    config.corpus.root = arg
    config.corpus.text = ("common_voice_text/train", "wikiann_text", "books", "thai_messages")
    config.corpus.parallel = ("bible/train", "ntrex/train", "tatoeba_bitext/*-*.tsv.xz")
    config.corpus.parallel_eval = ("ntrex/dev",)
    config.corpus.languages = LANGUAGES
    config.corpus.language_codes = ConfigDict(NTREX_CODES)
    config.corpus.exclude = TESTED
    config.corpus.parallel_heldout_fraction = 0.02
    config.corpus.max_train_bytes = 1_500_000

    config.vocab.update(target_size=30_000, sizes=tuple(range(1000, 8001, 1000)))
    config.data.update(contrast_share=0.4, pair_alpha=0.3)
    config.evaluation.max_sequences = 64
    return config
