"""Report of a build from its record (`vocap.record`): decisions, reasons, and held-out scores."""

import dataclasses
import logging
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from vocap import plots
from vocap.building import BuiltVocabulary
from vocap.choosing import Candidate
from vocap.explorer import explorer_page, tradeoff_page
from vocap.record import Record, allocated, allocation_record, by_amount, methods, score_groups
from vocap.report_warnings import enumerated, warnings
from vocap.settings import VocabularySettings
from xlm.common import artifacts, charts, html_report, tables
from xlm.common.html_report import MARKDOWN, PAGE

_METHODS = {
    "vocap": "VoCap (Algorithm 1): the next step goes to the language with the largest gain of ALP "
    "per piece, weighted by q^beta with beta = {beta:g}",
    "proportional": "languages grow in proportion to q, whatever their ALP gains",
    "uniform": "languages grow equally, whatever their ALP gains",
    "joint": "one training on the mixture of all languages in the shares q, as for XLM-R; no "
    "language has a size of its own",
    "clustered": "languages with similar vocabularies are trained together, and clusters grow in "
    "proportion to the VoCap sizes of their languages, as for XLM-V",
    "union": "byte-pair merges of all languages' text, pruned by the tokens that they save; shares "
    "q^beta of the languages, moved towards equal tokens by parity = {parity:g}",
    "bpe": "byte-pair encoding of the mixture of all languages in the shares q; no language has a "
    "size of its own, and the merges segment text",
    "byte_bpe": "byte-pair encoding of the bytes of all languages' text, not normalised; shares "
    "q^beta of the languages, moved towards equal tokens by parity = {parity:g}",
}

# Heading, digits, factor, and whether the difference from the first method is relative.
_FIELDS: dict[str, tuple[str, int, float, bool]] = {
    "alp": ("ALP (nats a sentence)", 1, 1, False),
    "tokens_per_sentence": ("tokens a sentence", 1, 1, True),
    "unknown_rate": ("unknown tokens (%)", 2, 100, False),
}

# Chart and title, by file; a page has the charts that its record has data for.
_PLOTS = {
    "alp.svg": (plots.plot_curves, "ALP against size"),
    "sizes.svg": (plots.plot_sizes, "Allocated sizes"),
    "comparison.svg": (plots.plot_comparison, "Methods by amount of text"),
}

_TRADEOFF_NOTE = f"""\
[{PAGE}]({PAGE}), beside this file, has each language's tokens at other T and parities."""

_EXPLORER_NOTE = f"""\
[{PAGE}]({PAGE}), beside this file, has the allocations of other T and beta, and exports
them for `vocab.allocation`."""

_NO_EXPLORER_NOTE = f"""\
{PAGE} has no explorer. There is one for vocab.method=vocap, and for union with vocab.explore
and held-out or parallel text of all languages."""

_MARGIN_NOTE = """\
Each {unit} stands between its last step and the next one, which it did not get.

- *gain*: q^beta times the change of ALP, in nats a sentence per 1,000 pieces.
- *ALP*: its change in nats a sentence, for this {unit} only.
- *pieces*: change of the joint vocabulary, smaller for shared pieces."""

_SHARED_NOTE = """\
- *shared*: share of a language's allocated pieces that another language holds too."""

_COMPARISON_NOTE = """\
All methods have the same number of pieces, and scores from the same EM (bpe, byte_bpe: the order of
merges). They are measured on held-out text. In brackets: the mean difference to the first method
over languages.

- *ALP*: with the probabilities of the pieces in the training text. Higher is better, and so are
  fewer tokens.
- *unknown*: with `vocab.byte_fallback`, characters that bytes spell.
- *high*, *mid* and *low*: thirds of the languages by amount of text (n of Eq. 3), means over their
  languages."""

_SKIPPED_NOTE = """\
At these sizes ALP lies under the concave envelope of its curve: further growth gains more per piece
than a stop there. Steps skip them."""


def write_report(
    folder: pathlib.Path,
    vocabulary: BuiltVocabulary,
    settings: VocabularySettings,
    candidates: Sequence[Candidate] = (),
) -> None:
    """Write allocation.json, report.md, plots and report.html; remove those of an earlier build.

    `candidates` come from `choosing`; the first one was built.
    """
    record = allocation_record(vocabulary, settings)
    record["candidates"] = [dataclasses.asdict(one) for one in candidates]
    if vocabulary.tradeoff:
        record["tradeoff"] = dataclasses.asdict(vocabulary.tradeoff)
    remove(folder)
    artifacts.write_json(folder / "allocation.json", record)
    text = write_page(folder, record)
    if _has_explorer(record):
        report = html_report.body(text, folder)
        page = explorer_page(record, vocabulary, settings, report)
        artifacts.write_text(folder / PAGE, page)
    elif vocabulary.tradeoff:
        page = tradeoff_page(vocabulary.tradeoff, settings, html_report.body(text, folder))
        artifacts.write_text(folder / PAGE, page)
    else:
        logging.info("no explorer in %s of the method %r", PAGE, settings.method)


def write_page(folder: pathlib.Path, record: Record) -> str:
    """Write report.md, its plots, and report.html without an explorer; return the Markdown."""
    text = page(record)
    for name, (draw, _) in _PLOTS.items():
        if f"]({name})" in text:
            charts.save(draw(record), folder / name)
    html_report.write(folder, text)
    return text


def remove(folder: pathlib.Path) -> None:
    """Remove the report of an earlier build, whose vocabulary `folder` no longer holds."""
    for name in ("allocation.json", MARKDOWN, PAGE, *_PLOTS):
        (folder / name).unlink(missing_ok=True)


def _has_explorer(record: Record) -> bool:
    return record["settings"]["method"] == "vocap"


def page(record: Record) -> str:
    unit = "cluster" if record["clusters"] else "language"
    images = {name: f"![{title}]({name})" for name, (_, title) in _PLOTS.items()}
    parts = [
        "# Vocabulary",
        choice(record),
        summary(record),
        _explorer_note(record),
        "## Warnings",
        "\n".join(f"- {text}" for text in warnings(record)) or "None.",
        "## Sizes",
        allocation_table(record),
        cluster_table(record),
        images["sizes.svg"] if allocated(record) else "",
        images["alp.svg"],
    ]
    if allocated(record):
        note = _MARGIN_NOTE.format(unit=unit)
        parts += [
            "## At the cut",
            note if record["clusters"] else f"{note}\n{_SHARED_NOTE}",
            margin_table(record, unit),
        ]
    parts.append("## Against other methods")
    if methods(record):
        parts += [_COMPARISON_NOTE, group_table(record)]
        parts.append(images["comparison.svg"] if len(methods(record)) > 1 else "")
        for field, (title, *_) in _FIELDS.items():
            parts += [f"### Per language: {title}", score_table(record, field)]
    else:
        parts.append("There is no held-out text to compare methods on.")
    skipped = [
        {unit: name, "sizes under the envelope": ", ".join(map(str, one["not_concave"]))}
        for name, one in allocated(record)
        if one["not_concave"]
    ]
    if skipped:
        parts += ["## Skipped sizes", _SKIPPED_NOTE, tables.markdown(skipped, left=2)]
    return tables.page(*parts)


def _explorer_note(record: Record) -> str:
    if record.get("tradeoff"):
        return _TRADEOFF_NOTE
    return _EXPLORER_NOTE if _has_explorer(record) else _NO_EXPLORER_NOTE


def choice(record: Record) -> str:
    """Return the choice of `vocab.method=auto`, its costs, and the alternatives, or ""."""
    candidates = record.get("candidates", [])
    if not candidates:
        return ""
    limit = record["settings"]["max_ratio"]
    rows = []
    for one in candidates:
        ratios = sorted(one["ratios"].items(), key=lambda item: -item[1])
        keys = {
            "vocab.method": one["settings"]["method"],
            "vocab.parity": one["settings"]["parity"],
        }
        rows.append(
            {
                "build it by": " ".join(f"`--config.{key}={value}`" for key, value in keys.items()),
                "tokens a sentence": f"{one['tokens']:.1f}",
                "by uniform's, mean": f"{tables.mean_of(one['ratios'].values()):.3f}",
                "most": ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios[:3]),
                "least": ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios[:-4:-1]),
            }
        )
    first = candidates[0]
    worst, method = max(first["ratios"].values()), first["settings"]["method"]
    chosen = f"**Chosen: {method} with parity {first['settings']['parity']:g}.**"
    if worst > limit:
        chosen += f" No candidate stays within {limit:g} times *uniform*; this one comes closest:"
    else:
        chosen += f" It needs the fewest tokens of those within {limit:g} times *uniform*:"
    return (
        f"{chosen} at most {worst:.2f} times as many in any language. Held-out text gave the "
        "ratios and the choice. Add the keys of another line to your command to build that one.\n\n"
        f"{tables.markdown(rows, left=1)}"
    )


def summary(record: Record) -> str:
    """Return a summary of the build and its allocation as sentences."""
    settings, languages = record["settings"], record["languages"]
    origin = "amounts in vocab.amounts" if settings["amounts"] else "bytes of the training text"
    q = sorted((one["probability"], name) for name, one in languages.items())
    sentences = [
        f"{len(languages)} {'languages share' if len(languages) > 1 else 'language has'} "
        f"{settings['target_size']:,} pieces, {settings['target_size'] - record['pieces']} of them "
        "special.",
        f"Method *{settings['method']}*: {_METHODS[settings['method']].format(**settings)}.",
        f"The probabilities q come from the {origin} to the power alpha = {settings['alpha']:g} "
        f"(Eq. 3) and go from {q[0][0]:.3g} ({q[0][1]}) to {q[-1][0]:.3g} ({q[-1][1]}).",
    ]
    if named := allocated(record):
        first, pieces, steps = record["first_pieces"], record["pieces"], len(record["steps"])
        begin = "The smallest trained vocabularies"
        if settings["initial_sizes"]:
            begin = "The vocabularies of the sizes in vocab.allocation"
        sizes = [one["allocated"] for _, one in named]
        sentences += [
            f"{begin} hold {first:,} pieces together, {first / pieces:.0%} of all; {steps:,} "
            f"{'step' if steps == 1 else 'steps'} gave out the other {pieces - first:,}.",
            f"Most pieces went to {_holders(named, max(sizes))}, fewest to "
            f"{_holders(named, min(sizes))}.",
        ]
    if record["cut"] is not None:
        sentences.append(
            f"At the cut 1,000 pieces gained {1000 * record['cut']:.3g} weighted nats of ALP: each "
            "step taken gained at least that much, each other step would gain at most that much."
        )
    return " ".join(sentences)


def _holders(named: Sequence[tuple[str, Mapping[str, Any]]], size: int) -> str:
    return f"{enumerated([name for name, one in named if one['allocated'] == size])} ({size:,})"


def _size(one: Mapping[str, Any]) -> str:
    return f"{one['allocated']}{' (largest)' if one['at_largest'] else ''}"


def allocation_table(record: Record) -> str:
    """Format the languages and their sizes as a table (paper Table 9), most text first."""
    found = methods(record) if record.get("scores") else []  # none without text held out
    scores = record["scores"][found[0]] if found else {}
    rows = []
    for language, one in by_amount(record):
        row = {
            "language": language,
            "text (KB)": f"{one['bytes'] / 1000:.0f}",
            "q (Eq. 3)": f"{one['probability']:.3f}",
            "sizes trained": f"{one['sizes'][0]} to {one['sizes'][-1]}",
        }
        if one["allocated"] is not None:
            alp = one["alp"][one["sizes"].index(one["allocated"])]
            row |= {"allocated": _size(one), "ALP (nats/sentence)": f"{alp:.1f}"}
        if language in scores:
            row["tokens/sentence"] = f"{scores[language]['tokens_per_sentence']:.1f}"
        rows.append(row)
    return tables.markdown(rows)


def cluster_table(record: Record) -> str:
    """Format the clusters and their sizes as a table; "" without clusters."""
    rows = [
        {"cluster": name, "languages": ", ".join(one["languages"]), "allocated": _size(one)}
        for name, one in record["clusters"].items()
    ]
    return tables.markdown(rows, left=2)


def margin_table(record: Record, unit: str) -> str:
    """Format the effects of one step less and of one step more as a table."""
    rows = []
    for name, one in allocated(record):
        less, more = one["less"], one["more"]
        rows.append(
            {
                unit: name,
                "size": one["allocated"],
                "gain of last step": f"{1000 * less['gain']:.3g}" if less else "",
                "of next step": f"{1000 * more['gain']:.3g}" if more else "",
                "one step less": _change(less),
                "one step more": _change(more),
            }
            | ({"shared": f"{one['shared']:.0%}"} if "shared" in one else {})
        )
    return tables.markdown(rows)


def _change(change: Mapping[str, Any] | None) -> str:
    if change is None:
        return "none"
    return f"{change['size']}: ALP {change['alp']:+.2f}, pieces {change['pieces']:+d}"


def group_table(record: Record) -> str:
    """Format the mean scores of each method by resource group as a table."""
    rows = [
        {"languages": f"{group} ({len(languages)})", "method": method}
        | {
            title: _score(record, field, method, languages)
            for field, (title, *_) in _FIELDS.items()
        }
        for group, languages in score_groups(record).items()
        for method in methods(record)
    ]
    return tables.markdown(rows, left=2)


def score_table(record: Record, field: str) -> str:
    """Format one score of each language under each method as a table."""
    rows = []
    for language in score_groups(record)["all"]:
        one = record["languages"][language]
        row = {"language": language, "group": one["resource"]}
        row["sentences"] = one["heldout_sentences"]
        scores = {method: _score(record, field, method, [language]) for method in methods(record)}
        rows.append(row | scores)
    return tables.markdown(rows, left=2)


def _score(record: Record, field: str, method: str, languages: Sequence[str]) -> str:
    """Format the mean of a score over languages, and of its differences from the first method."""
    _, digits, factor, relative = _FIELDS[field]
    first = methods(record)[0]
    values, bases = (
        [factor * record["scores"][name][language][field] for language in languages]
        for name in (method, first)
    )
    text = f"{tables.mean_of(values):.{digits}f}"
    if method == first:
        return text
    pairs = list(zip(values, bases, strict=True))
    if relative:
        change = tables.mean_of(100 * (value / base - 1) for value, base in pairs)
        return f"{text} ({tables.signed(change, '.1f')} %)"
    change = tables.mean_of(value - base for value, base in pairs)
    return f"{text} ({tables.signed(change, f'.{digits}f')})"
