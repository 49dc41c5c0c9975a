"""A corpus read language by language as a stream, with the choices of `corpus.load_corpus`.

It holds only the records of a language's blocks (`selection`), never its text.
"""

import functools
import hashlib
import logging
import pathlib
from collections.abc import Iterator

import numpy as np

from input_pipeline import selection, sources, text_files
from input_pipeline.corpus import (
    Block,
    check_found,
    check_split,
    column_blocks,
    heldout_places,
    log_duplicates,
    read_blocks,
    text_sides,
)
from input_pipeline.exclusion import Exclusion, log_tally
from input_pipeline.sources import CorpusSpec, ParallelSource
from input_pipeline.text_files import Document


class CorpusStream:
    """Text of the languages of `spec`, read again at each request.

    Finding the files raises those ValueErrors of `corpus.load_corpus` that do not need the text.
    """

    def __init__(self, spec: CorpusSpec) -> None:
        sources.root_of(spec)
        self._spec = spec
        self._files = sources.find_text(spec)
        self._places: dict[tuple[pathlib.Path, ...], set[int]] = {}
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
        split. Raise ValueError if a file is malformed, or there is too little to hold some out.
        """
        self._exclusion.tally()
        records = selection.records(block.record for block in self._blocks(language))
        log_tally(language, *self._exclusion.tally())
        chosen = selection.select([records], self._spec, language)
        log_duplicates(language, chosen.duplicates, len(records))
        sides = chosen.sides[0]
        counts = [int((sides == one).sum()) for one in (selection.TRAIN, selection.HELDOUT)]
        logging.info("%s: %d blocks to train on, %d held out", language, *counts)
        check_split(self._spec, language, *counts)
        hasher = hashlib.sha256(records.tobytes())
        hasher.update(sides.tobytes())
        for path in sources.find_excluded(self._spec):
            hasher.update(path.read_bytes())
        return sides, hasher.hexdigest()

    def groups(self, language: str, sides: np.ndarray) -> Iterator[tuple[Document, bool]]:
        """Yield the chosen blocks of a language, and whether each is held out."""
        for block, side in zip(self._blocks(language), sides, strict=True):
            if side != selection.DROPPED:
                yield block.sentences, bool(side == selection.HELDOUT)

    @functools.cached_property
    def _exclusion(self) -> Exclusion:
        return Exclusion(sources.find_excluded(self._spec))

    def _blocks(self, language: str) -> Iterator[Block]:
        """Yield a language's blocks in the order of `load_corpus`."""
        spec, exclusion = self._spec, self._exclusion
        for file in self._files:
            if file.language == language:
                found = read_blocks(text_files.read_marked(file.path), spec, exclusion)
                yield from (block for block in found if block.sentences)
        for source in self._parallel:
            if language not in source.languages:
                continue
            column = source.languages.index(language)
            heldout = self._heldout(source)
            for side in text_sides(spec):
                rows = (
                    exclusion.of_rows(block)
                    for place, block in enumerate(source.blocks())
                    if (place in heldout) == (side == selection.HELDOUT)
                )
                yield from column_blocks(rows, column, spec, exclusion, side)

    def _heldout(self, source: ParallelSource) -> set[int]:
        if source.files not in self._places:
            self._places[source.files] = heldout_places(source, self._spec, self._exclusion)
        return self._places[source.files]
