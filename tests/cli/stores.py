"""Working directories of made-up rows, as far as the commands read them."""

import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from input_pipeline.packed_dataset import PackedDataset, tokenizer_hash
from tests.factories import SPECIAL_IDS, with_pair_rows
from xlm.common import artifacts
from xlm.experiment.data import Folders


def write_dataset(
    workdir: pathlib.Path, tokenizer: bytes, vocab_size: int, length: int, statistics=None,
    bitexts: Mapping[str, Mapping[str, Sequence[Sequence[int]]]] | None = None,
) -> PackedDataset:  # fmt: skip
    """Write a vocabulary, and rows with the sentences of `bitexts`, by set and language.

    The arrays that `statistics` are of are written by the caller.
    """
    folders, bitexts = Folders(workdir), bitexts or {}
    for folder in (folders.vocab, folders.rows):
        folder.mkdir(parents=True, exist_ok=True)
    folders.tokenizer.write_bytes(tokenizer)
    for name, columns in bitexts.items():
        for language, ids in columns.items():
            path = folders.rows / f"{name}.{language}"
            np.save(f"{path}.ends.npy", np.cumsum([*map(len, ids)]))
            np.save(f"{path}.bitext.npy", np.concatenate(ids).astype(np.uint16))
    dataset = with_pair_rows(PackedDataset(
        folders.rows, vocab_size, length, tokenizer_hash(tokenizer), SPECIAL_IDS, statistics or {},
        {}, {name: tuple(columns) for name, columns in bitexts.items()},
    ))  # fmt: skip
    dataset.write_meta()
    artifacts.open_stage(folders.rows, {"made": "up"}).finish()
    return dataset
