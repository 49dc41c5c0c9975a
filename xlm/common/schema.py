"""Keys of a config: fields of settings classes, each declared once by `key`.

A field holds name, type, default and limits; the class's docstring documents it. Checks, help, the
reference page and the identity of a stage derive from these.
"""

import dataclasses
import difflib
import inspect
import math
import re
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

T = TypeVar("T")
Effect = Literal["results", "records", "place"]


def key(
    default: Any, *, at_least: float | None = None, above: float | None = None,
    below: float | None = None, at_most: float | None = None, choices: Sequence[str] = (),
    effect: Effect = "results",
) -> Any:  # fmt: skip
    """A field of a settings class that is a key of a config.

    Older records without the key get its `default`. `choices` limit a name, or the names in a
    tuple. A change affects the `effect`: "results"; "records" and speed, so that a stage may
    resume; or the "place" of text that a digest identifies.
    """
    limits = {"at_least": at_least, "above": above, "below": below, "at_most": at_most}
    metadata: dict[str, Any] = {"key": True, "choices": tuple(choices), "effect": effect}
    metadata |= {name: value for name, value in limits.items() if value is not None}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


class Key(NamedTuple):
    """A key of a section: type, default (None only if valid), meaning, limits of `key`."""

    kind: Any
    default: Any
    text: str
    limits: Mapping[str, Any]


Section = dict[str, Key]


def section(
    *classes: type, only: Iterable[str] = (), without: Iterable[str] = (), **defaults: Any
) -> Section:
    """Collect the keys of settings classes in order, `only` or `without` some, with `defaults`."""
    found: Section = {}
    for one in classes:
        kinds, texts = typing.get_type_hints(one), documentation(one)
        own = inspect.get_annotations(one)  # before those of its bases
        for field in sorted(dataclasses.fields(one), key=lambda field: field.name not in own):
            if not field.metadata.get("key"):
                continue
            make = field.default_factory
            default = field.default if make is dataclasses.MISSING else make()
            text = texts.get(field.name, "")  # there are none under PYTHONOPTIMIZE=2
            found[field.name] = Key(kinds[field.name], default, text, field.metadata)
    for name in without:
        del found[name]
    found = {name: found[name] for name in only} if only else found
    for name, value in defaults.items():
        found[name] = found[name]._replace(default=value)
    return found


def documentation(one: type) -> dict[str, str]:
    """Return the entries of a class's docstring by field; "a, b: text" stands for both."""
    found: dict[str, str] = {}
    for base in reversed(one.__bases__):
        found |= documentation(base) if base is not object else {}
    _, _, entries = (one.__doc__ or "").partition("Attributes:\n")
    for names, text in re.findall(r"^ {6}(\w[\w, ]*): (.*(?:\n {8}.*)*)", entries, re.M):
        for name in names.split(", "):
            found[name] = " ".join(text.split())
    return found


def settings(kind: type[T], section: Any, /, **derived: Any) -> T:
    """Convert a section of a checked config to a settings class.

    `section` has the values of keys; other fields keep their defaults. `derived` has values of
    further fields, such as the vocabulary size, or overrides keys.
    """
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    values = section.to_dict() if hasattr(section, "to_dict") else section
    names = {field.name for field in fields if field.metadata.get("key")} - set(derived)
    if not names:  # a class of another package, all of whose fields are keys
        names = {field.name for field in fields} - set(derived)
        if set(values) != names:
            unknown, missing = sorted(set(values) - names), sorted(names - set(values))
            raise ValueError(f"{kind.__name__}: unknown keys {unknown}, missing keys {missing}")
    return kind(**{name: values[name] for name in names if name in values}, **derived)


def check(settings: Any, name: str) -> None:
    """Raise ValueError if a value of a settings object, section `name`, is out of its limits."""
    for field in dataclasses.fields(settings):
        if field.metadata.get("key"):
            check_limits(f"{name}.{field.name}", getattr(settings, field.name), field.metadata)


def check_value(name: str, value: Any, one: Key) -> None:
    """Raise ValueError if a value has another type than its key, or is out of its limits."""
    if not _fits(value, one.kind):
        raise ValueError(f"{name} is {value!r} ({type(value).__name__}), must be {words(one.kind)}")
    if isinstance(value, tuple | list):
        element = typing.get_args(one.kind)[0]
        if wrong := [one for one in value if not _fits(one, element)]:
            raise ValueError(f"{name} is {value!r}, in which {wrong[0]!r} must be {words(element)}")
    check_limits(name, value, one.limits)


def check_limits(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name} is {value}, must be finite")
    if choices := limits.get("choices"):
        given = value if isinstance(value, tuple | list) else (value,)
        if wrong := [one for one in given if one not in choices]:
            shown = f"{value!r}, in which {wrong[0]!r}" if given is value else f"{value!r},"
            near = difflib.get_close_matches(str(wrong[0]), choices, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{name} is {shown} must be one of {', '.join(choices)}{hint}")
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    wanted = {
        "at_least": lambda limit: value >= limit, "above": lambda limit: value > limit,
        "at_most": lambda limit: value <= limit, "below": lambda limit: value < limit,
    }  # fmt: skip
    there = {limit: limits[limit] for limit in wanted if limit in limits}
    if not all(wanted[limit](bound) for limit, bound in there.items()):
        said = " and ".join(f"{one.replace('_', ' ')} {bound:.10g}" for one, bound in there.items())
        raise ValueError(f"{name} is {value}, must be {said}")


def words(kind: Any) -> str:
    """Describe a type in words, with an example if it is not plain."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    plain = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}
    if kind in plain:
        return plain[kind]
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is tuple and arguments[-1] is not Ellipsis:
        return f"a pair of {' and '.join(words(one) for one in arguments)}"
    if origin is tuple:
        examples = {str: '("en", "sw")', int: "(64, 128)"}
        return f"a tuple, such as {examples.get(arguments[0], '()')}"
    if origin in (types.UnionType, typing.Union):
        return " or ".join(words(one) for one in arguments if one is not type(None))
    return "a ConfigDict"


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a type, whatever the elements of a tuple."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return True
    if origin is Literal:
        return value in arguments
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, one) for one in arguments)
    if origin is tuple:
        is_tuple = isinstance(value, tuple | list)
        if is_tuple and arguments[-1] is not Ellipsis:
            return len(value) == len(arguments) and all(map(_fits, value, arguments))
        return is_tuple
    if origin is not None or kind is dict:
        return isinstance(value, Mapping)
    if kind in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, int | float if kind is float else kind)
