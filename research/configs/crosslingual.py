"""A small encoder of 21 languages that aligns sentences with their translations.

    for stage in build_vocab prepare_data train evaluate; do
      python $stage.py --config=research/configs/crosslingual.py:DATA --workdir=runs/crosslingual
    done

DATA is a folder as for `configs/bitext.py`. The steps are on the three tasks of InfoXLM (arXiv
2007.07834). 20 % are on rows of text (MLM). 20 % are on translations that attend to each other
(TLM). 60 % contrast translations encoded separately. Pairs are from the Bible, news (NTREX) and
Tatoeba (`tatoeba_bitext`), whose short everyday sentences teach words soonest. Training text has no
test sentence of POS, NER or retrieval (`real_text.TESTED`).

The vocabulary is large for the encoder, and this makes it learn. Many of the 96,000 pieces are
whole words, which it can match with words of another language.

Hardware: one CPU core, a quarter of an hour. Expect an exact held-out loss of 5.69 to 5.70 nats per
token. The unigram distribution has 6.93, and no language is above its own. Expect it to find 56 to
59 % of NTREX translations, chance 0.5 % (three seeds). `python -m research run crosslingual`
fine-tunes this encoder and a random one on English POS and NER, with embeddings frozen or trained.
Pre-training adds 16 and 13.5 F1 of POS in other languages, and 6 of NER
(research/reports/results_encoders.md). `research/configs/crosslingual.py:runlocal` is a miniature
on the embedded corpus.
"""

from ml_collections import ConfigDict

from configs import bitext


def get_config(arg: str = "") -> ConfigDict:
    """Return the config; `arg` is the data folder, or "runlocal"."""
    config = bitext.get_config(arg)
    config.data.update(pair_share=0.2, contrast_share=0.6)
    if arg == "runlocal":
        # Some of its four steps are on pairs of either kind.
        config.data.update(pair_share=0.4, contrast_share=0.4)
        return config

    config.corpus.parallel = ("bible/train", "ntrex/train", "tatoeba_bitext/*-*.tsv.xz")
    config.data.pair_alpha = 0.2

    config.vocab.target_size = 96_000
    config.model.update(num_layers=2, unroll=2)

    # The table is most of the model. Updates by rows and few refreshes of the index keep a step as
    # cheap as with a small vocabulary.
    config.output_layer.update(k=5, refresh_every=2000, full_softmax_fraction=0.0)
    config.optimizer.embedding_update = "rows"
    config.optimizer.learning_rate = 3e-3

    config.train.update(num_steps=4000, evaluate_every=2000)
    return config
