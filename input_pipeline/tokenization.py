"""Tokenises a corpus once, in parallel processes, into the row store."""

import concurrent.futures
import dataclasses
import functools
import itertools
import multiprocessing
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import sentencepiece as spm

import artifacts
from input_pipeline import row_store
from input_pipeline.corpus import Corpus
from input_pipeline.row_store import RowStore, SpecialIds
from input_pipeline.text_files import Document

_DOCUMENTS_PER_TASK = 256


@dataclasses.dataclass(frozen=True)
class RowStoreSettings:
    """How rows are made; the `store` section of a config.

    Attributes:
      length: L, tokens a row.
      parallel_length: tokens kept of a sentence of parallel text.
      num_workers: tokenising processes.
    """

    length: int
    parallel_length: int
    num_workers: int

    def __post_init__(self):
        for name in ("length", "parallel_length"):
            if getattr(self, name) < 16:
                raise ValueError(f"store.{name} is {getattr(self, name)}, must be at least 16")


def special_ids(processor: spm.SentencePieceProcessor) -> SpecialIds:
    """Reads the special ids of a tokenizer.

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


def write_rows(
    corpus: Corpus,
    model: bytes,
    folder: pathlib.Path,
    settings: RowStoreSettings,
    progress: Callable[[Iterable], Iterable] = iter,
) -> RowStore:
    """Tokenises and packs `corpus` with the SentencePiece `model` into a row store in `folder`.

    The rows do not depend on the number of workers.

    Raises:
      ValueError: a language yields no rows, or the tokenizer lacks a special token.
    """
    processor = spm.SentencePieceProcessor(model_proto=model)
    special = special_ids(processor)
    dtype = row_store.id_dtype(processor.get_piece_size())
    statistics: dict[str, dict[str, dict[str, int]]] = {lang: {} for lang in corpus.train}

    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        settings.num_workers, mp_context=context, initializer=_load_tokenizer, initargs=(model,)
    ) as pool:
        jobs = [
            (language, split, documents)
            for split, part in zip(row_store.SPLITS, (corpus.train, corpus.heldout), strict=True)
            for language, documents in part.items()
        ]
        for language, split, documents in progress(jobs):
            tokens = list(_tokenize(pool, documents))
            rows = row_store.pack_rows(tokens, settings.length, special, dtype)
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
        parallel: dict[str, tuple[str, ...]] = {}
        for text in corpus.parallel:
            name = _unique(text.name, parallel)
            parallel[name] = text.languages
            for column, language in enumerate(text.languages):
                # One sentence a document; an empty cell stays an empty row.
                cells = [[row[column]] for row in text.rows]
                tokens = list(_tokenize(pool, cells))
                rows = row_store.pad_sentences(tokens, settings.parallel_length, special, dtype)
                _save(folder / f"{name}.{language}.parallel.npy", rows)

    store = RowStore(
        folder=folder,
        vocab_size=processor.get_piece_size(),
        length=settings.length,
        tokenizer=row_store.tokenizer_hash(model),
        special=special,
        statistics=statistics,
        parallel=parallel,
    )
    store.write_meta()
    return store


def _count(tokens: Sequence[np.ndarray], vocab_size: int) -> np.ndarray:
    """[V] int64, how often each piece occurs."""
    counts = np.zeros(vocab_size, np.int64)
    for document in tokens:
        np.add.at(counts, document, 1)
    return counts


def _unique(name: str, taken: Iterable[str]) -> str:
    """`name`, numbered if a set from another folder is called so already."""
    candidates = itertools.chain([name], (f"{name}-{i}" for i in itertools.count(2)))
    return next(candidate for candidate in candidates if candidate not in taken)


def _save(path: pathlib.Path, rows: np.ndarray) -> None:
    with artifacts.replacing(path) as aside:
        np.save(aside, rows, allow_pickle=False)


def _tokenize(
    pool: concurrent.futures.Executor, documents: Sequence[Document]
) -> Iterator[np.ndarray]:
    """Yields the token ids of each document, in order."""
    starts = range(0, len(documents), _DOCUMENTS_PER_TASK)
    tasks = (documents[start : start + _DOCUMENTS_PER_TASK] for start in starts)
    for batch in pool.map(_tokenize_batch, tasks):
        yield from batch


_tokenizer: spm.SentencePieceProcessor  # of a worker process, see `_load_tokenizer`


def _load_tokenizer(model: bytes) -> None:
    global _tokenizer
    _tokenizer = spm.SentencePieceProcessor(model_proto=model)


def _tokenize_batch(documents: Sequence[Document]) -> list[np.ndarray]:
    """Token ids of each document, its sentences joined; runs in a worker process."""
    encode = functools.partial(_tokenizer.encode, out_type=int, num_threads=1)
    return [
        np.fromiter(itertools.chain.from_iterable(encode(document)), np.uint32)
        for document in documents
    ]
