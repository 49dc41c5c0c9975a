"""A tiny encoder, and a folder with hand-written data of every task, for tests of fine-tuning."""

import atexit
import contextlib
import dataclasses
import functools
import importlib
import json
import lzma
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from vocap import merge
from xlm.evaluation.settings import DecodingSettings
from xlm.experiment import fine_tuning as builders
from xlm.experiment import task_runs, translation
from xlm.experiment.task_settings import task_settings
from xlm.interop import model_folder
from xlm.models.encoder import Encoder, EncoderSettings
from xlm.objectives.fine_tuning import FineTuning
from xlm.objectives.translation import Translation
from xlm.training.sharding import make_mesh

LENGTH = 24
PIECES = [*"abcdefghijklmnopqrstuvwxyz", "▁", "▁the", "▁cat", "▁dog", "▁runs", "▁sleeps", ".", "чи"]
VOCAB = len(merge.SPECIALS) + len(PIECES)
SETTINGS = EncoderSettings(
    vocab_size=VOCAB, embedding_size=16, hidden_size=16, num_layers=2, num_heads=2, mlp_size=16,
    max_length=LENGTH, norm_position="post", dropout_rate=0.1, attention_dropout_rate=0.1,
    dtype="float32",
)  # fmt: skip


@functools.cache
def tokenizer() -> bytes:
    return merge.write_model(PIECES, -np.arange(1.0, len(PIECES) + 1))


@functools.cache
def params(settings: EncoderSettings = SETTINGS) -> dict[str, Any]:
    """Parameters of the encoder, away from zeros and ones."""
    row = jnp.zeros((1, LENGTH), jnp.int32)
    shapes = jax.eval_shape(Encoder(settings).init, jax.random.key(0), row, row, row)["params"]
    rng = np.random.default_rng(0)

    def value(path, shape: jax.ShapeDtypeStruct) -> np.ndarray:
        centre = float(path[-1].key == "scale")
        return (centre + 0.2 * rng.normal(size=shape.shape)).astype(np.float32)

    return jax.tree.map_with_path(value, nn.unbox(shapes))


@functools.cache
def scratch() -> pathlib.Path:
    """A folder that is removed when the tests end."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return pathlib.Path(folder.name)


@functools.cache
def encoder_folder(num_layers: int = 2) -> pathlib.Path:
    """The encoder, or one of another depth, as XLM-R in the form of `transformers`."""
    folder = scratch() / f"tiny-xlmr-{num_layers}"
    settings = dataclasses.replace(SETTINGS, num_layers=num_layers)
    sizes = dataclasses.asdict(settings)
    model_folder.write_model(folder, params(settings), sizes, tokenizer())
    return folder


@functools.cache
def veco_folder() -> pathlib.Path:
    """An encoder with cross-attention in its layers, in a form of our own."""
    folder = scratch() / "tiny-veco"
    settings = dataclasses.replace(SETTINGS, cross_attention=True)
    model_folder.write_model(folder, params(settings), dataclasses.asdict(settings), tokenizer())
    return folder


def write(path: pathlib.Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    path.write_bytes(lzma.compress(data) if path.suffix == ".xz" else data)


def table(header: str, rows: Sequence[Sequence[str]]) -> str:
    return "".join("\t".join(row) + "\n" for row in [header.split(), *rows])


def squad(rows: Sequence[tuple[str, str, str, str]]) -> str:
    """JSON of SQuAD: (id, question, context, answer), an empty answer for none."""
    paragraphs = []
    for name, question, context, answer in rows:
        answers = [{"text": answer, "answer_start": context.index(answer)}] if answer else []
        one = {"id": name, "question": question, "is_impossible": not answer, "answers": answers}
        paragraphs.append({"context": context, "qas": [one]})
    return json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]})


def _sentences(words: Sequence[tuple[str, str]], count: int, seed: int) -> str:
    """Sentences of random words, each always with its tag."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(count):
        picked = rng.integers(0, len(words), rng.integers(1, 5))
        lines += ["".join(f"{words[i][0]}\t{words[i][1]}\n" for i in picked)]
    return "\n".join(lines)


_WORDS = {
    "en": [("the", "DET"), ("cat", "NOUN"), ("dog", "NOUN"), ("runs", "VERB"), (".", "PUNCT")],
    "sw": [("cat", "NOUN"), ("sleeps", "VERB"), (".", "PUNCT"), ("catdogthe", "NOUN")],
}
_NAMES = [("abe", "B-PER"), ("fox", "I-PER"), ("runs", "O"), ("oslo", "B-LOC"), ("the", "O")]


@functools.cache
def data_folder() -> pathlib.Path:
    """Data of every task, as the configs name the files."""
    root = scratch() / "data"
    rows = [
        (f"the {one} {two}", "a cat runs" if two == "runs" else "no", label)
        for one in ("cat", "dog")
        for two, label in (("runs", "entailment"), ("sleeps", "contradiction"), (".", "neutral"))
    ]
    nli = table("premise hypothesis label", rows)
    for name in ("nli_en/mnli_train", "nli_en/mnli_dev", "xnli/train/en", "xnli/train/sw"):
        write(root / f"{name}.tsv.xz", nli)
    for language in ("en", "sw"):
        write(root / f"xnli/dev/{language}.tsv.xz", nli)
    write(root / "americasnli/dev/quy.tsv.xz", nli)
    pairs = table("sentence1 sentence2 label", [(a, b, str(int(a == b))) for a, b, _ in rows])
    write(root / "pawsx/train_en.tsv.xz", pairs)
    for name in ("pawsx/dev/en", "pawsx/dev/de"):
        write(root / f"{name}.tsv.xz", pairs)

    for split, seed in (("train", 0), ("dev", 1), ("test", 2)):
        for language, words in _WORDS.items():
            write(root / f"udpos/{split}/{language}.tsv.xz", _sentences(words, 24, seed))
            write(root / f"wikiann_ner/{split}/{language}.tsv.xz", _sentences(_NAMES, 24, seed))

    asked = [
        (f"q{i}", "cat ?", f"the dog {verb} . the cat {other} . the dog {verb}", f"the cat {other}")
        for i, (verb, other) in enumerate([("runs", "sleeps"), ("sleeps", "runs")] * 4)
    ]
    for name in ("tydiqa_goldp/train.en", "tydiqa_goldp/dev.en", "tydiqa_goldp/dev.fi",
                 "xquad/xquad.en", "xquad/xquad.zh",
                 "mlqa/dev-context-de-question-de"):  # fmt: skip
        write(root / f"{name}.json.xz", squad(asked))
    unanswerable = [(f"n{i}", "fox ?", "the dog runs", "") for i in range(4)]
    for split in ("train", "dev"):
        write(root / f"squad/{split}-v1.1.json", squad(asked))
        write(root / f"squad/{split}-v2.0.json", squad([*asked, *unanswerable]))

    one = [("the cat", "1"), ("cat the", "0"), ("the dog runs", "1"), ("runs dog the", "0")]
    two = [("the cat", "the cat", "1"), ("the cat", "dog", "0"), ("a dog", "a dog", "1")]
    for split in ("train", "dev"):
        for task in ("cola", "sst2"):
            write(root / f"glue/{task}/{split}.tsv.xz", table("sentence label", one * 4))
        write(root / f"glue/mrpc/{split}.tsv.xz", table("sentence1 sentence2 label", two * 4))
        ways = [(a, b, "entailment" if c == "1" else "not_entailment") for a, b, c in two * 4]
        write(root / f"glue/rte/{split}.tsv.xz", table("sentence1 sentence2 label", ways))
        write(root / f"glue/qnli/{split}.tsv.xz", table("question sentence label", ways))
        scores = [(a, b, f"{5 * float(c)}") for a, b, c in two * 4]
        write(root / f"glue/STS-B/{split}.tsv", table("sentence1 sentence2 score", scores))
        write(root / f"glue/QQP/{split}.tsv", table("question1 question2 is_duplicate", two * 4))
    mnli = [(a, b, label) for a, b, label in rows]
    for name in ("train", "dev_matched"):
        write(root / f"glue/MNLI/{name}.tsv", table("sentence1 sentence2 gold_label", mnli))

    texts = ["the cat runs", "the dog sleeps", "fox", "a b c d", "cat . dog .", "zebra"]
    for language in ("af", "sw"):
        aligned = [(text, text if language == "af" else text[::-1]) for text in texts]
        write(root / f"tatoeba_retrieval/{language}-en.tsv.xz",
              "".join(f"{a}\t{b}\n" for a, b in aligned))  # fmt: skip
    bucc = root / "bucc2018"
    write(bucc / "zh-en.dev.zh.tsv.xz", "".join(f"z{i}\t{t}\n" for i, t in enumerate(texts)))
    write(bucc / "zh-en.dev.en.tsv.xz",
          "".join(f"e{i}\t{t}\n" for i, t in enumerate([*texts[:4], "qqq", "xyz"])))  # fmt: skip
    write(bucc / "zh-en.dev.gold.tsv.xz", "".join(f"z{i}\te{i}\n" for i in range(4)))
    return root


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """Runs take one device, and share their compiled functions where these are the same."""
    one_device = functools.cache(lambda: make_mesh(builders.MESH, jax.devices()[:1]))
    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(builders, "mesh", one_device))
        for module, name, key in (
            (builders, "train_functions", _key_of_tuning),
            (builders, "predictor", _key_of_predictor),
            (translation, "train_functions", _key_of_translation),
            (translation, "translator", _key_of_translator),
        ):
            made = _shared(getattr(module, name), f"{module.__name__}.{name}", key)
            patches.enter_context(mock.patch.object(module, name, made))
        yield


_MADE: dict[Any, Any] = {}


def _shared(make: Callable, name: str, key: Callable) -> Callable:
    """`make`, called once for each key of its arguments."""

    def made(*args):
        whole = (name, *key(*args))
        if whole not in _MADE:
            _MADE[whole] = make(*args)
        return _MADE[whole]

    return made


def _key_of_tuning(config: ConfigDict, tuned: FineTuning, mesh: Mesh, num_steps: int) -> tuple:
    parts = config.train.accumulation_steps
    return config.optimizer.to_json(), parts, *_parts_of_tuning(tuned), mesh, num_steps


def _key_of_predictor(config: ConfigDict, tuned: FineTuning, pad: int, mesh: Mesh) -> tuple:
    lengths = task_settings(config).lengths
    return config.evaluation.batch_size, lengths, *_parts_of_tuning(tuned), pad, mesh


def _parts_of_tuning(tuned: FineTuning) -> tuple:
    # The loss may be a partial function, which equals itself alone; its text has the arguments.
    return type(tuned), tuned.encoder, tuned.head, repr(tuned.task_loss), tuned.lora


def _key_of_translation(config: ConfigDict, one: Translation, mesh: Mesh) -> tuple:
    settings = translation.train_settings(config)
    parts = settings.num_steps, settings.accumulation
    return config.optimizer.to_json(), *parts, *_parts_of_translation(one), mesh


def _key_of_translator(
    config: ConfigDict,
    one: Translation,
    found: translation.TranslationModel,
    mesh: Mesh,
    decoding: DecodingSettings | None = None,
) -> tuple:
    decoding = decoding or translation.decoding_settings(config)
    rows = config.evaluation.batch_tokens, task_settings(config).lengths
    ids = found.token_ids(), found.tokenizer.special.pad
    return decoding, *rows, *ids, *_parts_of_translation(one), mesh


def _parts_of_translation(one: Translation) -> tuple:
    return one.encoder, one.decoder, repr(one.output_layer), one.smoothing, one.has_head


def config(name: str, arg: str = "", num_layers: int = 2, **overrides: Any) -> ConfigDict:
    """A config of configs/finetune on this data and encoder, so short that it takes seconds.

    Args:
      name: of the file.
      arg: what comes before the folder.
      num_layers: of the encoder; without layers it compiles sooner.
      **overrides: key, with __ for its dots -> value.
    """
    module = importlib.import_module(f"configs.finetune.{name}")
    made = module.get_config(f"{arg}{data_folder()}")
    crosses = overrides.get("task__cross_attention")
    made.init_from = str(veco_folder() if crosses else encoder_folder(num_layers))
    made.task.update(max_length=LENGTH, stride=8, max_query_length=4, layer=1, max_answer_length=4)
    made.task.buckets = ()
    made.model.attention_dropout_rate = 0.0  # compiles sooner
    made.train.update(batch_size=8, evaluations=2, log_every=1)
    made.evaluation.batch_size = 8
    made.update_from_flattened_dict({k.replace("__", "."): v for k, v in overrides.items()})
    return made


# Runs that several tests look at: file, what comes before its folder, and what differs.
_RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "udpos": ("udpos", "", {"train__epochs": 16.0, "optimizer__learning_rate": 1e-2}),
    # 8 steps, evaluated and saved after 4.
    "cola": ("glue", "cola,", {"num_layers": 0, "train__epochs": 4.0}),
    "squad2": ("squad", "2.0,", {"num_layers": 0, "train__epochs": 24.0,
                                 "optimizer__learning_rate": 1e-2}),
    "bucc": ("bucc", "", {}),
    "pawsx": ("pawsx", "", {"task__cross_attention": True, "train__epochs": 2.0}),
}  # fmt: skip


def run_config(name: str, **overrides: Any) -> ConfigDict:
    """The config of one of `_RUNS`."""
    file, arg, differs = _RUNS[name]
    return config(file, arg, **differs, **overrides)


def run(config: ConfigDict, folder: pathlib.Path, stops_after: int = -1) -> dict[str, Any]:
    """Take a run to its end, or stop it after so many steps."""
    stopping = contextlib.nullcontext(lambda step: step == stops_after)
    with quick():
        return task_runs.run(config, folder, lambda: stopping)


@functools.cache
def finished(name: str) -> pathlib.Path:
    """The folder of one of `_RUNS`, which has ended."""
    folder = scratch() / "runs" / name
    run(run_config(name), folder)
    return folder


def without_keys(folder: pathlib.Path, *keys: str) -> None:
    """Make a run one that was made before these keys, "section.key", existed."""
    path = folder / "settings.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    for key in keys:
        section, name = key.split(".")
        del settings[section][name]
    path.write_text(json.dumps(settings), encoding="utf-8")
