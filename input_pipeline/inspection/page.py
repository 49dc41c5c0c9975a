"""The findings as a report in Markdown, and as lines for the console."""

from collections.abc import Mapping, Sequence
from typing import Any

from xlm.common import languages as names
from xlm.common import tables


def worst(languages: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping, Mapping]]:
    """Return pairs of a language and a finding of it that is no note, the worst first.

    Those that stop a build come before all others, which are sorted by their share of the text.
    """
    found = [(one, f) for one in languages for f in one["findings"] if not f["is_note"]]
    return sorted(found, key=lambda pair: (not pair[1]["stops"], -pair[1]["share"]))


def summary(languages: Sequence[Mapping[str, Any]], most: int = 10) -> str:
    lines = [
        f"{one['language']}: {_title(f)}: {f['number']:,}, {f['share']:.2%} of its text; "
        f"remedy: {f['remedy']} ({f['taken_bytes']:,} bytes, {f['taken_share']:.2%})"
        for one, f in worst(languages)[:most]
    ]
    more = len(worst(languages)) - most
    return "\n".join([*lines, *([f"and {more} more"] if more > 0 else [])]) or "nothing found"


def report(languages: Sequence[Mapping[str, Any]]) -> str:
    """Return the report: languages with the worst findings first, each with its examples."""
    firsts: dict[str, Mapping[str, Any]] = {}
    for one, finding in worst(languages):
        firsts.setdefault(one["language"], finding)
    by_code = {one["language"]: one for one in languages}
    ordered = [by_code[code] for code in dict.fromkeys([*firsts, *by_code])]
    rows = []
    for one in ordered:
        first = firsts.get(one["language"])
        rows.append(
            {"language": tables.escaped(one["language"])}
            | {key: f"{one[key]:,}" for key in ("bytes", "lines", "documents")}
            | {"worst finding": tables.text_cell(_title(first)) if first else "nothing found",
               "its share": f"{first['share']:.2%}" if first else ""}
        )  # fmt: skip
    about = (
        f"{len(languages)} languages, {sum(one['bytes'] for one in languages):,} bytes of text. "
        "Shares are of a language's bytes. Findings overlap: a line can be of several kinds."
    )
    parts = ["# What is in this text", about, tables.markdown(rows)]
    for one in ordered:
        parts += _section(one)
    return tables.page(*parts)


def _title(finding: Mapping[str, Any]) -> str:
    other = f": {finding['other']}" if "other" in finding else ""
    return finding["title"] + other + (", which stop a build" if finding["stops"] else "")


def _section(one: Mapping[str, Any]) -> list[str]:
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
    parts = [f"## {tables.escaped(names.label(one['language']))}", f"{facts}."]
    for f in one["findings"]:
        parts += [
            f"### {tables.escaped(_title(f))}: {f['number']:,}, {f['share']:.2%}",
            f"Remedy: {tables.escaped(f['remedy'])}. It takes {f['taken_bytes']:,} bytes, "
            f"{f['taken_share']:.2%}.",
            "\n".join(f"- {tables.text_cell(text)}" for text in f["examples"]),
        ]
    return parts if one["findings"] else [*parts, "Nothing found."]
