"""Tables and plots of the scores of tokenizers, side by side."""

import pathlib
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from vocap.segmentation import Samples, TokenizerScore, gini, interval
from xlm.common import artifacts, charts, html_report, languages, tables
from xlm.common.charts import Axis, Marks

_NOTE = """\
- *±*: half of the 95 % interval, by bootstrap over sentences. The languages are fixed.
- *words* are between blanks. Scripts without blanks have none.
- *bits a byte*: unigram code of the tokenizer's own tokens, by their frequencies in the other half
  of the text. Less is better. It compares tokenizers of any kind on the same text. It mixes the
  effects of pieces and of segmentation, which only unigram models choose for a short code. It
  ignores context. Text that a tokenizer drops, such as case, costs nothing.
- *ALP*: minus the same code in nats a sentence (VoCap, Eq. 1). Only unigram models have one.
- *unknown*: share of the tokens. In bits a byte, one costs ten nats more than the rarest piece,
  whatever text it hides.
- *used*: share of the tokenizer's pieces that these texts use, which grows with the amount of text.
- \\*: more than 1 % of the language's tokens are unknown. Each stands for a whole run of unknown
  characters, so lengths and tax look too good."""

_TAX_NOTE = """\
*Tax*: tokens of a language over those of the same sentences in {pivot}. *Gini* and *max/min*
compare the tokens of all languages, also {pivot}, for the same sentences. They are 0 and 1 if all
languages have equal costs."""

_REFERENCE_NOTE = """\
*Tokens*: mean over languages of the ratio to {reference}, on the same sentences. A language counts
as *fewer* or *more* if its 95 % interval excludes equality."""

# Measure of `text_scores`, by heading, and its format.
_COLUMNS = {
    "tokens a sentence": ("tokens_per_sentence", ".1f"),
    "tokens a word": ("tokens_per_word", ".2f"),
    "bytes a token": ("bytes_per_token", ".2f"),
    "bits a byte": ("bits_per_byte", ".3f"),
    "ALP, nats a sentence": ("alp", ".1f"),
    "unknown": ("unknown_rate", ".3%"),
}
_MEASURES = ("characters_per_token", *(measure for measure, _ in _COLUMNS.values()))
_MANY_UNKNOWN = 0.01  # of the tokens
_FEW = 30  # with fewer sentences a percentile interval is too narrow
_WORST = 5

Scores = Mapping[str, TokenizerScore]  # by the name of the tokenizer
Values = Mapping[str, Mapping[str, Samples]]  # by tokenizer and language


def write_report(
    folder: pathlib.Path, scores: Scores, pivot: str, reference: str, about: str
) -> pathlib.Path:
    """Write report.md and .html, plots, scores.csv and results.json; return the first's path.

    `about` describes the scored text in Markdown. `reference` is the tokenizer to compare with.
    """
    records = {name: _record(one) for name, one in scores.items()}
    artifacts.write_json(folder / "results.json", records)
    artifacts.write_text(folder / "scores.csv", tables.comma_separated(_rows(records)))
    lacking = {name: _lacking(one) for name, one in scores.items()}
    parts = ["# Tokenizers", about, *summary(scores, pivot, reference), "## Notes", _NOTE]
    columns = _COLUMNS | {
        f"tokens by those of {reference}": ("price", ".3f"),
        f"tax against {languages.label(pivot)}": ("tax", ".2f"),
    }
    for heading, (measure, form) in columns.items():
        if values := _values(scores, measure, reference):
            charts.save(_plot(values, heading), folder / f"{measure}.svg")
            title = tables.escaped(heading[0].upper() + heading[1:])
            parts += [f"## {title}", language_table(values, form, lacking),
                      f"![{title}]({measure}.svg)"]  # fmt: skip
    return html_report.write(folder, tables.page(*parts))


def _values(scores: Scores, measure: str, reference: str) -> Values:
    """Return samples of a measure, for tokenizers that have any."""
    if measure == "tax":
        found = {name: dict(one.tax) for name, one in scores.items()}
    elif measure == "price":
        found = {name: prices(one, scores[reference]) for name, one in scores.items()}
        found.pop(reference)
    else:
        found = {
            name: {of: one[measure] for of, one in score.texts.items() if measure in one}
            for name, score in scores.items()
        }
    return {name: one for name, one in found.items() if one}


def prices(score: TokenizerScore, other: TokenizerScore) -> dict[str, Samples]:
    """Return samples of a tokenizer's tokens over those of another, by language."""
    key = "tokens_per_sentence"
    return {
        language: one[key] / other.texts[language][key]
        for language, one in score.texts.items()
        if language in other.texts
    }


def _record(score: TokenizerScore) -> dict:
    """Return the scores as JSON: values and bounds of intervals by text and measure."""
    texts = {
        language: {"sentences": score.sentences[language]} | _bounded(one)
        for language, one in score.texts.items()
    }
    tax = {language: _bounded({"tax": one}) for language, one in score.tax.items()}
    return {"kind": score.kind, "size": score.size, "used": score.used, "texts": texts, "tax": tax}


def _bounded(samples: Mapping[str, Samples]) -> dict[str, float]:
    """Return value and interval of each measure: x, x_low, x_high, the latter to six digits."""
    found: dict[str, float] = {}
    for measure, one in samples.items():
        bounds = float(one[0]), *(float(f"{bound:.6g}") for bound in interval(one))
        found |= zip((measure, f"{measure}_low", f"{measure}_high"), bounds, strict=True)
    return found


def _rows(records: Mapping[str, dict]) -> list[dict]:
    """Return the records as rows of one table."""
    names = [f"{measure}{end}" for measure in (*_MEASURES, "tax") for end in ("", "_low", "_high")]
    return [
        {"tokenizer": name, "language": language, "name": languages.name_of(language)}
        | dict.fromkeys(["sentences", *names])
        | one["texts"].get(language, {})
        | one["tax"].get(language, {})
        for name, one in records.items()
        for language in sorted({*one["texts"], *one["tax"]})
    ]


def _lacking(score: TokenizerScore) -> set[str]:
    return {
        language for language, one in score.texts.items() if one["unknown_rate"][0] > _MANY_UNKNOWN
    }


def summary(scores: Scores, pivot: str, reference: str) -> list[str]:
    """Return the tables with a line per tokenizer and means over languages, in Markdown."""
    parts = [summary_table(scores), _widths(scores)]
    if any(one.tax for one in scores.values()):
        parts += ["## Cost across languages", _TAX_NOTE.format(pivot=languages.label(pivot))]
        parts += [cost_table(scores), _worst(scores, "tax", reference, ".2f")]
    if len(scores) > 1:
        shown = tables.escaped(reference)
        parts += [f"## Against {shown}", _REFERENCE_NOTE.format(reference=shown)]
        parts += [reference_table(scores, reference), _worst(scores, "price", reference, ".3f")]
    return parts


def summary_table(scores: Scores) -> str:
    rows = []
    for name, one in scores.items():
        row = {"": tables.escaped(name), "kind": one.kind, "pieces": f"{one.size:,}"}
        row["used"] = f"{one.used:.1%}"
        for heading, (measure, form) in _COLUMNS.items():
            found = [of[measure] for of in one.texts.values() if measure in of]
            row[heading] = _with_width(np.mean(found, axis=0), form) if found else ""
        rows.append(row)
    return tables.markdown(rows, left=2)


def _width(samples: Samples) -> float:
    low, high = interval(samples)
    return (high - low) / 2


def _with_width(samples: Samples, form: str) -> str:
    return f"{samples[0]:{form}} ± {_width(samples):{form}}"


def _widths(scores: Scores) -> str:
    """Return the precision of the number of tokens, and languages with few sentences."""
    name, one = next(iter(scores.items()))
    tokens = {language: of["tokens_per_sentence"] for language, of in one.texts.items()}
    widths = {language: _width(samples) / samples[0] for language, samples in tokens.items()}
    most, least = (choose(widths, key=widths.__getitem__) for choose in (max, min))
    text = " to ".join(
        f"± {widths[of]:.1%} ({languages.label(of)}, {one.sentences[of]:,} sentences)"
        for of in dict.fromkeys([least, most])
    )
    text = f"Tokens a sentence of {tables.escaped(name)} are known to {text}."
    if few := [of for of, number in one.sentences.items() if number < _FEW]:
        named = ", ".join(map(languages.label, few))
        text += f" Below {_FEW} sentences intervals are too narrow: {named}."
    return text


def cost_table(scores: Scores) -> str:
    rows = []
    for name, one in scores.items():
        lacking = _lacking(one)
        known = [samples for language, samples in one.tax.items() if language not in lacking]
        if not known:
            rows.append({"": tables.escaped(name)})
            continue
        # Taxes without the pivot's would favour tokenizers that are bad at the pivot.
        costs = np.stack([np.ones_like(known[0]), *known], axis=-1)
        extremes = costs.max(axis=-1) / costs.min(axis=-1)
        rows.append(
            {
                "": tables.escaped(name),
                "tax, mean without *": _with_width(np.mean(known, axis=0), ".2f"),
                "Gini": _with_width(gini(costs), ".3f"),
                "max/min": _with_width(extremes, ".2f"),
            }
        )
    return tables.markdown(rows)


def reference_table(scores: Scores, reference: str) -> str:
    rows = []
    for name, found in _values(scores, "price", reference).items():
        intervals = [interval(samples) for samples in found.values()]
        fewer, more = sum(high < 1 for _, high in intervals), sum(low > 1 for low, _ in intervals)
        low, high = interval(mean := np.mean(list(found.values()), axis=0))
        rows.append(
            {
                "": tables.escaped(name),
                "tokens": f"{mean[0] - 1:+.1%}",
                "95 % interval": f"{low - 1:+.1%} to {high - 1:+.1%}",
                "languages with fewer": fewer,
                "with more": more,
                "undecided": len(found) - fewer - more,
            }
        )
    return tables.markdown(rows)


def _worst(scores: Scores, measure: str, reference: str, form: str) -> str:
    """List the languages with the largest values, a line per tokenizer."""
    lines = []
    for name, found in _values(scores, measure, reference).items():
        worst = sorted(found, key=lambda language: -found[language][0])[:_WORST]
        lacking = _lacking(scores[name])
        named = (
            f"{languages.label(one)} {found[one][0]:{form}}" + " \\*" * (one in lacking)
            for one in worst
        )
        lines.append(f"- **{tables.escaped(name)}** costs most in {', '.join(named)}")
    return "\n".join(lines)


def language_table(values: Values, form: str, lacking: Mapping[str, Collection[str]]) -> str:
    """Return a Markdown table, a column per tokenizer; it marks each one's `lacking` languages."""
    rows = [
        {"language": languages.label(language), **dict.fromkeys(map(tables.escaped, values))}
        | {
            tables.escaped(name): ("* " if language in lacking[name] else "")
            + _with_width(found[language], form)
            for name, found in values.items()
            if language in found
        }
        for language in sorted({language for found in values.values() for language in found})
    ]
    return tables.markdown(rows)


def _plot(values: Values, label: str) -> str:
    """Draw a row per language, the largest value of the first tokenizer at the top."""
    first = next(iter(values.values()))
    found_in: Sequence[str] = sorted({language for found in values.values() for language in found})
    names = sorted(found_in, key=lambda one: -first[one][0] if one in first else 0.0)
    marks = [
        Marks(tokenizer, [found[name][0] for name in names if name in found],
              [row for row, name in enumerate(names) if name in found], "dots")
        for tokenizer, found in values.items()
    ]  # fmt: skip
    rows = Axis(names=[languages.label(one) for one in names])
    return charts.chart(marks, Axis(label), rows, title=label)
