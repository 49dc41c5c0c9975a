"""Files of downstream tasks and a user's own text, as finetune and predict read them."""

import gzip
import json
import lzma
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

from tests import tiny_tasks
from tests.malformed import templates
from tests.malformed.harness import Break, Case

_NLI = "premise\thypothesis\tlabel\nthe cat\ta cat\tentailment\n"


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


def finetune_case(
    config: str, name: str, breaks: Break, *says: str, flags=(), repairs: Break | None = None
) -> Case:
    """A case of finetune.py; `config` is one of configs/finetune, and what comes before DATA."""
    file, _, arg = config.partition(":")
    small = (
        "--config.task.max_length=24",
        "--config.task.stride=8",
        "--config.task.max_query_length=4",
        "--config.task.layer=0",
        "--config.train.batch_size=8",
        "--config.evaluation.batch_size=8",
    )
    arguments = (
        f"--config=configs/finetune/{file}.py:{arg}DIR/data",
        *templates.TASK,
        *small,
        *flags,
    )
    return Case(f"task {file}", name, "finetune", "tasks", arguments, breaks, says, repairs)


def _texts() -> Iterator[Case]:
    """Classification of pairs and of single texts, and regression."""
    name = "nli_en/mnli_train.tsv.xz"
    where = r"mnli_train\.tsv\.xz"
    for what, content, says in (
        ("an unknown label", _NLI + "a\tb\tmaybe\n", (f"{where}, line 3", "'maybe'", "entailment")),
        ("a number beyond the labels", _NLI + "a\tb\t3\n", (f"{where}, line 3", "'3'")),
        ("an empty label", _NLI + "a\tb\t\n", (f"{where}, line 3", "label ''")),
        ("a missing column", _NLI + "a\tb\n", (f"{where}, line 3", "2 columns")),
        ("a tab in a text", _NLI + "a\tb\tc\tneutral\n", (f"{where}, line 3", "4 columns")),
        ("commas", "premise,hypothesis,label\na,b,neutral\n", (f"{where}, line 1", "no header")),
        (
            "other names of columns",
            "one\ttwo\tclass\na\tb\tneutral\n",
            (f"{where}, line 1", "premise"),
        ),
        ("no header", "a\tb\tc\td\te\nf\tg\th\ti\tj\n", (f"{where}, line 1", "'e'")),
        ("empty", "", (where, "empty")),
        ("blank lines", "\n \n", (where, "empty")),
        ("a header alone", "premise\thypothesis\tlabel\n", ("xnli|nli_en", "no data|no examples")),
        ("Latin 1", (_NLI + "señor\tb\tneutral\n").encode("latin1"), (f"{where}, line 3", "iconv")),
        ("cut UTF-16", _NLI.encode("utf-16")[:-1], (f"{where}, line", "not UTF-16", "iconv")),
        ("UTF-16 without mark", _NLI.encode("utf-16-le"), (f"{where}, line 1", "NUL")),
        ("NUL bytes", _NLI + "a\0\tb\tneutral\n", (f"{where}, line 3", "NUL")),
        ("hidden labels", "premise\thypothesis\tlabel\na\tb\t-1\n", ("label",)),
        ("no column of labels", "premise\thypothesis\na\tb\n", ("label",)),
        ("JSON", '{"premise": "a"}\n', (f"{where}, line 1", "no header")),
    ):
        repairs = _restored(name) if what in ("an unknown label", "empty", "Latin 1") else None
        yield finetune_case("xnli", what, write(name, content), *says, repairs=repairs)

    def cut(folder: pathlib.Path, name: str = name) -> None:
        templates.truncate(folder / "data" / name)

    def not_xz(folder: pathlib.Path, name: str = name) -> None:
        (folder / "data" / name).write_bytes(gzip.compress(_NLI.encode()))

    def removed(folder: pathlib.Path, name: str = name) -> None:
        (folder / "data" / name).unlink()

    yield finetune_case("xnli", "cut xz", cut, where, "cut off", repairs=_restored(name))
    yield finetune_case("xnli", "gzip called xz", not_xz, where, "cannot be read")
    yield finetune_case("xnli", "a missing file", removed, "mnli_train", repairs=_restored(name))
    yield finetune_case(
        "xnli",
        "no data for a language",
        _nothing,
        "'de'",
        "en, sw",
        flags=("--config.task.test_languages=('de',)",),
    )
    yield finetune_case("xnli", "no folder of data", _gone, "data", "add the files|correct")

    pawsx, file = "pawsx/train_en.tsv.xz", r"train_en\.tsv\.xz"
    head = "sentence1\tsentence2\tlabel\n"
    yield finetune_case(
        "pawsx",
        "too many broken rows",
        write(pawsx, head + "a\tb\t1\na\tb\n"),
        file,
        "broken rows",
    )
    yield finetune_case("pawsx", "three classes", write(pawsx, head + "a\tb\t2\n"), file, "'2'")
    glue = "glue/{}/train.tsv"
    for task, name, content, says in (
        ("cola", "glue/cola/train.tsv.xz", "sentence\tlabel\na\tgood\n", ("line 2", "'good'")),
        ("cola", "glue/cola/dev.tsv.xz", "sentence\tlabel\na\t2\n", ("dev.*line 2", "'2'")),
        ("sst2", "glue/sst2/train.tsv.xz", "text\tlabel\na\t1\n", ("line 1", "sentence")),
        (
            "stsb",
            glue.format("STS-B"),
            "sentence1\tsentence2\tscore\na\tb\tx\n",
            ("line 2", "'x'", "no number"),
        ),
        (
            "stsb",
            glue.format("STS-B"),
            "sentence1\tsentence2\tscore\na\tb\tnan\n",
            ("line 2", "'nan'"),
        ),
        (
            "qnli",
            "glue/qnli/train.tsv.xz",
            "question\tsentence\tlabel\na\tb\tyes\n",
            ("line 2", "'yes'"),
        ),
        ("qqp", glue.format("QQP"), "question1\tquestion2\tis_duplicate\na\tb\n", ("broken rows",)),
        (
            "mnli",
            glue.format("MNLI"),
            "sentence1\tsentence2\tgold_label\na\tb\n",
            ("line 2", "2 columns"),
        ),
    ):
        yield finetune_case(f"glue:{task},", f"{task}, {says[-1]}", write(name, content), *says)
    yield finetune_case("glue:colla,", "an unknown task", _nothing, "'colla'", "cola")
    yield finetune_case("squad:3.0,", "an unknown version", _nothing, "'3.0'", "1.1 or 2.0")


def _tags() -> Iterator[Case]:
    pos, where = "udpos/train/en.tsv.xz", r"en\.tsv\.xz"
    for what, content, says in (
        ("an unknown tag", "the\tDET\ncat\tNN\n", (f"{where}, line 2", "'NN'")),
        ("a word without tag", "the\tDET\ncat\n", (f"{where}, line 2", "no tag")),
        ("a tag without word", "the\tDET\n\tNOUN\n", (f"{where}, line 2", "no word")),
        ("no tags", "the\ncat\n", ("label|tag",)),
        ("empty", "", (where, "empty")),
        (
            "CoNLL-U of eight columns",
            "1\tthe\tthe\tDET\tDT\t_\t2\tdet\t_\t_\n2\tcat\tNOUN\t_\t_\t_\t_\t_\n",
            (f"{where}, line 2", "CoNLL-U"),
        ),
        (
            "CoNLL-U without numbers",
            "1\tthe\tthe\tDET\tDT\t_\t2\tdet\t_\t_\nx\tcat\tcat\tNOUN\t_\t_\t_\t_\t_\t_\n",
            (f"{where}, line 2", "CoNLL-U"),
        ),
        ("Latin 1", "señor\tNOUN\n".encode("latin1"), (f"{where}, line 1", "iconv")),
        ("comments alone", "# text = a\n# id = 3\n", (where,)),
    ):
        repairs = _restored(pos) if what in ("an unknown tag", "a word without tag") else None
        yield finetune_case("udpos", what, write(pos, content), *says, repairs=repairs)
    ner = "wikiann_ner/train/en.tsv.xz"
    for what, content, says in (
        ("a tag of another scheme", "abe\tB-MISC\n", (f"{where}, line 1", "'B-MISC'", "B-PER")),
        ("a part of speech", "abe\tNOUN\n", (f"{where}, line 1", "'NOUN'")),
    ):
        yield finetune_case("wikiann", what, write(ner, content), *says)


def _question(change: Callable[[Any], Any]) -> str:
    value = json.loads(tiny_tasks.squad([("q0", "cat ?", "the cat sleeps", "cat")]))
    return json.dumps(change(value))


def _set(*path: Any, to: Any) -> Callable[[Any], Any]:
    def change(value: Any) -> Any:
        *first, last = path
        place = value
        for key in first:
            place = place[key]
        if to is _set:
            del place[last]
        else:
            place[last] = to
        return value

    return change


_ARTICLE = ("data", 0, "paragraphs", 0)
_ASKED = (*_ARTICLE, "qas", 0)
_ANSWER = (*_ASKED, "answers", 0)


def _questions() -> Iterator[Case]:
    name, where = "squad/train-v1.1.json", r"train-v1\.1\.json"
    whole = _question(lambda value: value)
    for what, content, says in (
        ("cut", whole[: len(whole) // 2], (f"{where}, line 1", "not JSON")),
        ("empty", "", (where, "empty")),
        ("a list", "[]", (where, "form of SQuAD")),
        ("null", "null", (where, "form of SQuAD")),
        ("no questions", '{"data": []}', ("squad", "no data|no examples|no questions")),
        ("JSON lines", whole + "\n" + whole, (f"{where}, line 2", "not JSON")),
        ("deep nesting", "[" * 100_000, (where,)),
        ("no data", '{"version": "1.1"}', (where, "'data'")),
        (
            "an article without paragraphs",
            _question(_set("data", 0, "paragraphs", to=_set)),
            (where, "'paragraphs'"),
        ),
        (
            "a paragraph without context",
            _question(_set(*_ARTICLE, "context", to=_set)),
            (where, "'context'"),
        ),
        (
            "a context of another type",
            _question(_set(*_ARTICLE, "context", to=3)),
            (where, "q0|context"),
        ),
        (
            "a context of null",
            _question(_set(*_ARTICLE, "context", to=None)),
            (where, "q0|context"),
        ),
        ("a question without text", _question(_set(*_ASKED, "question", to=_set)), (where, "'q0'")),
        ("a question without id", _question(_set(*_ASKED, "id", to=_set)), (where, "'id'")),
        ("a question that is a string", _question(_set(*_ARTICLE, "qas", 0, to="cat ?")), (where,)),
        (
            "an answer without place",
            _question(_set(*_ANSWER, "answer_start", to=_set)),
            (where, "answer_start"),
        ),
        ("a place that is text", _question(_set(*_ANSWER, "answer_start", to="4")), (where, "q0")),
        (
            "a place with a fraction",
            _question(_set(*_ANSWER, "answer_start", to=4.5)),
            (where, "q0"),
        ),
        (
            "a wrong place",
            _question(_set(*_ANSWER, "answer_start", to=5)),
            (where, "'q0'", "character 5"),
        ),
        (
            "a place before the text",
            _question(_set(*_ANSWER, "answer_start", to=-1)),
            (where, "character -1"),
        ),
        (
            "a place beyond the text",
            _question(_set(*_ANSWER, "answer_start", to=999)),
            (where, "999"),
        ),
        ("an answer not there", _question(_set(*_ANSWER, "text", to="dog")), (where, "'dog'")),
        ("an answer of another type", _question(_set(*_ANSWER, "text", to=7)), (where, "q0")),
        (
            "answers that are an object",
            _question(_set(*_ASKED, "answers", to={"text": "cat"})),
            (where, "q0"),
        ),
        ("no answers", _question(_set(*_ASKED, "answers", to=[])), ("q0|answer",)),
        (
            "half a surrogate",
            _question(lambda v: v).replace("the cat", "the \\ud800 cat"),
            (where, "cut in two"),
        ),
        (
            "Latin 1",
            whole.replace("sleeps", "señor").encode("latin1"),
            (f"{where}, line 1", "iconv"),
        ),
    ):
        repairs = _restored(name) if what in ("cut", "a wrong place", "a list") else None
        yield finetune_case("squad:1.1,", what, write(name, content), *says, repairs=repairs)
    two = json.loads(whole)
    two["data"][0]["paragraphs"].append(
        {"context": "no", "qas": [{"id": "q0", "question": "?", "answers": []}]}
    )
    yield finetune_case("squad:1.1,", "an id twice", write(name, json.dumps(two)), where, "'q0'")


def _pairs() -> Iterator[Case]:
    name, where = "tatoeba_retrieval/af-en.tsv.xz", r"af-en\.tsv\.xz"
    for what, content, says in (
        ("one column", "the cat\n", (f"{where}, line 1", "1 columns")),
        ("three columns", "a\tb\nc\td\te\n", (f"{where}, line 2", "3 columns")),
        ("a blank line", "a\tb\n\nc\td\n", (f"{where}, line 2", "columns")),
        ("empty", "", (where, "empty")),
        ("Latin 1", "ñ\tb\n".encode("latin1"), (f"{where}, line 1", "iconv")),
    ):
        yield finetune_case("tatoeba", what, write(name, content), *says)
    yield finetune_case(
        "tatoeba",
        "no such language",
        _nothing,
        "'de'",
        "af",
        flags=("--config.task.test_languages=('de',)",),
    )
    yield finetune_case(
        "tatoeba",
        "a layer beyond the encoder's",
        _nothing,
        "task.layer",
        flags=("--config.task.layer=9",),
    )

    def unequal(folder: pathlib.Path) -> None:
        write("laser/af.txt", "a\nb\n")(folder)
        write("laser/en.txt", "c\n")(folder)

    laser = (
        "--config.task.test=('laser/{language}.txt','laser/en.txt')",
        "--config.task.test_languages=('af',)",
    )
    yield finetune_case(
        "tatoeba", "sides of unequal length", unequal, r"en\.txt: 1 lines", "has 2", flags=laser
    )
    gold, dev = "bucc2018/zh-en.dev.gold.tsv.xz", "bucc2018/zh-en.dev.zh.tsv.xz"
    for what, file, content, says in (
        ("a gold id of no sentence", gold, "z9\te1\n", (r"gold\.tsv\.xz, line 1", "'z9'")),
        ("gold pairs turned", gold, "e1\tz1\n", (r"gold\.tsv\.xz, line 1", "'e1'")),
        ("gold of one column", gold, "z1\n", (r"gold\.tsv\.xz, line 1", "1 columns")),
        ("an id twice", dev, "z0\ta\nz0\tb\n", (r"zh\.tsv\.xz, line 2", "'z0'")),
        ("sentences without ids", dev, "the cat\n", (r"zh\.tsv\.xz, line 1", "columns")),
    ):
        yield finetune_case("bucc", what, write(file, content), *says)
    yield finetune_case(
        "bucc",
        "an unknown margin",
        _nothing,
        r"task\.margin is 'cosine'",
        "ratio",
        flags=("--config.task.margin=cosine",),
    )
    for flag, says in (
        ("class_weights=balanced", r"task\.class_weights is .*bucc has no classes"),
        ("selection=each_language", r"task\.selection is .*bucc trains no model"),
    ):
        yield finetune_case("bucc", flag, _nothing, says, flags=(f"--config.task.{flag}",))


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
        (
            "an empty tokenizer",
            lambda folder: (folder / "encoder/spm.model").write_bytes(b""),
            (r"spm\.model",),
        ),
    ):
        yield finetune_case("udpos", f"an encoder with {what}", breaks, *says)
    for what, flag, says in (
        ("no encoder", "init_from=", ("init_from",)),
        ("an encoder that is a file", "init_from=DIR/encoder/config.json", ("init_from",)),
        ("rows longer than the encoder", "task.max_length=512", ("task.max_length", "512")),
        ("an unknown pooling", "task.pooling=max", ("task.pooling", "'max'")),
        ("an unknown pooling of texts", "task.text_pooling=cls", ("task.text_pooling", "'cls'")),
        ("an unknown task", "task.name=udposs", ("task.name", "'udposs'")),
        ("rows of no tokens", "task.max_length=0", ("task.max_length",)),
        ("no epochs", "train.epochs=0", ("train.epochs",)),
        ("no batch", "train.batch_size=0", ("train.batch_size",)),
        ("no evaluations", "train.evaluations=0", ("train.evaluations",)),
        ("an unknown part frozen", "optimizer.frozen=('head',)", ("optimizer.frozen",)),
        ("a dropout of 1", "model.dropout_rate=1.0", ("model.dropout_rate",)),
        ("an unknown schedule", "optimizer.schedule=step", ("optimizer.schedule", "'step'")),
        ("an unknown key", "task.lenght=3", ("task.lenght", "no key")),
        ("text for a number", "train.epochs=many", ("train.epochs", "many")),
        ("a file that is a number", "task.train=(1,)", ("task.train is", "1 must be text")),
        ("a language that is a number", "task.train_languages=(1,)", ("task.train_languages",)),
        (
            "languages in one text",
            "task.train_languages=en,sw",
            ("task.train_languages", r"=\"\('en','sw'\)\""),
        ),
        ("a length that is text", "task.buckets=('a',)", ("task.buckets", "whole number")),
        ("a label that is a fraction", "task.labels=(0.5,1)", ("task.labels", "0.5 must be")),
        ("a batch that devices do not share", "train.batch_size=9", ("batch_size", "9")),
    ):
        yield finetune_case("udpos", what, _nothing, *says, flags=(f"--config.{flag}",))


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
        ("evaluation.batch_tokens", "0", "at least 1"),
        ("train.batch_tokens", "8", r"too few for \d rows of 24"),
        ("train.batch_tokens", "-1", "at least 1"),
        ("train.batch_tokens", "-256", "at least 1"),
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


def _nothing(folder: pathlib.Path) -> None:
    """Leave the folder as it is: the flags are wrong."""


def _gone(folder: pathlib.Path) -> None:
    (folder / "data").rename(folder / "elsewhere")


CASES = [*_texts(), *_tags(), *_questions(), *_pairs(), *_encoders(), *_translations()]
