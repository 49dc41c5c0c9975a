import copy
import importlib
import itertools
import math
import pathlib
import tempfile

import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from benchmarks import recording, recording_data
from benchmarks.recording_comparison import Difference, compare, describe
from input_pipeline.tasks import loading
from xlm.common import artifacts
from xlm.experiment import task_data
from xlm.experiment.task_kinds import KINDS
from xlm.experiment.task_settings import task_settings
from xlm.training.checkpoint import Checkpoints
from xlm.training.state import TrainState

LOSS = 5.123456789012345
RECORDING = {
    "versions": {"jax": "0.10", "CPU": "one"},
    "runs": {
        "quickstart": {
            "metrics": [
                {"step": 1, "train/loss": 6.0, "train/overflow": 0.0},
                {"step": 2, "train/loss": LOSS},
                {"step": 2, "eval/loss": math.nan},
                {"step": 3, "train/loss": 4.0},
            ],
            "results": {},
            "parameters": {"head/bias": "ab", "table": "cd"},
        },
        "tagging": {
            "metrics": [],
            "results": {"test": {"en": {"f1": 0.5}}, "predictions": {"en": [{"id": "0"}]}},
            "parameters": {},
        },
    },
}


# What there is to learn from an example; searches have none.
LABELS = {
    "classification": "label",
    "regression": "label",
    "tagging": "tags",
    "extractive_qa": "answers",
}


def changed(*places: tuple) -> dict:
    """The recording with other values, each under a path of keys, or without it for ..."""
    made = copy.deepcopy(RECORDING)
    for *path, last, value in places:
        inner = made["runs"]
        for key in path:
            inner = inner[key]
        if value is ...:
            del inner[last]
        else:
            inner[last] = value
    return made


def differences(after: dict, renamed=None, before=RECORDING) -> list[tuple]:
    """Differences that `compare` finds between recordings that were written and read."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "recording.json"
        recording.write(path, after)
        found = compare(before, artifacts.read_json(path), renamed or {})
    return [(one.run, one.name, one.step, one.before, one.after) for one in found]


class CompareTest(parameterized.TestCase):
    def test_a_recording_equals_itself(self):
        self.assertEqual(differences(RECORDING), [])

    @parameterized.parameters(
        (0, "train/loss", math.nextafter(6.0, 7), (1, 6.0, 6.000000000000001)),
        (0, "train/overflow", -0.0, (1, 0.0, -0.0)),
        (0, "train/overflow", 0, (1, 0.0, 0)),
        (1, "train/loss", ..., (2, LOSS, "(absent)")),
        (2, "eval/loss", ..., (None, "there", "(absent)")),
        (1, "train/new", 1.0, (None, "(absent)", "there")),
    )
    def test_a_metric(self, line, name, value, expected):
        after = changed(("quickstart", "metrics", line, name, value))
        # As text, in which -0.0 and 0 are not 0.0.
        self.assertEqual(repr(differences(after)), repr([("quickstart", name, *expected)]))

    def test_the_first_step_alone_is_named(self):
        after = changed(*(("quickstart", "metrics", i, "train/loss", 9.0) for i in (3, 1)))
        self.assertEqual(differences(after), [("quickstart", "train/loss", 2, LOSS, 9.0)])

    def test_results_predictions_and_parameters(self):
        after = changed(
            ("tagging", "results", "test", "en", "f1", 0.25),
            ("tagging", "results", "predictions", "en", 0, "id", "1"),
            ("quickstart", "parameters", "table", "ce"),
        )
        expected = {
            ("quickstart", "table", None, "cd", "ce"),
            ("tagging", "test/en/f1", None, 0.5, 0.25),
            ("tagging", "predictions/en/0/id", None, "0", "1"),
        }
        self.assertEqual(set(differences(after)), expected)

    def test_a_run_that_one_side_lacks(self):
        after = changed(("tagging", ...))
        self.assertEqual(differences(after), [("tagging", "(all)", None, "recorded", "(absent)")])

    def test_the_same_name_twice_at_a_step(self):
        after = changed(("quickstart", "metrics", 2, "train/loss", 6.0))
        with self.assertRaisesRegex(ValueError, "'train/loss' twice, at step 2"):
            differences(after)


class RenamedTest(absltest.TestCase):
    AFTER = changed(
        ("quickstart", "metrics", 0, "train/overflow", ...),
        ("quickstart", "metrics", 0, "train/dropped", 0.0),
        ("quickstart", "parameters", "table", ...),
        ("quickstart", "parameters", "embeddings/table", "cd"),
    )
    NAMES = {"train/overflow": "train/dropped", "table": "embeddings/table"}

    def test_new_names_are_compared_with_the_old_ones(self):
        self.assertLen(differences(self.AFTER), 4)
        self.assertEqual(differences(self.AFTER, self.NAMES), [])
        self.AFTER["runs"]["quickstart"]["parameters"]["embeddings/table"] = "xy"
        found = differences(self.AFTER, self.NAMES)
        self.AFTER["runs"]["quickstart"]["parameters"]["embeddings/table"] = "cd"
        self.assertEqual(found, [("quickstart", "embeddings/table", None, "cd", "xy")])

    def test_gone_on_purpose(self):
        after = changed(("quickstart", "metrics", 2, "eval/loss", ...))
        self.assertEqual(differences(after, {"eval/loss": None}), [])
        self.assertEqual(differences(RECORDING, {"eval/loss": None}, before=after), [])

    def test_a_name_that_both_have_is_compared_even_so(self):
        after = changed(("quickstart", "metrics", 2, "eval/loss", 1.0))
        self.assertLen(differences(after, {"eval/loss": None}), 1)

    def test_two_names_that_become_one(self):
        for renamed in ({"head/bias": "table"}, {"head/bias": "new", "table": "new"}):
            with self.assertRaisesRegex(ValueError, "there is another one"):
                differences(RECORDING, renamed)

    def test_exchanged_names(self):
        after = changed(
            ("quickstart", "parameters", "table", "ab"),
            ("quickstart", "parameters", "head/bias", "cd"),
        )
        self.assertLen(differences(after), 2)
        self.assertEqual(differences(after, {"table": "head/bias", "head/bias": "table"}), [])


class CommandTest(absltest.TestCase):
    def status(self, after: dict, **options) -> int:
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        paths = {"before": RECORDING, "after": after, "renamed": options.get("renamed", {})}
        for name, content in paths.items():
            recording.write(folder / name, content)
        before, after, renamed = (str(folder / name) for name in paths)
        return recording.compare_files([before, after], options.get("runs", []), renamed)

    def test_status(self):
        other = changed(("tagging", "results", "test", "en", "f1", 0.25))
        self.assertEqual(self.status(RECORDING), 0)
        self.assertEqual(self.status(other), 1)
        self.assertEqual(self.status(other, runs=["quickstart"]), 0)
        renamed = changed(("tagging", "results", "test", "en", {"F1": 0.5}))
        self.assertEqual(self.status(renamed), 1)
        self.assertEqual(self.status(renamed, renamed={"test/en/f1": "test/en/F1"}), 0)

    def test_versions_are_told_and_refuse_nothing(self):
        after = {**RECORDING, "versions": {"jax": "0.11", "CPU": "one"}}
        self.assertEqual(self.status(after), 0)
        told = describe(RECORDING, after, [])
        self.assertStartsWith(told, "jax differs: 0.10 before, 0.11 after\n")
        self.assertNotIn("CPU", told)

    def test_table(self):
        found = [Difference("rows", "train/loss", 3, 0.1, 0.2)]
        self.assertEndsWith(
            describe(RECORDING, RECORDING, found), "| rows | train/loss | 3 | 0.1 | 0.2 |"
        )

    def test_runs_by_name(self):
        with self.assertRaisesRegex(ValueError, "no 'slow'; the runs are quickstart, full,"):
            recording.wanted_runs(["slow"])
        self.assertEqual(
            recording.wanted_runs(["mining", "rows"]), ["quickstart", "rows", "mining"]
        )


class RecordTest(parameterized.TestCase):
    @parameterized.parameters(*recording.TRAINING)
    def test_keys_of_training(self, run):
        config = importlib.import_module("configs.quickstart").get_config().lock()
        overrides = {**recording.OVERRIDES, **recording.TRAINING[run]}
        config.update_from_flattened_dict(overrides)  # raises for a key that there is not

    @parameterized.parameters(*recording.FINE_TUNING)
    def test_data_and_keys_of_fine_tuning(self, run):
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        recording_data.write_tasks(folder)
        path, overrides = recording.FINE_TUNING[run]
        path, _, argument = path.replace("DATA", str(folder)).partition(".py:")
        config = importlib.import_module(path.replace("/", ".")).get_config(argument).lock()
        config.update_from_flattened_dict({**recording.FINE_TUNING_OVERRIDES, **overrides})
        options = task_settings(config)
        if run not in LABELS:
            self.assertEqual(task_data.languages(options, "test"), ("de",))
            pairs = task_data.read_pairs(options, "test", "de")
            self.assertLen(pairs.gold, {"retrieval": 36, "mining": 12}[run])
            return
        tested = ("en",) if run == "regression" else ("de", "en")
        self.assertEqual(task_data.languages(options, "test"), tested)
        readers = KINDS[options.task.kind].readers
        for split, sizes in {"train": [24], "validation": [12], "test": [12] * len(tested)}.items():
            examples = [
                loading.load_examples(readers, options.source(split, language))
                for language in task_data.languages(options, split)
            ]
            self.assertEqual(list(map(len, examples)), sizes)
            for example in itertools.chain(*examples):
                self.assertNotIn(getattr(example, LABELS[run]), (None, ()))

    def test_the_environment_is_that_of_the_recording(self):
        with absltest.mock.patch.dict("os.environ", JAX_ENABLE_X64="1", XLA_FLAGS="x", HOME="h"):
            found = recording.environment(pathlib.Path("compiled"))
        self.assertNotIn("JAX_ENABLE_X64", found)
        self.assertNotEqual(found["XLA_FLAGS"], "x")
        self.assertEqual(found["HOME"], "h")

    def test_a_digest_is_of_type_shape_and_bits(self):
        base = np.arange(4, dtype=np.float32)
        bit = base.copy()
        bit[3] = np.nextafter(bit[3], np.float32(9))
        arrays = [base, bit, base.reshape(2, 2), base.view(np.int32), base[::-1]]
        found = recording.digests({str(number): one for number, one in enumerate(arrays)})
        self.assertLen(set(found.values()), len(arrays))
        same = recording.digests({"jax": jnp.asarray(base), "view": np.stack([base, bit], 1)[:, 0]})
        self.assertEqual(set(same.values()), {found["0"]})

    def test_parameters_of_the_last_checkpoint(self):
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        tables = {step: jnp.full((3, 2), step, jnp.float32) for step in (1, 9, 10)}
        with Checkpoints(folder, keep=3) as checkpoints:
            for step, table in tables.items():
                params = {"layers": {"kernel": table + 1}, "table": table}
                state = TrainState(
                    step=jnp.int32(step),
                    params=params,
                    opt_state={"whatever": table},
                    key_data=jnp.zeros(2, jnp.uint32),
                    extra={},
                )
                checkpoints.save(step, state)
        found = recording.saved_params(folder)
        self.assertEqual(
            recording.digests(found),
            recording.digests({"layers/kernel": tables[10] + 1, "table": tables[10]}),
        )


if __name__ == "__main__":
    absltest.main()
