"""Rows for new pieces in a model's folder of safetensors; all other tensors stay unchanged."""

import json
import pathlib
import re
import shutil
from collections.abc import Mapping, Sequence

import numpy as np

from xlm.common import artifacts
from xlm.interop import vocabulary, weights

_COPIED = (".json", ".jinja", ".md", ".py", ".txt")  # beside weights
_CONFIG = "config.json"
# Tensors with a row for each id: input embeddings, output layer, its bias.
_ROWS = re.compile(
    r"(^|[._])(embed_tokens|word_embeddings|wte|shared|tok_embeddings|embed_in|embed_out|lm_head|"
    r"decoder|output)\.(weight|bias)$|(^|\.)(lm_head|predictions|head)\.bias$|^embeddings\.table$"
)


def write(
    folder: pathlib.Path, target: pathlib.Path, first: int, parts: Sequence[Sequence[int]],
    tokenizer: Mapping[str, bytes],
) -> None:  # fmt: skip
    """Write a model's folder, without its tokenizer, with rows for the ids from `first` on.

    A row is the mean of the rows of the old ids `parts`, or of all rows without parts. It copies no
    weights but safetensors. `tokenizer` has the files whose digests the weights may hold. Raises
    ValueError if config.json has fewer rows than the tokenizer ids, or it finds no table.
    """
    config = artifacts.read_object(folder / _CONFIG)
    sized = config if "vocab_size" in config else config.get("text_config", {})
    size = sized.get("vocab_size")
    if not isinstance(size, int) or size < first:
        raise ValueError(
            f"{folder / _CONFIG}: vocab_size is {size!r}, but the tokenizer has ids up to "
            f"{first - 1}; give the tokenizer of this model"
        )
    target.mkdir(parents=True, exist_ok=True)
    for path in filter(pathlib.Path.is_file, sorted(folder.iterdir())):
        if path.suffix in _COPIED and not path.name.endswith(".index.json"):
            shutil.copyfile(path, target / path.name)
    sized["vocab_size"] = max(size, first + len(parts))
    artifacts.write_text(target / _CONFIG, json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    added, resized = [0, 0], 0
    for path in weights.weight_files(folder, "write the model with save_pretrained"):
        with weights.opened(path) as tensors:
            changed = {
                name: _with_rows(tensors.get_tensor(name), parts, first, f"{path}: {name}")
                for name in tensors.keys()  # noqa: SIM118
                if _ROWS.search(name) and tensors.get_slice(name).get_shape()[0] == size
            }
            resized += len(changed)
            for name, array in changed.items():
                old = tensors.get_slice(name).get_shape()
                more = array.size - int(np.prod(old))
                added = [added[0] + more, added[1] + more * array.itemsize]
        weights.copy(path, target / path.name, changed, tokenizer)
    if not resized:
        raise ValueError(
            f"{folder} has no embeddings of {size} rows by a known name, such as "
            "model.embed_tokens.weight; write the model with save_pretrained"
        )
    if (folder / weights.INDEX).exists():
        index = artifacts.read_object(folder / weights.INDEX)
        metadata = index.get("metadata", {})
        for key, more in zip(("total_parameters", "total_size"), added, strict=True):
            if key in metadata:
                metadata[key] += more
        artifacts.write_text(target / weights.INDEX, json.dumps(index, indent=2) + "\n")


def _with_rows(
    array: np.ndarray, parts: Sequence[Sequence[int]], first: int, place: str
) -> np.ndarray:
    """Return a table [V, D] or bias [V] with a row for each new id, from `first` on."""
    if array.dtype not in weights.TYPES:
        raise ValueError(
            f"{place} is of type {array.dtype}, must be float32, float16 or bfloat16; extend the "
            "model before you quantise it"
        )
    rows = array.reshape(len(array), -1)
    new = vocabulary.mean_rows(rows, parts, rows[:first].mean(axis=0, dtype=np.float64))
    found = np.zeros((max(len(rows), first + len(parts)), rows.shape[1]), array.dtype)
    found[: len(rows)] = rows
    found[first : first + len(parts)] = new
    return found.reshape(len(found), *array.shape[1:])
