"""Tables of runs of a corpus that is too large to be held, in place of its text."""

import logging
import pathlib
from typing import NamedTuple

from input_pipeline.corpus import CorpusStream
from input_pipeline.sources import CorpusSpec
from vocap import entries, pretoken_tables
from vocap.building import Progress
from vocap.text_rules import TextRules
from xlm.common import artifacts, processes
from xlm.experiment.data import Folders

# Bytes of text. Less is held, at 2 to 3 bytes of memory a byte, and read once instead of twice.
STREAMED_FROM = 256 << 20
# Runs that one process holds; a gigabyte.
_MAX_RUNS = 2_000_000
# Begins the hash of text that is identified by its blocks.
_BLOCKS = "blocks-"


class Counted(NamedTuple):
    """A corpus as tables of runs.

    Attributes:
      train, heldout: table of each language; of `heldout` those with held-out text.
      digest: hash of all text and its split.
    """

    train: dict[str, pathlib.Path]
    heldout: dict[str, pathlib.Path]
    digest: str


def is_streamed(spec: CorpusSpec, folders: Folders, reader: str) -> bool:
    """Whether a vocabulary is built from tables of the text in place of the text.

    The vocabulary of `folders` may be of text that was held. `reader` is a setting that reads
    sentences, so that text of any size is held; "" if none does.
    """
    settings = folders.vocab / "settings.json"
    # A hash of the other kind would differ, and be refused, though the text is the same.
    if folders.has_rows and settings.exists():
        text = artifacts.read_object(settings).get("text", _BLOCKS)
        if not str(text).startswith(_BLOCKS):
            return False
    size = CorpusStream(spec).num_bytes()
    if size >= STREAMED_FROM and reader:
        logging.warning(
            "some %.0f MB of text are held, at 2 to 3 bytes of memory a byte: %s reads sentences, "
            "which others count as a stream",
            size / 1e6, reader,
        )  # fmt: skip
    return size >= STREAMED_FROM and not reader


def count(
    spec: CorpusSpec, folder: pathlib.Path, rules: TextRules, num_workers: int, progress: Progress
) -> Counted:
    """Count the text of each language, which is read twice and never held.

    Raises ValueError as `corpus.load_corpus`.

    Args:
      folder: where tables are kept; those of the same text are not counted again.
      num_workers: languages at a time, each in its process.
      progress: wraps an iteration, given its name and length.
    """
    jobs = [(spec, language, folder, rules) for language in CorpusStream(spec).languages]
    with processes.Workers(num_workers, "vocab.num_workers") as workers:
        found = sorted(progress(workers.run(_count, jobs), "count", len(jobs)))
    return Counted(
        {language: table for language, _, table, _ in found},
        {language: heldout for language, _, _, heldout in found if heldout is not None},
        _BLOCKS + artifacts.fingerprint([[language, digest] for language, digest, *_ in found]),
    )


def _count(
    spec: CorpusSpec, language: str, folder: pathlib.Path, rules: TextRules
) -> tuple[str, str, pathlib.Path, pathlib.Path | None]:
    """Count a language; return it, the hash of its text, its table and that of held-out text."""
    stream = CorpusStream(spec)
    sides, digest = stream.select(language)
    # Tables of the first rules there were have no name of rules.
    own = digest[:16] + ("" if rules == TextRules() else f"-{rules.name}")
    names = (f"{language}-{own}.runs.gz", f"{language}-heldout-{own}.runs.gz")
    out, aside = (folder / name for name in names)
    if not all(map(entries.is_whole, (out, aside))):
        with entries.written(out) as new, entries.written(aside) as new_aside:
            pretoken_tables.count_groups(
                stream.groups(language, sides), new, new_aside, _MAX_RUNS, rules
            )
    with aside.open("rb") as file:
        header, _ = pretoken_tables.read_entries(file, str(aside))
    return language, digest, out, aside if header.num_sentences else None
