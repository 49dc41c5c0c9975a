"""Reports as HTML: one page with its charts, tables to sort and filter, and no network.

The page comes from the report's Markdown, so both say the same. Raw HTML in it stays text.
"""

import html
import itertools
import pathlib
import re
from collections.abc import Mapping, Sequence

from xlm.common import artifacts, charts, languages, packages

MARKDOWN, PAGE = "report.md", "report.html"
# The browser loads nothing, whatever the report contains.
NO_NETWORK = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">"
)
_FILTER = """\
<p class="bar" hidden><label for="filter">Find languages</label>
<input id="filter" type="search" placeholder="code or name" autocomplete="off">
<span role="status"></span></p>
"""
_FOLDER = pathlib.Path(__file__).parent


def write(
    folder: pathlib.Path, text: str, *, instead: Mapping[str, str] | None = None, head: str = ""
) -> pathlib.Path:
    """Write a report in Markdown as report.md, and as report.html; return the path of the first.

    The page has the charts of `folder` that the text shows, files of `charts.save`. `instead` has
    HTML by the part of the text that it replaces in the page. `head` is added to the page's head.
    """
    artifacts.write_text(folder / MARKDOWN, text)
    artifacts.write_text(folder / PAGE, page(body(text, folder, instead), _title(text), head))
    return folder / MARKDOWN


def body(text: str, folder: pathlib.Path, instead: Mapping[str, str] | None = None) -> str:
    """Return Markdown as HTML with the charts of `folder` in it, and names beside languages."""
    with packages.needed(PAGE, "vocab"):
        from markdown_it import MarkdownIt

    # Names, links and texts may come from anywhere: no HTML passes, and no link runs a script.
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    fragments = {f"PART{i}OFPAGE": one for i, one in enumerate((instead or {}).values())}
    for part, name in zip(instead or {}, fragments, strict=True):
        text = text.replace(part, name, 1)
    tokens = markdown.parse(text)
    headings: list[str] = []
    for token, after in itertools.pairwise(tokens):
        if token.type == "td_open":
            token.attrSet("dir", "auto")
        if token.type == "heading_open" and token.tag == "h2":
            token.attrSet("id", f"part-{len(headings)}")
            shown = markdown.renderer.render([after], markdown.options, {})
            headings.append(f'<a href="#part-{len(headings)}">{shown}</a>')
        for one in token.children or ():
            path = folder / str(one.attrs.get("src", ""))
            if one.type == "image" and path.parent == folder and path.suffix == ".svg":
                one.type, one.content = "html_inline", charts.markup(path)
    _name_languages(tokens)
    found = markdown.renderer.render(tokens, markdown.options, {})
    found = found.replace("<table>", '<div class="scroll"><table>')
    found = found.replace("</table>", "</table></div>")
    for name, fragment in fragments.items():
        found = found.replace(f"<p>{name}</p>", fragment, 1)
    links = f"<nav>{' '.join(headings)}</nav>\n" if len(headings) > 2 else ""
    return found.replace("</h1>\n", f"</h1>\n{links}{_FILTER}", 1)


def _name_languages(tokens: Sequence) -> None:
    """Add names and scripts to the codes in columns called "language"."""
    column, named = 0, set[int]()
    for token, after in itertools.pairwise(tokens):
        if token.type == "thead_open":
            named = set()
        elif token.type == "tr_open":
            column = 0
        elif token.type == "th_open":
            named |= {column} if after.content == "language" else set()
            column += 1
        elif token.type == "td_open":
            name = languages.with_script(_plain(after.content)) if column in named else ""
            if name:
                added = type(after)(
                    "html_inline", "", 0, content=f" <small>{html.escape(name)}</small>"
                )
                after.children.append(added)
            column += 1


def _title(text: str) -> str:
    """Return the first heading, without its marks."""
    found = re.search(r"^# (.*)$", text, re.MULTILINE)
    return _plain(found[1]) if found else "Report"


def _plain(text: str) -> str:
    """Undo `tables.escaped`."""
    return re.sub(r"\\(.)", r"\1", text)


def asset(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def style() -> str:
    return asset("report.css") + charts.STYLE.read_text(encoding="utf-8")


def page(content: str, title: str, head: str = "") -> str:
    """Return a document with `content` and the style and script of all reports."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n{NO_NETWORK}\n{head}'
        f"<title>{html.escape(title)}</title>\n<style>\n{style()}</style>\n</head>\n"
        f'<body>\n<main class="report">\n{content}</main>\n'
        f"<script>\n{asset('report.js')}</script>\n</body>\n</html>\n"
    )
