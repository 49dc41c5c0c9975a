"""Check of a whole config, before a command reads anything else.

Settings classes check what belongs to their rooms: names of choices, and values that must fit each
other. Here stand sections and keys, types, and the limits of single numbers.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from configs import base

# (lower limit, whether it is itself allowed, upper limit, which is not) of numbers.
_Limits = tuple[float, bool, float]
_AT_LEAST_0: _Limits = (0, True, math.inf)
_AT_LEAST_1: _Limits = (1, True, math.inf)
_ABOVE_0: _Limits = (0, False, math.inf)
_BELOW_1: _Limits = (0, True, 1)
_INT32: _Limits = (0, True, 2**31)  # of scalars of a program
_LIMITS: dict[_Limits, tuple[str, ...]] = {
    _AT_LEAST_0: (
        "corpus.max_train_bytes", "corpus.block_bytes", "vocab.alpha", "vocab.beta",
        "vocab.em_iterations", "data.alpha",
        "data.pair_alpha", "model.num_layers", "model.distance_slope", "optimizer.learning_rate",
        "optimizer.muon_learning_rate", "optimizer.warmup_steps", "optimizer.weight_decay",
        "optimizer.clip_norm", "optimizer.decay_power",
        "evaluation.max_sequences", "evaluation.max_sequences_in_training",
        "evaluation.retrieval_layer", "evaluation.retrieval_max_sentences", "task.layer",
        "evaluation.examples_in_training",
    ),
    _AT_LEAST_1: (
        "vocab.target_size", "vocab.num_workers", "store.num_workers", "store.shard_bytes",
        "data.prefetch",
        "model.embedding_size", "model.hidden_size", "model.num_heads", "model.mlp_size",
        "model.max_length", "model.distance_buckets", "model.max_distance", "mesh.vocab_multiple",
        "evaluation.batch_size", "evaluation.num_folds", "train.batch_size", "train.log_every",
        "train.accumulation_steps", "train.evaluations", "train.keep_checkpoints",
        "task.max_length", "task.stride", "task.max_query_length", "task.max_answer_length",
        "task.n_best", "train.batch_tokens", "evaluation.batch_tokens",
        "evaluation.beams_in_training",
    ),
    _ABOVE_0: ("model.rotary_theta", "optimizer.epsilon", "train.epochs"),
    _INT32: ("train.seed", "evaluation.seed"),
    _BELOW_1: (
        "model.dropout_rate", "model.attention_dropout_rate", "optimizer.beta1", "optimizer.beta2",
        "optimizer.muon_momentum", "optimizer.warmup_share",
    ),
}  # fmt: skip
# Logical axes of the parameters in `models`, which mesh.rules may shard.
LOGICAL_AXES = (
    "vocab", "embed", "embed_out", "heads", "mlp", "position", "layers", "output",
)  # fmt: skip


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return _is_number(value) and isinstance(value, int)


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2


def _is_mesh_axis(value: Any) -> bool:
    return (
        value is None
        or _is_text(value)
        or (isinstance(value, tuple | list) and all(map(_is_text, value)))
    )


# Elements of tuples: whether a value is one, what it must be with an example, and of which keys.
_Elements = tuple[Callable[[Any], bool], str, tuple[str, ...]]
_ELEMENTS: tuple[_Elements, ...] = (
    (
        _is_text,
        'text, such as ("en", "sw")',
        (
            "corpus.text", "corpus.parallel", "corpus.parallel_eval", "corpus.languages",
            "corpus.exclude", "vocab.compare", "task.train", "task.validation", "task.test",
            "task.train_languages", "task.validation_languages", "task.test_languages",
            "optimizer.frozen",
        ),
    ),
    (
        lambda value: _is_text(value) or _is_whole(value),
        'text or a whole number, such as ("neg", "pos")',
        ("task.labels",),
    ),
    (
        _is_whole,
        "a whole number, such as (64, 128)",
        ("vocab.sizes", "data.pair_buckets", "task.buckets"),
    ),
    (
        lambda value: _is_pair(value) and _is_whole(value[0]) and _is_number(value[1]),
        "a pair of a step and a number, such as ((1000, 0.5),)",
        ("data.alpha_phases",),
    ),
    (
        lambda value: _is_pair(value) and _is_text(value[0]) and _is_mesh_axis(value[1]),
        'a pair of a logical axis and a mesh axis, such as (("vocab", "model"),)',
        ("mesh.rules",),
    ),
)  # fmt: skip
# Tuples of names without commas: "en,sw" is one text to ml_collections, though 100,200 two numbers.
_NAMES = (
    "corpus.languages", "vocab.compare", "task.train_languages", "task.validation_languages",
    "task.test_languages", "optimizer.frozen",
)  # fmt: skip


def checked(config: ConfigDict, defaults: ConfigDict | None = None) -> ConfigDict:
    """Return `config` if it has the sections, keys and types of `defaults`, within the limits.

    Args:
      defaults: by default those of pre-training. Other configs, and those with an objective of
        another package, may have sections of their own.

    Raises:
      ValueError: a section or key is missing or unknown, or a value or an element of a tuple is of
        another type or out of its limits; the message names the key.
    """
    if not isinstance(config, ConfigDict):
        raise ValueError(
            f"get_config() of the config file returns {type(config).__name__}, must return a "
            "ConfigDict"
        )
    expected = (base.get_config() if defaults is None else defaults).to_dict()
    found = config.to_dict()
    # Those of another package's objective, or of a kind of tasks, are checked where it is built.
    allows_others = defaults is not None or ":" in str(found.get("objective", ""))
    _check_keys("config", found, expected, allows_others)
    for name, section in expected.items():
        if not isinstance(section, dict):
            _check_type(f"config.{name}", found[name], section)
            continue
        if not isinstance(found[name], dict):
            raise ValueError(
                f"config.{name} is {found[name]!r}, must be a section, a ConfigDict with the keys "
                f"{', '.join(section)}"
            )
        _check_keys(f"config.{name}", found[name], section, allows_others=False)
        for key, value in section.items():
            _check_type(f"config.{name}.{key}", found[name][key], value)
    for key, value in _values(found):
        if _is_number(value):
            _check_limits(key, value)
        elif isinstance(value, tuple | list):
            _check_elements(key, value)
    if "mesh" in expected and not allows_others:
        _check_axes(found["mesh"]["rules"])
    return config


def recorded(found: Mapping[str, Any], defaults: ConfigDict | None = None) -> ConfigDict:
    """Return a recorded config with the defaults of keys that it lacks, checked as `checked`."""
    whole = dict(found)
    for name, default in (defaults or base.get_config()).to_dict().items():
        value = found.get(name, default)
        is_section = isinstance(default, dict) and isinstance(value, dict)
        whole[name] = {**default, **value} if is_section else value
    return checked(ConfigDict(whole), defaults)


def _check_keys(
    name: str, found: Mapping[str, Any], expected: Mapping[str, Any], allows_others: bool
) -> None:
    missing = sorted(set(expected) - set(found))
    unknown = [] if allows_others else sorted(set(found) - set(expected))
    if missing or unknown:
        raise ValueError(
            f"{name}: unknown keys {unknown}, missing keys {missing}; correct the names, and let "
            "the config begin with the get_config() of configs/base.py, or base() of "
            "configs/finetune/base.py"
        )


def _check_type(key: str, value: Any, default: Any) -> None:
    wanted: tuple[type, ...]
    if default is None:
        return
    if isinstance(default, bool):
        wanted, name = (bool,), "True or False"
    elif isinstance(default, int):
        wanted, name = (int,), "a whole number"
    elif isinstance(default, float):
        wanted, name = (int, float), "a number"
    elif isinstance(default, str):
        wanted, name = (str,), "text"
    elif isinstance(default, dict):
        wanted, name = (dict,), "a ConfigDict"
    else:
        wanted, name = (tuple, list), 'a tuple, such as ("en", "sw")'
    is_bool = isinstance(value, bool) and wanted != (bool,)
    if is_bool or not isinstance(value, wanted):
        raise ValueError(f"{key} is {value!r} ({type(value).__name__}), must be {name}")


def _values(found: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the values of all sections with their keys."""
    for name, section in found.items():
        for key, value in section.items() if isinstance(section, dict) else ():
            yield f"{name}.{key}", value


def _check_elements(key: str, values: Sequence[Any]) -> None:
    for is_right, wanted, keys in _ELEMENTS:
        wrong = [one for one in values if not is_right(one)] if key in keys else []
        if wrong:
            raise ValueError(f"{key} is {values!r}, in which {wrong[0]!r} must be {wanted}")
    # A label may have a comma, but none is alone.
    is_of_names = key in _NAMES or (key == "task.labels" and len(values) == 1)
    for joined in (one for one in values if is_of_names and "," in str(one)):
        several = ",".join(repr(name.strip()) for name in joined.split(","))
        raise ValueError(
            f"{key} is {values!r}, in which {joined!r} has a comma; write several as "
            f'--config.{key}="({several})"'
        )


def _check_axes(rules: Sequence[Any]) -> None:
    if unknown := [name for name, _ in rules if name not in LOGICAL_AXES]:
        raise ValueError(
            f"mesh.rules is {rules!r}, but no parameter has the axis {unknown[0]!r}; name one of "
            f"{', '.join(LOGICAL_AXES)}"
        )


def _check_limits(key: str, value: float) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{key} is {value}, must be finite")
    for (low, is_allowed, high), keys in _LIMITS.items():
        is_high = value >= high
        if key in keys and (value < low or (value == low and not is_allowed) or is_high):
            below = "" if high == math.inf else f" and below {high}"
            raise ValueError(
                f"{key} is {value}, must be {'at least' if is_allowed else 'above'} {low:g}{below}"
            )
