"""Refusals that follow from the declarations of the keys, of every key of every family."""

import dataclasses
import itertools
import math
import pathlib
from collections.abc import Iterator

from absl.testing import absltest, parameterized
from ml_collections import ConfigDict

from xlm.common.schema import Key, check_value, documentation, settings
from xlm.experiment import schema, task_schema
from xlm.training.settings import OptimizerSettings

FAMILIES = {
    "pre-training": schema.PRETRAINING,
    "fine-tuning": task_schema.FINE_TUNING,
    "translation": task_schema.TRANSLATION,
}


def keys(family: schema.Family) -> Iterator[tuple[str, str, Key]]:
    """All keys of a family with their sections."""
    for section, found in family.items():
        for name, key in found.items():
            yield section, name, key


def values_beyond(key: Key) -> Iterator[float]:
    """Numbers just beyond the limits of a key."""
    step = 1 if key.kind is int else 1e-9
    for limit, change in (("at_least", -step), ("above", 0), ("at_most", step), ("below", 0)):
        if limit in key.limits:
            yield key.kind(key.limits[limit] + change)


class SchemaTest(parameterized.TestCase):
    def refuse(self, family: schema.Family, section: str, name: str, value) -> str:
        config = schema.default_config(family)
        with config.unlocked():
            (config[section] if section else config)._fields[name] = value
        with self.assertRaises(ValueError) as caught:
            schema.checked(config, family)
        self.assertRegex(str(caught.exception), rf"{name} is .*must be")
        return str(caught.exception)

    @parameterized.named_parameters(FAMILIES.items())
    def test_defaults_are_valid(self, family):
        config = schema.default_config(family)
        self.assertIs(schema.checked(config, family), config)
        self.assertEqual(schema.recorded({}, family), config)

    @parameterized.named_parameters(FAMILIES.items())
    def test_a_value_of_another_type_or_beyond_its_limits_is_refused(self, family):
        for section, name, key in keys(family):
            wrong = 1 if key.kind is str or isinstance(key.default, bool) else "no"
            beyond = [{} if isinstance(key.default, str) else wrong, *values_beyond(key)]
            beyond += [math.nan, math.inf] * (key.kind is float)
            for value in beyond + ["no such"] * bool(key.limits["choices"] and key.kind is str):
                with self.subTest(f"{section}.{name}={value}"):
                    self.refuse(family, section, name, value)

    @parameterized.named_parameters(FAMILIES.items())
    def test_the_values_at_its_limits_are_not(self, family):
        for section, name, key in keys(family):
            at = [key.limits[one] for one in ("at_least", "at_most") if one in key.limits]
            for value in [*map(key.kind, at), *key.limits["choices"]]:
                value = (value,) if isinstance(key.default, tuple) else value
                with self.subTest(f"{section}.{name}={value}"):
                    check_value(name, value, key)

    @parameterized.named_parameters(FAMILIES.items())
    def test_an_unknown_key_is_told_the_nearest_one(self, family):
        for section, name, _ in keys(family):
            config = schema.default_config(family)
            with config.unlocked():
                found = config[section] if section else config
                found[f"{name}z"] = found[name]
                del found[name]
            # Sections of a kind of tasks, or of another package, are not known here.
            unknown = (
                rf"unknown keys \['{name}z'\], "
                if section or family is FAMILIES["pre-training"]
                else ""
            )
            with self.assertRaisesRegex(ValueError, rf"{unknown}missing keys \['{name}'\]"):
                schema.checked(config, family)

    @parameterized.parameters(
        ({"train": 3}, "config.train is 3, must be a section"),
        ({"corpus": {"languages": ("en,sw",)}}, r"a comma; write several as .*\('en','sw'\)"),
        ({"corpus": {"languages": ("en", 3)}}, "in which 3 must be text"),
        ({"data": {"alpha_phases": ((1, "x"),)}}, "must be a pair of a whole number and a number"),
        ({"mesh": {"rules": (("experts", "model"),)}}, "no parameter has the axis 'experts'"),
        ({"optimizer": {"kind": "adam"}}, "did you mean 'adamw'"),
        ({"data": {"pair_buckets": (64,)}}, "pair_buckets: rows of .* several pairs each: remove"),
    )
    def test_other_refusals(self, changes, message):
        config = schema.default_config().to_dict()
        for name, value in changes.items():
            config[name] = {**config[name], **value} if isinstance(value, dict) else value
        with self.assertRaisesRegex(ValueError, message):
            schema.checked(ConfigDict(config))

    def test_records_may_have_keys_that_are_gone(self):
        older = {"data": {"alpha": 0.2, "pair_buckets": [64]}}
        self.assertEqual(schema.recorded(older).data.alpha, 0.2)

    def test_help_names_every_key(self):
        for family in FAMILIES.values():
            for section in filter(None, family):
                shown = schema.help_of(section, family)
                for name, key in family[section].items():
                    self.assertIn(f"--config.{section}.{name}=", shown)
                    self.assertNotEmpty(key.text, f"{section}.{name} is documented nowhere")
                    self.assertIn(key.text[1:], shown)
        with self.assertRaisesRegex(ValueError, "did you mean train"):
            schema.help_of("trains")
        with self.assertRaisesRegex(ValueError, "returns NoneType, must return a ConfigDict"):
            schema.checked(None)

    def test_a_docstring_documents_several_fields_at_once(self):
        text = documentation(OptimizerSettings)
        self.assertEqual(text["beta1"], text["epsilon"])
        self.assertStartsWith(text["stages"], "(name, steps) of the first stages of a run. For")

    def test_fields_of_another_package_are_keys(self):
        own = dataclasses.make_dataclass("Own", ["width", "depth"])
        self.assertEqual(settings(own, {"width": 3}, depth=2).depth, 2)
        for section, message in (({}, r"missing keys \['width'\]"),
                                 ({"width": 3, "x": 1}, r"unknown keys \['x'\]")):  # fmt: skip
            with self.assertRaisesRegex(ValueError, message):
                settings(own, section, depth=2)

    def test_what_changes_no_results(self):
        found = schema.with_effect("train", "store", "corpus")
        self.assertIn("log_every", found["train"])
        self.assertNotIn("batch_size", found["train"])
        self.assertEqual(found["store"], ("num_workers",))
        self.assertEqual(found["corpus"], ("root", "inspect"))


class RecipesTest(absltest.TestCase):
    def test_keys_have_their_declaration_alone(self):
        """No recipe and no other module repeats a default as a key of a new section."""
        root = pathlib.Path(__file__).resolve().parent.parent
        for path in itertools.chain(root.glob("configs/**/*.py"), root.glob("xlm/**/*.py")):
            text = path.read_text(encoding="utf-8")
            if path.name != "schema.py":
                self.assertNotRegex(text, r"config\.\w+ = ConfigDict\(\)", path)
