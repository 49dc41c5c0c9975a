"""Files of downstream tasks and a user's own text, as finetune and predict read them.

What a reader says of a line is tested where it is read, in tests/input_pipeline/tasks.
"""

import json
import lzma
import pathlib
import re
from collections.abc import Iterator

from tests import tiny_tasks
from tests.malformed import templates
from tests.malformed.harness import Break, Case

_NLI = "premise\thypothesis\tlabel\nthe cat\ta cat\tentailment\n"
_SMALL = {"max_length": 24, "stride": 8, "max_query_length": 4, "layer": 0}
_ROWS = "text,label\n" + "the cat,pos\nthe dog,neg\n" * 4


def write(name: str, content: str | bytes) -> Break:
    """Write a file of the data, compressed as its name says."""
    data = content.encode() if isinstance(content, str) else content

    def breaks(folder: pathlib.Path) -> None:
        path = folder / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(lzma.compress(data) if name.endswith(".xz") else data)

    return breaks


def _restored(name: str) -> Break:
    def repairs(folder: pathlib.Path) -> None:
        path = folder / "data" / name
        path.write_bytes((tiny_tasks.data_folder() / name).read_bytes())

    return repairs


def _case(
    config: str, name: str, breaks: Break, *says: str, flags=(), repairs: Break | None = None
) -> Case:
    """A case of finetune.py; `config` is one of configs/finetune, and what comes before DATA."""
    file, _, arg = config.partition(":")
    arguments = (
        f"--config=configs/finetune/{file}.py:{arg}DIR/data",
        *templates.TASK,
        *(f"--config.task.{key}={value}" for key, value in _SMALL.items()),
        "--config.train.batch_size=8",
        "--config.evaluation.batch_size=8",
        *flags,
    )
    return Case(f"task {file}", name, "finetune", "tasks", arguments, breaks, says, repairs)


def _nothing(folder: pathlib.Path) -> None:
    """Leave the folder as it is: the flags are wrong."""


def _question(**changes) -> str:
    value = json.loads(tiny_tasks.squad([("q0", "cat ?", "the cat sleeps", "cat")]))
    value["data"][0]["paragraphs"][0]["qas"][0]["answers"][0].update(changes)
    return json.dumps(value)


def _files() -> Iterator[Case]:
    """One fault of each reader, and those that no reader sees alone."""
    nli, pos, squad = "nli_en/mnli_train.tsv.xz", "udpos/train/en.tsv.xz", "squad/train-v1.1.json"
    gold = "bucc2018/zh-en.dev.gold.tsv.xz"
    broken: tuple[tuple[str, str, str, str | bytes, tuple[str, ...]], ...] = (
        ("xnli", "an unknown label", nli, _NLI + "a\tb\tmaybe\n", ("line 3", "'maybe'", "entailm")),
        ("xnli", "an empty file", nli, "", ("empty",)),
        ("xnli", "NUL bytes", nli, _NLI.encode("utf-16-le"), ("line 1", "NUL")),
        ("xnli", "no labels", nli, "premise\thypothesis\tlabel\na\tb\t-1\n", ("label",)),
        ("udpos", "an unknown tag", pos, "the\tDET\ncat\tNN\n", ("line 2", "'NN'")),
        ("udpos", "a tag without word", pos, "the\tDET\n\tNOUN\n", ("line 2", "no word")),
        ("squad:1.1,", "nesting", squad, "[" * 100_000, ()),
        ("squad:1.1,", "a wrong place", squad, _question(answer_start=5), ("'q0'", "character 5")),
        ("bucc", "an id of no sentence", gold, "z9\te1\n", ("line 1", "'z9'")),
    )
    for config, what, name, content, says in broken:
        where = re.escape(pathlib.Path(name).name) if what != "no labels" else "xnli|nli_en"
        repairs = _restored(name)
        yield _case(config, what, write(name, content), where, *says, repairs=repairs)

    def cut(folder: pathlib.Path) -> None:
        templates.truncate(folder / "data" / nli)

    def removed(folder: pathlib.Path) -> None:
        (folder / "data" / nli).unlink()

    yield _case("xnli", "a cut file", cut, "mnli_train", "cut off", repairs=_restored(nli))
    yield _case("xnli", "a missing file", removed, "mnli_train", repairs=_restored(nli))


def _own() -> Iterator[Case]:
    """A user's own files."""
    where, file = r"train\.en\.csv", "train.en.csv"
    one_label = write(file, "text,label\na,pos\nb,pos\n")
    yield _case("text", "one label", one_label, "labels are pos", "label_column")
    two_ways = write(file, _ROWS + "a,Pos\n")
    yield _case("text", "labels in two ways", two_ways, "'pos' .4 times", "'Pos'", "alike")
    no_language = write("train.csv", _ROWS)
    yield _case("text", "no language in a name", no_language, r"train\.csv", "rename")
    yield _case("text", "a folder as file", write(f"{file}/part", _ROWS), f"{where}: is a folder")
    labels = (r"task\.labels is \('neg,pos',\)", r"--config\.task\.labels=\"\('neg','pos'\)\"")
    flags = ("--config.task.labels=neg,pos",)
    yield _case("text", "labels in one text", write(file, _ROWS), *labels, flags=flags)
    tags = write("train.en.conll", "the O\ncat B-X\n\ndog B-X\n\nruns O\na NOUN\n")
    yield _case("tags", "a tag of no span", tags, r"conll, line 7", "'NOUN'", "words,")
    for flag, says in (
        ("text_column=word", r"task\.text_column is 'word', must be the number of a column"),
        ("label_column=1", "both 1, must be different columns"),
    ):
        yield _case("tags:words,", flag, tags, says, flags=(f"--config.task.{flag}",))


def _encoders() -> Iterator[Case]:
    """Starting points of finetune.py."""

    def remove(name: str) -> Break:
        return lambda folder: (folder / "encoder" / name).unlink()

    def cut(name: str) -> Break:
        return lambda folder: templates.truncate(folder / "encoder" / name)

    def empty(folder: pathlib.Path) -> None:
        for path in (folder / "encoder").iterdir():
            path.unlink()

    for what, breaks, says in (
        ("an empty folder", empty, ("init_from", "no encoder")),
        ("no weights", remove("model.safetensors"), (r"model\.safetensors",)),
        ("cut weights", cut("model.safetensors"), (r"model\.safetensors", "cannot be read")),
        ("cut config", cut("config.json"), (r"config\.json", "not JSON")),
        ("no tokenizer", remove("spm.model"), (r"spm\.model does not exist",)),
        ("a cut tokenizer", cut("spm.model"), (r"spm\.model",)),
    ):
        yield _case("udpos", f"an encoder with {what}", breaks, *says)


def _keys() -> Iterator[Case]:
    """Values that do not fit the data or one another."""
    for config, flag, says in (
        ("xnli", "task.test_languages=('de',)", ("'de'", "en, sw")),
        ("glue:colla,", "train.seed=1", ("'colla'", "cola")),
        ("tatoeba", "task.test_languages=('de',)", ("'de'", "af")),
        ("tatoeba", "task.layer=9", ("task.layer",)),
        ("bucc", "task.margin=cosine", (r"task\.margin is 'cosine'", "ratio")),
        ("bucc", "task.class_weights=balanced", (r"task\.class_weights is .*has no classes",)),
        ("bucc", "task.selection=each_language", (r"task\.selection is .*trains no model",)),
        ("udpos", "init_from=", ("init_from",)),
        ("udpos", "task.max_length=512", ("task.max_length", "512")),
        ("udpos", "task.pooling=max", ("task.pooling", "'max'")),
        ("udpos", "task.name=udposs", ("task.name", "'udposs'")),
        ("udpos", "train.epochs=0", ("train.epochs",)),
        ("udpos", "optimizer.frozen=('head',)", ("optimizer.frozen",)),
        ("udpos", "optimizer.schedule=step", ("optimizer.schedule", "'step'")),
        ("udpos", "task.lenght=3", ("task.lenght", "no key")),
        ("udpos", "train.epochs=many", ("train.epochs", "many")),
        ("udpos", "task.train=(1,)", ("task.train is", "1 must be text")),
        ("udpos", "task.train_languages=en,sw", ("train_languages", r"=\"\('en','sw'\)\"")),
        ("udpos", "train.batch_size=9", ("batch_size", "9")),
    ):
        yield _case(config, flag, _nothing, *says, flags=(f"--config.{flag}",))


def _translations() -> Iterator[Case]:
    """Tokens of a batch, by a key to train and one to evaluate, and other numbers."""
    small = (
        "--config.random_init=True",
        "--config.task.max_length=24",
        "--config.task.buckets=()",
        "--config.translation.decoder_layers=1",
        "--config.decoding.max_length=8",
    )

    def aligned(folder: pathlib.Path) -> None:
        for split in ("train", "dev", "test"):
            for language in ("en", "de"):
                write(f"{split}.{language}", "the cat\n" * 4)(folder)

    for key, value, says in (
        ("evaluation.batch_tokens", "8", r"too few for \d rows of 24"),
        ("train.batch_tokens", "8", r"too few for \d rows of 24"),
        ("train.batch_tokens", "-1", "at least 1"),
        ("evaluation.examples_in_training", "-1", "at least 0"),
        ("evaluation.beams_in_training", "0", "at least 1"),
        ("task.buckets", "(0, 16)", "0 must be at least 1"),
        ("task.class_weights", "(1.0, 2.0)", "translation has no classes"),
        ("task.selection", "english", "set it to all_languages"),
    ):
        flags = (
            "--config=configs/finetune/translation.py:en-de,DIR/data",
            *templates.TASK,
            *small,
            f"--config.{key}={value}",
        )
        name, where = f"{key}={value}", key.replace(".", r"\.")
        yield Case(
            "task translation", name, "finetune", "tasks", flags, aligned,
            (where, re.escape(value), says),
        )  # fmt: skip


CASES = [*_files(), *_own(), *_encoders(), *_keys(), *_translations()]
