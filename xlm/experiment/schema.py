"""Sections and keys of a pre-training config; `task_schema` has those of tasks.

A settings class declares a key where the code uses it (`xlm.common.schema`). Keys that no such
class takes stand here. This module derives default configs, checks, help and the reference page.

Older working directories lack newer keys and get their defaults. So the default of a new key is
what the code did without it.
"""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from input_pipeline.cleaning.settings import CleaningSettings
from input_pipeline.sources import CorpusSpec
from input_pipeline.tokenization import PackedDatasetSettings
from knn_sampling.settings import OutputLayerSettings
from vocap.settings import VocabularySettings
from xlm.common import schema
from xlm.common.schema import Key, Section, check_value, section, words
from xlm.evaluation.settings import EvaluationSettings
from xlm.experiment.data_settings import DataSettings
from xlm.models.settings import EncoderSettings
from xlm.objectives.settings import (
    ContrastSettings,
    MaskSettings,
    ReplacedTokenSettings,
    RobustSettings,
    VecoSettings,
)
from xlm.training.settings import MeshSettings, OptimizerSettings, TrainSettings

# Section -> its keys; those of "" are in no section.
Family = Mapping[str, Section]

# Logical axes of the parameters in `xlm.models`, which mesh.rules may shard.
LOGICAL_AXES = (
    "vocab", "embed", "embed_out", "heads", "mlp", "position", "layers", "output",
)  # fmt: skip
# Tuples of names without commas. ml_collections reads "en,sw" as one text, 100,200 as two numbers.
_NAMES = ("languages", "compare", "train_languages", "validation_languages", "test_languages",
          "negative_columns", "frozen", "lora_targets", "user_defined_symbols", "control_symbols",
          "required_chars")  # fmt: skip


class _PreTraining:
    """What a pre-training run is.

    Attributes:
      objective: one of "masked_lm", "replaced_token" and "veco", or "MODULE:FUNCTION" of your own
        (docs/own_objective.md).
      phases: runs in turn, each from the final state of the one before. Each is a mapping of its
        "name" and the keys that differ, such as "mask.rate" (see `xlm.experiment.phase_runs`).
    """

    objective: str = schema.key("masked_lm")
    phases: tuple[Mapping[str, Any], ...] = schema.key(())


class _Look:
    """A look at the text.

    Attributes:
      inspect: whether the first stage that reads the text warns of defects in a sample of it
        (docs/inspecting.md).
    """

    inspect: bool = schema.key(True, effect="records")


class _Sources:
    """Where a vocabulary or its settings come from.

    Attributes:
      tokenizer: path of an existing tokenizer to use instead of building one: a SentencePiece model
        or a Unigram tokenizer.json.
      tables: folder of tables of run counts to read instead of text (docs/counting.md).
      amounts: JSON file of n_i of Eq. 3 per language; "" for the bytes of the text.
      allocation: sizes of languages to begin with, a JSON file exported from a build's report.html.
      parallel: folder of aligned files, one per language, on which vocab.parity measures tokens; ""
        for the held-out text.
    """

    tokenizer: str = schema.key("", effect="place")
    tables: str = schema.key("", effect="place")
    amounts: str = schema.key("", effect="place")
    allocation: str = schema.key("", effect="place")
    parallel: str = schema.key("", effect="place")


class _Start:
    """Where training starts.

    Attributes:
      init_from: working directory of train.py, or a folder of xlm import or xlm export, whose
        parameters training starts from; "" for random ones.
      init_optimizer: whether the state of the optimizer comes from the run in `init_from`, too.
    """

    init_from: str = schema.key("")
    init_optimizer: bool = schema.key(False)


# Keys of older configs and records, by section, and what to do without them.
REMOVED = {
    "data": {
        "pair_buckets": "rows of store.length now hold several pairs each: remove the key",
        "kinds_in_turns": 'set kinds to "turns" where it was True, to "random" otherwise',
    }
}

for _one in (_PreTraining, _Look, _Sources, _Start):
    dataclasses.dataclass(frozen=True)(_one)

PRETRAINING: Family = {
    "": section(_PreTraining),
    "corpus": section(CorpusSpec, _Look),
    "clean": section(CleaningSettings),
    "vocab": section(_Sources, VocabularySettings),
    "store": section(PackedDatasetSettings, num_workers=2),
    "data": section(DataSettings),
    "model": section(EncoderSettings),
    "mask": section(MaskSettings),
    "contrast": section(ContrastSettings),
    "replaced_token": section(ReplacedTokenSettings),
    "robust": section(RobustSettings, num_phases=0),
    "veco": section(VecoSettings),
    "output_layer": section(OutputLayerSettings),
    "optimizer": section(OptimizerSettings, without=("frozen", "layer_decay")),
    "mesh": section(MeshSettings),
    "train": section(TrainSettings, _Start),
    "evaluation": section(EvaluationSettings),
}


def default_config(family: Family = PRETRAINING) -> ConfigDict:
    """A config of all sections with their defaults."""
    config = ConfigDict()
    for name, keys in family.items():
        values = {
            one: placeholder(float) if found.default is None else found.default
            for one, found in keys.items()
        }
        config.update(values if not name else {name: ConfigDict(values)})
    return config


def defaults_of_records() -> dict[str, Any]:
    """Values of keys missing from the records of older folders: what the code did then."""
    found = default_config().to_dict()
    found["corpus"].update(heldout_by="position", deduplicate=False, block_bytes=0)
    for name, keys in REMOVED.items():
        found[name].update(dict.fromkeys(keys))
    return found


def checked(config: Any, family: Family = PRETRAINING) -> ConfigDict:
    """Return `config` if it has the sections, keys and types of a family, within their limits.

    Configs of fine-tuning, and those with an objective of another package, may have sections of
    their own, which their users check. Raises ValueError for a missing or unknown section or key,
    and a value or element of another type or out of its limits.
    """
    if not isinstance(config, ConfigDict):
        raise ValueError(
            f"get_config() of the config file returns {type(config).__name__}, must return a "
            "ConfigDict"
        )
    found = config.to_dict()
    expected: dict[str, Any] = {name: family[name] for name in family if name} | dict(family[""])
    is_foreign = ":" in str(found.get("objective", ""))
    if family is not PRETRAINING or is_foreign:
        expected |= {name: {} for name in found if name not in expected}
    _check_names("config", found, expected)
    for name, keys in family.items():
        there = found if not name else found[name]
        if not isinstance(there, dict):
            raise ValueError(
                f"config.{name} is {there!r}, must be a section, a ConfigDict with the keys "
                f"{', '.join(keys)}"
            )
        if name:
            _check_names(f"config.{name}", there, keys)
        for one, declared in keys.items():
            full = f"{name}.{one}" if name else one
            if isinstance(there[one], tuple | list):
                _check_commas(full, there[one])
            check_value(full, there[one], declared)
    rules = found["mesh"]["rules"] if family is PRETRAINING and not is_foreign else ()
    if unknown := [name for name, _ in rules if name not in LOGICAL_AXES]:
        raise ValueError(
            f"mesh.rules is {rules!r}, but no parameter has the axis {unknown[0]!r}; name one of "
            f"{', '.join(LOGICAL_AXES)}"
        )
    return config


def recorded(found: Mapping[str, Any], family: Family = PRETRAINING) -> ConfigDict:
    """Return a recorded config with the defaults of keys that it lacks, checked as `checked`."""
    whole = dict(found)
    for name, default in default_config(family).to_dict().items():
        value = found.get(name, default)
        is_section = isinstance(default, dict) and isinstance(value, dict)
        whole[name] = {**default, **value} if is_section else value
        for gone in REMOVED.get(name, ()) if is_section else ():
            whole[name].pop(gone, None)
    return checked(ConfigDict(whole), family)


def with_effect(*sections: str, family: Family = PRETRAINING) -> Mapping[str, tuple[str, ...]]:
    """Keys without effect on results by section: those of records, speed and places."""
    return {
        name: tuple(one for one in family[name] if family[name][one].limits["effect"] != "results")
        for name in sections
    }


def help_of(name: str = "", family: Family = PRETRAINING) -> str:
    """Help on a section's keys, or on all sections for ""."""
    if not name:
        lines = [f"  {one:<15} {', '.join(family[one])}" for one in family if one]
        return "\n".join(["Keys of a config, --config.SECTION.KEY=VALUE, by section:", *lines])
    if name not in family:
        near = difflib.get_close_matches(name, [one for one in family if one], 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"--help={name}: no such section{hint}")
    lines = []
    for one, declared in family[name].items():
        lines.append(f"  --config.{name}.{one}={_shown(declared.default)}")
        lines.append(f"      {declared.text[:1].upper()}{declared.text[1:]}")
        lines.append(f"      {_limits(declared)}")
    return "\n".join(lines)


def page() -> str:
    """The reference page of all keys, in Markdown."""
    from xlm.experiment.task_schema import FINE_TUNING, TRANSLATION

    lines = [
        "# Keys of a config",
        "",
        "Generated from their declarations by `python -m xlm.experiment.schema`. Set one by",
        "`--config.SECTION.KEY=VALUE`, or in a recipe of `configs/`. A stage resumes under changed",
        "keys where the last column says *no*; other changes need another `--workdir`.",
    ]
    seen: list[tuple[str, Section]] = []
    titles = (("Pre-training", PRETRAINING), ("Fine-tuning", FINE_TUNING),
              ("Translation", TRANSLATION))  # fmt: skip
    for title, family in titles:
        lines += ["", f"## {title}"]
        for name, keys in family.items():
            if (name, keys) in seen:
                continue
            seen.append((name, keys))
            lines += ["", f"### {name or 'The run'}", ""]
            lines.append("| key | default | meaning | allowed | changes results |")
            lines.append("|---|---|---|---|---|")
            for one, declared in keys.items():
                effect = "yes" if declared.limits["effect"] == "results" else "no"
                cells = (f"`{one}`", f"`{_shown(declared.default)}`", declared.text,
                         _limits(declared), effect)  # fmt: skip
                lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    if value == tuple(range(1000, 50_001, 1000)):
        return "1000, 2000, ..., 50000"
    return repr(value).replace("'", '"')


def _limits(declared: Key) -> str:
    if declared.limits["choices"]:
        return "one of " + ", ".join(declared.limits["choices"])
    there = (one for one in ("at_least", "above", "at_most", "below") if one in declared.limits)
    bounds = [f"{one.replace('_', ' ')} {declared.limits[one]:.10g}" for one in there]
    return ", ".join([words(declared.kind), *bounds])


def _check_names(name: str, found: Iterable[str], expected: Iterable[str]) -> None:
    missing, unknown = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if not missing and not unknown:
        return
    gone = REMOVED.get(name.removeprefix("config."), {})
    near = {one: difflib.get_close_matches(one, list(expected), 1) for one in unknown}
    hints = [
        f"{one}: {gone[one]}" if one in gone else f"did you mean {found[0]!r}?"
        for one, found in near.items()
        if one in gone or found
    ]
    raise ValueError(
        f"{name}: unknown keys {unknown}, missing keys {missing}; "
        + " ".join(hints or ["correct the names, and let the config begin with default_config()"])
    )


def _check_commas(name: str, values: Any) -> None:
    """Raise ValueError for several names in one text with commas."""
    last = name.rpartition(".")[2]
    # A label may have a comma, but a task has more than one.
    if last not in _NAMES and not (name == "task.labels" and len(values) == 1):
        return
    for joined in (one for one in values if "," in str(one)):
        several = ",".join(repr(one.strip()) for one in joined.split(","))
        raise ValueError(
            f"{name} is {values!r}, in which {joined!r} has a comma; write several as "
            f'--config.{name}="({several})"'
        )


if __name__ == "__main__":
    print(page(), end="")
