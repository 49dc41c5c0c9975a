"""The findings as one page of HTML, which needs nothing else, and as lines for the console."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

_STYLE = """
* { box-sizing: border-box; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 64em; padding: 0 1em;
  color: #222; background: #fff; }
table { border-collapse: collapse; width: 100%; margin: .5em 0 1.5em; }
th, td { text-align: left; padding: .25em .6em; border-bottom: 1px solid #ddd;
  vertical-align: top; }
th.n, td.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
h2 { margin-top: 2em; } h3 { margin: 1.2em 0 .2em; font-size: 1em; } p { margin: .2em 0; }
ul { margin: .3em 0 0; padding-left: 1.2em; }
li { background: #f6f6f4; margin: .2em 0; padding: .1em .5em; overflow-wrap: anywhere; }
.note { color: #666; } .bar { background: #c0392b; height: .6em; display: inline-block; }
"""


def worst(languages: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping, Mapping]]:
    """Return pairs of a language and a finding of it that is no note, the worst first."""
    found = [(one, f) for one in languages for f in one["findings"] if not f["is_note"]]
    return sorted(found, key=lambda pair: -pair[1]["share"])


def summary(languages: Sequence[Mapping[str, Any]], most: int = 10) -> str:
    lines = [
        f"{one['language']}: {_title(f)}: {f['number']:,}, {f['share']:.2%} of its text; "
        f"remedy: {f['remedy']} ({f['taken_bytes']:,} bytes, {f['taken_share']:.2%})"
        for one, f in worst(languages)[:most]
    ]
    more = len(worst(languages)) - most
    return "\n".join([*lines, *([f"and {more} more"] if more > 0 else [])]) or "nothing found"


def page(languages: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> str:
    """Return the page: languages with the worst findings first, each with its examples."""
    order = list(dict.fromkeys(one["language"] for one, _ in worst(languages)))
    order += [one["language"] for one in languages if one["language"] not in order]
    by_code = {one["language"]: one for one in languages}
    ordered = [by_code[code] for code in order]
    title = f"{len(languages)} languages, {sum(one['bytes'] for one in languages):,} bytes of text"
    head = "".join(f"<th class='n'>{one}" for one in ("bytes", "lines", "documents"))
    return "\n".join(
        [
            "<!doctype html>\n<html lang='en'><meta charset='utf-8'><title>Inspection</title>",
            f"<style>{_STYLE}</style><h1>What is in this text</h1><p>{title}. Shares are of a "
            "language's bytes. Findings overlap: a line can be of several kinds.</p>",
            f"<table><tr><th>language{head}<th>worst finding<th>its share",
            *(_row(one, names) for one in ordered),
            "</table>",
            *(_section(one, names) for one in ordered),
            "</html>\n",
        ]
    )


def _name(one: Mapping[str, Any], names: Mapping[str, str]) -> str:
    code = one["language"]
    return html.escape(f"{names[code]} ({code})" if code in names else code)


def _title(finding: Mapping[str, Any]) -> str:
    return finding["title"] + (f": {finding['other']}" if "other" in finding else "")


def _row(one: Mapping[str, Any], names: Mapping[str, str]) -> str:
    numbers = "".join(f"<td class='n'>{one[key]:,}" for key in ("bytes", "lines", "documents"))
    first = next((f for f in one["findings"] if not f["is_note"]), None)
    text, share = (html.escape(_title(first)), first["share"]) if first else ("nothing found", 0)
    bar = f"<span class='bar' style='width:{100 * min(share, 1):.1f}px'></span> {share:.2%}"
    anchor = html.escape(one["language"])
    return f"<tr><td><a href='#{anchor}'>{_name(one, names)}</a>{numbers}<td>{text}<td>{bar}"


def _section(one: Mapping[str, Any], names: Mapping[str, str]) -> str:
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
    parts = [f"<h2 id='{html.escape(one['language'])}'>{_name(one, names)}</h2><p>{facts}.</p>"]
    for f in one["findings"]:
        examples = "".join(f"<li dir='auto'>{html.escape(text)}" for text in f["examples"])
        parts.append(
            f"<h3 class='{'note' * f['is_note']}'>{html.escape(_title(f))}: {f['number']:,}, "
            f"{f['share']:.2%}</h3><p>Remedy: {html.escape(f['remedy'])}. It takes "
            f"{f['taken_bytes']:,} bytes, {f['taken_share']:.2%}.</p><ul>{examples}</ul>"
        )
    return "\n".join(parts if one["findings"] else [*parts, "<p>Nothing found.</p>"])
