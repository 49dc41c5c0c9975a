"""Builds a VoCap vocabulary: text per language in, one SentencePiece model and its record out.

    python build_vocab.py --config=configs/quickstart.py --workdir=DIR

Writes DIR/vocab/spm.model, and allocation.json with curves, probabilities and every step.
"""

import dataclasses
import functools
import pathlib

from absl import flags, logging
from ml_collections import config_flags
from tqdm import tqdm

import artifacts
import entry_point
from builders import data as builders
from input_pipeline.corpus import load_corpus
from vocap import record
from vocap.build import build_vocabulary

_CONFIG = config_flags.DEFINE_config_file("config", None, "What to do, e.g. configs/quickstart.py.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where results go.")


def main(_) -> None:
    config, folders = _CONFIG.value, builders.Folders(pathlib.Path(_WORKDIR.value))
    spec, settings = builders.corpus_spec(config), builders.vocabulary_settings(config)

    corpus = load_corpus(spec)
    stage = artifacts.open_stage(
        folders.vocab,
        {
            "corpus": dataclasses.asdict(spec),
            "text": corpus.digest(),
            "vocab": {k: v for k, v in config.vocab.items() if k != "num_workers"},
        },
    )
    if stage.done:
        logging.info("%s is up to date", folders.vocab)
        return
    vocabulary = build_vocabulary(
        {language: corpus.sentences(language) for language in corpus.train},
        settings,
        cache=folders.vocab / "languages",
        progress=functools.partial(
            tqdm, desc="vocabularies", unit="language", total=len(corpus.train)
        ),
    )
    artifacts.write_bytes(folders.tokenizer, vocabulary.model)
    artifacts.write_json(folders.vocab / "allocation.json", record.allocation_record(vocabulary))
    print(record.allocation_table(record.allocation_record(vocabulary)))
    stage.finish()
    logging.info("wrote %s with %d pieces", folders.tokenizer, settings.target_size)


if __name__ == "__main__":
    entry_point.run(main)
