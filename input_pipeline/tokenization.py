"""Tokenisation of a corpus, in parallel processes, into the packed dataset."""

import concurrent.futures
import dataclasses
import functools
import itertools
import multiprocessing
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import sentencepiece as spm

from common import artifacts
from input_pipeline import packed_dataset
from input_pipeline.corpus import Corpus, ParallelText
from input_pipeline.packed_dataset import PackedDataset, SpecialIds
from input_pipeline.text_files import Document

_DOCUMENTS_PER_TASK = 256


@dataclasses.dataclass(frozen=True)
class PackedDatasetSettings:
    """Settings of the packed dataset; the `store` section of a config.

    Attributes:
      length: L, tokens per sequence.
      parallel_length: maximum tokens of a sentence of parallel text, longer ones are cut.
      num_workers: tokenising processes.
    """

    length: int
    parallel_length: int
    num_workers: int

    def __post_init__(self):
        for name in ("length", "parallel_length"):
            if getattr(self, name) < 16:
                raise ValueError(f"store.{name} is {getattr(self, name)}, must be at least 16")
        if self.num_workers < 1:
            raise ValueError(f"store.num_workers is {self.num_workers}, must be at least 1")


def special_ids(processor: spm.SentencePieceProcessor) -> SpecialIds:
    """Read the special ids of a tokenizer.

    Raises:
      ValueError: the tokenizer lacks one of them.
    """
    mask = processor.piece_to_id("<mask>")
    ids = SpecialIds(
        bos=processor.bos_id(),
        pad=processor.pad_id(),
        eos=processor.eos_id(),
        unk=processor.unk_id(),
        mask=mask if processor.is_control(mask) else -1,
    )
    for name, value in dataclasses.asdict(ids).items():
        if value < 0:
            raise ValueError(
                f"the tokenizer has no <{name}> token; pre-training needs <s> <pad> </s> <unk> "
                "and <mask> as special pieces, as build_vocab.py makes them"
            )
    return ids


def check_tokenizer(model: bytes, path: pathlib.Path) -> None:
    """Raise ValueError unless `model`, read from `path`, is a tokenizer to pre-train with."""
    remedy = "copy it again, or remove its folder and run build_vocab.py again"
    if not model:
        raise ValueError(f"{path}: the file is empty; {remedy}")
    try:
        special_ids(spm.SentencePieceProcessor(model_proto=model))
    except RuntimeError as error:
        raise ValueError(f"{path}: not a SentencePiece model ({error}); {remedy}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def write_rows(
    corpus: Corpus,
    model: bytes,
    folder: pathlib.Path,
    settings: PackedDatasetSettings,
    progress: Callable[[Iterable], Iterable] = iter,
) -> PackedDataset:
    """Tokenise and pack `corpus` with a SentencePiece `model`, into a packed dataset in `folder`.

    The result does not depend on the number of workers.

    Raises:
      ValueError: a language yields no sequences, or the tokenizer lacks a special token.
    """
    processor = spm.SentencePieceProcessor(model_proto=model)
    special = special_ids(processor)
    dtype = packed_dataset.id_dtype(processor.get_piece_size())
    statistics: dict[str, dict[str, dict[str, int]]] = {lang: {} for lang in corpus.train}

    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        settings.num_workers, mp_context=context, initializer=_load_tokenizer, initargs=(model,)
    ) as pool:
        jobs = [
            (language, split, documents)
            for split, part in zip(
                packed_dataset.SPLITS, (corpus.train, corpus.heldout), strict=True
            )
            for language, documents in part.items()
        ]
        for language, split, documents in progress(jobs):
            tokens = list(_tokenize(pool, documents))
            rows = packed_dataset.pack_rows(tokens, settings.length, special, dtype)
            if not len(rows) and split == "train":
                raise ValueError(f"language {language!r} has no training text left to tokenise")
            _save(folder / f"{language}.{split}.npy", rows)
            if split == "train":
                _save(folder / f"{language}.counts.npy", _count(tokens, processor.get_piece_size()))
            statistics[language][split] = {
                "rows": len(rows),
                "tokens": sum(map(len, tokens)),
                "unknown": int(sum((t == special.unk).sum() for t in tokens)),
                "characters": sum(len(s) + 1 for document in documents for s in document),
            }
        tokenize = functools.partial(_tokenize_column, pool)
        parallel = _unique_names(corpus.parallel)
        for name, text in parallel.items():
            for column, language in enumerate(text.languages):
                tokens = tokenize(text, column)
                rows = packed_dataset.pad_sentences(
                    tokens, settings.parallel_length, special, dtype
                )
                _save(folder / f"{name}.{language}.parallel.npy", rows)
        bitexts = _unique_names(corpus.bitexts)
        for name, text in bitexts.items():
            for column, language in enumerate(text.languages):
                tokens = tokenize(text, column)
                ids = np.concatenate([*tokens, np.zeros(0)]).astype(dtype)
                _save(folder / f"{name}.{language}.bitext.npy", ids)
                _save(
                    folder / f"{name}.{language}.ends.npy",
                    np.cumsum([*map(len, tokens)], dtype=np.int64),
                )

    store = PackedDataset(
        folder=folder,
        vocab_size=processor.get_piece_size(),
        length=settings.length,
        tokenizer=packed_dataset.tokenizer_hash(model),
        special=special,
        statistics=statistics,
        parallel={name: text.languages for name, text in parallel.items()},
        bitexts={name: text.languages for name, text in bitexts.items()},
    )
    store.write_meta()
    return store


def _count(tokens: Sequence[np.ndarray], vocab_size: int) -> np.ndarray:
    """Return [V] int64, the occurrences of each piece."""
    counts = np.zeros(vocab_size, np.int64)
    for document in tokens:
        np.add.at(counts, document, 1)
    return counts


def _unique_names(texts: Iterable[ParallelText]) -> dict[str, ParallelText]:
    """Return the texts by name, numbered where texts of different folders share a name."""
    found: dict[str, ParallelText] = {}
    for text in texts:
        candidates = itertools.chain([text.name], (f"{text.name}-{i}" for i in itertools.count(2)))
        found[next(name for name in candidates if name not in found)] = text
    return found


def _save(path: pathlib.Path, rows: np.ndarray) -> None:
    with artifacts.atomic_path(path) as aside:
        np.save(aside, rows, allow_pickle=False)


def _tokenize_column(
    pool: concurrent.futures.Executor, text: ParallelText, column: int
) -> list[np.ndarray]:
    """Return the token ids of every sentence of a column; none for an empty cell."""
    return list(_tokenize(pool, [[row[column]] for row in text.rows]))


def _tokenize(
    pool: concurrent.futures.Executor, documents: Sequence[Document]
) -> Iterator[np.ndarray]:
    """Yield the token ids of each document, in order."""
    starts = range(0, len(documents), _DOCUMENTS_PER_TASK)
    tasks = (documents[start : start + _DOCUMENTS_PER_TASK] for start in starts)
    for batch in pool.map(_tokenize_batch, tasks):
        yield from batch


_tokenizer: spm.SentencePieceProcessor  # per worker process, see `_load_tokenizer`


def _load_tokenizer(model: bytes) -> None:
    global _tokenizer
    _tokenizer = spm.SentencePieceProcessor(model_proto=model)


def _tokenize_batch(documents: Sequence[Document]) -> list[np.ndarray]:
    """Return the token ids of each document, its sentences joined; runs in a worker process."""
    encode = functools.partial(_tokenizer.encode, out_type=int, num_threads=1)
    return [
        np.fromiter(itertools.chain.from_iterable(encode(document)), np.uint32)
        for document in documents
    ]
