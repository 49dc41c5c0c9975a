"""Model cards of exported runs: README.md as Hugging Face's hub shows it.

Of runs of finetune.py here; `xlm.experiment.pretrained_card` has those of train.py.
"""

import dataclasses
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

from ml_collections import ConfigDict

from xlm.common import tables
from xlm.evaluation import task_results
from xlm.experiment.task_settings import TaskSettings
from xlm.interop import task_heads
from xlm.interop.task_heads import TaskHead

# Formats of an export, and the library that cards name; the hub has none for ONNX.
FORMATS = {
    "transformers": "transformers", "onnx": "", "sentence_transformers": "sentence-transformers"
}  # fmt: skip
_PIPELINES = {
    task_heads.SEQUENCES: "text-classification",
    task_heads.TOKENS: "token-classification",
    task_heads.SPANS: "question-answering",
}
_SPM = """\
`AutoTokenizer` cannot read this folder: {reason}. Text is read with sentencepiece; a text is
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
_SEQUENCES = """\
{texts}
rows = tokenizer(
    {names}, truncation=True, max_length={length}, padding=True, return_tensors="pt"
)
with torch.no_grad():
    scores = model(**rows).logits
"""
_TOKENS = """\
words = ["A", "sentence", "of", "words"]
row = tokenizer(
    words, is_split_into_words=True, truncation=True, max_length={length}, return_tensors="pt"
)
with torch.no_grad():
    scores = model(**row).logits[0]
word_of = row.word_ids()
for number, word in enumerate(words):
    tokens = [i for i, one in enumerate(word_of) if one == number]
    of_word = scores[tokens{first}].mean(0)
    print(word, model.config.id2label[of_word.argmax().item()])
"""
_SPANS = """\
question, context = "A question?", "The context, in which the answer is."
row = tokenizer(
    question, context, truncation="only_second", max_length={length},
    return_offsets_mapping=True, return_tensors="pt",
)
offsets = row.pop("offset_mapping")[0].tolist()
with torch.no_grad():
    scores = model(**row)
starts, ends = scores.start_logits[0], scores.end_logits[0]
context_tokens = [i for i, one in enumerate(row.sequence_ids()) if one == 1]
spans = [(i, j) for i in context_tokens for j in context_tokens if i <= j < i + {answer}]
first, last = max(spans, key=lambda span: starts[span[0]] + ends[span[1]])
answer = context[offsets[first][0] : offsets[last][1]].strip()
"""
_NO_ANSWER = """\
if starts[0] + ends[0] - starts[first] - ends[last] > {threshold}:
    answer = ""
"""
_OWN_FORM = """\
{reason}. The tensors of the encoder and, under names that begin with `task.`, those of the head are
read with safetensors, and text with the tokenizer:

```python
{imports}

tensors = load_file("model.safetensors")
{tokenizer}
```

`predict.py --workdir=RUN` of this project predicts with the run that this is an export of.
"""


@dataclasses.dataclass(frozen=True)
class Facts:
    """Facts of a run that its card tells.

    Attributes:
      config: of the run.
      options: its task.
      results: its results.json.
      head: as exported; its class is "" if no class computes it.
      num_layers, hidden_size: of the encoder.
      start: digest of the parameters that it started from.
      reason: why `transformers` loads it by the code in its folder alone, if at all, or "".
      tokenizer_reason: why `AutoTokenizer` cannot read its tokenizer, or "".
      form: one of `FORMATS`.
    """

    config: ConfigDict
    options: TaskSettings
    results: dict[str, Any]
    head: TaskHead
    num_layers: int
    hidden_size: int
    start: str
    reason: str
    tokenizer_reason: str = ""
    form: str = "transformers"


def text(facts: Facts) -> str:
    """Write the card of a run, Markdown with the metadata that Hugging Face's hub reads."""
    options, results = facts.options, facts.results
    sections = [
        _metadata(facts),
        f"# {tables.escaped(results['model'])}, fine-tuned on {options.name}",
        _task(facts),
        "## How to use it\n\n" + _usage(facts),
        "## Scores\n\n" + _choice(results.get("selected") or {}),
        task_results.table(options.task, results),
        "## Training\n\n" + _training(facts),
        LICENCE,
    ]
    return "\n\n".join(section.strip() for section in sections) + "\n"


LICENCE = """\
## Licence

To be filled in by whoever publishes this model: it depends on the licences of the model that it
started from and of the data that it was trained on."""


def metadata(languages: Iterable[str], form: str, *, base: str = "", **more: Any) -> str:
    """Return the metadata for the hub; `more` are values by key, left out where empty."""
    # JSON is YAML; "no" alone would be false, not Norwegian.
    found = {"language": sorted(languages), "license": "unknown", "base_model": base,
             "library_name": FORMATS[form], **more}  # fmt: skip
    lines = [f"{key}: {json.dumps(value)}" for key, value in found.items() if value]
    return "\n".join(["---", *lines, "---"])


def loading(form: str, suffix: str, reason: str, tokenizer_reason: str) -> str:
    """Return code that loads a class of this suffix, without its end; the rest is of `Facts`."""
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


def _choice(selected: Mapping[str, Any]) -> str:
    """Describe the choice of the parameters, and whether the scores are of them."""
    if not selected:
        return "In percent."
    found = (
        f"In percent. The parameters are those of step {selected['step']}, the best by "
        f"{selected['metric']} on the validation data in {', '.join(selected['on'])}."
    )
    if "steps" in selected:
        found += (
            " The scores are not theirs, unless the step is the same: those of each language are "
            "of the checkpoint that did best on its own validation data, which is not here."
        )
    return found


def _metadata(facts: Facts) -> str:
    scored = facts.results["test"] or facts.results["validation"]
    suffix = facts.head.class_suffix
    return metadata(
        _trained_on(facts), facts.form if suffix else "onnx", base=facts.results["model"],
        pipeline_tag=_PIPELINES[suffix] if suffix and not facts.tokenizer_reason else "",
        metrics=list(dict.fromkeys(name for scores in scored.values() for name in scores)),
    )  # fmt: skip


def _trained_on(facts: Facts) -> tuple[str, ...]:
    """Languages of the training data; where no key names them, those of the run's setting."""
    if facts.options.train_languages:
        return tuple(facts.options.train_languages)
    setting, _, named = facts.results["setting"].partition(":")
    if named:
        return tuple(named.split("+"))
    # Else of translate-train-all, in every language that is tested.
    return ("en",) if setting == "zero_shot" else tuple(facts.results["test"])


def _task(facts: Facts) -> str:
    options, head = facts.options, facts.head
    found = [
        f"A model of {facts.num_layers} layers of {facts.hidden_size} for {options.name}, a task "
        f"of kind {head.kind.replace('_', ' ')}."
    ]
    if head.labels:
        labels = [f"`{label.replace('`', '')}`" for label in head.labels]
        found.append(f"Labels: {', '.join(labels)}.")
    elif head.class_suffix == task_heads.SEQUENCES:
        found.append("Its output is a number.")
    if options.reads_mean:
        found.append(
            "Its head reads the mean of the last states of all tokens but padding, in place of the "
            "state of `<s>`."
        )
    if head.class_suffix == task_heads.TOKENS:
        pooled = "of its first token" if options.pooling == "first" else "of its tokens, averaged"
        found.append(f"A word's scores are those {pooled}, before any softmax.")
    return " ".join(found)


def _usage(facts: Facts) -> str:
    suffix, options = facts.head.class_suffix, facts.options
    if not suffix:
        return _own_form(facts)
    code, note = loading(facts.form, f"For{suffix}", facts.reason, facts.tokenizer_reason), ""
    if facts.tokenizer_reason or facts.form == "onnx":
        return f"{code}```\n"
    code += "\n"
    if suffix == task_heads.SEQUENCES:
        names, texts = "texts", '["A text"]'
        if options.task.is_of_pairs:
            names, texts = "texts, others", '["A text"], ["Another text"]'
        code += _SEQUENCES.format(
            texts=f"{names} = {texts}", names=names, length=options.max_length
        )
        code += (
            "print([model.config.id2label[i] for i in scores.argmax(-1).tolist()])\n"
            if facts.head.labels
            else "print(scores[:, 0].tolist())\n"
        )
    elif suffix == task_heads.TOKENS:
        first = "[:1]" if options.pooling == "first" else ""
        code += _TOKENS.format(length=options.max_length, first=first)
    else:
        code += _SPANS.format(length=options.max_length, answer=options.max_answer_length)
        if (threshold := facts.results.get("null_threshold")) is not None:
            code += _NO_ANSWER.format(threshold=threshold)
        code += "print(answer)\n"
        note = (
            f"\nThe scores below are of windows of {options.max_length} tokens every "
            f"{options.stride} over longer contexts, which this code cuts off.\n"
        )
    return f"{code}```\n{note}"


def _own_form(facts: Facts) -> str:
    imports = ["from safetensors.numpy import load_file"]
    if facts.tokenizer_reason:
        imports.insert(0, "import sentencepiece")
        tokenizer = 'sentencepiece.SentencePieceProcessor(model_file="spm.model")'
    else:
        imports.append("from transformers import AutoTokenizer")
        tokenizer = 'AutoTokenizer.from_pretrained(".")'
    return _OWN_FORM.format(
        reason=facts.reason, imports="\n".join(imports), tokenizer=f"tokenizer = {tokenizer}"
    )


def _training(facts: Facts) -> str:
    config, options = facts.config, facts.options
    frozen = {"optimizer.frozen": ", ".join(config.optimizer.frozen)}
    started = "random parameters of its sizes" if config.random_init else "its parameters"
    languages = _trained_on(facts)
    sources = [one for code in languages for one in options.patterns("train", code)]
    trained = ", ".join([f"`{_public(one)}`" for one in dict.fromkeys(sources)])
    rows = {
        "started from": f"{tables.escaped(facts.results['model'])}, {started} "
        f"(SHA-256 `{facts.start[:16]}`)",
        "trained on": f"{options.name} in {', '.join(languages)}: {trained}",
        "seed": facts.results["seed"],
        **{f"train.{key}": config.train[key] for key in ("epochs", "batch_size")},
        **{
            f"optimizer.{key}": config.optimizer[key]
            for key in (
                "learning_rate", "warmup_share", "schedule", "weight_decay", "clip_norm",
            )
        },
        **(frozen if config.optimizer.frozen else {}),
        **{f"model.{key}": config.model[key] for key in ("dtype", "dropout_rate")},
        "task.max_length": options.max_length,
    }  # fmt: skip
    return tables.markdown([{"": key, " ": value} for key, value in rows.items()], left=2)


def _public(pattern: str) -> str:
    """Return a pattern of files without the folders of the machine that it was read on."""
    return pathlib.PurePath(pattern).name if pattern.startswith("/") else pattern
