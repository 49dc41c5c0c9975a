"""Record of a build as plain data: every allocation step, and all numbers of the report."""

import collections
import dataclasses
import pathlib
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import numpy as np

from vocap.allocation import Allocation, Change
from vocap.building import BuiltVocabulary, Language
from vocap.pretokens import PretokenTable
from vocap.settings import BYTE_BPE, VocabularySettings
from xlm.common import declarations
from xlm.common.declarations import Count, Name

RESOURCES = ("high", "mid", "low")  # thirds of the languages by n_i

Record = Mapping[str, Any]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Named = list[tuple[str, Mapping[str, Any]]]


class _Language(msgspec.Struct):
    amount: Positive
    bytes: Count
    probability: Positive
    sizes: Annotated[list[Count], msgspec.Meta(min_length=1)]
    alp: list[float]
    allocated: Count | None
    at_largest: bool


class _Cluster(msgspec.Struct):
    languages: list[Name]
    allocated: Count
    at_largest: bool


class _Record(msgspec.Struct):
    """The fields of a record that later stages read."""

    pieces: Count
    languages: Annotated[dict[Name, _Language], msgspec.Meta(min_length=1)]
    clusters: dict[str, _Cluster]


def read(path: pathlib.Path) -> Record:
    """Read the record of a build; raise ValueError if it is malformed or has an untrained size."""
    remedy = "copy it again, or run build_vocab.py again"
    found: Record = declarations.read_plain(path, _Record, remedy=remedy)
    for language, one in found["languages"].items():
        if one["allocated"] not in (None, *one["sizes"]) or len(one["alp"]) != len(one["sizes"]):
            raise ValueError(
                f"{path}: languages.{language} has sizes {one['sizes']} and alp of "
                f"{len(one['alp'])}; each size must have an alp, and allocated, "
                f"{one['allocated']}, be one of the sizes; {remedy}"
            )
    return found


def allocation_record(vocabulary: BuiltVocabulary, settings: VocabularySettings) -> dict[str, Any]:
    """Return the JSON-serialisable record of a build; the pieces are in the model.

    An allocation is stored with its language or, for the method "clustered", with its cluster.
    """
    allocation = vocabulary.choice.allocation
    of_languages = allocation is not None and set(allocation.sizes) == set(vocabulary.languages)
    return {
        "pieces": len(vocabulary.choice.pieces),
        "settings": {k: v for k, v in dataclasses.asdict(settings).items() if k != "num_workers"},
        "languages": _languages(vocabulary, allocation if of_languages else None, settings.beta),
        "clusters": _clusters(vocabulary, None if of_languages else allocation, settings.beta),
        **_course(vocabulary, allocation, of_languages, settings.method),
        "scores": {
            method: {language: dataclasses.asdict(score) for language, score in scores.items()}
            for method, scores in vocabulary.scores.items()
        },
    }


def by_amount(record: Record) -> Named:
    """Return the languages, most text first."""
    return sorted(record["languages"].items(), key=lambda item: (-item[1]["amount"], item[0]))


def allocated(record: Record) -> Named:
    """Return the languages or clusters with an allocated size; none for "joint"."""
    if record["clusters"]:
        return list(record["clusters"].items())
    return [(name, one) for name, one in by_amount(record) if one["allocated"] is not None]


def methods(record: Record) -> list[str]:
    """Return the methods with scores, the built method first."""
    settings = record["settings"]
    wanted = dict.fromkeys((settings["method"], *settings["compare"]))
    return [method for method in wanted if record["scores"].get(method)]


def score_groups(record: Record) -> dict[str, list[str]]:
    """Return the languages with scores by resource group, and all; most text first."""
    scored = record["scores"][methods(record)[0]]
    found = [(name, one["resource"]) for name, one in by_amount(record) if name in scored]
    groups = {resource: [name for name, r in found if r == resource] for resource in RESOURCES}
    groups["all"] = [name for name, _ in found]
    return {resource: names for resource, names in groups.items() if names}


def _languages(
    vocabulary: BuiltVocabulary, allocation: Allocation | None, beta: float
) -> dict[str, Any]:
    resource = _resources({name: one.amount for name, one in vocabulary.languages.items()})
    shared = _shared(vocabulary, allocation) if allocation is not None else {}
    single = [ord(piece) for piece in vocabulary.choice.pieces if len(piece) == 1]
    known = _marked(np.array(single, np.int32))
    known |= vocabulary.choice.kind == BYTE_BPE  # its bytes make every character
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


def _clusters(
    vocabulary: BuiltVocabulary, allocation: Allocation | None, beta: float
) -> dict[str, Any]:
    if allocation is None:
        return {}
    clusters = {}
    for name, group in vocabulary.choice.groups.items():
        weight = sum(vocabulary.languages[language].probability for language in group) ** beta
        clusters[name] = {"languages": list(group), **_of_allocation(allocation, name, weight)}
    return clusters


def _resources(amounts: Mapping[str, float]) -> dict[str, str]:
    """Return each language's resource group, thirds by amount; "all" for fewer than three."""
    order = sorted(amounts, key=lambda language: (-amounts[language], language))
    if len(order) < len(RESOURCES):
        return dict.fromkeys(order, "all")
    thirds = np.array_split(order, len(RESOURCES))
    return {
        str(name): resource
        for resource, third in zip(RESOURCES, thirds, strict=True)
        for name in third
    }


def _shared(vocabulary: BuiltVocabulary, allocation: Allocation) -> dict[str, float]:
    """Return, for each language, the share of its pieces that other vocabularies also hold."""
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
    """Return amounts of text, and shares of its characters that are not pieces."""
    heldout = one.heldout if one.heldout and one.heldout.num_sentences else None
    in_training = _marked(one.table.text.characters)
    return {
        "bytes": one.table.num_bytes,
        "sentences": one.table.num_sentences,
        "uncovered": _share_outside(one.table, known),
        "heldout_sentences": heldout.num_sentences if heldout else 0,
        "heldout_uncovered": _share_outside(heldout, known) if heldout else None,
        "heldout_unseen": _share_outside(heldout, known | in_training) if heldout else None,
    }


def _marked(characters: np.ndarray) -> np.ndarray:
    """Return [number of code points] bool, a mask of the code points that occur."""
    marked = np.zeros(sys.maxunicode + 1, np.bool_)
    marked[characters] = True
    return marked


def _share_outside(table: PretokenTable, marked: np.ndarray) -> float:
    """Return the share of the characters of a text that are not marked."""
    offsets = table.text.offsets
    outside = np.add.reduceat(~marked[table.text.characters], offsets[:-1], dtype=np.int64)
    return float((outside @ table.counts) / (np.diff(offsets) @ table.counts))


def _of_allocation(allocation: Allocation | None, name: str, weight: float) -> dict[str, Any]:
    """Return the allocation of a language or a cluster; `weight` is q^beta."""
    if allocation is None:
        return {**dict.fromkeys(("allocated", "less", "more")), "not_concave": [],
                "at_largest": False}  # fmt: skip
    size, margin = allocation.sizes[name], allocation.margins[name]

    def described(change: Change | None) -> dict[str, Any] | None:
        if change is None:
            return None
        # Not `change.gain`, whose weight depends on the method: here it is always q^beta.
        gain = weight * change.alp / (change.size - size)
        return dataclasses.asdict(change) | {"gain": gain}

    return {
        "allocated": size,
        "not_concave": list(allocation.not_concave.get(name, ())),
        "at_largest": name in allocation.at_largest,
        "less": described(margin.less),
        "more": described(margin.more),
    }


def _course(
    vocabulary: BuiltVocabulary, allocation: Allocation | None, of_languages: bool, method: str
) -> dict[str, Any]:
    """Return the course of the allocation: initial sizes, steps, gain at the cut, partial step."""
    if allocation is None:
        return {"first_pieces": None, "cut": None, "partial": None, "steps": []}
    # Initial sizes, which every language gets, are not decisions.
    first = [step for step in allocation.steps if np.isinf(step.gain)]
    steps = [step for step in allocation.steps if np.isfinite(step.gain)]
    # Capacities weigh the gains of clusters, which so have no meaning.
    unknown = {} if of_languages else {"gain": None}
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
        "steps": [dataclasses.asdict(step) | unknown for step in steps],
    }
