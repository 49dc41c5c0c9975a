"""Tables of runs of a corpus that is too large to be held, in place of its text."""

import logging
import pathlib
from collections.abc import Callable, Iterable
from typing import NamedTuple

from builders.data import Folders
from common import artifacts, processes
from input_pipeline.corpus_stream import CorpusStream
from input_pipeline.sources import CorpusSpec
from vocap import entries, run_tables

# Bytes of text. Less is held, at 2 to 3 bytes of memory a byte, and read once instead of twice.
STREAMED_FROM = 256 << 20
# Runs that one process holds; a gigabyte.
_MAX_RUNS = 2_000_000
# Begins the hash of text that is identified by its blocks.
_BLOCKS = "blocks-"

Progress = Callable[[Iterable, str, int], Iterable]


class Counted(NamedTuple):
    """A corpus as tables of runs.

    Attributes:
      train, heldout: table of each language; of `heldout` those with held-out text.
      digest: hash of all text and its split.
    """

    train: dict[str, pathlib.Path]
    heldout: dict[str, pathlib.Path]
    digest: str


def is_streamed(spec: CorpusSpec, folders: Folders, trainer: str) -> bool:
    """Whether a vocabulary is built from tables of the text in place of the text.

    Args:
      spec: of the corpus.
      folders: of the working directory, whose vocabulary may be of text that was held.
      trainer: "sentencepiece" reads sentences, so that text of any size is held.
    """
    settings = folders.vocab / "settings.json"
    # A hash of the other kind would differ, and be refused, though the text is the same.
    if folders.has_rows and settings.exists():
        text = artifacts.read_object(settings).get("text", _BLOCKS)
        if not text.startswith(_BLOCKS):
            return False
    size = CorpusStream(spec).num_bytes()
    if size >= STREAMED_FROM and trainer == "sentencepiece":
        logging.warning(
            "some %.0f MB of text are held, at 2 to 3 bytes of memory a byte: vocab.trainer="
            "'sentencepiece' reads sentences; 'nested' counts them as a stream",
            size / 1e6,
        )
    return size >= STREAMED_FROM and trainer != "sentencepiece"


def count(spec: CorpusSpec, folder: pathlib.Path, num_workers: int, progress: Progress) -> Counted:
    """Count the text of each language, which is read twice and never held.

    Args:
      spec: of the corpus.
      folder: where tables are kept; those of the same text are not counted again.
      num_workers: languages at a time, each in its process.
      progress: wraps an iteration, given its name and length.

    Raises:
      ValueError: as `corpus.load_corpus`.
    """
    languages = CorpusStream(spec).languages
    jobs = [(spec, language, folder) for language in languages]
    with processes.Workers(num_workers, "vocab.num_workers") as workers:
        found = dict(progress(workers.run(_count, jobs), "count", len(jobs)))
    return Counted(
        {lang: _table(folder, lang, found[lang][0]) for lang in languages},
        {lang: _heldout(folder, lang, found[lang][0]) for lang in languages if found[lang][1]},
        _BLOCKS + artifacts.fingerprint([[lang, found[lang][0]] for lang in languages]),
    )


def _table(folder: pathlib.Path, language: str, digest: str) -> pathlib.Path:
    return folder / f"{language}-{digest[:16]}.runs.gz"


def _heldout(folder: pathlib.Path, language: str, digest: str) -> pathlib.Path:
    return folder / f"{language}-heldout-{digest[:16]}.runs.gz"


def _count(spec: CorpusSpec, language: str, folder: pathlib.Path) -> tuple[str, tuple[str, bool]]:
    """Count a language; return it with the hash of its text, and whether some is held out."""
    stream = CorpusStream(spec)
    sides, digest = stream.select(language)
    out, aside = _table(folder, language, digest), _heldout(folder, language, digest)
    if not all(map(entries.is_whole, (out, aside))):
        with entries.written(out) as new, entries.written(aside) as new_aside:
            run_tables.count_groups(stream.groups(language, sides), new, new_aside, _MAX_RUNS)
    with aside.open("rb") as file:
        num_sentences, _ = run_tables.read_entries(file, str(aside))
    return language, (digest, num_sentences > 0)
