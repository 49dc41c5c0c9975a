"""Parts of nested dictionaries of parameters, which are nested dictionaries with fewer entries."""

from collections.abc import Collection, Mapping
from typing import Any


def selected(params: Any, name: str, prefix: str = "") -> Any:
    """Return the parameters with `name` in their paths, such as "cross_attention"; "" for all."""
    if not name:
        return params
    found = {}
    for key, value in params.items():
        path = f"{prefix}/{key}" if prefix else key
        if name in path:
            found[key] = value
        elif isinstance(value, Mapping) and (part := selected(value, name, path)):
            found[key] = part
    return found


def excluding(params: Any, names: Collection[str]) -> Any:
    """Return the parameters with none of `names` among the keys of their paths."""
    if not names:
        return params
    found = {}
    for key, value in params.items():
        if key in names:
            continue
        if not isinstance(value, Mapping):
            found[key] = value
        elif part := excluding(value, names):
            found[key] = part
    return found


def without(params: Any, part: Any) -> Any:
    """Return the parameters that `part` does not have."""
    found = {}
    for key, value in params.items() if isinstance(params, Mapping) else ():
        if key not in part:
            found[key] = value
        elif rest := without(value, part[key]):
            found[key] = rest
    return found


def merged(params: Any, part: Any) -> Any:
    """Copy nested dictionaries, adding the values of `part` or replacing values by them."""
    if not isinstance(part, Mapping):
        return part
    return {**params, **{key: merged(params.get(key, {}), x) for key, x in part.items()}}


def has_path(tree: Any, path: str) -> bool:
    """Return whether nested dictionaries have a value at path "a/b/c"."""
    for key in path.split("/"):
        if not isinstance(tree, Mapping) or key not in tree:
            return False
        tree = tree[key]
    return True
