"""Tables and plots of the scores of tokenizers, side by side."""

import csv
import dataclasses
import io
import itertools
import pathlib
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from vocap.segmentation import TextScore, TokenizerScore
from xlm.common import artifacts

_NOTE = """\
*ALP*: average log probability of a sentence in nats (VoCap, Eq. 1), of each half of the text under
the unigram distribution of the other; larger is better. It is defined for unigram models. *words*
are between blanks; scripts without blanks have none. *unknown*: share of the tokens. *used*: share
of the tokenizer's pieces that these texts use, which grows with the amount of text. *tax*: tokens
of a language by those of the same sentences in {pivot}. *: of a language with more than 1 %
unknown tokens; each stands for a whole run of unknown characters, so lengths and tax flatter."""

# Heading, attribute of `TextScore`, format.
_COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("ALP, nats a sentence", "alp", "{:.1f}"),
    ("tokens a sentence", "tokens_per_sentence", "{:.1f}"),
    ("tokens a word", "tokens_per_word", "{:.2f}"),
    ("characters a token", "characters_per_token", "{:.2f}"),
    ("unknown", "unknown_rate", "{:.3%}"),
)
_MANY_UNKNOWN = 0.01  # of the tokens
_ROW = 0.24  # inches per language in plots

Scores = Mapping[str, TokenizerScore]  # by the name of the tokenizer


def write_report(folder: pathlib.Path, scores: Scores, pivot: str) -> pathlib.Path:
    """Write report.md with its plots, scores.csv and results.json; return the report's path.

    Args:
      scores: of one tokenizer at least; all on the same texts.
      pivot: language that the tax is relative to.
    """
    artifacts.write_json(
        folder / "results.json", {name: dataclasses.asdict(one) for name, one in scores.items()}
    )
    artifacts.write_text(folder / "scores.csv", _csv(scores))
    sections = ["# Tokenizers", summary_table(scores), _NOTE.format(pivot=pivot)]
    lacking = {name: _lacking(one) for name, one in scores.items()}
    for heading, attribute, form in _COLUMNS:
        values = {
            name: {language: getattr(text, attribute) for language, text in one.texts.items()}
            for name, one in scores.items()
        }
        sections += _section(folder, heading, attribute, values, form, lacking)
    taxes = {name: one.tax for name, one in scores.items()}
    sections += _section(folder, f"tax against {pivot}", "tax", taxes, "{:.2f}", lacking)
    path = folder / "report.md"
    artifacts.write_text(path, "\n\n".join(sections) + "\n")
    return path


def _lacking(score: TokenizerScore) -> set[str]:
    """Return the languages that the tokenizer lacks many characters of."""
    return {language for language, one in score.texts.items() if one.unknown_rate > _MANY_UNKNOWN}


def _section(
    folder: pathlib.Path,
    heading: str,
    name: str,
    values: Mapping[str, Mapping[str, float | None]],
    form: str,
    lacking: Mapping[str, Collection[str]],
) -> list[str]:
    """Write the plot of a score; return its heading, table and plot, [] without values."""
    found = {
        tokenizer: {language: one for language, one in by_language.items() if one is not None}
        for tokenizer, by_language in values.items()
        if any(one is not None for one in by_language.values())
    }
    if not found:
        return []
    _plot(found, heading, folder / f"{name}.png")
    table = language_table(found, form, lacking)
    return [f"## {heading[0].upper()}{heading[1:]}", table, f"![{heading}]({name}.png)"]


def summary_table(scores: Scores) -> str:
    """Return a Markdown table: a line per tokenizer, means over languages."""
    columns = ["", "kind", "pieces", "used", *(heading for heading, _, _ in _COLUMNS)]
    columns += ["tax, mean without *", "tax, highest"]
    lines = [f"| {' | '.join(columns)} |", "|---|---|" + "---:|" * (len(columns) - 2)]
    for name, one in scores.items():
        cells = [name, one.kind, f"{one.size:,}", f"{one.used:.1%}"]
        for _, attribute, form in _COLUMNS:
            cells.append(_mean((getattr(text, attribute) for text in one.texts.values()), form))
        without = _lacking(one)
        known = {language: tax for language, tax in one.tax.items() if language not in without}
        highest = max(known, key=lambda language: known[language], default=None)
        cells.append(_mean(known.values(), "{:.2f}"))
        cells.append("" if highest is None else f"{known[highest]:.2f} ({highest})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(values: Iterable[float | None], form: str) -> str:
    found = [value for value in values if value is not None]
    return form.format(statistics.fmean(found)) if found else ""


def language_table(
    values: Mapping[str, Mapping[str, float]], form: str, lacking: Mapping[str, Collection[str]]
) -> str:
    """Return a Markdown table: a line per language, a column per tokenizer.

    Args:
      lacking: languages of each tokenizer whose values are marked.
    """
    lines = [f"| language | {' | '.join(values)} |", "|---|" + "---:|" * len(values)]
    for language in _languages(values):
        cells = [
            form.format(by_language[language]) + (" *" if language in lacking[name] else "")
            if language in by_language
            else ""
            for name, by_language in values.items()
        ]
        lines.append(f"| {language} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _languages(values: Mapping[str, Mapping[str, float]]) -> list[str]:
    return sorted({language for by_language in values.values() for language in by_language})


def _plot(values: Mapping[str, Mapping[str, float]], label: str, path: pathlib.Path) -> None:
    """Plot a row per language, those with the largest value of the first tokenizer at the top."""
    first = next(by_language for by_language in values.values() if by_language)
    names = sorted(_languages(values), key=lambda one: (-first.get(one, 0.0), one))
    figure, axes = plt.subplots(figsize=(8, 1.4 + _ROW * len(names)), layout="constrained")
    markers = itertools.cycle("o^sDvP*Xd<>")
    for (tokenizer, by_language), marker in zip(values.items(), markers, strict=False):
        rows = [i for i, name in enumerate(names) if name in by_language]
        axes.plot([by_language[names[i]] for i in rows], rows, marker, ms=5, label=tokenizer)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel(label)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside upper center", ncols=4, frameon=False)
    with artifacts.atomic_path(path) as aside:
        figure.savefig(aside, dpi=120)
    plt.close(figure)


def _csv(scores: Scores) -> str:
    """A line for each tokenizer and language."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    fields: Sequence[str] = [field.name for field in dataclasses.fields(TextScore)]
    writer.writerow(["tokenizer", "language", *fields, "tax"])
    for name, one in scores.items():
        for language in sorted({*one.texts, *one.tax}):
            score = one.texts.get(language)
            values = [getattr(score, field) if score else None for field in fields]
            writer.writerow([name, language, *values, one.tax.get(language)])
    return text.getvalue()
