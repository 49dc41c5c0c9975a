"""Synthetic data for one task of each kind, in the files that the fine-tuning configs expect.

Sentences come from a small grammar of English and German: a subject, a verb and a place, by number.
"""

import json
import lzma
import pathlib
from collections.abc import Iterable, Sequence

_PARTS = {
    "en": (
        ("the cat", "a dog", "my sister", "the teacher"),
        ("sleeps", "sings", "waits"),
        ("in the house", "near the river", "at the station"),
    ),
    "de": (
        ("die Katze", "ein Hund", "meine Schwester", "der Lehrer"),
        ("schläft", "singt", "wartet"),
        ("im Haus", "am Fluss", "am Bahnhof"),
    ),
}
# Tags of subject, verb, place and full stop.
_TAGS = {"en": "DET NOUN VERB ADP DET NOUN PUNCT", "de": "DET NOUN VERB ADP NOUN PUNCT"}
_NUM_SENTENCES = 36  # each once
_SPLITS = {"train": range(24), "dev": range(24, _NUM_SENTENCES)}


def write_tasks(root: pathlib.Path) -> None:
    """Write the data of all tasks below `root`."""
    _write_classification(root)
    _write_regression(root)
    _write_tagging(root)
    _write_questions(root)
    _write_searches(root)


def _parts(number: int, language: str = "en") -> tuple[str, str, str]:
    """Return subject, verb and place of sentence `number`."""
    subjects, verbs, places = _PARTS[language]
    return subjects[number % 4], verbs[number // 4 % 3], places[number // 12 % 3]


def _sentence(number: int, language: str = "en") -> str:
    return " ".join(_parts(number, language)) + " ."


def _write(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    path.write_bytes(lzma.compress(data) if path.suffix == ".xz" else data)


def _write_table(path: pathlib.Path, rows: Iterable[Sequence[str]]) -> None:
    _write(path, "".join("\t".join(row) + "\n" for row in rows))


def _write_classification(root: pathlib.Path) -> None:
    """Write XNLI: without the place it is an entailment, with another verb a contradiction."""

    def rows(split: str, language: str) -> Iterable[Sequence[str]]:
        yield "premise", "hypothesis", "label"
        for number in _SPLITS[split]:
            subject, verb, _ = _parts(number, language)
            label = ("entailment", "contradiction", "neutral")[number % 3]
            hypothesis = {
                "entailment": f"{subject} {verb} .",
                "contradiction": _sentence(number + 4, language),
                "neutral": _sentence(number + 12, language),
            }[label]
            yield _sentence(number, language), hypothesis, label

    _write_table(root / "nli_en" / "mnli_train.tsv.xz", rows("train", "en"))
    for language in _PARTS:
        _write_table(root / "xnli" / "dev" / f"{language}.tsv.xz", rows("dev", language))


def _write_regression(root: pathlib.Path) -> None:
    """Write STS-B: the similarity is the number of common parts."""
    for split, numbers in _SPLITS.items():
        rows: list[Sequence[str]] = [("sentence1", "sentence2", "score")]
        for number in numbers:
            other = number * 5 % _NUM_SENTENCES
            common = sum(a == b for a, b in zip(_parts(number), _parts(other), strict=True))
            rows.append((_sentence(number), _sentence(other), str(5 * common / 3)))
        _write_table(root / "glue" / "STS-B" / f"{split}.tsv", rows)


def _write_tagging(root: pathlib.Path) -> None:
    """Write UD-POS: a word and its tag per line, an empty line between sentences."""
    for language, tags in _TAGS.items():
        for split, numbers in (*_SPLITS.items(), ("test", _SPLITS["dev"])):
            sentences = [
                "".join(
                    f"{word}\t{tag}\n"
                    for word, tag in zip(
                        _sentence(number, language).split(), tags.split(), strict=True
                    )
                )
                for number in numbers
            ]
            _write(root / "udpos" / split / f"{language}.tsv.xz", "\n".join(sentences))


def _write_questions(root: pathlib.Path) -> None:
    """Write XQuAD, with TyDiQA for training: the answer is the place in the first sentence."""

    def data(split: str, language: str) -> str:
        paragraphs = []
        for number in _SPLITS[split]:
            subject, verb, place = _parts(number, language)
            context = " ".join(_sentence(number + shift, language) for shift in (0, 13, 26))
            answer = {"text": place, "answer_start": context.index(place)}
            question = {"id": f"{split}{number}", "question": f"{subject} {verb} ?"}
            paragraphs.append({"context": context, "qas": [{**question, "answers": [answer]}]})
        return json.dumps({"data": [{"title": "made up", "paragraphs": paragraphs}]})

    for split in _SPLITS:
        _write(root / "tydiqa_goldp" / f"{split}.en.json.xz", data(split, "en"))
    for language in _PARTS:
        _write(root / "xquad" / f"xquad.{language}.json.xz", data("dev", language))


def _write_searches(root: pathlib.Path) -> None:
    """Write Tatoeba (aligned sentences) and BUCC (two texts with the gold pairs in both)."""
    numbers = range(_NUM_SENTENCES)
    _write_table(
        root / "tatoeba_retrieval" / "de-en.tsv.xz",
        ((_sentence(number, "de"), _sentence(number)) for number in numbers),
    )
    folder, ids = root / "bucc2018", {"de": numbers[:24], "en": numbers[12:]}
    for language, there in ids.items():
        rows = ((f"{language}-{number}", _sentence(number, language)) for number in there)
        _write_table(folder / f"de-en.dev.{language}.tsv.xz", rows)
    gold = sorted({*ids["de"]} & {*ids["en"]})
    _write_table(
        folder / "de-en.dev.gold.tsv.xz", ((f"de-{number}", f"en-{number}") for number in gold)
    )
