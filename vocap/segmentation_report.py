"""Tables and plots of the scores of tokenizers, side by side."""

import dataclasses
import itertools
import pathlib
from collections.abc import Collection, Mapping

import numpy as np

from vocap import figures
from vocap.segmentation import TextScore, TokenizerScore, gini
from xlm.common import artifacts, tables

_NOTE = """\
- *ALP*: average log probability of a sentence in nats (VoCap, Eq. 1), of each half of the text
  under the unigram distribution of the other. Larger is better. Only unigram models have one.
- *words* are between blanks. Scripts without blanks have none.
- *unknown*: share of the tokens.
- *used*: share of the tokenizer's pieces that these texts use, which grows with the amount of text.
- *tax*: tokens of a language by those of the same sentences in {pivot}.
- *Gini*, *max/min*: of the tokens of all languages for the same sentences, {pivot} included. They
  are 0 and 1 if all languages pay alike.
- \\*: more than 1 % of the language's tokens are unknown. Each stands for a whole run of unknown
  characters, so lengths and tax flatter."""

# Attribute of `TextScore`, by heading, and its format.
_COLUMNS = {
    "ALP, nats a sentence": ("alp", ".1f"),
    "tokens a sentence": ("tokens_per_sentence", ".1f"),
    "tokens a word": ("tokens_per_word", ".2f"),
    "characters a token": ("characters_per_token", ".2f"),
    "unknown": ("unknown_rate", ".3%"),
}
_MANY_UNKNOWN = 0.01  # of the tokens

Scores = Mapping[str, TokenizerScore]  # by the name of the tokenizer
Values = Mapping[str, Mapping[str, float]]  # by tokenizer and language


def write_report(folder: pathlib.Path, scores: Scores, pivot: str) -> pathlib.Path:
    """Write report.md with its plots, scores.csv and results.json; return the report's path."""
    records = {name: dataclasses.asdict(one) for name, one in scores.items()}
    artifacts.write_json(folder / "results.json", records)
    artifacts.write_text(folder / "scores.csv", tables.comma_separated(_rows(scores)))
    lacking = {name: _lacking(one) for name, one in scores.items()}
    sections = ["# Tokenizers", summary_table(scores), _NOTE.format(pivot=pivot)]
    for heading, (attribute, form) in {**_COLUMNS, f"tax against {pivot}": ("tax", ".2f")}.items():
        values: dict[str, dict[str, float]] = {}
        for row in _rows(scores):
            if row[attribute] is not None:
                values.setdefault(row["tokenizer"], {})[row["language"]] = row[attribute]
        if values:
            _plot(values, heading, folder / f"{attribute}.png")
            table = language_table(values, form, lacking)
            image = f"![{heading}]({attribute}.png)"
            sections += [f"## {heading[0].upper()}{heading[1:]}", table, image]
    path = folder / "report.md"
    artifacts.write_text(path, tables.page(*sections))
    return path


def _rows(scores: Scores) -> list[dict]:
    fields = [field.name for field in dataclasses.fields(TextScore)]
    return [
        {
            "tokenizer": name,
            "language": language,
            **{field: getattr(one.texts.get(language), field, None) for field in fields},
            "tax": one.tax.get(language),
        }
        for name, one in scores.items()
        for language in sorted({*one.texts, *one.tax})
    ]


def _lacking(score: TokenizerScore) -> set[str]:
    return {language for language, one in score.texts.items() if one.unknown_rate > _MANY_UNKNOWN}


def summary_table(scores: Scores) -> str:
    """Return a Markdown table: a line per tokenizer, means over languages."""
    rows = []
    for name, one in scores.items():
        means = {
            heading: tables.mean_of(getattr(text, attribute) for text in one.texts.values())
            for heading, (attribute, _) in _COLUMNS.items()
        }
        lacking = _lacking(one)
        known = {language: tax for language, tax in one.tax.items() if language not in lacking}
        # A tax alone would favour tokenizers that are bad at the pivot.
        costs = np.array([1.0, *known.values()])
        highest = max(known, key=lambda language: known[language], default=None)
        rows.append(
            {
                "": name,
                "kind": one.kind,
                "pieces": one.size,
                "used": one.used,
                **means,
                "tax, mean without *": tables.mean_of(known.values()),
                "tax, highest": f"{known[highest]:.2f} ({highest})" if highest else "",
                "Gini": gini(costs) if highest else None,
                "max/min": costs.max() / costs.min() if highest else None,
            }
        )
    formats = {heading: form for heading, (_, form) in _COLUMNS.items()}
    formats |= {"pieces": ",", "used": ".1%", "tax, mean without *": ".2f", "Gini": ".3f"}
    formats["max/min"] = ".2f"
    return tables.markdown(rows, formats, left=2)


def language_table(values: Values, form: str, lacking: Mapping[str, Collection[str]]) -> str:
    """Return a Markdown table, a column per tokenizer; it marks each one's `lacking` languages."""
    rows = [
        {"language": language, **dict.fromkeys(values)}
        | {
            name: f"{found[language]:{form}}{' *' if language in lacking[name] else ''}"
            for name, found in values.items()
            if language in found
        }
        for language in sorted({language for found in values.values() for language in found})
    ]
    return tables.markdown(rows)


def _plot(values: Values, label: str, path: pathlib.Path) -> None:
    """Plot a row per language, those with the largest value of the first tokenizer at the top."""
    first = next(iter(values.values()))
    languages = {language for found in values.values() for language in found}
    names = sorted(languages, key=lambda one: (-first.get(one, 0.0), one))
    figure, axes = figures.rows(names, row=0.24)
    for (tokenizer, found), marker in zip(
        values.items(), itertools.cycle("o^sDvP*Xd<>"), strict=False
    ):
        places = [(found[name], row) for row, name in enumerate(names) if name in found]
        axes.plot(*zip(*places, strict=True), marker, ms=5, label=tokenizer)
    axes.set_xlabel(label)
    figures.legend(figure, place="upper", columns=4)
    figures.save(figure, path)
