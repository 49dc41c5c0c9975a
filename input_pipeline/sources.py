"""Sources of a corpus: its settings, the files of each language, and streams of parallel text."""

import collections
import dataclasses
import itertools
import logging
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from input_pipeline import text_files
from xlm.common import declarations, packages, places, schema

Row = tuple[str, ...]
BY_TEXT, BY_POSITION, BY_DOCUMENT = "text", "position", "document"
# See `inspection.pairs`.
PAIR_RULES = ("length", "copies", "near_copies", "language", "hubs", "duplicates", "numbers")
# Longer documents are cut, so that a file without blank lines has a split.
BLOCK_SENTENCES = 20
_PART_BYTES = 1 << 30
# A row of 512 tokens of a vocabulary of 250K or more holds some 2 to 5 KB of text.
DEFAULT_BLOCK_BYTES = 8192


@dataclasses.dataclass(frozen=True)
class CorpusSpec:
    """Sources of text and the held-out split; the `corpus` section of a config.

    Attributes:
      root: folder of the other paths, also in a bucket (s3://, gs://).
      text: folders of `<lang>.txt` and `<lang>.jsonl` files; a language's files are joined.
      parallel: aligned text to train on, except for its held-out blocks: TSV files or folders of
        `<lang>.txt` files, aligned by line or by `<lang>.ids` files; glob patterns.
      parallel_eval: aligned text for evaluation only, even if `parallel` matches it.
      languages: languages to use; empty for all.
      language_codes: other names of a language in file names, such as {"eng": "en"}.
      heldout_fraction: share of a language's text held out for evaluation.
      parallel_heldout_fraction: share of `parallel` held out for evaluation.
      parallel_heldout_most: most held-out rows of a source of `parallel`, rounded down to blocks of
        20, but at least one block; 0 for no limit.
      max_train_bytes: UTF-8 bytes of training text kept per language; 0 keeps all.
      max_train_bytes_of: limits of single languages, in place of `max_train_bytes`, so that a study
        can have languages of much and of little text.
      seed: seed of the choice of blocks.
      exclude: glob patterns of test sets, as lines, tab-separated cells, tagged words or JSON
        lines. Sentences of `text` and rows of `parallel` that occur in them are dropped (see
        `input_pipeline.exclusion`).
      heldout_by: "text" holds out by a hash of a block's text (see `input_pipeline.selection`),
        "position" by a hash of its number in its language, "document" whole documents by a hash of
        their text.
      deduplicate: drop repetitions of a block's text within a language.
      block_bytes: least size of the blocks of long documents; 0 for blocks of 20 sentences of any
        size.
      parallel_as_text: use each column of `parallel` as text of its language, too.
      clean_pairs: rules that drop pairs of `parallel`, as `xlm inspect` counts them (see
        `inspection.pairs`).
    """

    root: str = schema.key("", effect="place")
    text: tuple[str, ...] = schema.key((".",))
    parallel: tuple[str, ...] = schema.key(())
    parallel_eval: tuple[str, ...] = schema.key(())
    languages: tuple[str, ...] = schema.key(())
    language_codes: Mapping[str, str] = schema.key({})
    heldout_fraction: float = schema.key(0.001, at_least=0, below=1)
    parallel_heldout_fraction: float = schema.key(0.2, at_least=0, below=1)
    parallel_heldout_most: int = schema.key(0, at_least=0)
    max_train_bytes: int = schema.key(0, at_least=0)
    seed: int = schema.key(0)
    exclude: tuple[str, ...] = schema.key(())
    heldout_by: str = schema.key("text", choices=(BY_TEXT, BY_POSITION, BY_DOCUMENT))
    deduplicate: bool = schema.key(True)
    block_bytes: int = schema.key(DEFAULT_BLOCK_BYTES, at_least=0)
    parallel_as_text: bool = schema.key(True)
    clean_pairs: tuple[str, ...] = schema.key((), choices=PAIR_RULES)
    max_train_bytes_of: Mapping[str, int] = schema.key({})

    def limit_of(self, language: str) -> int:
        """Return the bytes of training text to keep of a language; 0 for all."""
        return self.max_train_bytes_of.get(language, self.max_train_bytes)

    def __post_init__(self):
        schema.check(self, "corpus")
        for language, limit in self.max_train_bytes_of.items():
            if not isinstance(limit, int) or limit < 0:
                raise ValueError(
                    f"corpus.max_train_bytes_of.{language} is {limit!r}, must be a whole number of "
                    "bytes, or 0 to keep all"
                )
        for key, codes in (
            ("languages", self.languages),
            ("language_codes", self.language_codes.values()),
            ("max_train_bytes_of", self.max_train_bytes_of),
        ):
            for code in codes:
                declarations.check_name(str(code), f"corpus.{key}", "correct the code")


class TextFile(NamedTuple):
    language: str
    path: pathlib.Path


@dataclasses.dataclass(frozen=True)
class ParallelSource:
    """Parallel text, for any number of reads.

    Attributes:
      key: config key that names it, "parallel" or "parallel_eval".
      languages: the columns.
      rows: returns an iterator of rows, one cell per language, "" for a missing translation; ()
        at the end of a document.
      taken: returns counts of the pairs that `clean_pairs` took, by column and rule.
      part, num_parts: number of a part of a TSV file, if that was cut.
    """

    key: str
    name: str
    languages: tuple[str, ...]
    files: tuple[pathlib.Path, ...]
    rows: Callable[[], Iterable[Row]]
    taken: Callable[[], Mapping[str, Any]] = dict
    part: int = 0
    num_parts: int = 1

    @property
    def place(self) -> tuple[tuple[pathlib.Path, ...], int]:
        """Files and part, which identify a source."""
        return self.files, self.part

    def blocks(self) -> Iterator[list[Row]]:
        """Yield blocks of consecutive rows of a document."""
        block: list[Row] = []
        for row in self.rows():
            if row:
                block.append(row)
            if block and (not row or len(block) == BLOCK_SENTENCES):
                yield block
                block = []
        if block:
            yield block


def root_of(spec: CorpusSpec) -> pathlib.Path:
    """Return the folder of the corpus; raise ValueError if it does not exist."""
    root = places.path(spec.root)
    if not root.is_dir():
        raise ValueError(f"corpus.root: {root} is not a folder; correct the path")
    return root


def find_text(spec: CorpusSpec, *, with_empty: bool = False) -> list[TextFile]:
    """Find the files of monolingual text: folders in the order of the config, files by name.

    A warning names files without text, which are left out unless `with_empty`. Raise ValueError if
    a folder is missing, repeated or parallel text, or shards are missing.
    """
    found, seen = [], set()
    root = root_of(spec)
    matched = _matched_parallel(spec)
    evaluated = {path.resolve() for path in matched["parallel_eval"]}
    folders = (path for path in matched["parallel"] if path.is_dir())
    trained = {path.resolve() for path in folders if _has_two(_languages_of(path, spec), spec)}
    for name in spec.text:
        folder = places.join(root, name)
        place = folder.resolve()
        if place in seen:
            raise ValueError(
                f"corpus.text has {folder} twice, so that its text would count twice; remove one"
            )
        for others, fault in (
            (evaluated, "parallel_eval, so that a run would train on evaluation text"),
            (trained, "parallel, so that its text would count twice, some of it held out"),
        ):
            if place in others:
                raise ValueError(
                    f"{folder} is named in corpus.text and in corpus.{fault}; remove it from one"
                )
        seen.add(place)
        if not folder.is_dir():
            raise ValueError(
                f"corpus.text: {folder} is not a folder; correct the path below corpus.root"
            )
        found += _text_files(folder, spec, kinds=("txt", "jsonl"))
    return [one for one in found if with_empty or _has_text(one.path)]


def _has_text(path: pathlib.Path) -> bool:
    if not (found := text_files.has_text(path)):
        text_files.warn_once(f"{path}: the file holds no text and is left out")
    return found


def find_excluded(spec: CorpusSpec) -> list[pathlib.Path]:
    """Find the files of test sets, whose sentences are excluded from all text."""
    return list(_matching_paths(root_of(spec), "exclude", spec.exclude))


def find_parallel(
    spec: CorpusSpec, only: tuple[str, pathlib.Path] | None = None
) -> list[ParallelSource]:
    """Find the sources of parallel text with two wanted languages, or that of `only` (key, path).

    Unless `corpus.clean_pairs` needs it whole, a plain TSV file of more than a GiB becomes a source
    for each part of a GiB, with held-out blocks of its own. Raise ValueError if a path is missing,
    a header malformed, or a language has two columns.
    """
    found = []
    for key, path in _parallel_paths(spec) if only is None else [only]:
        source = aligned_folder(key, path, spec) if path.is_dir() else _tsv(key, path, spec)
        repeated = {one for one in source.languages if source.languages.count(one) > 1}
        if repeated:
            raise ValueError(
                f"{path}: several columns for {sorted(repeated)}; remove all but one, or the "
                "entries of corpus.language_codes that make them one language"
            )
        if len(source.languages) > 1:
            found += [source] if spec.clean_pairs else _cut(source, path, spec)
    if spec.clean_pairs:
        with packages.needed("corpus.clean_pairs", "vocab"):
            from input_pipeline.inspection import pairs
        found = pairs.cleaned(found, spec.clean_pairs)
    return found


def find_evaluated_only(spec: CorpusSpec) -> list[pathlib.Path]:
    """Find the paths of `parallel` that `parallel_eval` keeps out of training."""
    matched = _matched_parallel(spec)
    return [path for path in matched["parallel"] if path in matched["parallel_eval"]]


def _parallel_paths(spec: CorpusSpec) -> list[tuple[str, pathlib.Path]]:
    """Find config keys and paths of parallel text, each path under one key."""
    found = [(key, path) for key, paths in _matched_parallel(spec).items() for path in paths]
    evaluated = {path for key, path in found if key == "parallel_eval"}
    return [(key, path) for key, path in found if key == "parallel_eval" or path not in evaluated]


def _matched_parallel(spec: CorpusSpec) -> dict[str, dict[pathlib.Path, None]]:
    """Find the paths that match the patterns of each config key, in order and each once."""
    patterns = {"parallel": spec.parallel, "parallel_eval": spec.parallel_eval}
    root = root_of(spec)
    return {key: dict.fromkeys(_matching_paths(root, key, of)) for key, of in patterns.items()}


def find_unmatched(spec: CorpusSpec, keys: Iterable[str]) -> list[str]:
    """Find the patterns of config keys that match nothing."""
    patterns = itertools.chain.from_iterable(getattr(spec, key) for key in keys)
    return [one for one in patterns if not places.glob(places.path(spec.root), one)]


def find_left_out(spec: CorpusSpec) -> dict[pathlib.Path, tuple[str, ...]]:
    """Find parallel text with fewer than two wanted languages, and its languages."""
    languages = {path: _languages_of(path, spec) for _, path in _parallel_paths(spec)}
    return {path: found for path, found in languages.items() if not _has_two(found, spec)}


def _has_two(languages: Iterable[str], spec: CorpusSpec) -> bool:
    return sum(_is_wanted(language, spec) for language in languages) > 1


def _languages_of(path: pathlib.Path, spec: CorpusSpec) -> tuple[str, ...]:
    """Return the languages of a source of parallel text, wanted or not."""
    if path.is_dir():
        files = (one for one in sorted(path.iterdir()) if not (one.is_dir() or one.name[0] == "."))
        formats = map(text_files.file_format, files)
        names = [one[0] for one in formats if one and one[1] == "txt"]
    else:
        names = list(text_files.open_parallel(path)[0])
    return tuple(dict.fromkeys(_language_of(name, spec) for name in names))


def _language_of(name: str, spec: CorpusSpec) -> str:
    return spec.language_codes.get(name, name)


def _is_wanted(language: str, spec: CorpusSpec) -> bool:
    return not spec.languages or language in spec.languages


def _text_files(
    folder: pathlib.Path, spec: CorpusSpec, kinds: Sequence[str], *, may_be_shards: bool = True
) -> list[TextFile]:
    """Find the wanted text files of one folder, shards by their numbers."""
    found = []
    shards: dict[tuple[str, int], list[tuple[int, pathlib.Path]]] = collections.defaultdict(list)
    for path in sorted(folder.iterdir()):
        if path.is_dir() or path.name.startswith("."):
            continue
        file_type = text_files.file_format(path)
        if file_type is None or file_type[1] not in kinds:
            if file_type is None and text_files.is_language(path.name.partition(".")[0]):
                logging.warning("%s: skipped, it is not .txt or .jsonl", path)
            continue
        stem, number, total = text_files.shard_of(file_type[0]) or (file_type[0], 0, 0)
        if not text_files.is_language(stem):
            logging.warning("%s: skipped, %r is not a language code", path, file_type[0])
            continue
        language = _language_of(stem, spec)
        if _is_wanted(language, spec):
            text_files.check_regular(path)
            found.append(TextFile(language, path))
            if total and not may_be_shards:
                raise ValueError(
                    f"{path}: is a shard, but aligned files must be whole: join the shards, and "
                    "move them out of the folder"
                )
            if total:
                shards[stem, total].append((number, path))
    for (stem, total), parts in shards.items():
        _check_shards(stem, total, parts)

    def padded(one: TextFile) -> str:  # so that names sort by number
        return re.sub("[0-9]+(?=-of-)", lambda found: found[0].zfill(12), one.path.name)

    return sorted(found, key=padded)


def _check_shards(stem: str, total: int, parts: Sequence[tuple[int, pathlib.Path]]) -> None:
    """Raise ValueError unless each shard of a file exists once."""
    count = collections.Counter(number for number, _ in parts)
    if missing := sorted(set(range(total)) - set(count)):
        raise ValueError(
            f"{parts[0][1]}: {len(missing)} of the shards {stem}-NNNNN-of-{total:05d} are missing, "
            f"{', '.join(f'{one:05d}' for one in missing[:5])}"
            f"{' and others' if len(missing) > 5 else ''}; copy them, or move the others away"
        )
    wrong = [path for number, path in parts if number >= total or count[number] > 1]
    if wrong:
        raise ValueError(
            f"{', '.join(map(str, wrong[:3]))}: each shard of {total} must be there once, numbered "
            f"from 00000 to {total - 1:05d}; remove the others"
        )


def _matching_paths(
    root: pathlib.Path, key: str, patterns: Sequence[str]
) -> Iterator[pathlib.Path]:
    """Yield the paths that match glob patterns below `root`; a plain name must exist."""
    for pattern in patterns:
        matches = places.glob(root, pattern)
        if not matches and "*" not in pattern:
            raise ValueError(
                f"corpus.{key}: {root / pattern} does not exist; correct the path below corpus.root"
            )
        for path in sorted(matches):
            text_files.check_regular(path)
            yield path


def _name(path: pathlib.Path) -> str:
    is_split = path.is_dir() and path.name in ("train", "dev", "test")
    name = (path.parent if is_split else path).name.split(".tsv")[0]
    return declarations.check_name(name, str(path), "rename it, since files of rows get its name")


def _cut(source: ParallelSource, path: pathlib.Path, spec: CorpusSpec) -> list[ParallelSource]:
    """Cut a large plain TSV file into parts, by bytes."""
    file_type, size = text_files.file_format(path), places.state(path)[0]
    count = 1 if file_type is None or file_type[1:] != ("tsv", "") else -(-size // _PART_BYTES)
    if count < 2:
        return [source]
    bounds = [size * part // count for part in range(count + 1)]
    return [
        dataclasses.replace(_tsv(source.key, path, spec, *ends), part=part, num_parts=count)
        for part, ends in enumerate(itertools.pairwise(bounds))
    ]


def _tsv(
    key: str, path: pathlib.Path, spec: CorpusSpec, start: int = 0, end: int | None = None
) -> ParallelSource:
    """Return the wanted columns of a TSV file, or of a range of its bytes."""
    names, _ = text_files.open_parallel(path)
    languages = [_language_of(name, spec) for name in names]
    columns = [i for i, language in enumerate(languages) if _is_wanted(language, spec)]

    def rows() -> Iterator[Row]:
        found = text_files.open_parallel(path, start, end)[1]
        if len(columns) == len(names):
            return found
        return (row and tuple(row[i] for i in columns) for row in found)

    wanted = tuple(languages[i] for i in columns)
    return ParallelSource(key, _name(path), wanted, (path,), rows)


def aligned_folder(key: str, folder: pathlib.Path, spec: CorpusSpec) -> ParallelSource:
    """Return the source of a folder with a text file and optionally a file of ids per language."""
    files = _text_files(folder, spec, ("txt",), may_be_shards=False)
    ids = _text_files(folder, spec, ("ids",), may_be_shards=False)
    return ParallelSource(
        key,
        _name(folder),
        tuple(language for language, _ in files),
        tuple(path for _, path in (*files, *ids)),
        lambda: _read_aligned(dict(files), dict(ids)),
    )


def _read_aligned(files: Mapping[str, pathlib.Path], ids: Mapping[str, pathlib.Path]) -> list[Row]:
    """Read rows of translations, one cell per file, "" for a missing translation.

    `ids` are no files, or one per language with the id of each line. Raise ValueError if files that
    belong together differ in length, or ids are missing.
    """
    if not files:
        return []
    columns = [_stripped(path) for path in files.values()]
    if not ids:
        first = next(iter(files.values()))
        for path, column in zip(files.values(), columns, strict=True):
            _check_length(path, column, first, columns[0], "line-aligned files")
        return list(zip(*columns, strict=True))
    if missing := [path for language, path in files.items() if language not in ids]:
        raise ValueError(
            f"{missing[0]} has no ids, but {next(iter(ids.values()))} is there; add a file of ids "
            "for each language, or remove all of them"
        )
    keys = [_stripped(ids[language]) for language in files]
    for one, (language, path), column in zip(keys, files.items(), columns, strict=True):
        _check_length(ids[language], one, path, column, "a text and its ids")
    return _join_by_ids(keys, columns)


def _join_by_ids(ids: Sequence[Sequence[str]], columns: Sequence[Sequence[str]]) -> list[Row]:
    """Join lines of the same id into rows, in the order of first occurrence; drop empty lines.

    A line gets its own row if its id is empty, begins with "?" or is repeated in its column.
    """
    rows: dict[object, list[str]] = {}
    for number, (keys, lines) in enumerate(zip(ids, columns, strict=True)):
        for place, (key, line) in enumerate(zip(keys, lines, strict=True)):
            if not line:
                continue
            is_alone = not key or key.startswith("?") or rows.get(key, [""] * len(ids))[number]
            row = rows.setdefault((number, place) if is_alone else key, [""] * len(ids))
            row[number] = line
    return [tuple(row) for row in rows.values()]


def _stripped(path: pathlib.Path) -> list[str]:
    return [line.strip() for line in text_files.read_lines(path)]


def _check_length(
    path: pathlib.Path, lines: list[str], other: pathlib.Path, expected: list[str], what: str
) -> None:
    if len(lines) != len(expected):
        raise ValueError(
            f"{path}: {len(lines)} lines, but {other.name} has {len(expected)}; {what} must be "
            "equally long: correct the files"
        )
