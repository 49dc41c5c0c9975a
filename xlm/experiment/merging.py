"""Models of one vocabulary and architecture, merged into one."""

import dataclasses
import logging
import pathlib
from collections.abc import Sequence

import jax

from xlm.common import places, tables
from xlm.experiment import objectives
from xlm.experiment.pretrained import Pretrained, read_last, read_pretrained
from xlm.interop import cards, model_folder
from xlm.training.averaging import mean_params, ties


def merge(
    output: pathlib.Path, models: Sequence[str], method: str = "mean", base: str | None = None, *,
    density: float = 0.2, last: int = 1,
) -> None:  # fmt: skip
    """Merge models, of runs or model folders, into a folder, absent or empty.

    Raises ValueError if the models do not fit each other, or arguments are missing.

    Args:
      method: "mean" of all parameters, or "ties" (see `averaging.ties`), which needs `base`.
      density: share of each model's differences from the base that ties keeps.
      last: number of last checkpoints of each run to average first.
    """
    if method not in ("mean", "ties") or (method == "ties") != (base is not None):
        raise ValueError(
            f'the method of merging is {method!r} with the base {base}; it must be "mean" without '
            'a base, or "ties" with the model before the branches (--base, or "after")'
        )
    if len(models) == 1 and last == 1:
        raise ValueError(f"there is one model to merge, {models[0]}; name two or more, or --last")

    def read_like(first: Pretrained, name: str, last: int = last) -> Pretrained:
        found = _read(name, last)
        _check_alike(first, models[0], found, name)
        return found

    first = _read(models[0], last)
    trees = (one.params for one in (first, *(read_like(first, name) for name in models[1:])))
    if base is not None:
        params = ties(read_like(first, base, 1).params, trees, density)
    else:
        params = jax.device_get(mean_params(trees))
    sizes, names = dataclasses.asdict(first.settings), [pathlib.Path(one).name for one in models]
    what = "The mean" if method == "mean" else f"A merger by TIES (density {density})"
    after = f", branches of {pathlib.Path(base).name}" if base else ""
    steps = f", of each the mean of its last {last} checkpoints" if last > 1 else ""
    card = cards.of_model(
        sizes, first.tokenizer, has_head="head" in params, base=names,
        origin=f"{what} of {tables.escaped(', '.join(names) + after)}{steps}.",
    )  # fmt: skip
    model_folder.write_model(output, params, sizes, first.tokenizer, card=card)


def _read(name: str, last: int) -> Pretrained:
    if last == 1:
        return read_pretrained(name, keeps_decoder=True)
    found, steps = read_last(places.fetched(name), last)
    logging.info("%s: the mean of steps %s", name, steps)
    return found


def _check_alike(first: Pretrained, first_name: str, found: Pretrained, name: str) -> None:
    if found.tokenizer != first.tokenizer:
        raise ValueError(
            f"{name} has another tokenizer than {first_name}; merge models of one vocabulary"
        )
    there, here = (objectives.shapes(one.params) for one in (first, found))
    for key in objectives.differing(there, here):
        raise ValueError(
            f"{name} and {first_name} differ in {key}, {here.get(key)} and {there.get(key)}; "
            "merge models of one architecture"
        )
