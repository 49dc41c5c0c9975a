"""A small encoder of 21 languages whose sentences lie near their translations.

    for stage in build_vocab prepare_data train evaluate; do
      python $stage.py --config=research/configs/crosslingual.py:DATA --workdir=runs/crosslingual
    done

DATA is a folder as for `configs/bitext.py`. Of the steps, two in ten are on rows of text (MLM),
two on pairs of translations that see each other (TLM), and six on pairs that do not and are
contrasted: the three tasks of InfoXLM (arXiv 2007.07834). Pairs are of the Bible, of news (NTREX)
and of Tatoeba (`tatoeba_bitext`), from whose short sentences of daily life words are soonest
learnt. No test sentence of POS, NER or retrieval is trained on (`real_text.TESTED`).

The vocabulary is large for so small an encoder, and that is what makes it learn: with 96,000 pieces
many are whole words, which can be matched with words of another language.

Hardware: one CPU core, a quarter of an hour. Expect an exact held-out loss of 5.69 to 5.70 nats a
token, 1.2 below the unigram distribution's 6.93 and in no language above it, and NTREX translations
found in 56 to 59 % of cases, chance 0.5 % (three seeds). `python -m research run crosslingual`
fine-tunes it, and the same encoder with random parameters, on English POS and NER, with frozen
embeddings and with everything trained: pre-training is worth 16 and 13.5 F1 of POS in other
languages, 6 of NER (research/reports/results_encoders.md).
`research/configs/crosslingual.py:runlocal` is the same on the embedded corpus in miniature.
"""

from ml_collections import ConfigDict

from configs import bitext


def get_config(arg: str = "") -> ConfigDict:
    """The config; `arg` is the folder with the data, or "runlocal"."""
    config = bitext.get_config(arg)
    config.data.update(pair_share=0.2, contrast_share=0.6)
    if arg == "runlocal":
        # Of its four steps some are on pairs of either kind.
        config.data.update(pair_share=0.4, contrast_share=0.4)
        return config

    config.corpus.parallel = ("bible/train", "ntrex/train", "tatoeba_bitext/*-*.tsv.xz")
    config.data.pair_alpha = 0.2

    config.vocab.target_size = 96_000
    config.model.update(num_layers=2, unroll=2)

    # The table is most of the model: its update by rows, and few refreshes of the index, keep the
    # cost of a step that of a small vocabulary.
    config.output_layer.update(k=5, refresh_every=2000, full_softmax_fraction=0.0)
    config.optimizer.embedding_update = "rows"
    config.optimizer.learning_rate = 3e-3

    config.train.update(num_steps=4000, evaluate_every=2000)
    return config
