"""What a build decided and why, as plain data: all that its report shows, and every step."""

import collections
import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from vocap.allocation import Allocation, Change
from vocap.build import Language, Vocabulary, VocabularySettings
from vocap.runs import RunTable

RESOURCES = ("high", "mid", "low")  # thirds of the languages by n_i

Record = Mapping[str, Any]
Named = list[tuple[str, Mapping[str, Any]]]


def allocation_record(vocabulary: Vocabulary, settings: VocabularySettings) -> dict[str, Any]:
    """All that a report tells of a build, JSON-able; the pieces are in the model.

    What an allocation says of a language stands with the language; what it says of a cluster of
    several (method "clustered") stands with the cluster.
    """
    allocation = vocabulary.choice.allocation
    of_languages = of_clusters = None
    if allocation is not None and set(allocation.sizes) == set(vocabulary.languages):
        of_languages = allocation
    else:
        of_clusters = allocation
    return {
        "pieces": len(vocabulary.choice.pieces),
        "settings": {k: v for k, v in dataclasses.asdict(settings).items() if k != "num_workers"},
        "languages": _languages(vocabulary, of_languages, settings.beta),
        "clusters": _clusters(vocabulary, of_clusters, settings.beta),
        **_course(vocabulary, allocation, of_languages is not None, settings.method),
        "scores": {
            method: {language: dataclasses.asdict(score) for language, score in scores.items()}
            for method, scores in vocabulary.scores.items()
        },
    }


def by_amount(record: Record) -> Named:
    """Languages with most text first."""
    return sorted(record["languages"].items(), key=lambda item: (-item[1]["amount"], item[0]))


def allocated(record: Record) -> Named:
    """What got a size, languages or clusters; nothing for "joint"."""
    if record["clusters"]:
        return list(record["clusters"].items())
    return [(name, one) for name, one in by_amount(record) if one["allocated"] is not None]


def methods(record: Record) -> list[str]:
    """The methods that have scores, the one built first."""
    settings = record["settings"]
    wanted = dict.fromkeys((settings["method"], *settings["compare"]))
    return [method for method in wanted if record["scores"].get(method)]


def score_groups(record: Record) -> dict[str, list[str]]:
    """Languages that have scores, by resource, and all of them; those with most text first."""
    scored = record["scores"][methods(record)[0]]
    found = [(name, one["resource"]) for name, one in by_amount(record) if name in scored]
    groups = {resource: [name for name, r in found if r == resource] for resource in RESOURCES}
    groups["all"] = [name for name, _ in found]
    return {resource: names for resource, names in groups.items() if names}


def _languages(
    vocabulary: Vocabulary, allocation: Allocation | None, beta: float
) -> dict[str, Any]:
    resource = _resources({name: one.amount for name, one in vocabulary.languages.items()})
    shared = _shared(vocabulary, allocation) if allocation is not None else {}
    single = [ord(piece) for piece in vocabulary.choice.pieces if len(piece) == 1]
    known = _marked(np.array(single, np.int32))
    return {
        name: {
            "amount": one.amount,
            "resource": resource[name],
            "probability": one.probability,
            "sizes": list(one.vocabularies.curve.sizes),
            "alp": list(one.vocabularies.curve.alp),
            "shared": shared.get(name),
            **_of_text(one, known),
            **_of_allocation(allocation, name, one.probability**beta),
        }
        for name, one in vocabulary.languages.items()
    }


def _clusters(vocabulary: Vocabulary, allocation: Allocation | None, beta: float) -> dict[str, Any]:
    if allocation is None:
        return {}
    clusters = {}
    for name, group in vocabulary.choice.groups.items():
        probability = sum(vocabulary.languages[language].probability for language in group)
        clusters[name] = {
            "languages": list(group),
            **_of_allocation(allocation, name, probability**beta),
        }
    return clusters


def _resources(amounts: Mapping[str, float]) -> dict[str, str]:
    """The third of the languages that each belongs to; fewer than three are no groups."""
    order = sorted(amounts, key=lambda language: (-amounts[language], language))
    if len(order) < len(RESOURCES):
        return dict.fromkeys(order, "all")
    thirds = np.array_split(np.arange(len(order)), len(RESOURCES))
    return {
        order[i]: resource for resource, third in zip(RESOURCES, thirds, strict=True) for i in third
    }


def _shared(vocabulary: Vocabulary, allocation: Allocation) -> dict[str, float]:
    """Of the pieces of each language's vocabulary, the share that another's holds too."""
    vocabularies = {}
    for name, size in allocation.sizes.items():
        curve = vocabulary.languages[name].vocabularies.curve
        vocabularies[name] = curve.vocabulary(curve.sizes.index(size))
    holders = collections.Counter(piece for pieces in vocabularies.values() for piece in pieces)
    return {
        name: sum(holders[piece] > 1 for piece in pieces) / len(pieces)
        for name, pieces in vocabularies.items()
    }


def _of_text(one: Language, known: np.ndarray) -> dict[str, Any]:
    """Amounts of text, and shares of its characters that are no pieces."""
    heldout: dict[str, Any] = dict.fromkeys(("heldout_uncovered", "heldout_unseen"))
    heldout["heldout_sentences"] = 0
    if one.heldout is not None and one.heldout.num_sentences:
        in_training = _marked(one.table.text.characters)
        heldout = {
            "heldout_sentences": one.heldout.num_sentences,
            "heldout_uncovered": _share_outside(one.heldout, known),
            "heldout_unseen": _share_outside(one.heldout, known | in_training),
        }
    return {
        "bytes": one.table.num_bytes,
        "sentences": one.table.num_sentences,
        "uncovered": _share_outside(one.table, known),
        **heldout,
    }


def _marked(characters: np.ndarray) -> np.ndarray:
    """[number of code points] bool: which of them occur."""
    marked = np.zeros(sys.maxunicode + 1, np.bool_)
    marked[characters] = True
    return marked


def _share_outside(table: RunTable, marked: np.ndarray) -> float:
    """Share of the characters of a text that are not marked."""
    offsets = table.text.offsets
    outside = np.add.reduceat(~marked[table.text.characters], offsets[:-1], dtype=np.int64)
    return float((outside @ table.counts) / (np.diff(offsets) @ table.counts))


def _of_allocation(allocation: Allocation | None, name: str, weight: float) -> dict[str, Any]:
    """What an allocation says of a language or a cluster; `weight` is q^beta."""
    if allocation is None:
        return {
            "allocated": None, "not_concave": [], "at_largest": False, "less": None, "more": None,
        }  # fmt: skip
    size, margin = allocation.sizes[name], allocation.margins[name]

    def described(change: Change | None) -> dict[str, Any] | None:
        if change is None:
            return None
        # Not that of the change: allocations in proportion to something else are weighted by it.
        gain = weight * change.alp / (change.size - size)
        return {"size": change.size, "alp": change.alp, "gain": gain, "pieces": change.pieces}

    return {
        "allocated": size,
        "not_concave": list(allocation.not_concave.get(name, ())),
        "at_largest": name in allocation.at_largest,
        "less": described(margin.less),
        "more": described(margin.more),
    }


def _course(
    vocabulary: Vocabulary, allocation: Allocation | None, of_languages: bool, method: str
) -> dict[str, Any]:
    """How the allocation went: first sizes, steps, the gain at the cut, the partial step."""
    if allocation is None:
        return {"first_pieces": None, "cut": None, "partial": None, "steps": []}
    # First sizes, which everyone gets, are no decisions.
    first = [step for step in allocation.steps if np.isinf(step.gain)]
    steps = [step for step in allocation.steps if np.isfinite(step.gain)]
    partial: dict[str, Any] | None = None
    if allocation.partial is not None:
        partial = {"name": allocation.partial, "missing": None}
        if of_languages:
            curve = vocabulary.languages[allocation.partial].vocabularies.curve
            at = curve.sizes.index(allocation.sizes[allocation.partial])
            held = set(vocabulary.choice.pieces)
            partial["missing"] = len(set(curve.vocabulary(at)) - held)
    return {
        "first_pieces": first[-1].union,
        "cut": steps[-1].gain if steps and method == "vocap" else None,
        "partial": partial,
        "steps": [
            {
                "language": step.language,
                "size": step.size,
                # Of clusters it is weighted by their capacities, which says nothing.
                "gain": step.gain if of_languages else None,
                "union": step.union,
            }
            for step in steps
        ],
    }
