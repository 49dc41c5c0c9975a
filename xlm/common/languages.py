"""English names of languages for reports, from the table of ISO 639 beside this file."""

import functools
import pathlib
import re


@functools.cache
def _names() -> dict[str, str]:
    """Names by code of a language (two or three letters) or of a script (four)."""
    text = pathlib.Path(__file__).with_name("languages.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in text.splitlines()]
    return {code: name for *codes, name in rows for code in codes}


def name_of(code: str) -> str:
    """Return the name of "sw", "swa" or "zh_Hant": "Chinese (Traditional)"; "" if unknown."""
    if not re.fullmatch("[a-z]{2,3}([_-][A-Za-z0-9]+)*", code):
        return ""
    language, *others = re.split("[_-]", code)
    found = _names().get(language, "")
    more = ", ".join(_names().get(one.title(), one) for one in others)
    return f"{found} ({more})" if found and more else found


def label(code: str) -> str:
    """Return code and name: "sw Swahili"."""
    return f"{code} {name_of(code)}".rstrip()
