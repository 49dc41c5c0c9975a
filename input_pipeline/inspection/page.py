"""The findings as a report in Markdown, and as lines for the console."""

from collections.abc import Mapping, Sequence
from typing import Any

from xlm.common import languages as names
from xlm.common import tables


def worst(languages: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping, Mapping]]:
    """Return pairs of a language and a finding of it, without notes, the worst first.

    Findings that stop a build come first, then the others by their share of the text.
    """
    found = [(one, f) for one in languages for f in one["findings"] if not f["is_note"]]
    return sorted(found, key=lambda pair: (not pair[1]["stops"], -pair[1]["share"]))


def summary(languages: Sequence[Mapping[str, Any]], most: int = 10) -> str:
    lines = [
        f"{one['language']}: {_title(f)}: {f['number']:,}, {f['share']:.2%} of its "
        f"{f.get('unit', 'text')}; remedy: {f['remedy']} ({_taken(f)}, {f['taken_share']:.2%})"
        for one, f in worst(languages)[:most]
    ]
    more = len(worst(languages)) - most
    return "\n".join([*lines, *([f"and {more} more"] if more > 0 else [])]) or "nothing found"


def report(languages: Sequence[Mapping[str, Any]], pairs: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the report: languages, then pairs of them, the worst first, with examples."""
    parts = ["# What is in this text"]
    if languages:
        parts += [
            f"{len(languages)} languages, {sum(one['bytes'] for one in languages):,} bytes of "
            "text. Shares are of a language's bytes. Findings overlap: a line can be of several "
            "kinds.",
            *_part(languages, "language", ("bytes", "lines", "documents")),
        ]
    if pairs:
        parts += [
            "# Parallel text",
            f"{len(pairs)} pairs of languages, {sum(one['pairs'] for one in pairs):,} pairs of "
            "sentences. Shares are of these. Findings overlap.",
            *_part(pairs, "pair", ("rows", "pairs", "taken_pairs")),
        ]
    return tables.page(*parts)


def _part(some: Sequence[Mapping[str, Any]], title: str, numbers: Sequence[str]) -> list[str]:
    firsts: dict[str, Mapping[str, Any]] = {}
    for one, finding in worst(some):
        firsts.setdefault(one["language"], finding)
    by_code = {one["language"]: one for one in some}
    ordered = [by_code[code] for code in dict.fromkeys([*firsts, *by_code])]
    rows = []
    for one in ordered:
        first = firsts.get(one["language"])
        scores = one.get("encoder", {})
        rows.append(
            {title: tables.escaped(one["language"])}
            | {key.replace("_", " "): f"{one[key]:,}" for key in numbers}
            | {"worst finding": tables.text_cell(_title(first)) if first else "nothing found",
               "its share": f"{first['share']:.2%}" if first else ""}
            | {key.replace("_", " "): f"{value:.3f}" for key, value in scores.items()}
        )  # fmt: skip
    table = tables.markdown(rows)
    return [
        table,
        *(line for one in ordered if title != "pair" or one["findings"] for line in _section(one)),
    ]


def _taken(f: Mapping[str, Any]) -> str:
    return f"{f['taken_pairs']:,} pairs" if "unit" in f else f"{f['taken_bytes']:,} bytes"


def _title(finding: Mapping[str, Any]) -> str:
    other = f": {finding['other']}" if "other" in finding else ""
    return finding["title"] + other + (", which stop a build" if finding["stops"] else "")


def _section(one: Mapping[str, Any]) -> list[str]:
    if "pairs" in one:
        return [f"## {tables.escaped(one['language'])}", *_findings(one)]
    lengths = ", ".join(f"{key} {value:,}" for key, value in one["line_characters"].items())
    scripts = sorted(one["scripts"].items(), key=lambda pair: -pair[1])[:4]
    longest = one["longest_line_bytes"] / max(one["bytes"], 1)
    facts = (
        f"{len(one['files'])} files, {one['file_bytes']:,} bytes on disk. Characters a line: "
        f"{lengths or 'none'}; the longest is {longest:.2%} of the text. Letters: "
        + (", ".join(f"{script} {share:.1%}" for script, share in scripts) or "none")
    )
    if tokens := one.get("tokens"):
        facts += f". Tokens a word: {tokens['tokens'] / max(tokens['words'], 1):.2f}"
    title = f"## {tables.escaped(names.label(one['language']))}"
    return [title, f"{facts}.", *(_findings(one) or ["Nothing found."])]


def _findings(one: Mapping[str, Any]) -> list[str]:
    parts = []
    for f in one["findings"]:
        parts += [
            f"### {tables.escaped(_title(f))}: {f['number']:,}, {f['share']:.2%}",
            f"Remedy: {tables.escaped(f['remedy'])}. It takes {_taken(f)}, {f['taken_share']:.2%}.",
            "\n".join(f"- {tables.text_cell(text)}" for text in f["examples"]),
        ]
    return parts
