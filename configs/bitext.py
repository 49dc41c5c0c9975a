"""A small encoder of 21 languages, half of its steps on pairs of translations (TLM).

    for stage in build_vocab prepare_data train evaluate; do
      python $stage.py --config=configs/bitext.py:DATA --workdir=runs/bitext
    done

To compare with a run without pairs, on the same text and batches of rows:

    mkdir runs/no_bitext
    cp -r runs/bitext/vocab runs/bitext/rows runs/no_bitext
    for stage in train evaluate; do
      python $stage.py --config=configs/bitext.py:DATA --workdir=runs/no_bitext \\
        --config.data.pair_share=0.0
    done

DATA is a folder as for `configs/real_text.py`. Every two languages of a set form pairs: the Bible
(`bible/train`, aligned by ids of verses, 15 languages), news (`ntrex/train`, all languages) and
texts on health (`tico19`, 12). Positions continue through both sentences;
`--config.data.pair_positions=restart` is the other convention. `configs/bitext.py:runlocal` is a
miniature on the embedded corpus.

Hardware: 2 CPU cores, less than an hour. With learned positions and AdamW it had an exact held-out
loss of 5.93 nats a token, against 6.19 for the unigram distribution (one run;
research/reports/results_encoders.md). We did not run the present gated positions and Muon.
"""

from ml_collections import ConfigDict

from configs import real_text, small

LANGUAGES = (
    "ar", "de", "en", "es", "fa", "fi", "fr", "he", "hi", "hu", "id", "it", "ja", "ko", "nl", "ru",
    "ta", "te", "tr", "vi", "zh",
)  # fmt: skip

NTREX_CODES = {
    **real_text.NTREX_CODES,
    "fas": "fa", "hun": "hu", "ind": "id", "ita": "it", "nld": "nl", "tel": "te",
}  # fmt: skip


def get_config(arg: str = "") -> ConfigDict:
    config = small.runlocal() if arg == "runlocal" else small.get_config()
    config.data.update(pair_share=0.5, contrast_share=0.0)
    if arg == "runlocal":
        config.train.num_steps = 4  # some of them on pairs
        return config

    config.corpus.root = arg
    config.corpus.text = ("common_voice_text/train", "wikiann_text", "books")
    config.corpus.parallel = ("bible/train", "ntrex/train", "tico19")
    config.corpus.parallel_eval = ("ntrex/dev",)
    config.corpus.parallel_heldout_fraction = 0.02
    config.corpus.exclude = real_text.TESTED
    config.corpus.languages = LANGUAGES
    config.corpus.language_codes = ConfigDict(NTREX_CODES)
    config.corpus.max_train_bytes = 2_000_000

    config.vocab.target_size = 24_000
    config.model.update(num_layers=3, mlp_size=512, unroll=3)
    config.output_layer.refresh_every = 200
    config.optimizer.update(learning_rate=2e-3, warmup_steps=300)
    config.train.num_steps = 4000
    return config
