"""Loss and retrieval of encoders trained on clean, dirty and cleaned text of 15 languages.

    python -m research.dirty_text DATA WORK > TABLE.md

DATA has bible/ and ntrex/. Every arm has 250 KB of Bible text per language. The dirty arm adds nine
kinds of dirt, and the cleaned arm is the dirty text after the keys of `clean`. Each arm has its own
vocabulary, rows and three seeds. The parallel text of all arms is 500 rows of NTREX. Means leave
English out, since English lines are dirt of the other languages: the dirty arm has more of them.
"""

import json
import lzma
import math
import pathlib
import random
import statistics
import subprocess
import sys

from research import inspection_trial as trial

LANGUAGES = {"ar": "arb", "de": "deu", "en": "eng", "es": "spa", "fi": "fin", "fr": "fra",
             "hr": "hrv", "ja": "jpn", "ko": "kor", "ml": "mal", "ru": "rus", "sw": "swa",
             "uk": "ukr", "vi": "vie", "zh": "zho-CN"}  # fmt: skip
SIZE, SEEDS, STEPS = 250_000, (0, 1, 2), 800
# Shares of the clean text. Changes replace lines, additions are more lines.
CHANGED = {"html": 0.03, "urls": 0.01, "mojibake": 0.01}
ADDED = {"boilerplate": 0.07, "repeated_lines": 0.05, "other_language": 0.1, "other_script": 0.02,
         "copies": 0.05, "near_copies": 0.05}  # fmt: skip
CLEAN = ("html=True", "urls=True", "odd_characters=True", "other_script=True", "boilerplate=8",
         "other_language=True", "repeated_lines=1", "near_copies=True")  # fmt: skip
NONE = ("bad_lines=0.0", "long_lines=False", "repeated_lines=0")
ARMS = {"clean": NONE, "dirty": NONE, "cleaned": CLEAN}
TESTED = 80  # lines per language


def write(data: pathlib.Path, work: pathlib.Path) -> None:
    """Write the text of the clean and the dirty arm."""
    trial.SIZE = SIZE
    texts = {one: trial.read(data, one) for one in LANGUAGES}
    foreign = {one: texts["de" if one == "en" else "en"][1] for one in LANGUAGES}
    greek = trial.read(data, "el")[1]
    aligned = {one: lines(data / f"ntrex/train/{code}.txt.xz")[:500]
               for one, code in LANGUAGES.items()}  # fmt: skip
    rows = [list(LANGUAGES), *zip(*aligned.values(), strict=True)]
    table = "".join("\t".join([str(i or "id"), *row]) + "\n" for i, row in enumerate(rows))
    for arm in ("clean", "dirty"):
        folder = work / f"text-{arm}"
        folder.mkdir(parents=True)
        (folder / "news.tsv").write_text(table, encoding="utf-8")
        for language, (chapters, _) in texts.items():
            rng = random.Random(language)
            text = [list(chapter) for chapter in chapters]
            if arm == "dirty":
                for kind, share in CHANGED.items():
                    trial.change(text, share, rng, trial.CHANGED[kind])
                for kind, share in ADDED.items():
                    others = greek if kind == "other_script" else foreign[language]

                    def pick(rng, kind=kind, others=others, own=chapters):
                        return trial.ADDED[kind](own, others, rng)

                    # Boilerplate is lines within chapters, copies are whole chapters.
                    trial.add(text, share, rng, pick, kind in ("copies", "near_copies"))
            found = "\n\n".join("\n".join(one) for one in text) + "\n"
            (folder / f"{language}.txt").write_text(found, encoding="utf-8")


def lines(path: pathlib.Path) -> list[str]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        return [line.strip() for line in file]


def run(verb: str, arm: str, workdir: pathlib.Path, work: pathlib.Path, seed: int) -> None:
    text = work / f"text-{'clean' if arm == 'clean' else 'dirty'}"
    flags = [
        f"--config=configs/quickstart.py:{text}", f"--workdir={workdir}",
        *(f"--config.clean.{one}" for one in ARMS[arm]),
        f"--config.train.seed={seed}", f"--config.train.num_steps={STEPS}",
        "--config.train.evaluate_every=800", "--config.train.checkpoint_every=800",
        "--config.vocab.compare=()", "--config.corpus.inspect=False",
    ]  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "xlm", verb, *flags], capture_output=True)
    if done.returncode:
        raise RuntimeError(done.stderr.decode()[-3000:])


def score(data: pathlib.Path, workdir: pathlib.Path) -> dict[str, dict[str, float]]:
    """Return bits per character on held-out Bible chapters, and retrieval on news, by language."""
    import numpy as np

    import xlm

    encoder = xlm.Encoder.load(workdir)
    news = {one: encoder.encode(lines(data / f"ntrex/dev/{code}.txt.xz")[:TESTED])
            for one, code in LANGUAGES.items()}  # fmt: skip
    unit = {one: found / np.linalg.norm(found, axis=1, keepdims=True)
            for one, found in news.items()}  # fmt: skip
    result = {}
    for one in LANGUAGES:
        text = [line for line in lines(data / f"bible/dev/{one}.txt.xz") if line][:TESTED]
        tokens = sum(len(encoder._tokenizer.encode(line)) for line in text)
        bits = encoder.loss(text) * tokens / math.log(2) / sum(map(len, text))
        both = unit[one] @ unit["en"].T
        right = [(both.argmax(axis) == np.arange(len(both))).mean() for axis in (0, 1)]
        result[one] = {"bits": bits, "retrieval": float(np.mean(right))}
    return result


def main() -> None:
    data, work = map(pathlib.Path, sys.argv[1:])
    if not (work / "text-dirty").exists():
        write(data, work)
    scores = {}
    for seed in SEEDS:
        for arm in ARMS:
            base, workdir = work / arm, work / f"{arm}-{seed}"
            record = work / f"{arm}-{seed}.json"
            if not record.exists():
                for verb in ("build-vocab", "prepare"):
                    run(verb, arm, base, work, 0)
                workdir.mkdir(exist_ok=True)
                for name in ("vocab", "rows", "text"):
                    if (base / name).exists() and not (workdir / name).exists():
                        (workdir / name).symlink_to(base / name)
                run("train", arm, workdir, work, seed)
                record.write_text(json.dumps(score(data, workdir)))
            scores[arm, seed] = json.loads(record.read_text())
    print("| text | bits a character | | retrieval | | languages better than dirty |")
    print("|---|---:|---|---:|---|---:|")
    for arm in ARMS:
        cells = []
        for key in ("bits", "retrieval"):
            means = [
                statistics.mean(one[key] for code, one in scores[arm, s].items() if code != "en")
                for s in SEEDS
            ]
            factor = 100 if key == "retrieval" else 1
            cells.append(f"{statistics.mean(means) * factor:.3f}")
            cells.append(f"{min(means) * factor:.3f} to {max(means) * factor:.3f}")
        bits = {
            (which, one): statistics.mean(scores[which, s][one]["bits"] for s in SEEDS)
            for which in (arm, "dirty")
            for one in LANGUAGES
            if one != "en"
        }
        better = sum(bits[arm, one] < bits["dirty", one] for which, one in bits if which == "dirty")
        print(f"| {arm} | {' | '.join(cells)} | {better} of {len(LANGUAGES) - 1} |")


if __name__ == "__main__":
    main()
