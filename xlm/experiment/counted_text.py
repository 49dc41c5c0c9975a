"""Tables of runs of a corpus too large for memory, in place of its text."""

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

# Bytes of text. Memory holds a smaller corpus, at 2 to 3 bytes a byte, after one pass of reading.
STREAMED_FROM = 256 << 20
# Runs in the memory of one process, about a gigabyte.
_MAX_RUNS = 2_000_000
# Prefix of a hash over blocks of text.
_BLOCKS = "blocks-"


class Counted(NamedTuple):
    """A corpus as tables of runs.

    Attributes:
      train, heldout: tables by language; `heldout` lacks languages without held-out text.
      digest: hash of all text and its split.
    """

    train: dict[str, pathlib.Path]
    heldout: dict[str, pathlib.Path]
    digest: str


def is_streamed(spec: CorpusSpec, folders: Folders, reader: str) -> bool:
    """Whether a build reads tables of the text, in place of the text in memory.

    `reader` names a setting that reads sentences, so that memory must hold text of any size; "" for
    none. With rows, text stays in memory if the vocabulary was built so.
    """
    settings = folders.vocab / "settings.json"
    # The stage would refuse a hash of the other kind, though the text is the same.
    if folders.has_rows and settings.exists():
        text = artifacts.read_object(settings).get("text", _BLOCKS)
        if not str(text).startswith(_BLOCKS):
            return False
    size = CorpusStream(spec).num_bytes()
    if size >= STREAMED_FROM and reader:
        logging.warning(
            "some %.0f MB of text stay in memory, at 2 to 3 bytes a byte: %s reads sentences, "
            "other settings stream the text",
            size / 1e6, reader,
        )  # fmt: skip
    return size >= STREAMED_FROM and not reader


def count(
    spec: CorpusSpec, folder: pathlib.Path, rules: TextRules, num_workers: int, progress: Progress
) -> Counted:
    """Count the text of each language as a stream, in two passes and `num_workers` processes.

    `folder` keeps the tables, so the same text is not counted again. Raises ValueError as
    `corpus.load_corpus`.
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
    # Names of tables by the default rules have no rules, as before there were others.
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
