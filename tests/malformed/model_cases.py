"""Model folders, checkpoints and finished runs, as tools, train, evaluate and predict read them."""

import pathlib
import shutil
from collections.abc import Iterator

from tests.malformed import templates
from tests.malformed.breaks import case, cut, nothing, remove, restored, write
from tests.malformed.harness import Break, Case


def _folders() -> Iterator[Case]:
    weights, text = "model/model.safetensors", ("--model=DIR/model", "--texts=DIR/en.txt")
    vocabulary = ("--model=DIR/model", "--vocabulary=DIR/new.model")
    for what, command, flags, breaks, says, repairs in (
        ("no folder", "import_model", vocabulary, remove("model"), "model", None),
        ("cut weights", "import_model", vocabulary, cut(weights),
         r"model\.safetensors.*cannot be read", restored(weights, "model")),
        ("no vocabulary", "import_model", vocabulary, remove("new.model"),
         r"new\.model: no such file", restored("new.model", "model")),
        ("full output", "import_model", vocabulary, write("out/x"), "is not empty", remove("out")),
        ("cut weights", "prune_model", text, cut(weights), r"model\.safetensors", None),
    ):  # fmt: skip
        yield case("model folders", f"{command}, {what}", command, breaks, says, template="model",
                   flags=(*flags, "--output=DIR/out"), repairs=repairs)  # fmt: skip


def _checkpoints() -> Iterator[Case]:
    kind, place, settings = "checkpoints", "work/train/checkpoints", "work/train/settings.json"
    config = templates.run_config

    def cut_arrays(folder: pathlib.Path) -> None:
        for path in (folder / place).rglob("*"):
            if path.is_file():
                templates.truncate(path)

    export, other = ("--workdir=DIR/work", "--output=DIR/out"), config(objective="replaced_token")
    wide, deep = config(model__hidden_size="48"), config(evaluation__retrieval_layer="1")
    made, layers = "train was made under another config", r"retrieval_layer is 1, but .* 0 layers"
    for name, command, flags, breaks, says in (
        ("none", "evaluate", config(), remove(place), "checkpoint"),
        ("cut arrays", "evaluate", config(), cut_arrays, "checkpoint"),
        ("cut arrays", "export_model", export, cut_arrays, "checkpoint"),
        ("another width", "train", wide, nothing, rf"{made}(?s:.*)hidden_size"),
        ("another objective", "evaluate", other, nothing, rf"{made}(?s:.*)objective"),
        ("a layer beyond", "evaluate", deep, nothing, layers),
        ("a cut record", "train", config(), cut(settings), settings),
    ):
        yield case(kind, f"{command}, {name}", command, breaks, says, template="run", flags=flags)
    detection = {"objective": "replaced_token", "replaced_token__generator_layers": "0"}
    without = "init_from is .*work, a run without a generator .*objective is masked_lm; .* name one"
    for what, breaks, says, changes in (
        ("no checkpoint", remove(place), "train.init_from.*without a checkpoint", {}),
        ("a run without a generator", nothing, without, detection),
    ):
        flags = config(train__init_from="DIR/work", **changes)[:-1]

        def start(folder: pathlib.Path, breaks: Break = breaks) -> None:
            shutil.copytree(folder / "work", folder / "other")
            shutil.rmtree(folder / "other/train")
            breaks(folder)

        yield case(kind, f"starting from {what}", "train", start, says, template="run",
                   flags=(*flags, "--workdir=DIR/other"))  # fmt: skip


def _predictions() -> Iterator[Case]:
    """Runs of finetune.py and a user's own text, as predict.py reads them."""
    run = ("--workdir=DIR/pairs", "--output=DIR/out/p.jsonl", "--input=DIR/in.txt")
    search = ("--config=configs/finetune/tatoeba.py", "--config.init_from=DIR/encoder",
              "--output=DIR/p.jsonl", "--config.task.max_length=24", "--config.task.layer=0",
              "--input=DIR/in.txt,DIR/in.txt")  # fmt: skip
    latin, none = write("in.txt", b"a\tb\n\xf1\tb\n"), "--config.init_from=DIR/none"
    for what, flags, breaks, says in (
        ("cut results", run, cut("pairs/results.json"), r"results\.json.*not JSON"),
        ("no record", run, remove("pairs/settings.json"), r"settings\.json"),
        ("cut parameters", run, cut("pairs/best.safetensors"), r"best\.safetensors.*cannot be rea"),
        ("another tokenizer", run, cut("pairs/spm.model"), r"spm\.model is tokenizer"),
        ("no input", run, remove("in.txt"), r"in\.txt: no such file"),
        ("Latin 1", run, latin, r"in\.txt, line 2.*iconv"),
        ("two inputs", (*run, "--input=DIR/in.txt,DIR/in.txt"), nothing, "--input names 2"),
        ("one side", (*search, "--input=DIR/in.txt"), nothing, "names 1 files"),
        ("no encoder", (*search, none), nothing, "init_from"),
        ("no rows", (*search, "--config.evaluation.batch_size=0"), nothing, "batch_size is 0, mus"),
    ):
        yield case("predict", what, "predict", breaks, says, template="finished", flags=flags)


CASES = [*_folders(), *_checkpoints(), *_predictions()]
