"""Report of a complete run: tables and charts from vocabulary to evaluation."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from input_pipeline import overlap
from input_pipeline.packed_dataset import PackedDataset
from knn_sampling.settings import OutputLayerSettings
from vocap import plots
from vocap.record import allocated
from vocap.report import allocation_table
from xlm.common import artifacts, charts, html_report, tables
from xlm.common.charts import Axis, Marks
from xlm.common.languages import label
from xlm.evaluation.examples import (
    LONGEST,
    MIN_COUNT,
    SHORTEST,
    Example,
    example_cards,
    examples_table,
)
from xlm.evaluation.masked_lm import LanguageLoss
from xlm.evaluation.replaced_token import Detection, PairDetection
from xlm.evaluation.retrieval import RetrievalResult
from xlm.evaluation.translation_gain import Gain

Metrics = Sequence[Mapping[str, float]]
_RETRIEVAL = {"retrieval": "forward", "back": "backward", "chance": "chance"}


@dataclasses.dataclass(frozen=True)
class Results:
    """Evaluation results after `step` steps.

    Discriminators have a `detection`. Runs with pairs have `translations`, by set and language, and
    discriminators with pairs `pair_detection`, by set and pair.
    """

    step: int
    losses: Mapping[str, LanguageLoss]
    retrieval: Mapping[str, Mapping[str, RetrievalResult]]
    examples: Sequence[Example]
    detection: Mapping[str, Mapping[str, Detection]] = dataclasses.field(default_factory=dict)
    translations: Mapping[str, Mapping[str, Gain]] = dataclasses.field(default_factory=dict)
    pair_detection: Mapping[str, Mapping[str, PairDetection]] = dataclasses.field(
        default_factory=dict
    )


def write_report(
    folder: pathlib.Path, results: Results, *, dataset: PackedDataset,
    output_layer: OutputLayerSettings, allocation: Mapping[str, Any] | None, metrics: Metrics,
    full_softmax_from: int | None, more: Sequence[str] = (), title: str = "", num_steps: int = 0,
) -> pathlib.Path:  # fmt: skip
    """Write report.md and .html, charts and results.json into `folder`; return the first's path.

    `allocation` is the record of the vocabulary's build, None for a given one. `full_softmax_from`
    is that of `MaskedLM`. `more` are parts to add. `title` is the name of the run, and `num_steps`
    its length.
    """
    artifacts.write_json(folder / "results.json", artifacts.with_nulls(dataclasses.asdict(results)))
    exact_from = results.step if full_softmax_from is None else full_softmax_from
    losses = evaluation_rows(results, dataset)
    unigram = tables.mean_of(row["unigram"] for row in losses)
    charts.save(_loss_chart(metrics, unigram, exact_from), folder / "loss.svg")
    charts.save(_language_chart(losses), folder / "languages.svg")
    parts = [
        f"# Report of {tables.escaped(title)}" if title else "# Report",
        f"**Unfinished: {results.step:,} of {num_steps:,} steps.**" * (results.step < num_steps),
        _summary(results, losses, dataset),
        "![Loss of each language against its unigram level](languages.svg)",
        "![Training loss, held-out loss and the unigram level](loss.svg)",
        _SAMPLED_NOTE if output_layer.is_sampled else "",
    ]
    examples = examples_table(results.examples)
    if examples:
        parts += ["## Examples", _EXAMPLES_NOTE, examples]
    faults = {one: fault.partition(": ") for one, fault in dataset.shares.items()}
    off = [{"language": k, "held-out share": v[0], "reason": v[2]} for k, v in faults.items()]
    note = _EVALUATION_NOTE + _RETRIEVAL_NOTE * any("chance" in row for row in losses)
    parts += ["## Evaluation", _evaluation_table(losses), note]
    parts += [tables.markdown(off, left=3), *more]
    if results.detection:
        svg = _by_step(metrics, _AUC, {"chance": 0.5}, "AUC, mean of languages")
        charts.save(svg, folder / "detection.svg")
        parts += ["## Replaced tokens", detection_table(results.detection), _DETECTION_NOTE,
                  "![AUC of the discriminator](detection.svg)"]  # fmt: skip
    if any(results.pair_detection.values()):
        parts += [_pair_table(results.pair_detection), _PAIR_NOTE]
    if any(results.translations.values()):
        parts += ["## Translations", _gain_table(results.translations), _GAIN_NOTE]
    if allocation is not None:
        charts.save(plots.plot_curves(allocation), folder / "alp.svg")
        parts += ["## Vocabulary", allocation_table(allocation), "![ALP against size](alp.svg)"]
        if allocated(allocation):
            charts.save(plots.plot_sizes(allocation), folder / "sizes.svg")
            parts.append("![Allocated sizes](sizes.svg)")
    if output_layer.kind == "knn":
        sampled = [one for one in metrics if one["step"] <= exact_from]
        level = {f"capacity {output_layer.capacity}": output_layer.capacity}
        svg = _by_step(sampled, _CANDIDATES, level, "pieces")
        charts.save(svg, folder / "candidates.svg")
        parts += ["## Candidates", _CANDIDATES_NOTE, "![Candidates](candidates.svg)"]
    instead = {examples: example_cards(results.examples)} if examples else {}
    return html_report.write(folder, tables.page(*parts), instead=instead)


# Metrics by their entries of a legend.
_AUC = {
    "unigram samples": "rtd/unigram/auc",
    "samples of a frozen generator": "rtd/frozen/auc",
    "samples of its own generator": "rtd/own/auc",
}
_CANDIDATES = {"|V'|, before the cut": "train/candidates", "overflow": "train/overflow"}
_LEARNED = "below its unigram level"
_LEARNED_NOTHING = "not below: nothing learned from context"

_SAMPLED_NOTE = """\
Compare exact losses: up to the exact steps at the end, the training loss is over sampled classes
only."""

_EXAMPLES_NOTE = f"""\
A held-out sentence of each language with one masked piece, the five likeliest pieces, the truth and
its rank, in the softmax over the whole vocabulary. \u2423 is the space before a word. The model saw
only the sentence. `evaluation.seed` draws sentence and piece, without a model. It draws a whole
sentence of {SHORTEST} to {LONGEST} pieces, or part of a text without marks at the ends of
sentences. The piece has a letter, and occurs at least {MIN_COUNT} times in the language's training
text. A sentence is an illustration. The loss is the measure."""

_EVALUATION_NOTE = """\
- *loss*: exact masked-LM loss, nats a token. The evaluation masks every held-out token once, and
  the softmax is over the whole vocabulary.
- *seen*: share of held-out runs of at least 13 tokens and 40 characters that training rows have.
- *unigram*: the loss of a model that knows only the frequencies of tokens.
- *bits/char*: the loss in bits, times tokens per character. It compares vocabularies, but is
  kind to short pieces: while one piece of a word is masked, the model sees the others."""
_RETRIEVAL_NOTE = """
- *retrieval*: share of held-out sentences whose nearest neighbour, by cosine of mean hidden states,
  is their translation in the pivot language, and back. Means over parallel sets."""

_DETECTION_NOTE = """\
The discriminator saw held-out text with replaced tokens.

- *own*: its own generator replaced them. A better generator makes this harder.
- *unigram*: they are samples of the language's unigram distribution.
- *frozen*: the generator of `evaluation.frozen_generator` replaced them.
- *AUC*: probability that a replaced token has a higher logit than an original one, 50 % by chance.
- *precision*, *recall*: of finding replaced tokens."""

_PAIR_NOTE = """\
The same on held-out pairs, whose two sides its own generator filled. *loss*: nats a token.
*generator loss*: nats a masked token. The table of translations masks one side only."""

_GAIN_NOTE = """\
Exact losses of the same masked tokens of held-out sentences, nats a token, and the gain's standard
error. The translation is into the pivot language, and has no masks. A gain below two errors is no
evidence that the model reads translations."""

_CANDIDATES_NOTE = """\
V' is large until the first refresh, while neighbours are those of random embeddings. A V' above the
capacity drops the farthest neighbours first."""


def evaluation_rows(results: Results, dataset: PackedDataset) -> list[dict[str, Any]]:
    """Return a row for each language with its scores; retrieval is a mean over parallel sets."""
    rows = []
    for language, loss in sorted(results.losses.items()):
        found = [one[language] for one in results.retrieval.values() if language in one]
        statistics = dataset.statistics[language]
        heldout = statistics["heldout"]
        rows.append(
            {
                "language": language,
                "training tokens": statistics["train"]["tokens"],
                "held-out tokens": loss.tokens,
                "unknown": heldout["unknown"] / max(heldout["tokens"], 1),
                **({"seen": seen["share"]} if (seen := dataset.overlap.get(language)) else {}),
                "loss": loss.loss,
                "unigram": loss.unigram,
                "bits/char": loss.bits_per_character,
            }
        )
        if found:
            rows[-1] |= {
                column: tables.mean_of(getattr(one, name) for one in found)
                for column, name in _RETRIEVAL.items()
            }
    return rows


def _evaluation_table(rows: Sequence[tables.Row]) -> str:
    scores = dict.fromkeys(("loss", "unigram", "bits/char"), ".3f")
    if any("chance" in row for row in rows):
        scores |= dict.fromkeys(_RETRIEVAL, ".1%")
    formats = {"training tokens": ",", "held-out tokens": ",", "unknown": ".2%", "seen": ".1%"}
    formats |= scores
    return tables.markdown(rows, formats, mean=scores)


def detection_table(detection: Mapping[str, Mapping[str, Detection]]) -> str:
    """Format scores of a discriminator, a row per language and the mean."""
    rows = [
        {"language": language}
        | {
            f"{kind}: {name}": getattr(found[language], name)
            for kind, found in detection.items()
            for name in ("auc", "precision", "recall", "replaced")
        }
        for language in next(iter(detection.values()))
    ]
    return tables.markdown(rows, ".1%", mean=list(rows[0])[1:])


def _pair_table(found: Mapping[str, Mapping[str, PairDetection]]) -> str:
    scores = dict.fromkeys(("auc", "precision", "recall", "replaced"), ".1%")
    scores |= dict.fromkeys(("loss", "generator loss"), ".3f")
    rows = [
        {"set": name, "pair": pair, "tokens": one.tokens}
        | {title: getattr(one, title.replace(" ", "_")) for title in scores}
        for name, by_pair in found.items()
        for pair, one in by_pair.items()
    ]
    return tables.markdown(rows, {"tokens": ",", **scores}, left=2, mean=list(scores))


def _gain_table(translations: Mapping[str, Mapping[str, Gain]]) -> str:
    rows = [
        {"set": name, "language": language, "tokens": one.tokens, "alone": one.alone,
         "beside its translation": one.translated, "gain": one.alone - one.translated,
         "error": one.error}
        for name, by_language in translations.items()
        for language, one in by_language.items()
    ]  # fmt: skip
    losses = list(rows[0])[3:-1]
    formats = {"tokens": ",", **dict.fromkeys((*losses, "error"), ".3f")}
    return tables.markdown(rows, formats, left=2, mean=losses)


def _summary(results: Results, rows: Sequence[tables.Row], dataset: PackedDataset) -> str:
    """Summarise the loss against the unigram level, and retrieval against chance."""
    columns = ("loss", "unigram", "bits/char", *_RETRIEVAL)
    loss, unigram, bits, forward, back, chance = (
        tables.mean_of(row.get(column) for row in rows) for column in columns
    )
    comparison, side = ("better", "below") if loss < unigram else ("no better", "above")
    below = sum(row["loss"] < row["unigram"] for row in rows)
    text = (
        f"The model predicts masked pieces {comparison} than their frequencies do: its exact "
        f"held-out loss is {loss:.3f} nats a token, {abs(unigram - loss):.3f} {side} the unigram "
        f"level of {unigram:.3f}, and {below} of {len(rows)} languages are below theirs."
    )
    if not math.isnan(chance):
        share = (forward + back) / 2
        text += (
            f" {share:.1%} of held-out sentences find their translation, {share / chance:.1f} "
            f"times the {chance:.1%} of chance."
        )
    ranked = sorted(rows, key=lambda row: row["loss"] - row["unigram"])
    if below:
        text += f"\n\nFurthest below, in nats: {', '.join(map(_gain, ranked[: min(below, 3)]))}."
    if behind := tables.named(list(map(_gain, ranked[below:])), 10):
        text += f"\n\n**The model learned nothing from context in {behind}.**"
    text += (
        f"\n\nMeans over {len(rows)} languages, {dataset.vocab_size:,} pieces, {results.step:,} "
        f"steps. {bits:.3f} bits a character."
    )
    without = [language for language in dataset.languages if language not in results.losses]
    if without:
        text += f" Without held-out rows, and in no mean: {', '.join(without)}."
    leaked = [f"{row['language']} ({row['seen']:.0%})" for row in rows
              if row.get("seen", 0) > overlap.LEAKED]  # fmt: skip
    if leaked:
        text += (
            "\n\n**The training rows have seen much of the held-out text of some languages, whose "
            f"losses are too low: {', '.join(leaked)}.**"
        )
    return text


def _gain(row: tables.Row) -> str:
    return f"{label(row['language'])} ({row['loss'] - row['unigram']:+.2f})"


def _language_chart(rows: Sequence[tables.Row]) -> str:
    """Draw each language's loss and unigram level, the largest gains at the top."""
    rows = sorted(rows, key=lambda row: row["loss"] - row["unigram"])
    at = {row["language"]: i for i, row in enumerate(rows)}
    losses, levels = ([row[key] for row in rows] for key in ("loss", "unigram"))
    marks = [
        Marks("", losses, range(len(rows)), "spans", levels, "c7"),
        Marks("unigram level", levels, range(len(rows)), "dots", style="c7 hollow"),
    ]
    for name, is_below, style in ((_LEARNED, True, "c0"), (_LEARNED_NOTHING, False, "c3")):
        if of := [row for row in rows if (row["loss"] < row["unigram"]) == is_below]:
            tips = [f"{_gain(row)}: {row['loss']:.3f} nats a token" for row in of]
            places = [at[row["language"]] for row in of]
            marks.append(Marks(name, [row["loss"] for row in of], places, "dots", (), style, tips))
    names = Axis(names=[label(row["language"]) for row in rows])
    title = "Who learned: held-out loss against knowing frequencies only"
    return charts.chart(marks, Axis("loss (nats a token)"), names, title=title)


def _loss_chart(metrics: Metrics, unigram: float, exact_from: int) -> str:
    """Draw training loss, exact held-out loss with its range over languages, and unigram level.

    For a mixture of objectives, and for replaced-token detection, the training loss is that of
    masked LM on packed sequences, since other losses are not comparable.
    """
    recorded = {name for record in metrics for name in record}
    names = ("train/mlm_loss", "train/mrtd/generator_loss", "train/loss")
    training = next((name for name in names if name in recorded), "train/loss")
    lines = {"training": training, "exact, held-out rows, mean of languages": "eval/loss"}
    level = {f"unigram, mean of languages ({unigram:.3f})": unigram}
    ranges = [
        (record["step"], max(values), min(values))
        for record in metrics
        if (values := [one for name, one in record.items() if name.startswith("eval/loss/")])
    ]
    area = [Marks("languages, lowest to highest", [step for step, *_ in ranges],
                  [high for _, high, _ in ranges], "area", [low for *_, low in ranges],
                  "c1")] if ranges else []  # fmt: skip
    return _by_step(metrics, lines, level, "loss (nats a masked token)", exact_from, area)


def _by_step(
    metrics: Metrics, lines: Mapping[str, str], levels: Mapping[str, float], named: str,
    exact_from: float = float("inf"), more: Sequence[Marks] = (),
) -> str:  # fmt: skip
    """Draw a line for each metric, by label, and labelled levels; shade the exact steps."""
    marks = [charts.by_step(metrics, metric, name) for name, metric in lines.items()]
    marks += [Marks(name, [], [level], "rule") for name, level in levels.items()]
    last = max((record["step"] for record in metrics), default=0)
    if exact_from < last:
        marks.append(Marks("steps with the exact softmax", [exact_from, last], [], "shade"))
    there = [one for one in (*marks, *more) if len(one.xs) or len(one.ys)]
    return charts.chart(there, Axis("step"), Axis(named))
