"""Precision and recall of `xlm inspect` on clean text with planted dirt.

    python -m research.inspection_trial DATA WORK > TABLE.md

DATA has bible/train/<lang>.txt.xz, with a verse per line and a blank line after each chapter. The
rules were tuned on the languages "tuned on" of `GROUPS`.
"""

import functools
import json
import lzma
import pathlib
import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

GROUPS = {
    "not tuned on": ("ar", "de", "hr", "ja", "ml", "vi"),
    "tuned on": ("en", "fi", "my", "ru", "sw", "zh"),
}
BYSTANDERS = ("cs", "uk")  # without planted dirt
FOREIGN = {"en": "de", "fi": "sw", "ru": "uk", "zh": "ja", "hr": "cs", "ja": "zh"}  # others: en
AMOUNTS = (0.005, 0.03, 0.15)
SIZE = 1_000_000  # bytes of text per language
TAGS = ('<p class="x">', "</p>", "<br/>", "&nbsp;", "&amp;", '<a href="#a1">', "</a>")
# Other kinds that planted dirt of a kind also is.
ALSO = {
    "copies": {"repeated_lines", "near_copies"},
    "near_copies": {"repeated_lines", "copies"},
    "other_language": {"other_script"},
    "other_script": {"other_language"},
    "repeated_lines": {"boilerplate", "copies", "near_copies"},
    "boilerplate": {"repeated_lines"},
    "mojibake": {"control", "other_script"},  # consists of Latin letters and C1 characters
    "long_lines": {"copies", "near_copies"},
}
Chapters = list[list[str]]
Dirt = Callable[..., Any]
Random = random.Random


def size(lines: list[str]) -> int:
    return sum(len(line.encode("utf-8", "surrogateescape")) + 1 for line in lines)


def change(text: Chapters, share: float, rng: Random, dirt: Dirt) -> None:
    """Change random lines until they are `share` of the text."""
    left, places = share * sum(map(size, text)), [(c, i) for c in text for i in range(len(c))]
    for chapter, i in rng.sample(places, len(places)):
        chapter[i] = dirt(chapter[i], rng)
        left -= size([chapter[i]])
        if left <= 0:
            return


def add(text: Chapters, share: float, rng: Random, pick: Dirt, apart: bool) -> None:
    """Add lines, or with `apart` chapters, at random places until they are `share` of the text."""
    left = share / (1 - share) * sum(map(size, text))
    while left > 0:
        lines = pick(rng)
        left -= size(lines)
        place: list[Any] = text if apart else rng.choice(text)
        i = rng.randrange(len(place) + 1)
        place[i:i] = [lines] if apart else lines


def edited(chapter: list[str], rng: Random) -> list[str]:
    """A copy with 1 word in 20 replaced, or 1 character in 30 in text without blanks."""
    blank = " " if " " in chapter[0] else ""
    units = [line.split(" ") if blank else list(line) for line in chapter]
    chance = 0.05 if blank else 0.033
    return [blank.join(rng.choice(one) if rng.random() < chance else unit for unit in one)
            for one in units]  # fmt: skip


def wrongly_decoded(line: str, rng: Random) -> str:
    data = (f"{line} Déjà vu – “naïve” café" if line.isascii() else line).encode()
    return data.decode("cp1252", "replace") if rng.random() < 0.5 else data.decode("latin-1")


def tagged(line: str, rng: Random) -> str:
    return "".join(f"{word} {rng.choice(TAGS) * (rng.random() < 0.4)}" for word in line.split(" "))


CHANGED: Mapping[str, Dirt] = {
    "html": tagged,
    "mojibake": wrongly_decoded,
    "bad_utf8": lambda line, _: f"{line[:20]}\udcff\udc80{line[20:]}",
    "control": lambda line, _: f"{line[:20]}\0\x07{line[20:]}",
    "urls": lambda line, rng: f"{line} https://example.org/{rng.random()}/index.html?a=b",
}
ADDED: Mapping[str, Dirt] = {  # of clean chapters, lines of other languages, and a generator
    "boilerplate": lambda c, o, rng: [f"{c[0][0]} | {c[0][1]}"],
    "repeated_lines": lambda c, o, rng: [rng.choice(rng.choice(c[:40]))] * 5,
    "other_language": lambda c, o, rng: [rng.choice(o)],
    "other_script": lambda c, o, rng: [rng.choice(o)],
    "long_lines": lambda c, o, rng: [" ".join(s for one in rng.sample(c, 20) for s in one)],
    "copies": lambda c, o, rng: list(rng.choice(c)),
    "near_copies": lambda c, o, rng: edited(rng.choice(c), rng),
}


def read(data: pathlib.Path, language: str) -> tuple[Chapters, list[str]]:
    """Return the last chapters, some `SIZE` bytes, and the lines of all others."""
    with lzma.open(data / f"bible/train/{language}.txt.xz", "rt", encoding="utf-8") as file:
        text = file.read()
    chapters, most = text.strip().split("\n\n"), min(SIZE, len(text.encode()) * 2 / 3)
    kept: Chapters = []
    while sum(map(size, kept)) < most:
        kept.append(chapters.pop().split("\n"))
    return kept, [line for one in chapters for line in one.split("\n") if len(line) > 30]


def inspected(text: Mapping[str, Chapters], work: pathlib.Path) -> dict[str, dict[str, float]]:
    """Return the shares of the findings by language and kind."""
    (work / "text").mkdir(parents=True)
    for language, chapters in text.items():
        found = "\n\n".join("\n".join(one) for one in chapters) + "\n"
        (work / f"text/{language}.txt").write_bytes(found.encode("utf-8", "surrogateescape"))
    flags = [str(work / "text"), f"--output={work}/report"]
    subprocess.run(
        [sys.executable, "-m", "xlm", "inspect", *flags], check=True, capture_output=True
    )
    records = json.loads((work / "report/inspection.json").read_text())["languages"]
    return {one["language"]: {f["kind"]: f["share"] for f in one["findings"] if not f["is_note"]}
            for one in records}  # fmt: skip


def main() -> None:
    data, work = map(pathlib.Path, sys.argv[1:])
    planted = [one for group in GROUPS.values() for one in group]
    texts = {one: read(data, one) for one in (*planted, *BYSTANDERS)}
    greek = read(data, "el")[1]
    clean = inspected({one: text for one, (text, _) in texts.items()}, work / "clean")
    print("In clean text:", {one: kinds for one, kinds in clean.items() if kinds}, "\n")
    print("| planted | share | languages | recall | precision | found / planted | false |")
    print("|---|---:|---|---:|---:|---|---|")
    for kind, share in ((kind, share) for kind in (*ADDED, *CHANGED) for share in AMOUNTS):
        dirty = {one: [list(c) for c in text] for one, (text, _) in texts.items()}
        for one in planted:
            rng = Random(f"{kind} {share} {one}")
            if kind in CHANGED:
                change(dirty[one], share, rng, CHANGED[kind])
                continue
            other = greek if kind == "other_script" else texts[FOREIGN.get(one, "en")][1]
            pick = functools.partial(ADDED[kind], texts[one][0], other)
            add(dirty[one], share, rng, pick, "copies" in kind)
        found = inspected(dirty, work / f"{kind}-{share}")
        for name, group in GROUPS.items():
            print(row(kind, share, name, group, found, clean), flush=True)


def row(kind: str, share: float, name: str, group: tuple, found: Mapping, clean: Mapping) -> str:
    hits = [found[one][kind] - clean[one].get(kind, 0) for one in group if kind in found[one]]
    false = [
        f"{one} {other}"
        for one in (*group, *BYSTANDERS)
        for other in sorted(set(found[one]) - {kind} - set(clean[one]) - ALSO.get(kind, set()))
    ]
    precision = len(hits) / max(len(hits) + len(false), 1)
    ratios = f"{min(hits, default=0) / share:.2f} to {max(hits, default=0) / share:.2f}"
    start = f"| {kind} | {share:.1%} | {name} | {len(hits)}/{len(group)} | {precision:.2f} "
    return f"{start}| {ratios} | {', '.join(false)} |"


if __name__ == "__main__":
    main()
