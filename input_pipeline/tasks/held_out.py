"""Hold-out of training examples as development data, for users without such data."""

import collections
import hashlib
import json
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np


def held_out(
    examples: Mapping[str, Sequence[Any]],
    labels: Callable[[Any], Iterable[Hashable]],
    share: float,
    selecting: Collection[str],
) -> dict[str, list[bool]]:
    """Return by language whether each example is held out.

    Examples with one text, or of one group, are on one side, whatever their languages. For each
    language in `selecting` and each of `labels`, about `share` of the examples is held out: at
    least one, and at most half if `share` is less. The rarest label comes first, and texts in the
    order of their hashes. So added examples move few others.

    Raise ValueError unless 0 < share < 1 and each language in `selecting` has some on both sides.
    """
    if not 0 < share < 1:
        raise ValueError(
            f"task.validation_share is {share}, must be between 0 and 1, or name task.validation"
        )
    flat = [(language, one) for language, some in examples.items() for one in some]
    contents = (json.dumps(example.content, ensure_ascii=False) for _, example in flat)
    hashes = [hashlib.sha256(text.encode()).hexdigest() for text in contents]
    units = _units([(key, example.group and f"group {example.group}")
                    for key, (_, example) in zip(hashes, flat, strict=True)])  # fmt: skip
    # Examples of each label of a language by unit, and the units' labels.
    strata: dict[Any, collections.Counter[int]] = collections.defaultdict(collections.Counter)
    members: dict[int, set[Any]] = collections.defaultdict(set)
    first: dict[int, str] = {}
    for (language, example), unit, key in zip(flat, units, hashes, strict=True):
        first[unit] = min(first.get(unit, key), key)
        for label in set(labels(example)) if language in selecting else ():
            strata[language, label][unit] += 1
            members[unit].add((language, label))
    total = {stratum: counts.total() for stratum, counts in strata.items()}
    target = {one: min(max(round(share * n), 1), n - 1) for one, n in total.items()}
    half = {one: max(target[one], n / 2) for one, n in total.items()}
    taken: set[int] = set()
    have: collections.Counter[Any] = collections.Counter()
    for stratum in sorted(strata, key=lambda one: (total[one], str(one))):
        order = sorted(strata[stratum], key=first.__getitem__)
        # Units with more of any label than its share come last.
        for unit, most in [(unit, most) for most in (target, half) for unit in order]:
            added = {one: strata[one][unit] for one in members[unit]}
            if have[stratum] >= target[stratum]:
                break
            if unit not in taken and all(have[one] + n <= most[one] for one, n in added.items()):
                taken.add(unit)
                have.update(added)
    is_out = iter(unit in taken for unit in units)
    found = {language: [next(is_out) for _ in some] for language, some in examples.items()}
    if empty := [language for language in selecting if not any(found[language])]:
        raise ValueError(
            f"{empty[0]}: there is no development file, and none of {len(found[empty[0]])} "
            "training examples can be held out: they are few, or have one text or group; add a "
            "development file (task.validation), or more examples"
        )
    return found


def _units(keys: Sequence[Iterable[str]]) -> list[int]:
    """Return the number of each item's unit; items that share a key other than "" are in one."""
    from scipy.sparse import coo_array, csgraph  # slow

    known: dict[str, int] = {}
    pairs = [(i, known.setdefault(key, i)) for i, some in enumerate(keys) for key in some if key]
    rows, columns = np.array(pairs).T
    graph = coo_array((np.ones(len(pairs)), (rows, columns)), shape=(len(keys), len(keys)))
    return csgraph.connected_components(graph, directed=False)[1].tolist()
