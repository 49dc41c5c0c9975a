"""Files of downstream tasks, encoders and keys, as finetune reads them."""

import pathlib
from collections.abc import Iterator

from tests.malformed import templates
from tests.malformed.breaks import case, cut, nothing, remove, restored, write
from tests.malformed.harness import Break, Case

_NLI = "premise\thypothesis\tlabel\nthe cat\ta cat\tentailment\n"
_ROWS = "text,label\n" + "the cat,pos\nthe dog,neg\n" * 4
_FLAGS = (*templates.TASK, "--config.task.max_length=24")
_SIZES = (
    "--config.task.stride=8", "--config.task.max_query_length=4", "--config.task.layer=0",
    "--config.train.batch_size=8", "--config.evaluation.batch_size=8",
)  # fmt: skip


def _case(
    config: str, name: str, breaks: Break, *says: str, flags=(), repairs: Break | None = None
) -> Case:
    """A case of finetune.py; `config` is one of configs/finetune, and what comes before DATA."""
    file, _, arg = config.partition(":")
    sizes = _SIZES if file != "translation" else ()
    flags = (f"--config=configs/finetune/{file}.py:{arg}DIR/data", *_FLAGS, *sizes, *flags)
    return case(f"task {file}", name, "finetune", breaks, *says, template="tasks", flags=flags,
                repairs=repairs)  # fmt: skip


def _files() -> Iterator[Case]:
    nli, own = "data/nli_en/mnli_train.tsv.xz", "data/train.en.csv"
    good = restored(nli, "tasks")
    wrong, hidden = write(nli, _NLI + "a\tb\tmaybe\n"), write(nli, _NLI[:25] + "\na\tb\t-1\n")
    says = ("mnli_train.tsv.xz, line 3", "'maybe'", "entailm")
    yield _case("xnli", "an unknown label", wrong, *says, repairs=good)
    yield _case("xnli", "no labels", hidden, "xnli|nli_en", "label", repairs=good)
    yield _case("xnli", "a cut file", cut(nli), "mnli_train", "cut off", repairs=good)
    yield _case("xnli", "a missing file", remove(nli), "mnli_train", repairs=good)
    one_label, two_ways = write(own, "text,label\na,pos\nb,pos\n"), write(own, _ROWS + "a,Pos\n")
    yield _case("text", "one label", one_label, "labels are pos", "label_column")
    yield _case("text", "labels in two ways", two_ways, "'pos' .4 times", "'Pos'", "alike")
    yield _case("text", "no language", write("data/Train.csv", _ROWS), r"Train\.csv", "rename")
    folder = write(f"{own}/part", _ROWS)
    yield _case("text", "a folder as file", folder, r"train\.en\.csv: is a folder")

    def empty(folder: pathlib.Path) -> None:
        for path in (folder / "encoder").iterdir():
            path.unlink()

    yield _case("udpos", "an empty encoder", empty, "init_from", "no encoder")
    broken = cut("encoder/model.safetensors")
    yield _case("udpos", "cut weights", broken, r"model\.safetensors", "cannot be read")


def _keys() -> Iterator[Case]:
    """Values that do not fit the data or one another."""
    for config, flag, says in (
        ("xnli", "task.test_languages=('de',)", ("'de'", "en, sw")),
        ("glue:colla,", "train.seed=1", ("'colla'", "cola")),
        ("tatoeba", "task.test_languages=('de',)", ("'de'", "af")),
        ("tatoeba", "task.layer=9", ("task.layer",)),
        ("udpos", "init_from=", ("init_from",)),
        ("udpos", "task.max_length=512", ("task.max_length", "512")),
        ("udpos", "task.name=udposs", ("task.name", "'udposs'")),
        ("udpos", "optimizer.frozen=('head',)", ("optimizer.frozen",)),
        ("udpos", "task.lenght=3", ("task.lenght", "no key")),
        ("udpos", "train.batch_size=9", ("batch_size", "9")),
    ):
        yield _case(config, flag, nothing, *says, flags=(f"--config.{flag}",))

    def aligned(folder: pathlib.Path) -> None:
        for name in ("train.en", "train.de", "dev.en", "dev.de", "test.en", "test.de"):
            write(f"data/{name}", "the cat\n" * 4)(folder)

    small = ("--config.random_init=True", "--config.task.buckets=()",
             "--config.translation.decoder_layers=1", "--config.decoding.max_length=8")  # fmt: skip
    for key in ("evaluation.batch_tokens", "train.batch_tokens"):
        flags, says = (*small, f"--config.{key}=8"), rf"{key} is 8, too few for \d rows of 24"
        yield _case("translation:en-de,", key, aligned, says, flags=flags)


CASES = [*_files(), *_keys()]
