import copy
import importlib
import itertools
import math
import pathlib
import tempfile

import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from benchmarks import recording, recording_data
from benchmarks.recording_comparison import compare
from input_pipeline.tasks import loading
from tests.folders import FolderTest
from xlm.common import artifacts
from xlm.experiment import task_data
from xlm.experiment.task_kinds import KINDS
from xlm.experiment.task_settings import task_settings

LOSS = 5.123456789012345
RECORDING = {
    "versions": {"jax": "0.10", "CPU": "one"},
    "runs": {"quickstart": {"metrics": [{"step": 1, "train/loss": 6.0, "train/overflow": 0.0},
                                        {"step": 2, "train/loss": LOSS},
                                        {"step": 2, "eval/loss": math.nan},
                                        {"step": 3, "train/loss": 4.0}], "results": {},
                 "parameters": {"head/bias": "ab", "table": "cd"}},
             "tagging": {"metrics": [],
                         "results": {"test": {"en": {"f1": 0.5}},
                                     "predictions": {"en": [{"id": "0"}]}}, "parameters": {}}},
}  # fmt: skip


# Labels of an example by kind; searches have none.
LABELS = {
    "classification": "label", "regression": "label", "tagging": "tags", "extractive_qa": "answers",
}  # fmt: skip


def changed(*places: tuple) -> dict:
    """Return the recording with changed values by path of keys; ... removes one."""
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
        # As text, where -0.0 and 0 differ from 0.0.
        self.assertEqual(repr(differences(after)), repr([("quickstart", name, *expected)]))

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

    def test_the_same_name_twice_at_a_step(self):
        after = changed(("quickstart", "metrics", 2, "train/loss", 6.0))
        with self.assertRaisesRegex(ValueError, "'train/loss' twice, at step 2"):
            differences(after)


class RecordTest(FolderTest):
    @parameterized.parameters(*recording.TRAINING)
    def test_keys_of_training(self, run):
        config = importlib.import_module("configs.quickstart").get_config().lock()
        overrides = {**recording.OVERRIDES, **recording.TRAINING[run]}
        config.update_from_flattened_dict(overrides)  # raises for a missing key

    @parameterized.parameters(*recording.FINE_TUNING)
    def test_data_and_keys_of_fine_tuning(self, run):
        recording_data.write_tasks(self.folder)
        path, overrides = recording.FINE_TUNING[run]
        path, _, argument = path.replace("DATA", str(self.folder)).partition(".py:")
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

    def test_a_digest_is_of_type_shape_and_bits(self):
        base = np.arange(4, dtype=np.float32)
        bit = base.copy()
        bit[3] = np.nextafter(bit[3], np.float32(9))
        arrays = [base, bit, base.reshape(2, 2), base.view(np.int32), base[::-1]]
        found = recording.digests({str(number): one for number, one in enumerate(arrays)})
        self.assertLen(set(found.values()), len(arrays))
        same = recording.digests({"jax": jnp.asarray(base), "view": np.stack([base, bit], 1)[:, 0]})
        self.assertEqual(set(same.values()), {found["0"]})
