"""Model cards of exported models: README.md as Hugging Face's hub shows it."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from input_pipeline.packed_dataset import PackedDataset
from input_pipeline.tasks.tasks import TASKS
from xlm.common import artifacts, tables
from xlm.common.languages import label
from xlm.evaluation import task_results
from xlm.experiment import seen, text_warnings
from xlm.experiment.data import Folders
from xlm.experiment.task_settings import TaskSettings
from xlm.interop import cards, task_heads
from xlm.interop.task_heads import TaskHead
from xlm.interop.translation_folder import TranslationParts, symbol_names

_EVALUATION = """\
Exact masked-LM loss on held-out text in nats a token, and that of a model that knows only the
frequencies of tokens."""
# Of losses by language, for the hub.
_METRICS = ("loss", "bits_per_character")
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
{reason}. Read the tensors with safetensors. Names of the head's tensors begin with `task.`, all
others are the encoder's. To predict, run `predict.py --workdir=RUN` of this project with the run
that was exported.
"""

_TRANSLATION = """\
```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

model = AutoModelForSeq2SeqLM.from_pretrained(".").eval()  # this folder
tokenizer = AutoTokenizer.from_pretrained(".")

rows = tokenizer(["A sentence"], padding=True, truncation=True, return_tensors="pt")
target = tokenizer.convert_tokens_to_ids("{symbol}")
found = model.generate(**rows, decoder_start_token_id=target)
print(tokenizer.batch_decode(found, skip_special_tokens=True))
```

The symbols of target languages are {symbols}. `generate` searches as the run did. CTranslate2
serves the model faster: `ct2-transformers-converter --model=FOLDER --output_dir=SERVED`. Give it
the tokens of a source with `<s>` and `</s>`, {start}."""
_STARTS = {
    "MBart": "and the symbol as `target_prefix`",
    "Bart": "and set `decoder_start_token` in SERVED/config.json to the symbol",
}


@dataclasses.dataclass(frozen=True)
class Facts:
    """Facts of a run for its card, among them its results.json and its form of `FORMATS`.

    Attributes:
      head: as exported; its class is "" if no class computes it.
      start: digest of the initial parameters.
      reason: why `transformers` needs the code in the folder or cannot load it, or "".
      tokenizer_reason: why `AutoTokenizer` cannot read its tokenizer, or "".
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


class Run(NamedTuple):
    """A run of train.py at a step."""

    folders: Folders
    config: ConfigDict
    dataset: PackedDataset
    step: int


def text(facts: Facts) -> str:
    """Write the card of a run, Markdown with the metadata that Hugging Face's hub reads."""
    options, results = facts.options, facts.results
    sections = [
        _metadata(facts),
        f"# {tables.escaped(results['model'])}, fine-tuned on {options.title}",
        *(
            f"**This model has collapsed**: {tables.escaped(one)}."
            for one in results.get("collapse", ())
        ),
        _task(facts),
        "## How to use it\n\n" + _usage(facts),
        "## Scores\n\n" + _choice(results.get("selected") or {}),
        task_results.table(options.task, results),
        _calibrated(results.get("calibration", {}).get("temperature", 1.0)),
        "## Training\n\n" + _training(facts),
        cards.LICENCE,
    ]
    return tables.page(*(section.strip() for section in sections))


def _calibrated(temperature: float) -> str:
    """Say how to calibrate probabilities; "" for 1, as of a model without errors to learn from."""
    if temperature == 1:
        return ""
    return (
        f"Divide the scores by {temperature:.3g} before the softmax, or the sigmoid of several "
        "labels, to get calibrated probabilities."
    )


def of_encoder(
    sizes: Mapping[str, Any], tokenizer: bytes, form: str, *, has_head: bool,
    task_head: TaskHead | None = None, base: str = "", run: Run | None = None,
) -> str:  # fmt: skip
    """Write the card of an encoder that started from `base`: a checkpoint of `run`, or a folder."""
    start, more = tables.escaped(base) or "random parameters", dict[str, Any]()
    if run:
        named = list(run.dataset.languages)
        origin = f"Started from {start}, and trained on {', '.join(map(label, named))}."
        path = run.folders.report / "results.json"
        found = artifacts.read_object(path) if has_head and path.exists() else {}
        losses = found["losses"] if found.get("step") == run.step else {}
        more = {
            "title": f"Encoder of {len(named)} languages",
            "languages": named,
            "losses": {
                name: {key: of[key] for key in _METRICS} for name, of in sorted(losses.items())
            },
            "sections": [
                *seen.section(run.config, run.dataset, run.step),
                *_evaluation(losses),
                *text_warnings.section(run.folders),
            ],
        }
    else:
        origin = f"Converted from {start}."
    return cards.of_model(
        sizes, tokenizer, form, has_head=has_head, origin=origin, base=base, task_head=task_head,
        **more,
    )  # fmt: skip


def of_translation(parts: TranslationParts, results: dict[str, Any], base: str) -> str:
    """Write the card of a model that translates, which started from `base`, "" for none."""
    directions = list(results["test"] or results["validation"])
    names = list(symbol_names(parts))
    languages = {language for one in directions for language in one.split("-")}
    title = f"Translation {', '.join(directions)}"
    sizes, scored = parts.encoder, results["test"] or results["validation"]
    return tables.page(
        cards.front(languages, "transformers", base=base, pipeline_tag="translation",
               metrics=["bleu", "chrf"],
               index=cards.model_index(title, "translation", results["task"], scored)),
        f"# {title}",
        f"An encoder of {sizes['num_layers']} layers of {sizes['hidden_size']} and a decoder of "
        f"{parts.decoder['num_layers']}, {sizes['vocab_size']:,} table rows. Started from "
        f"{tables.escaped(base) or 'random parameters'}.",
        "## How to use it\n\n" + _TRANSLATION.format(
            symbol=names[0], symbols=", ".join(f"`{name}`" for name in names),
            start=_STARTS[parts.class_name],
        ),
        "## Scores",
        "In percent. The model is " + task_results.described_choice(results["selected"]) + ".",
        task_results.table(TASKS["translation"], results),
        cards.LIMITS,
        cards.LICENCE,
    )  # fmt: skip


def _evaluation(losses: Mapping[str, Mapping[str, Any]]) -> list[str]:
    keys = {"loss": "loss", "unigram": "unigram", "bits/char": "bits_per_character"}
    rows: list[dict[str, Any]] = [
        {"language": label(language), **{name: one[key] for name, key in keys.items()}}
        for language, one in sorted(losses.items())
    ]
    collapsed = [row["language"] for row in rows if (row["loss"] or 0) >= (row["unigram"] or 1)]
    limit = f"\n\nNo better than these frequencies: {', '.join(collapsed)}." if collapsed else ""
    if not rows:
        return []
    return ["## Evaluation", _EVALUATION, tables.markdown(rows, ".3f", mean=keys) + limit]


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
            " The scores are not theirs, unless the step is the same: each language has the scores "
            "of the checkpoint that did best on its own validation data, which is not here."
        )
    return found


def _metadata(facts: Facts) -> str:
    scored = facts.results["test"] or facts.results["validation"]
    suffix = facts.head.class_suffix
    name, base = facts.options.title, facts.results["model"]
    task = cards.PIPELINES[suffix] if suffix else facts.head.kind.replace("_", "-")
    is_known = bool(suffix) or facts.options.task.is_embedding
    if facts.options.task.is_embedding:
        task = "sentence-similarity"
    return cards.front(
        _trained_on(facts), facts.form if is_known else "onnx", base=base,
        pipeline_tag=task if is_known and not facts.tokenizer_reason else "",
        metrics=list(dict.fromkeys(name for scores in scored.values() for name in scores)),
        index=cards.model_index(f"{base}, fine-tuned on {name}", task, name, scored),
    )  # fmt: skip


def _trained_on(facts: Facts) -> tuple[str, ...]:
    """Languages of the training data, by their key or else by the run's setting."""
    if facts.options.train_languages:
        return tuple(facts.options.train_languages)
    setting, _, named = facts.results["setting"].partition(":")
    if named:
        return tuple(named.split("+"))
    # Translate-train-all has training data in every language of the test.
    return ("en",) if setting == "zero_shot" else tuple(facts.results["test"])


def _task(facts: Facts) -> str:
    options, head = facts.options, facts.head
    found = [
        f"A model of {facts.num_layers} layers of {facts.hidden_size} for {options.title}, a task "
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
    if options.task.is_embedding:
        return cards.loading(facts.form, "", facts.reason, facts.tokenizer_reason) + "```\n"
    if not suffix:
        return _OWN_FORM.format(reason=facts.reason)
    code, note = cards.loading(facts.form, f"For{suffix}", facts.reason, facts.tokenizer_reason), ""
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


def _training(facts: Facts) -> str:
    config, options = facts.config, facts.options
    frozen = {"optimizer.frozen": ", ".join(config.optimizer.frozen)}
    varied = facts.results.get("hyperparameters", {})
    started = "random parameters of its sizes" if config.random_init else "its parameters"
    languages = _trained_on(facts)
    sources = [one for code in languages for one in options.patterns("train", code)]
    # Names without a language are the second choice of configs for a user's own data.
    sources = [one for one in sources if "{language}" in one] or sources
    trained = ", ".join([f"`{_public(one)}`" for one in dict.fromkeys(sources)])
    rows = {
        "started from": f"{tables.escaped(facts.results['model'])}, {started} "
        f"(SHA-256 `{facts.start[:16]}`)",
        "trained on": f"{options.title} in {', '.join(languages)}: {trained}",
        "seed": facts.results["seed"],
        **{f"train.{key}": config.train[key] for key in ("epochs", "batch_size")},
        **{
            f"optimizer.{key}": config.optimizer[key]
            for key in (
                "learning_rate", "warmup_share", "schedule", "weight_decay", "clip_norm",
            )
        },
        **(frozen if config.optimizer.frozen else {}),
        **{one: varied[one] for one in ("lora", "layer_decay", "label_smoothing") if one in varied},
        **{f"model.{key}": config.model[key] for key in ("dtype", "dropout_rate")},
        "task.max_length": options.max_length,
    }  # fmt: skip
    return tables.markdown([{"": key, " ": value} for key, value in rows.items()], left=2)


def _public(pattern: str) -> str:
    """Return a pattern of files without the folders of the machine that it was read on."""
    return pathlib.PurePath(pattern).name if pattern.startswith("/") else pattern
