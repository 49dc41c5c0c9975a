"""Configs and flags: files of one's own, and values that do not fit others."""

import pathlib
from collections.abc import Iterator

from tests.malformed import templates
from tests.malformed.breaks import case, nothing, write
from tests.malformed.harness import Case

_OWN = """from configs import quickstart

def get_config(arg=''):
    config = quickstart.get_config('runlocal')
"""


def _files() -> Iterator[Case]:
    good = write("own.py", _OWN + "    config.corpus.root = __file__.replace('own.py', 'text')\n"
                 "    config.corpus.languages = ('en', 'sw')\n    return config\n")  # fmt: skip
    where, get, end = r"--config=\S*own\.py", "def get_config():\n    ", "\n    return config\n"
    for name, content, says in (
        ("a syntax error", "def get_config(:\n", (where, "SyntaxError|invalid syntax", "line 1")),
        ("a missing import", "import no_such_module\n", (where, "no_such_module", "line 1")),
        ("an exception", f"{get}return 1 / 0\n", (where, "division by zero", "line 2")),
        ("an undefined name", f"{get}return confg\n", (where, "confg", "line 2")),
        ("no get_config", "x = 1\n", (where, "get_config")),
        ("nothing returned", f"{get}pass\n", (where,)),
        ("a dict returned", f"{get}return {{'train': 1}}\n", ("config file", "dict")),
        ("a key mistyped", f"{_OWN}    config.lock()\n    config.train.num_stps = 3{end}",
         (where, "num_stps", "line 6")),
        ("text for a number", f"{_OWN}    config.train.num_steps = 'many'{end}", (where, "line 5")),
        ("an unknown section", f"{_OWN}    config.trian = config.train{end}", ("trian",)),
        ("a section missing", f"{_OWN}    del config.mask{end}", ("'mask'",)),
        ("a key of another type",
         f"{_OWN}    del config.train.seed\n    config.train.seed = 'x'{end}",
         (r"train\.seed", "'x'")),
    ):  # fmt: skip
        repairs = good if name in ("a syntax error", "a section missing") else None
        flags = ("--config=DIR/own.py", "--workdir=DIR/work")
        yield case("config file", name, "prepare_data", write("own.py", content), *says,
                   template="text", flags=flags, repairs=repairs)  # fmt: skip

    def folder(folder: pathlib.Path) -> None:
        (folder / "own.py").mkdir()

    for breaks, says in ((nothing, r"own\.py.*no such config"), (folder, r"own\.py")):
        yield case("config file", says, "train", breaks, says, template="text", flags=flags)


def _flags() -> Iterator[Case]:
    quick, workdir, config = (
        "--config=configs/quickstart.py", "--workdir=DIR/work", templates.config,
    )  # fmt: skip
    files = ("--input=DIR/x", "--output=DIR/y")
    for command, given, *says in (
        ("train", (workdir,), "--config"),
        ("train", ("--config=configs/finetune/xnli.py:x", workdir), "task xnli", "run finetune.py"),
        ("finetune", (quick, workdir), "pre-training", "run train.py"),
        ("train", (quick,), "--workdir"),
        ("train", (*config(), "--num_steps=3"), "num_steps"),
        ("train", (*config(), "--config.train.steps=3"), r"config\.train\.steps", "no key 'steps'"),
        ("train", (*config(), "--config.trian.seed=3"), r"config\.trian\.seed", "no key 'trian'"),
        ("train", (*config(), "--config.train.seed.x=3"), r"config\.train\.seed\.x"),
        ("train", (*config(), "--config.train=3"), r"config\.train"),
        ("train", (*config(), "--config.train.num_steps=many"), r"train\.num_steps", "many"),
        ("train", (*config(), "--config.train.tensorboard=maybe"), r"train\.tensorboard"),
        ("train", (*config(), "--config.optimizer.stages=(1,"), r"optimizer\.stages"),
        ("train", (f"{quick}:runlocal", "--workdir=https://bucket/run"), "--workdir", "gcsfuse"),
        ("build_vocab", config(corpus__root="no3://b/text"), r"corpus\.root", "no3|remote"),
        ("build_vocab", config(train__init_from="no3://b"), r"init_from", "no3|remote"),
        ("prepare_data", config(corpus__languages="en,sw"),
         r"corpus\.languages", r"--config\.corpus\.languages=\"\('en','sw'\)\""),
        ("train", config(train__init_from="https://hub/x"), r"train\.init_from", "https://hub/x"),
        ("predict", files, "--workdir", "--config"),
        ("predict", (*files, workdir), "results.json", "finetune"),
        ("predict", (*files, "--config=configs/finetune/xnli.py:x"), "xnli", "--workdir"),
        ("predict", (workdir,), "--input"),
        ("evaluate", ("--config=configs/vocap_paper.py:vocap_5k", workdir), "vocap_5k", "vocap_50"),
        ("evaluate", ("--config=configs/xy_lent.py:huge", workdir), "huge", "base"),
        ("train", ("--config=configs/veco.py:huge", workdir), "huge", "large"),
        ("estimate", (quick, "--devices=many"), "--devices", "many"),
        ("estimate", (quick, "--devices=0"), "devices"),
        ("export_model", (workdir,), "--output"),
        ("export_model", (workdir, "--output=DIR/m", "--part=decoder"), "--part", "decoder"),
        ("pair_weights", (*config(), "--config.evaluation.batch_size=0"), r"batch_size is 0"),
    ):  # fmt: skip
        name = f"{command} {given[-1]}"
        yield case("flags", name, command, nothing, *says, flags=given)


# Values that do not fit others, by the command that finds out. tests/schema_test.py has those that
# are refused by themselves.
_VALUES: dict[str, dict[str, tuple[str, ...]]] = {
    "prepare_data": {"corpus.languages": ("('de',)",), "corpus.text": ("('.', '.')",)},
    "build_vocab": {
        "vocab.target_size": ("5",), "vocab.sizes": ("(200,100)", "(0,100)"),
        "vocab.normalizer": ("nfx",), "vocab.whitespace": ("keep",),
        "vocab.required_chars": ("('none',)",), "vocab.max_ratio": ("0.0",),
        "vocab.amounts": ("DIR/none.json",), "vocab.allocation": ("DIR/none.json",),
        "vocab.tables": ("DIR/none",), "vocab.tokenizer": ("DIR/none.model", "DIR/text"),
    },
    "train": {
        "objective": ("masked", "no.module:build", "configs.small:nothing"),
        "data.alpha_phases": ("((0,0.5),)", "((8,0.5),(4,1.0))", "((4,0.5),(4,1.0))",
                              "((4,-3.0),)"),
        "data.pair_share": ("1.0",),
        "model.hidden_size": ("33",), "model.num_heads": ("5",), "model.max_length": ("31",),
        "model.distance_buckets": ("7",), "model.cross_attention": ("True",),
        "mask.mask_share": ("0.95",),
        "output_layer.capacity": ("8",), "output_layer.group_size": ("3",),
        "optimizer.stages": ('(("head",0),)',),
        "mesh.data": ("3",), "mesh.fsdp": ("16",), "mesh.model": ("3",),
        "mesh.rules": ("(('vocabulary','model'),)", "(('vocab','modell'),)"),
        "train.batch_size": ("9",), "train.accumulation_steps": ("3",),
        "train.batch_warmup_steps": ("5",), "train.init_from": ("DIR/none", "DIR/text"),
        "train.keep_every": ("3",), "evaluation.retrieval_layer": ("3",),
    },
}  # fmt: skip


def _values() -> Iterator[Case]:
    for command, keys in _VALUES.items():
        for key, values in keys.items():
            for value in values:
                yield _value(command, key, value)
    frozen, pairs = "evaluation.frozen_generator", {"data__pair_share": "0.5"}
    yield _value("train", frozen, "DIR/none", objective="replaced_token")
    yield _value("train", "data.pair_pivot", "de", data__pair_sampling="pivot", **pairs)
    yield _value("train", "data.pair_positions", "random", **pairs)


def _value(command: str, key: str, value: str, **changes: str) -> Case:
    section, changes[key.replace(".", "__")] = key.partition(".")[0], value
    says = r"mesh\.|mesh of data" if section == "mesh" else key.replace(".", r"\.")
    return case(f"config {section}", f"{key}={value}", command, nothing, says, **changes)


CASES = [*_files(), *_flags(), *_values()]
