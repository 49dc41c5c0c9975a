"""Tokenise a corpus once into the packed dataset that training and evaluation read.

    python prepare_data.py --config=configs/quickstart.py --workdir=DIR

Reads DIR/vocab/spm.model, writes DIR/rows.
"""

import dataclasses
import functools
import pathlib

from absl import flags, logging
from ml_collections import config_flags
from tqdm import tqdm

from builders import checks
from builders import data as builders
from common import artifacts, entry_point
from configs import base
from input_pipeline.corpus import load_corpus
from input_pipeline.packed_dataset import META, tokenizer_hash
from input_pipeline.tokenization import check_tokenizer, write_rows

_CONFIG = config_flags.DEFINE_config_file("config", None, "What to do, e.g. configs/quickstart.py.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where results go.")


def main(_) -> None:
    config = checks.checked(_CONFIG.value)
    folders = builders.Folders(pathlib.Path(_WORKDIR.value))
    spec, settings = builders.corpus_spec(config), builders.packed_dataset_settings(config)

    tokenizer = folders.read_tokenizer()
    check_tokenizer(tokenizer, folders.tokenizer)
    corpus = load_corpus(spec)
    stage = artifacts.open_stage(
        folders.rows,
        {
            "corpus": dataclasses.asdict(spec),
            "text": corpus.digest(),
            "tokenizer": tokenizer_hash(tokenizer),
            "store": {k: v for k, v in config.store.items() if k != "num_workers"},
        },
        defaults=base.get_config().to_dict(),
        # A preparation that did not end has written nothing that is read.
        replace=not (folders.rows / META).exists(),
    )
    if stage.done:
        logging.info("%s is up to date", folders.rows)
        return
    with stage.held():
        store = write_rows(
            corpus,
            tokenizer,
            folders.rows,
            settings,
            progress=functools.partial(tqdm, desc="tokenise", unit="language"),
        )
        stage.finish()
    tokens = sum(s["train"]["tokens"] for s in store.statistics.values())
    rows = sum(s["train"]["rows"] for s in store.statistics.values())
    logging.info("wrote %s: %d training rows, %d tokens", folders.rows, rows, tokens)


if __name__ == "__main__":
    entry_point.run(main)
