"""Warnings about a vocabulary, each with its remedy."""

import statistics
from collections.abc import Iterator, Sequence

from vocap.record import Record, allocated, by_amount, methods, score_groups

_MANY_SEEDS = 0.2  # share that become pieces; above it a joint training of 242 MB loses ALP
_MANY_UNKNOWN = 0.01  # of the tokens
_MUCH_LEFT = 0.1  # of |ALP|, between the allocated and the largest size
_UNLIKE = 1.5  # factor between the sentence lengths, or the gains, of languages
_ROUNDING = 2**-23  # of a coverage, compared in single precision
_NAMED = 8  # languages that a warning names

# Curves that ended before the budget, and curves without a step.
_ENDS = {
    "offered": "At the largest of vocab.sizes, and might deserve more: {names}. Offer larger "
    "sizes.",
    "filled": "At the largest size that their text can fill, and might deserve more: {names}. Add "
    "text.",
    "forced": "No step beyond the smallest size that holds all their characters: {names}, "
    "{share:.0%} of all pieces. Lower vocab.character_coverage if that is too much.",
    "stayed": "No step from the smallest of vocab.sizes, {lowest:,}: {names}. Offer smaller sizes "
    "if they may get less.",
}


def enumerated(names: Sequence[str]) -> str:
    """Format the first few names, and the number of the others."""
    if len(names) > _NAMED + 1:
        return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def warnings(record: Record) -> list[str]:
    """Return the warnings, the most severe first."""
    checks = (_ends_of_curves, _sentence_lengths, _characters, _few_seeds, _better_methods,
              _unequal_gains, _unfinished)  # fmt: skip
    return [text for check in checks for text in check(record)]


def _ends_of_curves(record: Record) -> Iterator[str]:
    found: dict[str, list[str]] = {end: [] for end in _ENDS}
    share = 0.0
    # Sizes that follow the text range from its characters to the largest that it can fill.
    offered = record["settings"]["sizes"] or [0, None]
    lowest, highest = offered[0], offered[-1]
    for name, one in allocated(record):
        size = one["allocated"]
        if one["at_largest"]:
            wants = ""
            if record["cut"] and one["less"]:
                wants = f", at {one['less']['gain'] / record['cut']:.1f} times the gain of the cut"
            reached = "sizes" in one and one["sizes"][-1] == highest
            found["offered" if reached else "filled"].append(f"{name} ({size:,}{wants})")
        if one["less"] is None and not record["clusters"]:
            if one["sizes"][0] > lowest:
                found["forced"].append(f"{name} ({size:,})")
                share += size / record["pieces"]
            elif one["sizes"][0] == lowest:
                found["stayed"].append(name)
    for end, names in found.items():
        if names:
            yield _ENDS[end].format(names=enumerated(names), share=share, lowest=lowest)


def _sentence_lengths(record: Record) -> Iterator[str]:
    """Warn of unequal sentence lengths: the gain of a piece grows with the length."""
    if record["settings"]["method"] not in ("vocap", "clustered"):
        return
    nats = {name: -one["alp"][-1] for name, one in by_amount(record)}
    median = statistics.median(nats.values())
    ratios = sorted(((value / median, name) for name, value in nats.items()), key=lambda x: -x[0])
    texts = [(ratio, f"{name} ({ratio:.1f} times)") for ratio, name in ratios]
    long = [text for ratio, text in texts if ratio > _UNLIKE]
    short = [text for ratio, text in reversed(texts) if ratio < 1 / _UNLIKE]
    if long or short:
        parts = [enumerated(names) for names in (long, short) if names]
        yield (
            "ALP is per sentence (Eq. 1), so pieces gain more in long sentences. Sentences against "
            "the median language, by ALP at the largest size: "
            f"{'; '.join(parts)}. Cut the text of all languages into similar sentences."
        )


def _characters(record: Record) -> Iterator[str]:
    """Warn of unknown tokens of held-out text, and of training text without pieces."""
    settings, found = record["settings"], []
    if settings.get("byte_fallback"):
        return
    for name in score_groups(record)["all"] if methods(record) else ():
        one = record["languages"][name]
        rate = record["scores"][methods(record)[0]][name]["unknown_rate"]
        if rate > _MANY_UNKNOWN:
            unseen = one["heldout_unseen"] / one["heldout_uncovered"]
            found.append(f"{name} ({rate:.1%}; {unseen:.0%} of them not in the training text)")
    if found:
        yield (
            f"Many held-out tokens are unknown characters: {enumerated(found)}. Add text with "
            "those that the training text lacks; for others raise vocab.character_coverage."
        )
    allowed = 1 - settings["character_coverage"]
    found = [
        f"{name} ({one['uncovered']:.2%})"
        for name, one in by_amount(record)
        if one["uncovered"] > allowed + _ROUNDING
    ]
    remedy = "Raise it."
    if settings["max_characters"]:
        remedy = "Training saw the most frequent text only; raise vocab.max_characters."
    if settings["method"] in ("joint", "clustered", "bpe"):
        remedy = (
            "It applies to the languages together, in which a small one counts little; raise it, "
            "or train each language separately with vocab.method = vocap."
        )
    if found:
        yield (
            f"More than {allowed:.2%} of the training text's characters have no piece, though "
            f"vocab.character_coverage is {1 - allowed:g}: {enumerated(found)}. {remedy}"
        )


def _few_seeds(record: Record) -> Iterator[str]:
    """Warn of a joint vocabulary with too few seeds to choose from."""
    settings = record["settings"]
    share = record["pieces"] / settings["max_seeds"]
    if share > _MANY_SEEDS and "joint" in (settings["method"], *settings["compare"]):
        yield (
            f"The joint vocabulary keeps {share:.0%} of the {settings['max_seeds']:,} seeds of its "
            "training on all languages, so that many pieces are not the best ones. Raise "
            f"vocab.max_seeds to at least {round(record['pieces'] / _MANY_SEEDS):,}."
        )


def _better_methods(record: Record) -> Iterator[str]:
    names, scores, found = methods(record), record["scores"], []
    for method in names[1:]:
        gains = [
            scores[method][name]["alp"] - scores[names[0]][name]["alp"]
            for name in score_groups(record)["all"]
        ]
        mean, better = statistics.fmean(gains), sum(gain > 0 for gain in gains)
        if mean > 0 and better > len(gains) / 2:
            found.append(f"{method} (by {mean:.2f} nats, better for {better} of {len(gains)})")
    if found:
        yield (
            f"On held-out text the mean ALP of {names[0]} is below that of {enumerated(found)}. "
            "Compare the languages below; vocab.method selects another."
        )


def _unequal_gains(record: Record) -> Iterator[str]:
    """Warn of next steps with very different gains, for methods that ignore the gain."""
    # The ALP of a cluster's mixture is not a sum over languages, so it is not comparable.
    if record["settings"]["method"] == "vocap" or record["clusters"]:
        return
    steps = [
        (1000 * one["more"]["gain"], name)
        for name, one in allocated(record)
        if one["more"] and one["less"]
    ]
    (low, least), (high, most) = min(steps, default=(0, "")), max(steps, default=(0, ""))
    if high > _UNLIKE * low:
        yield (
            f"ALP suggests other sizes: 1,000 pieces more would gain {high:.3g} weighted nats in "
            f"{most} and {low:.3g} in {least}. With vocab.method = vocap they would gain about the "
            "same everywhere."
        )


def _unfinished(record: Record) -> Iterator[str]:
    """Warn of rising curves, of a last step that did not fit, and of dents."""
    named = [(name, one) for name, one in by_amount(record) if one["allocated"] is not None]
    rises = []
    for name, one in named:
        alp, largest = one["alp"][one["sizes"].index(one["allocated"])], one["alp"][-1]
        if largest - alp > -_MUCH_LEFT * alp:
            rises.append((1 - largest / alp, name))
    if rises:
        most = [f"{name} ({rise:.0%})" for rise, name in sorted(rises, reverse=True)]
        yield (
            f"Up to the largest trained size ALP would rise by more than {_MUCH_LEFT:.0%} for "
            f"{len(rises)} of {len(named)} languages: {enumerated(most)}. The budget limits them; "
            "raise vocab.target_size if the model can afford it."
        )
    if record["partial"] is not None:
        name, missing = record["partial"]["name"], record["partial"]["missing"]
        size, lacks = dict(allocated(record))[name]["allocated"], ""
        if missing is not None:
            lacks = f"; {missing:,} were left out. Its ALP here is that of all {size:,}"
        yield (
            f"The last step, {name} to {size:,}, had room only for its most probable new "
            f"pieces{lacks}."
        )
    skipped = [one["not_concave"] for _, one in allocated(record) if one["not_concave"]]
    if skipped:
        yield (
            f"{len(skipped)} curves are not concave, and steps skip {sum(map(len, skipped))} of "
            "their sizes, listed at the end. The schedule of prunes causes such dents."
        )
