"""A corpus, in memory or streamed language by language: text with a held-out split.

For vocabularies and comparisons; `preparation` chooses the same text in tasks. `selection` chooses
among blocks. Each source of parallel text has a split of its own, the same in every language, so
that no language trains on held-out translations. Sentences in the files of `CorpusSpec.exclude` are
removed from all training text.
"""

import dataclasses
import functools
import hashlib
import itertools
import logging
import pathlib
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from input_pipeline import selection, sources, text_files
from input_pipeline.exclusion import Exclusion, hashes, joined, log_tally
from input_pipeline.sources import CorpusSpec, ParallelSource, Row
from input_pipeline.text_files import Document


@dataclasses.dataclass(frozen=True)
class ParallelText:
    """Sentences aligned across the columns `languages`, in rows; "" is a missing translation."""

    name: str
    languages: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Training and held-out documents by language, with the columns of parallel text.

    `parallel` is parallel text for evaluation, `bitexts` for training.
    """

    train: dict[str, list[Document]]
    heldout: dict[str, list[Document]]
    parallel: tuple[ParallelText, ...]
    bitexts: tuple[ParallelText, ...] = ()

    def sentences(self, language: str, split: str = "train") -> list[str]:
        documents = {"train": self.train, "heldout": self.heldout}[split][language]
        return [sentence for document in documents for sentence in document]

    def digest(self) -> str:
        """Return the SHA-256 of all text and its split, in hexadecimal."""
        hasher = hashlib.sha256()
        for split, part in (("train", self.train), ("heldout", self.heldout)):
            for language in sorted(part):
                for document in part[language]:
                    hasher.update("\n".join([split, language, *document, "\n"]).encode())
        for parallel in (*self.parallel, *self.bitexts):
            for row in ((parallel.name, *parallel.languages), *parallel.rows):
                hasher.update("\t".join([*row, "\n"]).encode())
        return hasher.hexdigest()


@dataclasses.dataclass(frozen=True)
class Block:
    """Block of one language; exclusion may leave no sentences.

    `digest` hashes the text before exclusion, so that test sets do not change the split.
    `document` is the digest of the document's first block. `selection` lists the origins.
    """

    sentences: Document
    digest: bytes
    origin: int
    document: bytes

    @property
    def record(self) -> tuple[bytes, int, int, bytes]:
        """Digest, size, origin and document; see `selection.records`."""
        return self.digest, _num_bytes(self.sentences), self.origin, self.document


def read_blocks(
    marked: Iterable[str], spec: CorpusSpec, exclusion: Exclusion, origin: int = selection.TEXT
) -> Iterator[Block]:
    """Yield the blocks of marked sentences (`text_files.read_marked`)."""
    document = b""
    for block in selection.cut_documents(exclusion.counted(marked), spec.block_bytes):
        if block:
            digest = selection.text_digest(block, spec.seed)
            document = document or digest
            kept = exclusion.of_block(block, is_text=origin == selection.TEXT)
            yield Block(kept, digest, origin, document)
        else:
            document = b""


def column_blocks(
    blocks: Iterable[Sequence[Row]],
    column: int,
    spec: CorpusSpec,
    exclusion: Exclusion,
    origin: int,
) -> Iterator[Block]:
    """Yield one language's side of blocks of parallel text, without missing translations."""
    marked = ((*(row[column] for row in block if row[column]), "") for block in blocks)
    cells = exclusion.counted(itertools.chain.from_iterable(marked))
    for sentences in selection.cut_blocks(cells, spec.block_bytes):
        digest = selection.text_digest(sentences, spec.seed)
        yield Block(sentences, digest, origin, digest)


def text_sides(spec: CorpusSpec) -> tuple[int, ...]:
    """Return the sides of parallel text that join the text of its languages.

    The held-out side always does, so that no copy of its text is trained on.
    """
    return (selection.TRAIN, selection.HELDOUT)[not spec.parallel_as_text :]


def heldout_places(source: ParallelSource, spec: CorpusSpec, exclusion: Exclusion) -> set[int]:
    """Choose the blocks of a source of `parallel` to hold out, by their places in it.

    The text of a block depends on the languages in use. So the choice is by number, among the
    blocks that keep a row after exclusion. It reads the source once, to count bytes.
    """
    if not spec.parallel_heldout_fraction:
        return set()
    found = (
        0 if all(map(exclusion.has, block)) else sum(map(_num_bytes, block))
        for block in source.blocks()
    )
    sizes = np.fromiter(found, np.int64)
    places = np.flatnonzero(sizes)
    part = f" {source.part}" if source.part else ""
    salt, fraction = f"{spec.seed} {source.name}{part}", spec.parallel_heldout_fraction
    most = max(spec.parallel_heldout_most // source.num_parts // sources.BLOCK_SENTENCES, 1)
    numbers = selection.heldout_numbers(
        len(places), fraction, salt, sizes[places], most if spec.parallel_heldout_most else None
    )
    return {int(places[number]) for number in numbers}


def _num_bytes(sentences: Sequence[str]) -> int:
    """Return the bytes of sentences or cells, with a line end each."""
    return sum(len(sentence.encode()) + 1 for sentence in sentences)


def split_parallel(
    source: ParallelSource, spec: CorpusSpec, exclusion: Exclusion
) -> Iterator[tuple[list[Row], int]]:
    """Yield the blocks of a source and their sides; all of `parallel_eval` is held out."""
    if source.key == "parallel_eval":
        yield from ((block, selection.HELDOUT) for block in source.blocks())
        return
    heldout = heldout_places(source, spec, exclusion)
    for place, block in enumerate(source.blocks()):
        if found := exclusion.of_rows(block, is_heldout=place in heldout):
            yield found, selection.HELDOUT if place in heldout else selection.TRAIN


def exclusion_of(spec: CorpusSpec, held: np.ndarray | None = None) -> Exclusion:
    """Return the exclusion from training text: test sets and, by "document", held-out rows.

    `held` are the `held_rows` of all sources, read from them if None.
    """
    found = Exclusion(sources.find_excluded(spec))
    if spec.heldout_by == sources.BY_DOCUMENT:
        if held is None:
            held = joined(held_rows(one, spec, found) for one in sources.find_parallel(spec))
        found.hold_out(held)
        found.tally()
    return found


def held_rows(source: ParallelSource, spec: CorpusSpec, exclusion: Exclusion) -> np.ndarray:
    """Return `hashes` of the cells of a source's held-out rows."""
    if source.key == "parallel" and not spec.parallel_heldout_fraction:
        return np.zeros(0, np.uint64)
    blocks = split_parallel(source, spec, exclusion)
    rows = (row for some, side in blocks if side == selection.HELDOUT for row in some)
    return hashes(itertools.chain.from_iterable(rows))


def heldout_hashes(spec: CorpusSpec, sentences: Iterable[str]) -> np.ndarray:
    """Return `hashes` of held-out text that, by "document", no training pair may have."""
    return hashes(sentences if spec.heldout_by == sources.BY_DOCUMENT else ())


_Place = tuple[tuple[pathlib.Path, ...], int]  # of a source
_Held = dict[_Place, dict[int, list[list[Row]]]]  # blocks of rows, also by side


class CorpusStream:
    """Text of the languages of `spec`, read again at each request.

    It holds only the records of a language's blocks (`selection`), never its text. `held` is
    parallel text that was read already. Raise the ValueErrors of `load_corpus` about files.
    """

    def __init__(self, spec: CorpusSpec, held: _Held | None = None):
        self._spec, self._held = spec, held
        self._files = sources.find_text(spec)
        self._places: dict[_Place, set[int]] = {}
        self._parallel = [one for one in sources.find_parallel(spec) if one.key == "parallel"]
        found = {file.language for file in self._files}
        if spec.parallel_as_text:
            found = found.union(*(one.languages for one in self._parallel))
        self.languages = sorted(found)
        check_found(spec, self.languages)

    def num_bytes(self) -> int:
        """Return the approximate bytes of text; compressed files are not read."""
        paths = [file.path for file in self._files]
        paths += [path for one in self._parallel for path in one.files]
        return sum(text_files.text_bytes(path, path.stat().st_size) for path in set(paths))

    def select(self, language: str) -> tuple[np.ndarray, str]:
        """Choose among the blocks of a language; reads its text once.

        Return the side of each block, [blocks] uint8 of `selection`, and a hash of the text and its
        split. Raise ValueError if a file is malformed, or too short to hold out a part.
        """
        self._exclusion.tally()
        records = selection.records(block.record for block in self.blocks(language))
        sides = self.sides(language, records)
        counts = [int((sides == one).sum()) for one in (selection.TRAIN, selection.HELDOUT)]
        logging.debug("%s: %d blocks to train on, %d held out", language, *counts)
        of_blocks = records[[name for name, _ in selection.BLOCK]].astype(selection.BLOCK)
        hasher = hashlib.sha256(of_blocks.tobytes())
        hasher.update(sides.tobytes())
        for path in sources.find_excluded(self._spec):
            hasher.update(path.read_bytes())
        return sides, hasher.hexdigest()

    def groups(self, language: str, sides: np.ndarray) -> Iterator[tuple[Document, bool]]:
        """Yield the chosen blocks of a language, and whether each is held out."""
        for block, side in zip(self.blocks(language), sides, strict=True):
            if side != selection.DROPPED:
                yield block.sentences, bool(side == selection.HELDOUT)

    def sides(self, language: str, records: np.ndarray) -> np.ndarray:
        """Return the sides of the blocks of a language."""
        log_tally(language, *self._exclusion.tally())
        chosen = selection.select([records], self._spec, language)
        log_split(self._spec, language, chosen.duplicates, len(records), chosen.split)
        counts = np.bincount(chosen.sides[0], minlength=3).tolist()
        check_split(self._spec, language, counts[selection.TRAIN], counts[selection.HELDOUT])
        return chosen.sides[0]

    @functools.cached_property
    def _exclusion(self) -> Exclusion:
        return exclusion_of(self._spec)

    def blocks(self, language: str) -> Iterator[Block]:
        """Yield a language's blocks in the order of `load_corpus`."""
        for file in self._files:
            if file.language == language:
                found = read_blocks(text_files.read_marked(file.path), self._spec, self._exclusion)
                yield from (block for block in found if block.sentences)
        for source in self._parallel:
            if language in source.languages:
                column = source.languages.index(language)
                for side in text_sides(self._spec):
                    rows = self._rows(source, side)
                    yield from column_blocks(rows, column, self._spec, self._exclusion, side)

    def _rows(self, source: ParallelSource, side: int) -> Iterable[Sequence[Row]]:
        """Yield the blocks of one side of a source of `parallel`."""
        if self._held is not None:
            yield from self._held[source.place][side]
            return
        if source.place not in self._places:
            self._places[source.place] = heldout_places(source, self._spec, self._exclusion)
        heldout = self._places[source.place]
        for place, block in enumerate(source.blocks()):
            if (place in heldout) == (side == selection.HELDOUT):
                is_heldout = side == selection.HELDOUT
                yield self._exclusion.of_rows(block, is_heldout=is_heldout)


def load_corpus(spec: CorpusSpec) -> Corpus:
    """Read all text of `spec` once, and split off the held-out part.

    Raise ValueError if a file is malformed (see `text_files`), there is no text, a wanted language
    is missing, or a language has too little text for a held-out part.
    """
    exclusion = exclusion_of(spec)
    held: _Held = {}
    parallel: list[ParallelText] = []
    found = sources.find_parallel(spec)
    for source in found:
        sides: dict[int, list[list[Row]]] = {selection.TRAIN: [], selection.HELDOUT: []}
        for rows, side in split_parallel(source, spec, exclusion):
            sides[side].append(rows)
        log_tally(source.name, *exclusion.tally())
        parallel.append(_text(source, sides[selection.HELDOUT]))
        if source.key == "parallel":
            held[source.place] = sides
    stream = CorpusStream(spec, held)
    train, heldout = {}, {}
    for language in stream.languages:
        blocks = list(stream.blocks(language))
        chosen = stream.sides(language, selection.records(block.record for block in blocks))
        train[language], heldout[language] = (
            [blocks[place].sentences for place in np.flatnonzero(chosen == side)]
            for side in (selection.TRAIN, selection.HELDOUT)
        )
    documents = itertools.chain.from_iterable(heldout.values())
    of_text = Exclusion([])
    of_text.hold_out(heldout_hashes(spec, itertools.chain.from_iterable(documents)))
    kept = functools.partial(of_text.of_rows, is_heldout=False)
    trained = (one for one in found if one.key == "parallel")
    bitexts = (_text(one, map(kept, held[one.place][selection.TRAIN])) for one in trained)
    return Corpus(train, heldout, tuple(parallel), tuple(bitexts))


def _text(source: ParallelSource, blocks: Iterable[Sequence[Row]]) -> ParallelText:
    rows = tuple(row for block in blocks for row in block)
    return ParallelText(source.name, source.languages, rows)


def log_split(
    spec: CorpusSpec, language: str, duplicates: int, total: int, split: selection.Split
) -> None:
    """Log how many of a language's blocks are repetitions, and its shares."""
    if duplicates:
        message = "%s: %d of %d blocks are left out as repetitions (corpus.deduplicate)"
        logging.info(message, language, duplicates, total)
    if fault := split.fault(spec):
        logging.debug("%s: of %s bytes of text %s", language, f"{split.text_bytes:,}", fault)
    if parallel := split.parallel_bytes:
        text = split.text_bytes - split.heldout_bytes
        shown = language, text / 1e3, parallel / 1e3, 100 * parallel / (text + parallel)
        message = "%s: %.1f KB of text, %.1f KB from parallel text (%.0f%%; parallel_as_text)"
        logging.debug(message, *shown)


def check_found(spec: CorpusSpec, found: Collection[str]) -> None:
    """Raise ValueError if a corpus has no text, or none in a wanted language.

    A limit of `max_train_bytes_of` must belong to a wanted language or, if all are wanted, to one
    with text. A pattern of `exclude` that matches no file causes a warning.
    """
    _check_languages(spec, found)
    if unknown := sorted(
        language
        for language in spec.max_train_bytes_of
        if spec.language_codes.get(language, language) != language
        or (not spec.languages and language not in found)
    ):
        raise ValueError(
            f"corpus.max_train_bytes_of has limits for {unknown}, which have no text; languages "
            f"are {sorted(found)}, after corpus.language_codes: correct or remove the limits"
        )
    if unmatched := sources.find_unmatched(spec, ("exclude",)):
        message = "corpus.exclude: no file below %s matches %s, so that it excludes no sentence"
        logging.warning(message, spec.root, ", ".join(unmatched))


def _check_languages(spec: CorpusSpec, found: Collection[str]) -> None:
    root = spec.root
    places = [*spec.text, *(spec.parallel if spec.parallel_as_text else ())]
    if missing := sorted(set(spec.languages) - set(found)):
        left_out = sources.find_left_out(spec).items()
        one_sided = [path for path, languages in left_out if not set(missing).isdisjoint(languages)]
        remedy = (
            f"; {one_sided[0]} has it as parallel text, which needs two of corpus.languages: add "
            "one, or name a folder of corpus.parallel in corpus.text"
            if one_sided
            else ""
        )
        files = sources.find_text(spec, with_empty=True)
        if empty := [str(one.path) for one in files if one.language in missing]:
            remedy = f"; these files are empty: {', '.join(empty)}: fill them{remedy}"
        raise ValueError(
            f"corpus.languages asks for {missing}, but {places} below {root} have no such text; "
            f"add files such as {missing[0]}.txt, or corpus.language_codes for other "
            f"spellings{remedy}"
        )
    if not found:
        raise ValueError(
            f"{root}: no text found in {[one or '.' for one in places]}; call text files "
            "<lang>.txt or <lang>.jsonl (also .gz, .xz, .bz2, .zst), for example en.txt"
        )


def check_split(spec: CorpusSpec, language: str, num_train: int, num_heldout: int) -> None:
    """Raise ValueError if a language has no block to train on, or none held out."""
    if not num_train or (spec.heldout_fraction > 0 and not num_heldout):
        raise ValueError(
            f"language {language!r} has too little text to hold out a part; add documents, or set "
            "corpus.heldout_fraction (for parallel text corpus.parallel_heldout_fraction) to 0"
        )
