"""Findings on a language from the passes over its files, and the cost of their remedies."""

import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from input_pipeline import sources
from input_pipeline.inspection import files, tallies
from input_pipeline.inspection.characters import scripts
from input_pipeline.inspection.files import FileReport, Kind
from input_pipeline.inspection.language_identification import Identifier
from input_pipeline.inspection.pairs import Examined
from input_pipeline.sources import ParallelSource

_QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
# Boilerplate stands in at least this share of the documents, and in at least so many.
_BOILERPLATE_SHARE, _BOILERPLATE_DOCUMENTS = 0.005, 8
_LEAST_JUDGED = 50  # lines of a language to compare as a whole
SHORTEST_BOILERPLATE = 20  # bytes
_SUMMED = (
    "file_bytes", "num_bytes", "num_lines", "num_documents", "judged", "lengths", "letters",
)  # fmt: skip


class Rule(NamedTuple):
    """Title and remedy of a kind of finding, and the least share to report.

    A note is harmless to our commands, so it is neither a worst finding nor a failure. A kind that
    `stops` a build comes first, however little text it is.
    """

    title: str
    remedy: str
    least: float
    is_note: bool = False
    stops: bool = False


RULES = {
    "fault": Rule(
        "files damaged, or with lines that are not JSON",
        "copy damaged files again; clean.bad_lines for single lines",
        0,
        stops=True,
    ),
    "empty": Rule("empty files, which builds leave out", "remove them", 0),
    "same_language": Rule("text as like another as one language", "check the names of both", 0),
    "other_language": Rule("lines more like another language", "clean.other_language", 0.002),
    "other_script": Rule("lines in another script", "clean.other_script", 0.003),
    "boilerplate": Rule("lines found in many documents", "clean.boilerplate", 0.002),
    "repeated_lines": Rule("repeated lines", "keep one copy: clean.repeated_lines", 0.003),
    "copies": Rule("copies of passages", "keep one: clean.near_copies", 0.002),
    "near_copies": Rule("passages nearly the same as another", "clean.near_copies", 0.002),
    "long_lines": Rule("lines of more than 8,192 characters", "clean.long_lines", 0.002),
    "html": Rule("HTML tags and entities", "keep their text: clean.html", 0.0005),
    "urls": Rule("URLs and e-mail addresses", "remove them: clean.urls", 0.0005),
    "few_letters": Rule("lines of mostly digits and signs", "drop these lines", 0.003),
    "mojibake": Rule("text decoded wrongly (Ã©, �)", "repair or drop these lines", 0.0002),
    "zawgyi": Rule("Burmese in Zawgyi's encoding", "convert it (ICU, myanmar-tools)", 0.005),
    "bad_utf8": Rule(
        "bytes that are not UTF-8", "convert the file, or clean.bad_lines", 0, stops=True
    ),
    "control": Rule("control characters", "clean.odd_characters", 0),
    "unknown_tokens": Rule("unknown tokens in a sample", "another tokenizer", 0.01),
    "invisible": Rule("invisible characters", "clean.odd_characters", 0.001, True),
    "not_nfc": Rule("lines that are not NFC (estimate)", "normalise", 0.001, True),
    "crlf": Rule("Windows line ends", "none needed", 0.001, True),
    "mark": Rule("byte order marks", "none needed", 0, True),
}
# A build warns from this share of a language's text on.
WARNED = {"fault": 0, "same_language": 0, "other_language": 0.01, "other_script": 0.02,
          "boilerplate": 0.01, "repeated_lines": 0.05, "html": 0.01, "mojibake": 0.001,
          "zawgyi": 0.005, "bad_utf8": 0}  # fmt: skip


def of_language(
    language: str, paths: Sequence[pathlib.Path], reports: Iterable[FileReport],
    identifier: Identifier, script: int, tokens: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the record of a language: its numbers, those of its files, and its findings.

    Findings are sorted by their share of the language's bytes. `reports` of the `paths` are read
    one by one. `tokens` comes from `xlm.cli.inspect_text`.
    """
    kinds: dict[str, Kind] = {}
    total = FileReport(0)
    tally, per_file, passages, bands = tallies.Tally(), [], [], []
    for path, one in zip(paths, reports, strict=True):
        for field in _SUMMED:
            setattr(total, field, getattr(total, field) + getattr(one, field))
        total.longest = max(total.longest, one.longest)
        tally.add(one.lines)
        passages.append(one.passages)
        bands.append(one.bands)
        own = dict(one.kinds)
        if one.fault or one.unreadable:
            fault = one.fault or f"{one.unreadable} lines are not JSON objects with a text"
            own["fault"] = Kind(1, examples=[f"{path}: {fault}"])
        if not one.num_lines:
            own["empty"] = Kind(1, examples=[str(path)])
        if one.has_mark:
            own["mark"] = Kind(1, 3, 3, [str(path)])
        for name, kind in own.items():
            kinds.setdefault(name, Kind()).add(kind)
        per_file.append(
            {"path": str(path), **_numbers(one), "kinds": {k: v.bytes for k, v in own.items()}}
        )
    rows = tally.rows()
    _count_repetitions(kinds, paths, rows, total)
    if passages:
        _count_copies(kinds, paths, np.concatenate(passages), np.concatenate(bands))
    if tokens and tokens["unknown_tokens"]:
        size = round(total.num_bytes * tokens["unknown_tokens"] / tokens["tokens"])
        shown = [f"{one}: {count:,} times" for one, count in tokens["unknown"].items()]
        kinds["unknown_tokens"] = Kind(tokens["unknown_tokens"], size, 0, shown)
    column = identifier.languages.index(language)
    are_enough = total.judged >= _LEAST_JUDGED
    for other in np.compress(identifier.alike[column] & are_enough, identifier.languages):
        if re.split("[_-]", other)[0] != re.split("[_-]", language)[0]:  # no varieties
            kinds[f"same_language:{other}"] = Kind(total.judged, total.num_bytes)
    return {
        "language": language,
        **_numbers(total),
        "script": scripts()[script],
        "scripts": {
            scripts()[i]: round(float(total.letters[i] / total.letters.sum()), 6)
            for i in np.flatnonzero(total.letters)
        },
        "line_characters": _quantiles(total.lengths),
        "judged_lines": total.judged,
        "exact_share_of_digests": min(tally.kept_share, 1.0),
        **({"tokens": tokens} if tokens else {}),
        "files": per_file,
        "findings": _findings(kinds, total, identifier, column),
    }


def _numbers(one: FileReport) -> dict[str, int]:
    return {
        "file_bytes": one.file_bytes,
        "bytes": one.num_bytes,
        "lines": one.num_lines,
        "documents": one.num_documents,
        "longest_line_bytes": one.longest,
    }


def _quantiles(lengths: np.ndarray) -> dict[str, int]:
    if not lengths.sum():
        return {}
    places = np.searchsorted(np.cumsum(lengths) / lengths.sum(), _QUANTILES)
    return {
        f"p{round(100 * q)}": round(2 ** ((i + 0.5) / files.LENGTH_BINS))
        for q, i in zip(_QUANTILES, places, strict=True)
    }


def _count_repetitions(
    kinds: dict[str, Kind], paths: Sequence[pathlib.Path], rows: np.ndarray, total: FileReport
) -> None:
    least = max(_BOILERPLATE_DOCUMENTS, _BOILERPLATE_SHARE * total.num_documents)
    is_boilerplate = (rows["documents"] >= least) & (rows["size"] >= SHORTEST_BOILERPLATE)
    is_repeated = ~is_boilerplate & (rows["copies"] > 1)
    for name, chosen in (("boilerplate", is_boilerplate), ("repeated_lines", is_repeated)):
        if not chosen.any():
            continue
        size = rows["size"][chosen].astype(np.int64)
        later = rows["copies"][chosen].astype(np.int64) - 1
        worst = np.argsort(-size * later, kind="stable")[: files.EXAMPLES]
        found = files.find_text(paths, rows["digest"][chosen][worst].tolist())
        shown = [f"{n + 1:,} times: {one}" for n, one in zip(later[worst], found, strict=True)]
        taken = int((size * later).sum())
        kinds[name] = Kind(int(later.sum()), taken, taken, shown)


def _count_copies(
    kinds: dict[str, Kind], paths: Sequence[pathlib.Path], passages: np.ndarray, bands: np.ndarray
) -> None:
    """Count passages that equal an earlier one, and passages that share a band with one."""
    is_copy = tallies.later_copies(passages[:, 0])
    is_near = np.zeros(len(passages), bool)
    if bands.any():
        for band in bands[~is_copy].T:
            is_near[~is_copy] |= tallies.later_copies(band)
    for name, chosen in (("copies", is_copy), ("near_copies", is_near)):
        if chosen.any():
            size, first = int(passages[chosen, 1].sum()), passages[chosen, 2]
            found = files.find_text(paths, first[: files.EXAMPLES].tolist())
            kinds[name] = Kind(int(chosen.sum()), size, size, found)


_TAKE = "drop these pairs (corpus.clean_pairs: {})"
PAIR_RULES = {
    "length": Rule("lengths that do not fit", _TAKE.format("length"), 0.002),
    "copies": Rule("copies of the other side", _TAKE.format("copies"), 0.002),
    "near_copies": Rule("near copies of the other side", _TAKE.format("near_copies"), 0.005),
    "language": Rule("not the language of the column", _TAKE.format("language"), 0.002),
    "hubs": Rule("one sentence beside many", _TAKE.format("hubs"), 0.005),
    "duplicates": Rule("rows that repeat", _TAKE.format("duplicates"), 0.005),
    "numbers": Rule("numbers that differ", _TAKE.format("numbers"), 0.02),
    "end_marks": Rule("a question on one side only", "none needed", 0.02, True),
    "misaligned": Rule("runs of rows out of step", "align these rows again", 0),
}


def of_pairs(source: ParallelSource, examined: Examined) -> list[dict[str, Any]]:
    """Return the record of the pivot and each other column; shares are of pairs."""
    pivot, records = source.languages[examined.pivot], []
    for i, (language, kinds) in enumerate(zip(source.languages, examined.kinds, strict=True)):
        found, pairs = [], int(examined.pairs[i])
        for key, kind in kinds.items():
            share, rule = kind.lines / pairs, PAIR_RULES[key]
            is_taken = key in sources.PAIR_RULES
            if share >= rule.least:
                one = finding(key, rule, kind, share, 0)
                taken = {"taken_pairs": kind.lines * is_taken, "taken_share": share * is_taken}
                found.append({**one, **taken, "unit": "pairs"})
        if pairs:
            records.append(
                {
                    "language": f"{source.name} {pivot}-{language}",
                    "rows": examined.num_rows,
                    "pairs": pairs,
                    "taken_pairs": int(examined.taken[i]),
                    "findings": ordered(found),
                    "counts": {key: kind.lines for key, kind in kinds.items()},
                    "sample": examined.sample[i],
                }
            )
    return records


def finding(
    key: str, rule: Rule, kind: Kind, share: float, total_bytes: int, other: str = ""
) -> dict[str, Any]:
    """Return a finding as data; `share` is of a language's bytes or pairs."""
    return {
        "kind": key,
        **({"other": other} if other else {}),
        "title": rule.title,
        "is_note": rule.is_note,
        "stops": rule.stops,
        "number": kind.lines,
        "bytes": kind.bytes,
        "share": round(share, 6),
        "remedy": rule.remedy,
        "taken_bytes": kind.taken,
        "taken_share": round(kind.taken / max(total_bytes, 1), 6),
        "examples": kind.examples[: files.EXAMPLES],
    }


def _findings(
    kinds: Mapping[str, Kind], total: FileReport, identifier: Identifier, own: int
) -> list[dict[str, Any]]:
    found = []
    for name, kind in kinds.items():
        key, _, other = name.partition(":")
        rule, excess = RULES[key], 1.0
        if key == "other_language":
            expected = identifier.expected[own, identifier.languages.index(other)]
            excess = 1 - 2 * float(expected) * total.judged / kind.lines
        share = excess * kind.bytes / max(total.num_bytes, 1)
        are_short = key == "long_lines" and total.longest < total.num_bytes / 100
        if excess <= 0 or share < rule.least or are_short:
            continue
        lines, size, taken = (round(n * excess) for n in (kind.lines, kind.bytes, kind.taken))
        counted = Kind(lines, size, taken, kind.examples)
        found.append(finding(key, rule, counted, share, total.num_bytes, other))
    return ordered(found)


def ordered(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(
        found, key=lambda one: (one["is_note"], not one["stops"], -one["share"], one["kind"])
    )
