"""Model cards of exported runs of train.py."""

import pathlib
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from xlm.common import artifacts, tables
from xlm.common.languages import label
from xlm.experiment import model_card, seen, text_warnings
from xlm.experiment.data import Folders, open_packed_dataset
from xlm.interop import huggingface, model_folder

_LIMITS = """\
## Limits

- It predicts masked pieces, and its states are features. It has been trained for no other task.
- Its text came from its sources as they are, with their errors, biases and personal data.
- Text that the model before it was trained on, if it started from one, is not in the table."""

_EVALUATION = """\
Exact masked-LM loss on held-out text in nats a token, and that of a model that knows only the
frequencies of tokens."""


def text(
    folders: Folders, config: ConfigDict, step: int, sizes: Mapping[str, Any], form: str, *,
    has_head: bool,
) -> str:  # fmt: skip
    """Write the card of the checkpoint of a run; `form` is one of `model_card.FORMATS`."""
    store = open_packed_dataset(folders)
    reason = model_folder.why_not_transformers(sizes, has_head=has_head)
    unread = huggingface.why_not_exported(folders.read_tokenizer())
    usage = model_card.loading(form, "ForMaskedLM" if has_head else "", reason, unread)
    source = pathlib.Path(config.train.init_from)
    base = source.name if source.parent.name != "phases" else ""  # parts of this run
    pipeline = "fill-mask" if has_head else "feature-extraction"
    pipeline = {"transformers": pipeline, "onnx": ""}.get(form, "sentence-similarity")
    named = ", ".join(label(one) for one in store.languages)
    parts = [
        model_card.metadata(store.languages, form, base=base, pipeline_tag=pipeline),
        f"# Encoder of {len(store.languages)} languages",
        f"{sizes['num_layers']} layers of {sizes['hidden_size']}, {store.vocab_size:,} pieces, "
        f"sequences of {sizes['max_length']} tokens. Started from "
        f"{tables.escaped(source.name) or 'random parameters'}, and trained on {named}.",
        f"## How to use it\n\n{usage}```",
        *seen.section(config, store, step),
        *(_losses(folders, step) if has_head else ()),
        *text_warnings.section(folders),
        _LIMITS,
        model_card.LICENCE,
    ]
    return tables.page(*parts)


def _losses(folders: Folders, step: int) -> list[str]:
    """Return the parts on the losses in the run's report, if that is of this checkpoint."""
    path = folders.report / "results.json"
    found = artifacts.read_object(path) if path.exists() else {}
    if found.get("step") != step:
        return []
    keys = {"loss": "loss", "unigram": "unigram", "bits/char": "bits_per_character"}
    rows: list[dict[str, Any]] = [
        {"language": label(language), **{name: one[key] for name, key in keys.items()}}
        for language, one in sorted(found["losses"].items())
    ]
    collapsed = [row["language"] for row in rows if (row["loss"] or 0) >= (row["unigram"] or 1)]
    limit = f"\n\nNo better than these frequencies: {', '.join(collapsed)}." if collapsed else ""
    return ["## Evaluation", _EVALUATION, tables.markdown(rows, ".3f", mean=keys) + limit]
