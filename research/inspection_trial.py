"""Plant dirt in clean text, inspect it, and score what `xlm inspect` reports.

    python -m research.inspection_trial DATA WORK > research/reports/inspection.md

DATA has bible/train/<lang>.txt.xz, one verse a line, a blank line after each chapter. Rules were tuned on `TUNED`.
"""  # noqa: E501

import json
import lzma
import pathlib
import random
import subprocess
import sys
from collections.abc import Callable, Mapping

TUNED, OTHERS = ("en", "fi", "my", "ru", "sw", "zh"), ("ar", "de", "hr", "ja", "ml", "vi")
BYSTANDERS = ("cs", "uk")  # not planted in
FOREIGN = {"en": "de", "fi": "sw", "ru": "uk", "zh": "ja", "hr": "cs", "ja": "zh"}  # others: en
AMOUNTS = (0.005, 0.03, 0.15)
_SIZE = 1_000_000  # bytes of text of a language
Chapters = list[list[str]]
_TAGS = ('<p class="x">', "</p>", "<br/>", "&nbsp;", "&amp;", '<a href="#a1">', "</a>")
# Kinds that planted dirt of another kind may rightly show as well.
ALSO = {
    "copies": {"repeated_lines", "near_copies"},
    "near_copies": {"repeated_lines", "copies"},
    "other_language": {"other_script"},
    "other_script": {"other_language"},
    "repeated_lines": {"boilerplate", "copies", "near_copies"},
    "boilerplate": {"repeated_lines"},
    "mojibake": {"control"},  # C1 characters are part of it
    "long_lines": {"copies", "near_copies"},
}


def _size(lines: list[str]) -> int:
    return sum(len(line.encode()) + 1 for line in lines)


def _lines(change: Callable[[str, random.Random], str]) -> Callable:
    """Dirt that changes single lines, spread over the text, until they are the wanted share."""
    def plant(text: Chapters, share: float, rng: random.Random, other: list[str]) -> None:
        left = share * sum(map(_size, text))
        while left > 0:
            chapter = rng.choice(text)
            i = rng.randrange(len(chapter))
            if "\x1f" not in chapter[i]:
                chapter[i] = change(chapter[i], rng) + "\x1f"
                left -= _size([chapter[i]])

    return plant


def _added(
    pick: Callable[[Chapters, random.Random, list[str]], list[str]], *, apart: bool
) -> Callable:
    """Dirt that is added: as chapters of its own, or as lines in random places."""

    def plant(text: Chapters, share: float, rng: random.Random, other: list[str]) -> None:
        clean = [list(chapter) for chapter in text]
        left = share / (1 - share) * sum(map(_size, text))
        while left > 0:
            lines = pick(clean, rng, other)
            left -= _size(lines)
            if apart:
                text.insert(rng.randrange(len(text) + 1), lines)
            else:
                chapter = rng.choice(text)
                place = rng.randrange(len(chapter) + 1)
                chapter[place:place] = lines

    return plant


def _edited(chapter: list[str], rng: random.Random) -> list[str]:
    """A copy with one word in twenty replaced, or one character in thirty of text without blanks."""
    result = []
    for line in chapter:
        blanks = " " in line
        units = line.split(" ") if blanks else list(line)
        for i in range(len(units)):
            if rng.random() < (0.05 if blanks else 0.033):
                units[i] = rng.choice(units)
        result.append((" " if blanks else "").join(units))
    return result


def _long(clean: Chapters, rng: random.Random, other: list[str]) -> list[str]:
    return [" ".join(line for one in rng.sample(clean, 20) for line in rng.sample(one, len(one)))]


def _mojibake(line: str, rng: random.Random) -> str:
    text = line if not line.isascii() else line + " Déjà vu – “naïve” café"
    return text.encode().decode("cp1252", "replace") if rng.random() < 0.5 else text.encode().decode("latin-1")  # fmt: skip  # noqa: E501


KINDS: Mapping[str, Callable] = {
    "boilerplate": _added(lambda clean, *_: [f"{clean[0][0]} | {clean[0][1]}"], apart=False),
    "copies": _added(lambda clean, rng, _: list(rng.choice(clean)), apart=True),
    "near_copies": _added(lambda clean, rng, _: _edited(rng.choice(clean), rng), apart=True),
    "repeated_lines": _added(lambda c, rng, _: [rng.choice(rng.choice(c[:40]))] * 5, apart=False),
    "other_language": _added(lambda _, rng, other: [rng.choice(other)], apart=False),
    "other_script": _added(lambda _, rng, other: [rng.choice(other)], apart=False),
    "html": _lines(lambda line, rng: " ".join(w + rng.choice(_TAGS) * (rng.random() < 0.4) for w in line.split(" ")) + "<br>"),  # noqa: E501
    "mojibake": _lines(_mojibake),
    "bad_utf8": _lines(lambda line, rng: line[: len(line) // 2] + "\udcff\udc80" + line[len(line) // 2 :]),  # noqa: E501
    "control": _lines(lambda line, rng: line[: len(line) // 2] + "\0\x07" + line[len(line) // 2 :]),
    "long_lines": _added(_long, apart=False),
    "urls": _lines(lambda line, rng: f"{line} https://example.org/{rng.random()}/index.html?a=b"),
}  # fmt: skip


def _read(data: pathlib.Path, language: str) -> tuple[Chapters, list[str]]:
    """Return chapters of `_SIZE` bytes from the end, and other lines, of the beginning."""
    text = lzma.open(data / "bible/train" / f"{language}.txt.xz", "rt", encoding="utf-8").read()
    chapters = [one.split("\n") for one in text.strip().split("\n\n")]
    kept: Chapters = []
    while chapters and sum(map(_size, kept)) < min(_SIZE, len(text.encode()) * 2 / 3):
        kept.append(chapters.pop())
    return kept, [line for one in chapters for line in one if len(line) > 30]


def _inspect(text: Mapping[str, Chapters], work: pathlib.Path, name: str) -> dict[str, dict]:
    folder, output = work / f"text-{name}", work / f"report-{name}"
    folder.mkdir(parents=True)
    for language, chapters in text.items():
        found = "\n\n".join("\n".join(one) for one in chapters).replace("\x1f", "") + "\n"
        (folder / f"{language}.txt").write_bytes(found.encode("utf-8", "surrogateescape"))
    command = [sys.executable, "-m", "xlm", "inspect", str(folder), f"--output={output}"]
    subprocess.run([*command,], check=True, capture_output=True)
    found = json.loads((output / "inspection.json").read_text())["languages"]
    return {
        one["language"]: {f["kind"]: f for f in one["findings"] if not f["is_note"]}
        for one in found
    }


def main() -> None:
    data, work = map(pathlib.Path, sys.argv[1:])
    texts = {one: _read(data, one) for one in (*TUNED, *OTHERS, *BYSTANDERS)}
    greek = _read(data, "el")[1]
    clean = _inspect({one: text for one, (text, _) in texts.items()}, work, "clean")
    for name, group in (("not tuned on", OTHERS), ("tuned on", TUNED)):
        print(f"\nLanguages {name} ({', '.join(group)}); in their clean text:",
              {one: {k: f["share"] for k, f in clean[one].items()} for one in group}, "\n")  # fmt: skip
    print("| planted | share | languages | recall | precision | found / planted | false kinds |")
    print("|---|---:|---|---:|---:|---|---|")
    for kind, plant in KINDS.items():
        for share in AMOUNTS:
            dirty = {}
            for one, (chapters, _) in texts.items():
                dirty[one] = [list(chapter) for chapter in chapters]
                other = greek if kind == "other_script" else texts[FOREIGN.get(one, "en")][1]
                if one not in BYSTANDERS:
                    plant(dirty[one], share, random.Random(f"{kind} {share} {one}"), other)
            found = _inspect(dirty, work, f"{kind}-{share}")
            for name, group in (("not tuned on", OTHERS), ("tuned on", TUNED)):
                hits = [one for one in group if kind in found[one]]
                false = [(one, k) for one in (*group, *BYSTANDERS) for k in found[one]
                         if k != kind and k not in ALSO.get(kind, ()) and k not in clean[one]]  # fmt: skip
                ratios = sorted((found[one][kind]["share"] - clean[one].get(kind, {}).get("share", 0)) / share for one in hits)  # noqa: E501
                shown = f"{ratios[0]:.2f} to {ratios[-1]:.2f}" if ratios else ""
                precision = len(hits) / max(len(hits) + len(false), 1)
                print(f"| {kind} | {share:.1%} | {name} | {len(hits)}/{len(group)} | {precision:.2f} | {shown} | {', '.join(map(' '.join, false))} |", flush=True)

if __name__ == "__main__":
    main()
