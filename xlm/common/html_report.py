"""Reports as HTML: one page with its pictures, tables to sort and filter, and no network.

The page is made of the report's Markdown, so both say the same. Raw HTML in it stays text.
"""

import base64
import html
import itertools
import pathlib
import re
from collections.abc import Sequence

from xlm.common import artifacts, languages, packages

MARKDOWN, PAGE = "report.md", "report.html"
# Whatever a report holds, the browser loads nothing for it.
NO_NETWORK = (
    '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
    "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">"
)
_FILTER = """\
<p class="bar" hidden><label for="filter">Find languages</label>
<input id="filter" type="search" placeholder="code or name" autocomplete="off">
<span role="status"></span></p>
"""
_FOLDER = pathlib.Path(__file__).parent


def write(folder: pathlib.Path, text: str) -> pathlib.Path:
    """Write a report in Markdown as report.md, and as report.html; return the path of the first.

    The page embeds the images of `folder` that the text shows, which must be there before.
    """
    artifacts.write_text(folder / MARKDOWN, text)
    artifacts.write_text(folder / PAGE, page(body(text, folder), _title(text)))
    return folder / MARKDOWN


def body(text: str, folder: pathlib.Path) -> str:
    """Return Markdown as HTML with the images of `folder` in it, and names beside languages."""
    with packages.needed(PAGE, "vocab"):
        from markdown_it import MarkdownIt

    # Names, links and texts may come from anywhere: no HTML passes, and no link runs a script.
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(text)
    for token in tokens:
        if token.type == "td_open":
            token.attrSet("dir", "auto")
        for one in token.children or ():
            path = folder / str(one.attrs.get("src", ""))
            if one.type == "image" and path.parent == folder and path.is_file():
                data = base64.b64encode(artifacts.read_bytes(path)).decode()
                one.attrSet("src", f"data:image/png;base64,{data}")
    _name_languages(tokens)
    found = markdown.renderer.render(tokens, markdown.options, {})
    found = found.replace("<table>", '<div class="scroll"><table>')
    found = found.replace("</table>", "</table></div>")
    return found.replace("</h1>\n", f"</h1>\n{_FILTER}", 1)


def _name_languages(tokens: Sequence) -> None:
    """Add names to the codes in columns that are called "language"."""
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
            name = languages.name_of(after.content) if column in named else ""
            if name:
                added = type(after)(
                    "html_inline", "", 0, content=f" <small>{html.escape(name)}</small>"
                )
                after.children.append(added)
            column += 1


def _title(text: str) -> str:
    """Return the first heading, without its marks."""
    found = re.search(r"^# (.*)$", text, re.MULTILINE)
    return re.sub(r"\\(.)", r"\1", found[1]) if found else "Report"


def asset(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def page(content: str, title: str) -> str:
    """Return a document with `content` and the style and script of all reports."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n{NO_NETWORK}\n'
        f"<title>{html.escape(title)}</title>\n<style>\n{asset('report.css')}</style>\n</head>\n"
        f'<body>\n<main class="report">\n{content}</main>\n'
        f"<script>\n{asset('report.js')}</script>\n</body>\n</html>\n"
    )
