"""Report of a vocabulary: its decisions, their reasons, and its held-out scores.

It depends on the build's record (`vocap.record`) alone.
"""

import logging
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vocap import plots
from vocap.build import BuiltVocabulary
from vocap.explorer import explorer_page
from vocap.record import Record, allocated, allocation_record, by_amount, methods, score_groups
from vocap.report_warnings import enumerated, warnings
from vocap.settings import SPECIALS, VocabularySettings
from xlm.common import artifacts

_METHODS = {
    "vocap": "VoCap (Algorithm 1): the next step goes to the language whose ALP gains most a "
    "piece, weighted by q^beta with beta = {beta:g}",
    "proportional": "languages grow in proportion to q, whatever their ALP gains",
    "uniform": "languages grow alike, whatever their ALP gains",
    "joint": "one training on the mixture of all languages in the shares q, as for XLM-R; no "
    "language has a size of its own",
    "clustered": "languages with similar vocabularies are trained together, and clusters grow in "
    "proportion to what VoCap would give their languages, as for XLM-V",
    "bpe": "byte-pair encoding of the mixture of all languages in the shares q; no language has a "
    "size of its own, and text is segmented by the merges",
}

# Heading, digits, factor, and whether the difference from the first method is relative.
_FIELDS: dict[str, tuple[str, int, float, bool]] = {
    "alp": ("ALP (nats a sentence)", 1, 1, False),
    "tokens_per_sentence": ("tokens a sentence", 1, 1, True),
    "unknown_rate": ("unknown tokens (%)", 2, 100, False),
}

_PLOTS: dict[str, Callable[[Record, pathlib.Path], None]] = {
    "alp.png": plots.plot_curves,
    "sizes.png": plots.plot_sizes,
    "margins.png": plots.plot_margins,
    "gains.png": plots.plot_gains,
    "comparison.png": plots.plot_comparison,
}

EXPLORER = "report.html"
_EXPLORER_NOTE = f"""\
[{EXPLORER}]({EXPLORER}), beside this file, has the allocations of other T and beta, and exports
them for `vocab.allocation`."""

_NO_EXPLORER_NOTE = f"""\
There is no {EXPLORER} of this build: it shows the steps of Algorithm 1 at other T and beta, by
which the method *{{method}}* does not choose. A build with vocab.method=vocap has one."""

_MARGIN_NOTE = """\
Each {unit} stands between the last step that it took and the next one, which it did not get. The
gain of a step is q^beta times the change of ALP, in nats a sentence per 1,000 pieces. Changes of
ALP are in nats a sentence, of this {unit} alone; changes of pieces are those of the joint
vocabulary, and smaller where pieces are shared."""

_SHARED_NOTE = """\
*Shared*: of the pieces of a language's allocated vocabulary, those that another's holds too."""

_COMPARISON_NOTE = """\
Each method's vocabulary has the same number of pieces, scores from the same EM (bpe: the order of
its merges), and is measured on held-out text. ALP takes the probabilities of the pieces from the
training text; higher is better, and so are fewer tokens. *high*, *mid* and *low* are the thirds of
the languages by amount of text (n of Eq. 3); means over their languages. In brackets: the
difference to the first method, taken language by language."""

_SKIPPED_NOTE = """\
At these sizes ALP lies under the concave envelope of its curve, so that growing on gains more a
piece than stopping there. Steps go past them."""


def write_report(
    folder: pathlib.Path, vocabulary: BuiltVocabulary, settings: VocabularySettings
) -> None:
    """Write allocation.json, report.md, its plots and report.html into `folder`.

    Files of an earlier build that this report does not use are removed: plots, and the explorer,
    which a build by another method than "vocap" has no use for.
    """
    record = allocation_record(vocabulary, settings)
    artifacts.write_json(folder / "allocation.json", record)
    wanted = _wanted_plots(record)
    for name, plot in _PLOTS.items():
        if name in wanted:
            plot(record, folder / name)
        else:
            (folder / name).unlink(missing_ok=True)
    if _has_explorer(record):
        artifacts.write_text(folder / EXPLORER, explorer_page(record, vocabulary, settings))
    else:
        (folder / EXPLORER).unlink(missing_ok=True)
        logging.info("no %s: the method %r does not choose by the steps of Algorithm 1, which it "
                     "would show", EXPLORER, settings.method)  # fmt: skip
    artifacts.write_text(folder / "report.md", page(record))


def remove(folder: pathlib.Path) -> None:
    """Remove the report of an earlier build, which `folder` holds another vocabulary than."""
    for name in ("allocation.json", "report.md", EXPLORER, *_PLOTS):
        (folder / name).unlink(missing_ok=True)


def _has_explorer(record: Record) -> bool:
    return record["settings"]["method"] == "vocap"


def _explorer_note(record: Record) -> str:
    """Place of the explorer, or why there is none."""
    if _has_explorer(record):
        return _EXPLORER_NOTE
    return _NO_EXPLORER_NOTE.format(method=record["settings"]["method"])


def page(record: Record) -> str:
    """Return the report as Markdown."""
    found = warnings(record)
    sections = [
        "# Vocabulary",
        summary(record),
        _explorer_note(record),
        "## Warnings",
        "\n".join(f"- {text}" for text in found) or "None.",
        "## Sizes",
        allocation_table(record),
        cluster_table(record) if record["clusters"] else "",
        _image(record, "sizes.png", "Allocated sizes"),
        _image(record, "alp.png", "ALP against size"),
    ]
    if allocated(record):
        sections += [
            "## At the cut",
            _MARGIN_NOTE.format(unit=_unit(record)),
            "" if record["clusters"] else _SHARED_NOTE,
            margin_table(record),
            _image(record, "margins.png", "Gains of the last and of the next step"),
            _image(record, "gains.png", "Gain of each step against size"),
        ]
    sections.append("## Against other methods")
    if methods(record):
        sections += [
            _COMPARISON_NOTE,
            group_table(record),
            _image(record, "comparison.png", "Methods by amount of text"),
        ]
        for field, (title, *_) in _FIELDS.items():
            sections += [f"### Per language: {title}", score_table(record, field)]
    else:
        sections.append("There is no held-out text to compare methods on.")
    if any(one["not_concave"] for _, one in allocated(record)):
        sections += ["## Skipped sizes", _SKIPPED_NOTE, _skipped_table(record)]
    return "\n\n".join(section for section in sections if section) + "\n"


def _wanted_plots(record: Record) -> set[str]:
    """Return the names of the plots for which the record has data."""
    wanted = {"alp.png"}
    if allocated(record):
        wanted |= {"sizes.png", "margins.png"}
        if not record["clusters"]:  # clusters have no curves here
            wanted.add("gains.png")
    if len(methods(record)) > 1:
        wanted.add("comparison.png")
    return wanted


def _image(record: Record, name: str, text: str) -> str:
    return f"![{text}]({name})" if name in _wanted_plots(record) else ""


def summary(record: Record) -> str:
    """Return a summary of the build and its allocation as sentences."""
    settings, languages = record["settings"], record["languages"]
    origin = "the bytes of the training text"
    if settings["amounts"]:
        origin = "the amounts in vocab.amounts"
    q = sorted((one["probability"], name) for name, one in languages.items())
    sentences = [
        f"{len(languages)} {'languages share' if len(languages) > 1 else 'language has'} "
        f"{settings['target_size']:,} pieces, {len(SPECIALS)} of them special.",
        f"Method *{settings['method']}*: {_METHODS[settings['method']].format(**settings)}.",
        f"The probabilities q come from {origin} to the power alpha = {settings['alpha']:g} "
        f"(Eq. 3) and go from {q[0][0]:.3g} ({q[0][1]}) to {q[-1][0]:.3g} ({q[-1][1]}).",
    ]
    named = allocated(record)
    if named:
        first, pieces = record["first_pieces"], record["pieces"]
        begin = "The smallest trained vocabularies"
        if settings["initial_sizes"]:
            begin = "The vocabularies of the sizes in vocab.allocation"
        sizes = [one["allocated"] for _, one in named]
        sentences += [
            f"{begin} hold {first:,} pieces together, "
            f"{first / pieces:.0%} of all; {len(record['steps']):,} "
            f"{'step' if len(record['steps']) == 1 else 'steps'} gave out the other "
            f"{pieces - first:,}.",
            f"Most pieces went to {_holders(named, max(sizes))}, fewest to "
            f"{_holders(named, min(sizes))}.",
        ]
    if record["cut"] is not None:
        sentences.append(
            f"At the cut 1,000 pieces gained {1000 * record['cut']:.3g} weighted nats of ALP: each "
            "step taken gained that much or more, each other step would gain that much or less."
        )
    return " ".join(sentences)


def _unit(record: Record) -> str:
    """Return the unit that sizes are allocated to."""
    return "cluster" if record["clusters"] else "language"


def _holders(named: Sequence[tuple[str, Mapping[str, Any]]], size: int) -> str:
    return f"{enumerated([name for name, one in named if one['allocated'] == size])} ({size:,})"


def allocation_table(record: Record) -> str:
    """Format the languages and their sizes as a table (paper Table 9), most text first."""
    header = [
        "language", "text (KB)", "q (Eq. 3)", "sizes trained", "allocated", "ALP (nats/sentence)",
    ]  # fmt: skip
    rows = []
    for language, one in by_amount(record):
        row = [
            language, f"{one['bytes'] / 1000:.0f}", f"{one['probability']:.3f}",
            f"{one['sizes'][0]} to {one['sizes'][-1]}",
        ]  # fmt: skip
        if one["allocated"] is not None:
            row.append(f"{one['allocated']}{' (largest)' if one['at_largest'] else ''}")
            row.append(f"{one['alp'][one['sizes'].index(one['allocated'])]:.1f}")
        rows.append(row)
    return _table(header[: len(rows[0])], rows)


def cluster_table(record: Record) -> str:
    """Format the clusters and their sizes as a table."""
    rows = []
    for name, one in record["clusters"].items():
        end = " (largest)" if one["at_largest"] else ""
        rows.append([name, ", ".join(one["languages"]), f"{one['allocated']}{end}"])
    return _table(["cluster", "languages", "allocated"], rows, left=2)


def margin_table(record: Record) -> str:
    """Format the effects of one step less and of one step more as a table."""
    header = [
        _unit(record), "size", "gain of last step", "of next step", "one step less",
        "one step more", "shared",
    ]  # fmt: skip
    rows = []
    for name, one in allocated(record):
        sides = [one["less"], one["more"]]
        gains = [f"{1000 * side['gain']:.3g}" if side else "" for side in sides]
        row = [name, str(one["allocated"]), *gains, *map(_change, sides)]
        rows.append([*row, f"{one['shared']:.0%}"] if "shared" in one else row)
    return _table(header[: len(rows[0])], rows)


def _change(change: Mapping[str, Any] | None) -> str:
    if change is None:
        return "none"
    return f"{change['size']}: ALP {change['alp']:+.2f}, pieces {change['pieces']:+d}"


def group_table(record: Record) -> str:
    """Format the mean scores of each method by resource group as a table."""
    names = methods(record)
    rows = []
    for group, languages in score_groups(record).items():
        for method in names:
            cells = [
                _score(record, field, method, languages, compare=method != names[0])
                for field in _FIELDS
            ]
            rows.append([f"{group} ({len(languages)})", method, *cells])
    header = ["languages", "method", *(title for title, *_ in _FIELDS.values())]
    return _table(header, rows, left=2)


def score_table(record: Record, field: str) -> str:
    """Format one score of each language under each method as a table."""
    names = methods(record)
    rows = []
    for language in score_groups(record)["all"]:
        one = record["languages"][language]
        cells = [
            _score(record, field, method, [language], compare=method != names[0])
            for method in names
        ]
        rows.append([language, one["resource"], str(one["heldout_sentences"]), *cells])
    return _table(["language", "group", "sentences", *names], rows, left=2)


def _score(
    record: Record, field: str, method: str, languages: Sequence[str], *, compare: bool
) -> str:
    """Format the mean of a score over languages, and of its differences from the first method."""
    _, digits, factor, relative = _FIELDS[field]
    values, bases = (
        factor * np.array([record["scores"][name][language][field] for language in languages])
        for name in (method, methods(record)[0])
    )
    text = f"{values.mean():.{digits}f}"
    if not compare:
        return text
    if relative:
        return f"{text} ({_signed((100 * (values / bases - 1)).mean(), 1)} %)"
    return f"{text} ({_signed((values - bases).mean(), digits)})"


def _signed(value: float, digits: int) -> str:
    """Format a number with its sign, unless it rounds to zero."""
    text = f"{value:+.{digits}f}"
    return text if float(text) else text[1:]


def _skipped_table(record: Record) -> str:
    rows = [
        [name, ", ".join(map(str, one["not_concave"]))]
        for name, one in allocated(record)
        if one["not_concave"]
    ]
    return _table([_unit(record), "sizes under the envelope"], rows, left=2)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Format a Markdown table; the first `left` columns are left-aligned, others right-aligned."""
    lines = [header, ["---"] * left + ["---:"] * (len(header) - left), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
