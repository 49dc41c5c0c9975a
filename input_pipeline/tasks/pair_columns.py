"""Pairs to train translation on, on disk: tokenised once, and read by number.

The sources and the targets of a part are columns as in `packed_dataset`. `pairs.json`, written
last, has the number of pairs of each part. A part is whole or missing, so a killed build resumes
after the last one. A source that begins with `<bt>` is synthetic (Caswell et al. 2019). Its ids
begin with `<mask>`, which no other source has.
"""

import contextlib
import itertools
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import sentencepiece as spm

from input_pipeline.array_files import array_file
from input_pipeline.manifest import id_dtype
from input_pipeline.packed_dataset import TokenizedSentences, read_column
from input_pipeline.tasks import translation
from input_pipeline.tasks.features import REMEDIES, TranslationFeature, check_length, warn_of_cuts
from input_pipeline.tasks.files import Pair
from input_pipeline.tokenization import encode, special_ids
from xlm.common import artifacts

COUNTS = "pairs.json"
TAG = "<bt>"
_SIDES, _KINDS = ("source", "target"), ("bitext", "ends")
_PART, _AT_ONCE = 1 << 20, 1 << 13  # pairs

Texts = Mapping[str, Iterable[Iterable[Pair]]]  # pairs by direction and text of it
Processors = Sequence[spm.SentencePieceProcessor]  # of sources, and of targets


def write(folder: pathlib.Path, texts: Texts, processors: Processors) -> None:
    """Tokenise the texts of each direction, by the processors of sources and of targets."""
    counts = {
        direction: [
            list(_write_text(folder, f"{direction}.{number}", iter(pairs), processors))
            for number, pairs in enumerate(of_direction)
        ]
        for direction, of_direction in texts.items()
    }
    artifacts.write_json(folder / COUNTS, counts)


def _write_text(
    folder: pathlib.Path, name: str, pairs: Iterator[Pair], processors: Processors
) -> Iterator[int]:
    """Write the missing parts of a text, and yield the number of pairs of each part."""
    for number in itertools.count():
        if (first := next(pairs, None)) is None:
            return
        part = itertools.chain([first], itertools.islice(pairs, _PART - 1))
        places = itertools.product(_SIDES, _KINDS)
        paths = [folder / f"{name}.{number}.{side}.{kind}.npy" for side, kind in places]
        is_there = all(path.exists() for path in paths)
        yield sum(1 for _ in part) if is_there else _write_part(paths, part, processors)


def _write_part(
    paths: Sequence[pathlib.Path], pairs: Iterator[Pair], processors: Processors
) -> int:
    dtypes = [kind for one in processors for kind in (id_dtype(one.get_piece_size()), np.uint32)]
    with contextlib.ExitStack() as stack:
        opened = (array_file(path, (), dtype) for path, dtype in zip(paths, dtypes, strict=True))
        files = [stack.enter_context(one) for one in opened]
        while some := list(itertools.islice(pairs, _AT_ONCE)):
            for side, texts in enumerate(zip(*some, strict=True)):
                of_ids, of_ends = files[2 * side : 2 * side + 2]
                ids, ends = _encoded(texts, processors[side])
                of_ends.append(of_ids.length + ends)
                of_ids.append(ids)
    return files[1].length


def _encoded(
    texts: Sequence[str], processor: spm.SentencePieceProcessor
) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and ends of texts, the tag as one id."""
    ids, ends = encode(processor, (text.removeprefix(TAG) for text in texts))
    is_tagged = np.array([text.startswith(TAG) for text in texts])
    starts = np.append(0, ends[:-1])[is_tagged]
    return np.insert(ids, starts, special_ids(processor).mask), ends + np.cumsum(is_tagged)


class StoredPairs:
    """Pairs, numbered in the order of `directions` and their texts; `texts` counts them.

    `sizes` [N] are the tokens of the longer side, cut, with specials.
    """

    def __init__(
        self, folder: pathlib.Path, directions: Sequence[str], symbols: Mapping[str, int],
        processor: spm.SentencePieceProcessor, max_length: int,
    ):  # fmt: skip
        """Open a folder of `write`; warn of pairs to be cut. Raise ValueError if it is damaged."""
        check_length(max_length)
        self._special, size = special_ids(processor), processor.get_piece_size()
        self._rooms = max_length - 2, max_length - 1  # with <s> and </s>, and with </s>
        self._parts = list[tuple[int, Sequence[TokenizedSentences]]]()
        self.texts, sizes = list[int](), list[np.ndarray]()
        counts, kind = artifacts.read_object(folder / COUNTS), np.min_scalar_type(max_length)
        for direction in directions:
            lengths = list[np.ndarray]()
            for number, parts in enumerate(counts[direction]):
                self.texts.append(sum(parts))
                for part in range(len(parts)):
                    name = f"{direction}.{number}.{part}"
                    columns = [read_column(folder, name, one, vocab_size=size) for one in _SIDES]
                    self._parts.append((symbols[translation.direction(direction)[1]], columns))
                    lengths.append(np.array([one.lengths for one in columns], np.int32))
                    one, two = np.minimum(lengths[-1], np.reshape(self._rooms, (2, 1)))
                    sizes.append(np.maximum(one + 2, two + 1).astype(kind))
            both = zip(_SIDES, np.concatenate(lengths, axis=1), self._rooms, strict=True)
            for side, of_side, room in both:
                numbers, remedy = range(len(of_side)), REMEDIES["example"]
                warn_of_cuts(f"{side}s", of_side, room, numbers, "example", remedy)
        self._ends = np.cumsum([len(one) for one in sizes])
        self.sizes = np.concatenate(sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def take(self, rows: np.ndarray) -> list[TranslationFeature]:
        """Read pairs by their numbers [n]; raise ValueError if files are damaged."""
        found, special = dict[int, TranslationFeature](), self._special
        of_rows = np.searchsorted(self._ends, rows, side="right")
        for part in np.unique(of_rows).tolist():
            places = np.flatnonzero(of_rows == part)
            numbers = rows[places].astype(np.int64) - (self._ends[part - 1] if part else 0)
            symbol, columns = self._parts[part]
            sides = map(_sentences, columns, (numbers, numbers), self._rooms)
            for place, source, target in zip(places.tolist(), *sides, strict=True):
                tokens = np.concatenate([[special.bos], source, [special.eos]]).astype(np.int32)
                target = np.append(target, special.eos).astype(np.int32)
                found[place] = TranslationFeature(int(rows[place]), tokens, symbol, target)
        return [found[place] for place in range(len(rows))]


def _sentences(column: TokenizedSentences, numbers: np.ndarray, room: int) -> Iterator[np.ndarray]:
    ids, begins, lengths = column.gather(numbers)
    for begin, length in zip(begins.tolist(), np.minimum(lengths, room).tolist(), strict=True):
        yield ids[begin : begin + length].astype(np.int32)
