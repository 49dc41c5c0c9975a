"""Hook of mkdocs.yml: files outside of docs/ to which pages link are part of the site.

The pages link as a checkout needs it, `../xlm/training/stages.py`. Markdown and images are taken as
they are, other text as a page of code, a folder as a list, all below repository/. A notebook is a
page where it is.
"""

import json
import pathlib
import posixpath
import re
from collections.abc import Iterator

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = pathlib.Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(#[^)\s]*)?(?=\))")
_AS_IT_IS = (".png", ".svg", ".html", ".json", ".jsonl")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add each file that a page links to, and those that these link to."""
    texts = {f"docs/{page.src_uri}": page.content_string for page in files.documentation_pages()}
    texts |= {f"docs/{one.src_uri}": "" for one in files if one.src_uri.endswith(".ipynb")}
    seen, waiting = set(texts), [*texts.items()]
    for path in texts:
        if path.endswith(".ipynb"):
            files.append(File.generated(config, place(path), content=notebook(path)))
    while waiting:
        for path in linked(*waiting.pop()):
            if path in seen or path.startswith("docs/"):
                continue
            seen.add(path)
            if path.endswith(_AS_IT_IS):
                source = str(ROOT / path)
                files.append(File.generated(config, place(path), abs_src_path=source))
                continue
            text = shown(path)
            files.append(File.generated(config, place(path), content=text))
            waiting.append((path, text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead the links to files outside of docs/ to their pages."""
    uri = page.file.src_uri
    own = uri.removeprefix("repository/") if uri.startswith("repository/") else f"docs/{uri}"

    def rewritten(link: re.Match[str]) -> str:
        path = resolved(own, link[1])
        if path is None:
            return link[0]
        there = posixpath.relpath(place(path), posixpath.dirname(uri) or ".")
        return there + (link[2] or "")

    return _LINK.sub(rewritten, markdown)


def linked(path: str, text: str) -> Iterator[str]:
    """Paths in the repository to which the text of one links."""
    found = (resolved(path, link[1]) for link in _LINK.finditer(text))
    return (one for one in found if one is not None)


def resolved(path: str, link: str) -> str | None:
    """Path in the repository that a link of another means; None if there is no such file."""
    found = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return found if not found.startswith("..") and (ROOT / found).exists() else None


def place(path: str) -> str:
    """Where a file of the repository lies among the sources of the site."""
    if path.startswith("docs/"):
        return re.sub(r"\.ipynb$", ".md", path.removeprefix("docs/"))
    there = f"repository/{path.removeprefix('.')}"  # MkDocs leaves out hidden folders
    if path.endswith((".md", *_AS_IT_IS)):
        return there
    return f"{there}/index.md" if (ROOT / path).is_dir() else f"{there}.md"


def shown(path: str) -> str:
    """Markdown that shows a text file or a folder."""
    if (ROOT / path).is_dir():
        names = sorted(one.name for one in (ROOT / path).iterdir() if one.name[0] not in "._")
        return "\n".join([f"# {path}", "", *(f"- `{name}`" for name in names), ""])
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    language = path.rpartition(".")[2]
    return f"---\nsearch: {{exclude: true}}\n---\n# {path}\n\n````{language}\n{text}````\n"


def notebook(path: str) -> str:
    """Markdown of a notebook: its cells, and the text and pictures that they gave."""
    parts = []
    for cell in json.loads((ROOT / path).read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                parts.append(f"```\n{''.join(output['text'])}```")
            elif "image/png" in output["data"]:
                parts.append(f"![](data:image/png;base64,{output['data']['image/png'].strip()})")
    return "\n\n".join([*parts, ""])
