"""Configs and flags: files of one's own, keys, types, and values out of range in every section."""

import pathlib
from collections.abc import Iterator

from tests import tiny_tasks
from tests.malformed import templates
from tests.malformed.harness import Break, Case

_OWN = """from configs import quickstart

def get_config(arg=''):
    config = quickstart.get_config('runlocal')
"""


def _nothing(folder: pathlib.Path) -> None:
    """Leave the folder as it is: the flags are wrong."""


def _file(content: str) -> Break:
    return lambda folder: tiny_tasks.write(folder / "own.py", content)


def _files() -> Iterator[Case]:
    good = _file(
        _OWN + "    config.corpus.root = __file__.replace('own.py', 'text')\n"
        "    config.corpus.languages = ('en', 'sw')\n    return config\n"
    )
    where = r"--config=\S*own\.py"
    for name, content, says in (
        ("a syntax error", "def get_config(:\n", (where, "SyntaxError|invalid syntax", "line 1")),
        ("a missing import", "import no_such_module\n", (where, "no_such_module", "line 1")),
        (
            "an exception",
            "def get_config():\n    return 1 / 0\n",
            (where, "division by zero", "line 2"),
        ),
        (
            "a name that is not defined",
            "def get_config():\n    return confg\n",
            (where, "confg", "line 2"),
        ),
        ("no get_config", "x = 1\n", (where, "get_config")),
        ("nothing returned", "def get_config():\n    pass\n", (where,)),
        (
            "a dict returned",
            "def get_config():\n    return {'train': 1}\n",
            ("config file", "dict"),
        ),
        ("nothing in it", "", (where, "get_config")),
        ("YAML", "train:\n  num_steps: 3\n", (where, "line")),
        (
            "a key of a section mistyped",
            _OWN + "    config.train.num_stps = 3\n    return config\n",
            (r"config\.train", "num_stps"),
        ),
        (
            "a key mistyped under lock",
            _OWN + "    config.lock()\n    config.train.num_stps = 3\n    return config\n",
            (where, "num_stps", "line 6"),
        ),
        (
            "text for a number",
            _OWN + "    config.train.num_steps = 'many'\n    return config\n",
            (where, "line 5"),
        ),
        (
            "an unknown section",
            _OWN + "    config.trian = config.train\n    return config\n",
            ("trian",),
        ),
        ("a section missing", _OWN + "    del config.mask\n    return config\n", ("'mask'",)),
        ("a newer section missing", _OWN + "    del config.veco\n    return config\n", ("'veco'",)),
        (
            "a key missing",
            _OWN + "    del config.train.prng\n    return config\n",
            (r"config\.train", "'prng'"),
        ),
        (
            "no section",
            _OWN + "    del config.mask\n    config.mask = None\n    return config\n",
            (r"config\.mask is None",),
        ),
        (
            "a section that is a number",
            _OWN + "    del config.mask\n    config.mask = 3\n    return config\n",
            (r"config\.mask is 3",),
        ),
        (
            "an empty config",
            "from ml_collections import ConfigDict\n\ndef get_config():\n    return ConfigDict()\n",
            ("missing keys", "'train'"),
        ),
        (
            "a key of another type",
            _OWN + "    del config.train.seed\n    config.train.seed = 'x'\n    return config\n",
            (r"train\.seed", "'x'"),
        ),
        (
            "a switch that is a number",
            _OWN + "    del config.train.tensorboard\n    config.train.tensorboard = 1\n"
            "    return config\n",
            (r"train\.tensorboard", "True or False"),
        ),
        (
            "text for a tuple",
            _OWN + "    del config.corpus.text\n    config.corpus.text = '.'\n    return config\n",
            (r"corpus\.text", "a tuple"),
        ),
    ):
        repairs = (
            good
            if name in ("a syntax error", "a section missing", "a key of another type")
            else None
        )
        flags = ("--config=DIR/own.py", "--workdir=DIR/work")
        yield Case(
            "config file", name, "prepare_data", "text", flags, _file(content), says, repairs
        )

    def folder(folder: pathlib.Path) -> None:
        (folder / "own.py").mkdir()

    flags = ("--config=DIR/own.py", "--workdir=DIR/work")
    yield Case(
        "config file", "no file", "train", "text", flags, _nothing, (r"own\.py", "no such config")
    )
    yield Case("config file", "a folder", "train", "text", flags, folder, (r"own\.py",))


def _flags() -> Iterator[Case]:
    for command, given, says in (
        ("train", ("--workdir=DIR/work",), ("--config",)),
        ("train", ("--config=configs/quickstart.py",), ("--workdir",)),
        ("train", (*templates.config(), "--num_steps=3"), ("num_steps",)),
        (
            "train",
            (*templates.config(), "--config.train.steps=3"),
            (r"config\.train\.steps", "no key 'steps'"),
        ),
        (
            "train",
            (*templates.config(), "--config.trian.seed=3"),
            (r"config\.trian\.seed", "no key 'trian'"),
        ),
        ("train", (*templates.config(), "--config.train.seed.x=3"), (r"config\.train\.seed\.x",)),
        ("train", (*templates.config(), "--config.train=3"), (r"config\.train",)),
        (
            "train",
            (*templates.config(), "--config.train.num_steps=many"),
            (r"train\.num_steps", "many"),
        ),
        (
            "train",
            (*templates.config(), "--config.train.num_steps=3.5"),
            (r"train\.num_steps", "3.5"),
        ),
        (
            "train",
            (*templates.config(), "--config.train.tensorboard=maybe"),
            (r"train\.tensorboard",),
        ),
        (
            "train",
            (*templates.config(), "--config.optimizer.learning_rate=1e-"),
            (r"learning_rate", "1e-"),
        ),
        ("train", (*templates.config(), "--config.optimizer.stages=(1,"), (r"optimizer\.stages",)),
        (
            "train",
            ("--config=configs/quickstart.py:runlocal", "--workdir=gs://bucket/run"),
            ("--workdir", "gcsfuse"),
        ),
        (
            "build_vocab",
            templates.config(corpus__root="s3://bucket/text"),
            (r"corpus\.root", "s3://bucket/text"),
        ),
        (
            "prepare_data",
            templates.config(corpus__languages="en,sw"),
            (r"corpus\.languages", r"--config\.corpus\.languages=\"\('en','sw'\)\""),
        ),
        (
            "build_vocab",
            templates.config(vocab__compare="uniform,joint"),
            (r"vocab\.compare", r"--config\.vocab\.compare=\"\('uniform','joint'\)\""),
        ),
        ("build_vocab", templates.config(vocab__tables="gs://b/t"), (r"vocab\.tables", "gs://b/t")),
        (
            "train",
            templates.config(train__init_from="https://hub/xlmr"),
            (r"train\.init_from", "https://hub/xlmr"),
        ),
        ("predict", ("--input=DIR/x", "--output=DIR/y"), ("--workdir", "--config")),
        (
            "predict",
            ("--input=DIR/x", "--output=DIR/y", "--workdir=DIR/work"),
            ("results.json", "finetune"),
        ),
        (
            "predict",
            ("--input=DIR/x", "--output=DIR/y", "--config=configs/finetune/xnli.py:x"),
            ("xnli", "--workdir"),
        ),
        ("predict", ("--workdir=DIR/work",), ("--input",)),
        (
            "evaluate",
            ("--config=configs/vocap_paper.py:vocap_5k", "--workdir=DIR/w"),
            ("vocap_5k", "vocap_500k"),
        ),
        ("evaluate", ("--config=configs/xy_lent.py:huge", "--workdir=DIR/w"), ("huge", "base")),
        ("train", ("--config=configs/veco.py:huge", "--workdir=DIR/w"), ("huge", "large")),
        (
            "estimate_memory",
            ("--config=configs/quickstart.py", "--devices=many"),
            ("--devices", "many"),
        ),
        ("estimate_memory", ("--config=configs/quickstart.py", "--devices=0"), ("devices",)),
        ("estimate_memory", ("--config=configs/quickstart.py", "--devices=-4"), ("devices",)),
        ("export_model", ("--config=configs/quickstart.py", "--workdir=DIR/work"), ("--output",)),
        (
            "estimate_memory",
            (
                "--config=configs/finetune/xnli.py",
                "--encoder=xlmr_base",
                "--config.evaluation.batch_size=0",
            ),
            (r"evaluation\.batch_size is 0",),
        ),
        *(
            (
                command,
                (*templates.config(), *more, "--config.evaluation.batch_size=0"),
                (r"evaluation\.batch_size is 0",),
            )
            for command, more in (
                ("export_model", ("--output=DIR/m",)),
                ("pair_sampling", ()),
                ("pair_weights", ()),
            )
        ),
        (
            "export_model",
            (*templates.config(), "--output=DIR/m", "--part=decoder"),
            ("--part", "decoder"),
        ),
    ):
        name = f"{command} {' '.join(given[-1:])}"
        yield Case("flags", name, command, "rows", given, _nothing, says)


# Values that do not fit others, by the command that finds out. tests/schema_test.py has those that
# are refused by themselves.
_VALUES: dict[str, dict[str, tuple[str, ...]]] = {
    "prepare_data": {"corpus.languages": ("('de',)",), "corpus.text": ("('.', '.')",)},
    "build_vocab": {
        "vocab.target_size": ("5",),
        "vocab.sizes": ("()", "(200,100)", "(0,100)"),
        "vocab.amounts": ("DIR/none.json",),
        "vocab.allocation": ("DIR/none.json",),
        "vocab.tables": ("DIR/none",),
        "vocab.tokenizer": ("DIR/none.model", "DIR/text"),
    },
    "train": {
        "objective": ("masked", "no.module:build", "configs.small:nothing"),
        "data.alpha_phases": (
            "((0,0.5),)",
            "((8,0.5),(4,1.0))",
            "((4,0.5),(4,1.0))",
            "((4,-3.0),)",
        ),
        "data.pair_share": ("1.0",),
        "data.contrast_share": ("2.0",),
        "data.pair_sampling": ("greedy",),
        "data.pair_temperature": ("0.0",),
        "model.hidden_size": ("33",),
        "model.num_heads": ("5",),
        "model.max_length": ("31",),
        "model.distance_buckets": ("7",),
        "model.cross_attention": ("True",),
        "mask.mask_share": ("0.95",),
        "mask.random_share": ("1.5",),
        "output_layer.k": ("0",),
        "output_layer.capacity": ("8",),
        "output_layer.group_size": ("3",),
        "optimizer.stages": ('(("head",0),)',),
        "mesh.data": ("3", "0", "-2"),
        "mesh.fsdp": ("16", "-1"),
        "mesh.model": ("3",),
        "mesh.rules": ("(('vocabulary','model'),)", "(('vocab','modell'),)"),
        "train.batch_size": ("9",),
        "train.accumulation_steps": ("3",),
        "train.batch_warmup_steps": ("5",),
        "train.init_from": ("DIR/none", "DIR/text"),
        "train.keep_every": ("3",),
        "evaluation.retrieval_layer": ("3",),
    },
}
# Of objectives and of pairs, whose keys others do not read.
_OF_OBJECTIVES: dict[str, dict[str, tuple[str, ...]]] = {
    "replaced_token": {"evaluation.frozen_generator": ("DIR/none",)},
    "masked_lm": {
        "data.pair_buckets": ("()", "(64,32)", "(4,)", "(24,)"),
        "data.pair_positions": ("random",),
        "data.pair_pivot": ("de",),
    },
}


def _values() -> Iterator[Case]:
    for command, keys in _VALUES.items():
        for key, values in keys.items():
            for value in values:
                yield _value(command, key, value)
    for objective, keys in _OF_OBJECTIVES.items():
        for key, values in keys.items():
            for value in values:
                changes = {"data__pair_share": "0.5"} if objective != "replaced_token" else {}
                if objective == "veco":
                    changes["model__cross_attention"] = "True"
                if key.startswith("robust"):
                    changes |= {"robust__num_phases": "1", "data__pair_sampling": "m2m"}
                if key == "data.pair_pivot":
                    changes["data__pair_sampling"] = "pivot"
                yield _value("train", key, value, objective=objective, **changes)


def _value(command: str, key: str, value: str, **changes: str) -> Case:
    section = key.partition(".")[0]
    changes[key.replace(".", "__")] = value
    flags = templates.config(**changes)
    says = (r"mesh\.|mesh of data" if section == "mesh" else key.replace(".", r"\."),)
    return Case(f"config {section}", f"{key}={value}", command, "rows", flags, _nothing, says)


CASES = [*_files(), *_flags(), *_values()]
