"""Corpora for vocabulary benchmarks: single languages, or several joined."""

from collections.abc import Iterator, Sequence

from ml_collections import ConfigDict

from input_pipeline.corpus import load_corpus
from xlm.experiment import data as builders


def load(config: ConfigDict, names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and all sentences of each corpus.

    Args:
      config: config with the location of the text; its languages, held-out share and limit are not
        used.
      names: a language, such as `en`, or a name for several, such as `latin=de+en`.
    """
    corpora = {
        name: (members or name).split("+")
        for name, _, members in (corpus.partition("=") for corpus in names)
    }
    config.corpus.languages = tuple(sorted({lang for group in corpora.values() for lang in group}))
    config.corpus.heldout_fraction = 0.0
    config.corpus.max_train_bytes = 0
    corpus = load_corpus(builders.corpus_spec(config))
    for name, group in corpora.items():
        yield name, [sentence for language in group for sentence in corpus.sentences(language)]
