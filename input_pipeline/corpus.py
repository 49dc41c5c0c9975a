"""A corpus: folders of text joined per language, with held-out text set aside.

Held out are blocks, that is whole documents or, where those are long, runs of consecutive
sentences. Which ones is a pure function of the text and the seed. Of multi-parallel text the same
blocks are held out in every language, so held-out translations were seen in no language.
"""

import collections
import dataclasses
import hashlib
import logging
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from input_pipeline import text_files
from input_pipeline.text_files import Document

T = TypeVar("T")

# Longer documents are cut, so that a file without blank lines can still be split.
_BLOCK_SENTENCES = 20


@dataclasses.dataclass(frozen=True)
class CorpusSpec:
    """Where text lies and what is held out; the `corpus` section of a config.

    Attributes:
      root: folder that the other paths start from.
      text: folders of `<lang>.txt` and `<lang>.jsonl` files; a language's files are joined.
      parallel: TSV files (glob patterns) that are trained on, language by language, except for
        their held-out blocks.
      parallel_eval: TSV files (glob patterns) or folders of line-aligned `<lang>.txt` files that
        serve evaluation only.
      languages: the languages to use; empty for all that are found.
      language_codes: other names of a language in file names, such as {"eng": "en"}.
      heldout_fraction: share of a language's blocks set aside for evaluation.
      parallel_heldout_fraction: the same for `parallel`.
      max_train_bytes: UTF-8 bytes of training text kept per language; 0 keeps all.
      seed: picks the blocks.
    """

    root: str
    text: tuple[str, ...]
    parallel: tuple[str, ...]
    parallel_eval: tuple[str, ...]
    languages: tuple[str, ...]
    language_codes: Mapping[str, str]
    heldout_fraction: float
    parallel_heldout_fraction: float
    max_train_bytes: int
    seed: int


@dataclasses.dataclass(frozen=True)
class ParallelText:
    """Sentences aligned across languages, for evaluation.

    Attributes:
      name: name of the source.
      languages: the columns.
      rows: one tuple per sentence, one cell per language; an empty cell is a missing translation.
    """

    name: str
    languages: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Text by language: documents to train on, documents held out, and parallel held-out text."""

    train: dict[str, list[Document]]
    heldout: dict[str, list[Document]]
    parallel: tuple[ParallelText, ...]

    def sentences(self, language: str) -> list[str]:
        """The training sentences of a language."""
        return [sentence for document in self.train[language] for sentence in document]

    def digest(self) -> str:
        """SHA-256 of all text and its split, in hexadecimal."""
        hasher = hashlib.sha256()
        for part in (self.train, self.heldout):
            for language in sorted(part):
                for document in part[language]:
                    hasher.update("\n".join([language, *document, "\n"]).encode())
        for parallel in self.parallel:
            for row in (parallel.languages, *parallel.rows):
                hasher.update("\t".join([*row, "\n"]).encode())
        return hasher.hexdigest()


def load_corpus(spec: CorpusSpec) -> Corpus:
    """Reads all text of `spec` and sets the held-out part aside.

    Raises:
      ValueError: a file is at fault (see `text_files`), no text or a wanted language is missing,
        or a language has too little text to hold any out.
    """
    root = pathlib.Path(spec.root)
    if not root.is_dir():
        raise ValueError(f"corpus.root: {root} is no folder")
    wanted = set(spec.languages)
    train: dict[str, list[Document]] = collections.defaultdict(list)
    heldout: dict[str, list[Document]] = collections.defaultdict(list)
    for language, documents in _read_text(root, spec, wanted).items():
        kept, aside = _split(documents, spec.heldout_fraction, f"{spec.seed} {language}")
        train[language] += kept
        heldout[language] += aside

    parallel = []
    for path in _matching_files(root, spec.parallel):
        source = _read_parallel(path, spec, wanted)
        if source is None:
            continue
        name, languages, blocks = source
        kept, aside = _split(blocks, spec.parallel_heldout_fraction, f"{spec.seed} {name}")
        for column, language in enumerate(languages):
            train[language] += _column(kept, column)
            heldout[language] += _column(aside, column)
        parallel.append(ParallelText(name, languages, tuple(row for b in aside for row in b)))
    for path in _matching_files(root, spec.parallel_eval):
        reader = _read_aligned_folder if path.is_dir() else _read_parallel
        source = reader(path, spec, wanted)
        if source is not None:
            name, languages, blocks = source
            parallel.append(ParallelText(name, languages, tuple(row for b in blocks for row in b)))

    _check_languages(root, spec, train, heldout)
    train = {lang: _cap(train[lang], spec.max_train_bytes, spec.seed) for lang in sorted(train)}
    return Corpus(train, {lang: heldout[lang] for lang in train}, tuple(parallel))


def _check_languages(
    root: pathlib.Path,
    spec: CorpusSpec,
    train: Mapping[str, list[Document]],
    heldout: Mapping[str, list[Document]],
) -> None:
    if not train:
        raise ValueError(
            f"{root}: no text found in {list(spec.text)} and {list(spec.parallel)}; text files are "
            "called <lang>.txt or <lang>.jsonl (also .gz, .xz), for example en.txt"
        )
    missing = sorted(set(spec.languages) - set(train))
    if missing:
        raise ValueError(
            f"corpus.languages asks for {missing}, found only {sorted(train)} below {root}; "
            "add the files, or corpus.language_codes for other spellings"
        )
    for language in sorted(train):
        if not train[language] or (spec.heldout_fraction > 0 and not heldout[language]):
            raise ValueError(
                f"language {language!r} has too little text to hold some out; add text (two "
                "documents at least), or set corpus.heldout_fraction to 0"
            )


def _language_of(stem: str, spec: CorpusSpec) -> str:
    return spec.language_codes.get(stem, stem)


def _text_files(folder: pathlib.Path, spec: CorpusSpec) -> Iterator[tuple[str, pathlib.Path]]:
    """Yields (language, path) of the monolingual text files of one folder, in name order."""
    if not folder.is_dir():
        raise ValueError(f"corpus.text: {folder} is no folder")
    for path in sorted(folder.iterdir()):
        if path.is_dir() or path.name.startswith("."):
            continue
        file_type = text_files.file_format(path)
        if file_type is None or file_type[1] == "tsv":
            continue
        if text_files.is_language(file_type[0]):
            yield _language_of(file_type[0], spec), path
        else:
            logging.warning("%s: skipped, %r is no language code", path, file_type[0])


def _read_text(
    root: pathlib.Path, spec: CorpusSpec, wanted: set[str]
) -> dict[str, list[list[str]]]:
    """Blocks of monolingual text by language, folders joined in the order of the config."""
    blocks: dict[str, list[Document]] = collections.defaultdict(list)
    for name in spec.text:
        for language, path in _text_files(root / name, spec):
            if not wanted or language in wanted:
                blocks[language] += _blocks(text_files.read_documents(path))
    return blocks


def _matching_files(root: pathlib.Path, patterns: Sequence[str]) -> list[pathlib.Path]:
    """The paths that match glob patterns below `root`; a plain name must exist."""
    paths = []
    for pattern in patterns:
        matches = sorted(root.glob(pattern))
        if not matches and "*" not in pattern:
            raise ValueError(f"corpus.parallel: {root / pattern} does not exist")
        paths += matches
    return paths


_Rows = list[tuple[str, ...]]


def _read_parallel(
    path: pathlib.Path, spec: CorpusSpec, wanted: set[str]
) -> tuple[str, tuple[str, ...], list[_Rows]] | None:
    """(name, languages, blocks of rows) of a TSV file, wanted columns only; None if under two."""
    languages, documents = text_files.read_parallel(path)
    languages = tuple(_language_of(language, spec) for language in languages)
    columns = [i for i, language in enumerate(languages) if not wanted or language in wanted]
    if len(columns) < 2:
        return None
    blocks = [[tuple(row[i] for i in columns) for row in b] for b in _blocks(documents)]
    return path.name.split(".tsv")[0], tuple(languages[i] for i in columns), blocks


def _read_aligned_folder(
    folder: pathlib.Path, spec: CorpusSpec, wanted: set[str]
) -> tuple[str, tuple[str, ...], list[_Rows]] | None:
    """The same of a folder of files in which line i of every file says the same."""
    columns: dict[str, list[str]] = {}
    first = None
    for language, path in _text_files(folder, spec):
        if wanted and language not in wanted:
            continue
        lines = [line.strip() for line in text_files.read_lines(path)]
        first = first or path
        if columns and len(lines) != len(next(iter(columns.values()))):
            raise ValueError(
                f"{path}: {len(lines)} lines, but {first.name} has "
                f"{len(next(iter(columns.values())))}; line-aligned files must be equally long"
            )
        columns.setdefault(language, lines)
    if len(columns) < 2:
        return None
    name = folder.name if folder.name not in ("dev", "train", "test") else folder.parent.name
    return name, tuple(columns), [list(zip(*columns.values(), strict=True))]


def _blocks(documents: Iterable[list[T]]) -> Iterator[list[T]]:
    """Cuts documents into runs of at most `_BLOCK_SENTENCES`."""
    for document in documents:
        for start in range(0, len(document), _BLOCK_SENTENCES):
            yield document[start : start + _BLOCK_SENTENCES]


def _column(blocks: Sequence[_Rows], column: int) -> list[Document]:
    documents = ([row[column] for row in block if row[column]] for block in blocks)
    return [document for document in documents if document]


def _split(blocks: Iterable[list[T]], fraction: float, salt: str) -> tuple[list[list[T]], ...]:
    """Splits blocks into (kept, held out), at least one of each where there are two."""
    blocks = list(blocks)
    count = round(fraction * len(blocks))
    if fraction > 0 and len(blocks) > 1:
        count = min(max(count, 1), len(blocks) - 1)
    aside = set(_shuffled(len(blocks), salt)[:count])
    kept = [block for i, block in enumerate(blocks) if i not in aside]
    return kept, [block for i, block in enumerate(blocks) if i in aside]


def _shuffled(count: int, salt: str) -> list[int]:
    """The numbers below `count` in an order that depends on `salt` alone."""

    def rank(i: int) -> bytes:
        return hashlib.sha256(f"{salt} {i}".encode()).digest()

    return sorted(range(count), key=rank)


def _cap(documents: list[Document], max_bytes: int, seed: int) -> list[Document]:
    """Keeps randomly chosen documents, in their old order, up to `max_bytes` of text."""
    if not max_bytes:
        return documents
    kept, size = set(), 0
    for i in _shuffled(len(documents), f"{seed} cap"):
        size += sum(len(sentence.encode()) + 1 for sentence in documents[i])
        if kept and size > max_bytes:
            break
        kept.add(i)
    return [document for i, document in enumerate(documents) if i in kept]
