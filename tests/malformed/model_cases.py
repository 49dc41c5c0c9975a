"""Model folders, checkpoints and finished runs, as tools, train, evaluate and predict read them."""

import json
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from tests import tiny_tasks
from tests.malformed import templates
from tests.malformed.harness import Break, Case

_WEIGHTS = "model/model.safetensors"
_IMPORT = ("--model=DIR/model", "--vocabulary=DIR/new.model", "--output=DIR/out")


def _nothing(folder: pathlib.Path) -> None:
    """Leave the folder as it is."""


def _remove(name: str) -> Break:
    def breaks(folder: pathlib.Path) -> None:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return breaks


def _write(name: str, content: bytes | str) -> Break:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: tiny_tasks.write(folder / name, "") or (folder / name).write_bytes(data)


def _cut(name: str, share: float = 0.5) -> Break:
    return lambda folder: templates.truncate(folder / name, share)


def _json(name: str, **changes: Any) -> Break:
    """Change keys of a JSON object; those that become Ellipsis go."""

    def breaks(folder: pathlib.Path) -> None:
        path = folder / name
        value = {**json.loads(path.read_text(encoding="utf-8")), **changes}
        kept = {key: one for key, one in value.items() if one is not ...}
        path.write_text(json.dumps(kept), encoding="utf-8")

    return breaks


def _tensors(change: Callable[[dict[str, np.ndarray]], Any], name: str = _WEIGHTS) -> Break:
    def breaks(folder: pathlib.Path) -> None:
        tensors = load_file(folder / name)
        change(tensors)
        save_file(tensors, folder / name, metadata={"format": "pt"})

    return breaks


def _first(tensors: dict[str, np.ndarray]) -> str:
    return min(tensors)


def _folders() -> Iterator[Case]:
    def case(name: str, breaks: Break, *says: str, template: str = "model") -> Case:
        return Case(
            "model folders", f"{name} ({template})", "import_model", template, _IMPORT, breaks, says
        )

    config = "model/config.json"
    for what, breaks, says in (
        ("no folder", _remove("model"), ("model",)),
        ("no config", _remove(config), (r"config\.json does not exist",)),
        ("cut config", _cut(config), (r"config\.json", "not JSON")),
        (
            "another model",
            _json(config, model_type="bert"),
            (r"config\.json: model_type", "'bert'"),
        ),
        ("no weights", _remove(_WEIGHTS), (r"model\.safetensors",)),
        ("cut weights", _cut(_WEIGHTS), (r"model\.safetensors", "cannot be read")),
        ("a missing tensor", _tensors(lambda found: found.pop(_first(found))), ("lacks tensors",)),
        (
            "another shape",
            _tensors(lambda found: found.update({_first(found): np.zeros((3, 3), np.float32)})),
            ("shape",),
        ),
        (
            "whole numbers",
            _tensors(
                lambda found: found.update({_first(found): found[_first(found)].astype(np.int32)})
            ),
            ("int32", "float32"),
        ),
        (
            "no tokenizer",
            lambda folder: [
                (folder / "model" / one).unlink() for one in ("spm.model", "tokenizer.json")
            ],
            ("spm.model", "tokenizer"),
        ),
        ("a cut tokenizer", _cut("model/spm.model"), (r"spm\.model", "not a SentencePiece")),
        (
            "an empty new vocabulary",
            _write("new.model", b""),
            (r"new\.model", "not a SentencePiece"),
        ),
        ("no new vocabulary", _remove("new.model"), (r"new\.model: no such file",)),
        ("an output that is full", _write("out/x", b"x"), ("out is not empty",)),
    ):
        yield case(what, breaks, *says)
    for template, key, value in (
        ("model", "hidden_size", "16"),
        ("model", "num_attention_heads", 3),
        ("model", "vocab_size", 7),
        ("model", "max_position_embeddings", 1),
        ("model", "hidden_act", "relu"),
        ("model", "max_position_embeddings", ...),
        ("own_model", "format_version", 99),
        ("own_model", "num_heads", 5),
        ("own_model", "position", "alibi"),
        ("own_model", "max_length", ...),
    ):
        says = rf"config\.json: .*{key}|shape|lacks|embeddings"
        name = f"{key} {'missing' if value is ... else repr(value)}"
        yield case(name, _json(config, **{key: value}), says, template=template)


def _shards() -> Iterator[Case]:
    def shard(index: str) -> Break:
        def breaks(folder: pathlib.Path) -> None:
            (folder / _WEIGHTS).rename(folder / "model/part.safetensors")
            (folder / f"{_WEIGHTS}.index.json").write_text(index, encoding="utf-8")

        return breaks

    where = r"model\.safetensors\.index\.json"
    for what, index, says in (
        (
            "a missing shard",
            '{"weight_map": {"a": "gone.safetensors"}}',
            (r"gone\.safetensors does not exist",),
        ),
        (
            "a shard elsewhere",
            '{"weight_map": {"a": "../x.safetensors"}}',
            (where, "without slashes"),
        ),
    ):
        yield Case(
            "model folders", f"index, {what}", "import_model", "model", _IMPORT, shard(index), says
        )
    prune = ("--model=DIR/model", "--texts=DIR/en.txt", "--output=DIR/out")
    for what, breaks, says in (
        ("no text", _remove("en.txt"), (r"en\.txt: no such file",)),
        (
            "no tokenizer of this project",
            _remove("model/spm.model"),
            (r"spm\.model does not exist",),
        ),
        ("cut weights", _cut(_WEIGHTS), (r"model\.safetensors",)),
    ):
        yield Case("model folders", f"pruning, {what}", "prune_model", "model", prune, breaks, says)


def _checkpoints() -> Iterator[Case]:
    kind, place = "checkpoints", "work/train/checkpoints"

    def every(name: str, change: Callable[[pathlib.Path], Any]) -> Break:
        """Change all files of the checkpoint whose names match."""

        def breaks(folder: pathlib.Path) -> None:
            found = [path for path in (folder / place).rglob(name) if path.is_file()]
            assert found, name
            for path in found:
                change(path)

        return breaks

    broken: tuple[tuple[str, Break], ...] = (
        ("none", _remove(place)),
        ("cut arrays", every("*", templates.truncate)),
        ("no metadata", every("*METADATA*", pathlib.Path.unlink)),
    )
    for what, breaks in broken:
        yield Case(
            kind,
            f"evaluating, {what}",
            "evaluate",
            "run",
            templates.run_config(),
            breaks,
            ("checkpoint",),
        )
        if what in ("none", "cut arrays"):
            export = (*templates.run_config(), "--output=DIR/out")
            yield Case(
                kind, f"exporting, {what}", "export_model", "run", export, breaks, ("checkpoint",)
            )
    for key, value in (("model__hidden_size", "48"), ("objective", "replaced_token")):
        flags = templates.run_config(**{key: value})
        says = ("train was made under another config", key.replace("__", r"\."))
        yield Case(kind, f"resuming with another {key}", "train", "run", flags, _nothing, says)
        yield Case(kind, f"evaluating with another {key}", "evaluate", "run", flags, _nothing, says)
    flags = templates.run_config(evaluation__retrieval_layer="1")
    says = (r"evaluation\.retrieval_layer is 1, but the encoder has 0 layers",)
    yield Case(kind, "retrieval by a layer beyond", "evaluate", "run", flags, _nothing, says)
    settings = "work/train/settings.json"
    for what, breaks in (("cut", _cut(settings)), ("a list", _write(settings, "[]"))):
        yield Case(
            kind,
            f"settings.json, {what}",
            "train",
            "run",
            templates.run_config(),
            breaks,
            (settings,),
        )
    detection = {"objective": "replaced_token", "replaced_token__generator_layers": "0"}
    without = "init_from is .*work, a run without a generator .* its objective is masked_lm; name"
    for what, breaks, says, changes in (
        ("a cut record", _cut(settings), (settings,), {}),
        ("no checkpoint", _remove(place), ("train.init_from", "without a checkpoint"), {}),
        ("a run without a generator", _nothing, (without,), detection),
    ):
        flags = templates.run_config(train__init_from="DIR/work", **changes)[:-1]
        flags = (*flags, "--workdir=DIR/other")

        def other(folder: pathlib.Path, breaks: Break = breaks) -> None:
            shutil.copytree(folder / "work", folder / "other")
            shutil.rmtree(folder / "other/train")
            breaks(folder)

        yield Case(kind, f"starting from {what}", "train", "run", flags, other, says)


def _finished() -> Iterator[Case]:
    """Runs of finetune.py and a user's own text, as predict.py reads them."""

    def case(what: str, breaks: Break, *says: str, flags=()) -> Case:
        given = ("--workdir=DIR/pairs", "--input=DIR/in.txt", "--output=DIR/out/p.jsonl", *flags)
        return Case("predict", what, "predict", "finished", given, breaks, says)

    best, results = "pairs/best.safetensors", "pairs/results.json"
    for what, breaks, says in (
        ("no results", _remove(results), (r"results\.json", "finished run")),
        ("cut results", _cut(results), (r"results\.json", "not JSON")),
        ("no record", _remove("pairs/settings.json"), (r"settings\.json",)),
        ("no parameters", _remove(best), (r"best\.safetensors does not exist",)),
        ("cut parameters", _cut(best), (r"best\.safetensors", "cannot be read")),
        ("no tokenizer", _remove("pairs/spm.model"), (r"spm\.model does not exist",)),
        ("another tokenizer", _cut("pairs/spm.model"), (r"spm\.model is tokenizer",)),
        ("no input", _remove("in.txt"), (r"in\.txt: no such file",)),
        ("Latin 1", _write("in.txt", b"a\tb\n\xf1\tb\n"), (r"in\.txt, line 2", "iconv")),
        (
            "one text of two",
            _write("in.txt", b"a\tb\nthe cat\n"),
            (r"in\.txt, line 2", "1 columns"),
        ),
    ):
        yield case(what, breaks, *says)
    yield case("two inputs", _nothing, "--input names 2", flags=("--input=DIR/in.txt,DIR/in.txt",))

    search = (
        "--config=configs/finetune/tatoeba.py",
        "--config.init_from=DIR/encoder",
        "--output=DIR/p.jsonl",
    )
    for what, names, says in (
        ("one file", "DIR/in.txt", ("names 1 files",)),
        ("a missing file", "DIR/in.txt,DIR/none.txt", (r"none\.txt: no such file",)),
        ("no encoder", "DIR/in.txt,DIR/in.txt", ("init_from",)),
    ):
        flags = (
            *search,
            f"--input={names}",
            *(("--config.init_from=DIR/none",) if what == "no encoder" else ()),
        )
        yield Case("predict", f"a search with {what}", "predict", "finished", flags, _nothing, says)
    flags = (
        *search,
        "--config.task.max_length=24",
        "--config.task.layer=0",
        "--input=DIR/in.txt,DIR/in.txt",
        "--config.evaluation.batch_size=0",
    )
    says = (r"evaluation\.batch_size is 0, must be at least 1",)
    yield Case("predict", "a search by no rows", "predict", "finished", flags, _nothing, says)


CASES = [*_folders(), *_shards(), *_checkpoints(), *_finished()]
