"""English names of languages and scripts for reports, from the table beside this file.

It has the codes and names of ISO 639 and ISO 15924, and each language's usual script of CLDR.
"""

import functools
import pathlib
import re


@functools.cache
def _tables() -> tuple[dict[str, str], dict[str, str]]:
    """Names by code of a language (two or three letters) or script (four), and scripts."""
    text = pathlib.Path(__file__).with_name("languages.tsv").read_text(encoding="utf-8")
    names, scripts = dict[str, str](), dict[str, str]()
    for *codes, last in (line.split("\t") for line in text.splitlines()):
        if len(codes[0]) < 4:
            codes, name = codes[:-1], codes[-1]
            scripts |= dict.fromkeys(codes, last)
        names |= dict.fromkeys(codes, name if len(codes[0]) < 4 else last)
    return names, scripts


def name_of(code: str) -> str:
    """Return the name of "sw", "swa" or "zh_Hant": "Chinese (Traditional)"; "" if unknown."""
    if not re.fullmatch("[a-z]{2,3}([_-][A-Za-z0-9]+)*", code):
        return ""
    names, _ = _tables()
    language, *others = re.split("[_-]", code)
    found = names.get(language, "")
    more = ", ".join(names.get(one.title(), one) for one in others)
    return f"{found} ({more})" if found and more else found


def with_script(code: str) -> str:
    """Return the name and the script that it does not tell: "Urdu · Arabic", but "Thai"."""
    names, scripts = _tables()
    name = name_of(code)
    script = names[scripts[re.split("[_-]", code)[0]]] if name else ""
    told = script in name or any(len(one) == 4 for one in re.split("[_-]", code)[1:])
    return name if told else f"{name} · {script}"


def label(code: str) -> str:
    """Return code and name: "sw Swahili"."""
    return f"{code} {name_of(code)}".rstrip()
