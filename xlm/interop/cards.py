"""Model cards: README.md of a folder, as Hugging Face's hub shows it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from xlm.common import tables
from xlm.interop import huggingface, model_folder, task_heads
from xlm.interop.task_heads import TaskHead
from xlm.interop.vocabulary import parse

# Formats of an export, and the library that cards name; the hub has none for ONNX.
FORMATS = {
    "transformers": "transformers", "onnx": "", "sentence_transformers": "sentence-transformers"
}  # fmt: skip
PIPELINES = {
    "": "feature-extraction",
    "MaskedLM": "fill-mask",
    task_heads.SEQUENCES: "text-classification",
    task_heads.TOKENS: "token-classification",
    task_heads.SPANS: "question-answering",
}
_OTHER_PIPELINES = {"onnx": "", "sentence_transformers": "sentence-similarity"}
LIMITS = """\
## Limits

- Its only training task is the one above.
- Its training text has the errors, biases and personal data of its sources.
- This card does not list the text of a model that it started from."""
LICENCE = """\
## Licence

The publisher fills this in: it depends on the licences of the model that this one started from and
of its training data."""
_SPM = """\
`AutoTokenizer` cannot read this folder: {reason}. Read text with sentencepiece: a text is
`<s> A </s>`, and a pair of texts `<s> A </s> </s> B </s>`.

"""
_ONNX = """
rows = tokenizer(["A text"], padding=True, truncation=True, return_tensors="np")
outputs = model.run(None, {name: rows[name] for name in ("input_ids", "attention_mask")})
"""
_VECTORS = """\
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("."{trust})  # this folder
vectors = model.encode(["A text", "Another text"])
"""


def of_model(
    sizes: Mapping[str, Any], tokenizer: bytes, form: str = "transformers", *, has_head: bool,
    origin: str, base: str | Sequence[str] = "", task_head: TaskHead | None = None,
    title: str = "Encoder", languages: Sequence[str] = (), losses: Mapping[str, Any] | None = None,
    sections: Iterable[str] = (),
) -> str:  # fmt: skip
    """Write the card of an encoder in one of `FORMATS`.

    Args:
      sizes: named as in `EncoderSettings`; `vocab_size` may include padding.
      tokenizer: the serialised SentencePiece model.
      has_head: whether it has a masked-LM head.
      origin: a sentence on the model's sources, as Markdown.
      base: names of the models from which it started, for the hub.
      losses: by language, metrics by name, for the hub.
      sections: further ones, before the limits.
    """
    reason = model_folder.why_not_transformers(sizes, has_head=has_head, task_head=task_head)
    suffix = task_head.class_suffix if task_head else "MaskedLM" if has_head else ""
    usage = loading(
        form, suffix and f"For{suffix}", reason, huggingface.why_not_exported(tokenizer)
    )
    task, pieces = PIPELINES[suffix], len(parse(tokenizer).pieces)
    index = model_index(title, task, "held-out text", losses or {})
    task = task if form == "transformers" else _OTHER_PIPELINES[form]
    return tables.page(
        front(languages, form, base=base, pipeline_tag=task, index=index),
        f"# {title}",
        f"{sizes['num_layers']} layers of {sizes['hidden_size']}, {pieces:,} pieces, "
        f"sequences of {sizes['max_length']} tokens. {origin}",
        f"## How to use it\n\n{usage}```",
        *([f"{reason}."] if reason and form != "onnx" else []),
        *sections,
        LIMITS,
        LICENCE,
    )


def model_index(
    name: str, task: str, dataset: str, scores: Mapping[str, Mapping[str, float | None]]
) -> list[str]:
    """Return lines of metadata with scores by language, which the hub shows beside the card."""
    results = [
        {
            "task": {"type": task},
            "dataset": {"type": dataset.replace(" ", "_"), "name": dataset, "config": language},
            "metrics": [{"type": key, "value": one} for key, one in of.items() if one is not None],
        }
        for language, of in scores.items()
    ]
    lines = [f"  - {json.dumps(one)}" for one in results]
    return ["model-index:", f"- name: {json.dumps(name)}", "  results:", *lines] if lines else []


def front(
    languages: Iterable[str],
    form: str,
    *,
    base: str | Sequence[str],
    index: Sequence[str],
    **more: Any,
) -> str:
    """Return the metadata for the hub, without keys of `more` that are empty.

    `index` comes from `model_index`.
    """
    # JSON is YAML. An unquoted "no" would be false, not Norwegian.
    found = {"language": sorted(languages), "license": "unknown", "base_model": base,
             "library_name": FORMATS[form], **more}  # fmt: skip
    lines = [f"{key}: {json.dumps(value)}" for key, value in found.items() if value]
    return "\n".join(["---", *lines, *index, "---"])


def loading(form: str, suffix: str, reason: str, tokenizer_reason: str) -> str:
    """Return code that loads a class of this suffix; the caller closes its fence."""
    trust = ", trust_remote_code=True" if reason and form != "onnx" else ""
    imports, names = ["import onnxruntime"], []
    model = 'onnxruntime.InferenceSession("model.onnx")'
    if form == "transformers":
        imports, names = ["import torch"], [f"AutoModel{suffix}"]
        model = f'AutoModel{suffix}.from_pretrained("."{trust}).eval()'
    if tokenizer_reason:
        imports.append("import sentencepiece")
        tokenizer = 'sentencepiece.SentencePieceProcessor(model_file="spm.model")'
    else:
        names.append("AutoTokenizer")
        tokenizer = f'AutoTokenizer.from_pretrained("."{trust})'
    imports += [f"from transformers import {', '.join(names)}"] if names else []
    lines = [*imports, "", f"model = {model}  # this folder", f"tokenizer = {tokenizer}", ""]
    code = "\n".join(lines) + (_ONNX if form == "onnx" and not tokenizer_reason else "")
    if form == "sentence_transformers":
        code = _VECTORS.format(trust=trust)
    note = _SPM.format(reason=tokenizer_reason) if tokenizer_reason else ""
    return f"{note}```python\n{code}"
