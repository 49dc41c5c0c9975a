"""Parameters to a file and back, and files that are none."""

import json

import jax
import numpy as np
import safetensors
from absl.testing import parameterized
from safetensors.numpy import load_file, save_file

from tests import folders
from xlm.interop.params_file import Encoder, Notes, read_params, write_params

PARAMS = {
    "encoder": {"layers": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3)}},
    "task": {"kernel": np.float32([[-0.0, 1e-30]]), "bias": np.float32([np.pi])},
}
ENCODER = {
    "vocab_size": 7, "embedding_size": 8, "hidden_size": 8, "num_layers": 0, "num_heads": 2,
    "mlp_size": 4, "max_length": 9, "norm_position": "pre", "dropout_rate": 0.0,
    "attention_dropout_rate": 0.1, "dtype": "float32",
}  # fmt: skip
NOTES = {"encoder": ENCODER, "step": 7, "value": 0.5, "tokenizer": "0" * 64}


def bits(array: np.ndarray) -> tuple:
    return array.dtype, array.shape, array.tobytes()


class ParamsFileTest(folders.FolderTest):
    def setUp(self):
        super().setUp()
        self.path = self.folder / "best.safetensors"

    def test_what_was_written_is_read(self):
        # Arrays that are not contiguous too.
        turned = {**PARAMS, "turned": PARAMS["encoder"]["layers"]["kernel"].T}
        write_params(self.path, turned, NOTES)
        params, notes = read_params(self.path)
        expected = Notes(encoder=Encoder(**ENCODER), step=7, value=0.5, tokenizer="0" * 64)
        self.assertEqual(notes, expected)
        self.assertEqual(jax.tree.map(bits, params), jax.tree.map(bits, turned))

    def test_a_new_file_takes_the_place_of_the_old_one(self):
        write_params(self.path, PARAMS, NOTES)
        write_params(self.path, {"task": PARAMS["task"]}, {**NOTES, "step": 8})
        params, notes = read_params(self.path)
        self.assertEqual((set(params), notes.step), ({"task"}, 8))
        self.assertEqual([path.name for path in self.path.parent.iterdir()], [self.path.name])
        with self.assertRaisesRegex(ValueError, "best.safetensors: task/bias has .* not finite"):
            write_params(self.path, {"task": {"bias": np.float32([np.nan])}}, NOTES)
        self.assertEqual(read_params(self.path)[1].step, 8)

    def test_files_that_are_none(self):
        with self.assertRaisesRegex(
            ValueError, "does not exist; copy .* move it, DONE and checkpoints .* rerun finetune.py"
        ):
            read_params(self.path)
        self.path.write_bytes(b"nothing of the kind")
        with self.assertRaisesRegex(ValueError, "best.safetensors: cannot be read"):
            read_params(self.path)
        save_file({"x": np.zeros(3)}, self.path)  # of another program
        with self.assertRaisesRegex(ValueError, "best.safetensors, notes: not JSON"):
            read_params(self.path)
        write_params(self.path, PARAMS, NOTES)
        self.path.write_bytes(self.path.read_bytes()[:-8])
        with self.assertRaisesRegex(ValueError, "best.safetensors: cannot be read"):
            read_params(self.path)

    def saved(self, arrays=None, digests=True, **changes) -> None:
        """Write the file again with other arrays or notes, and its digests as they were."""
        write_params(self.path, PARAMS, NOTES)
        with safetensors.safe_open(self.path, framework="np") as file:
            metadata = file.metadata()
        metadata["notes"] = json.dumps({**json.loads(metadata["notes"]), **changes})
        if not digests:
            del metadata["sha256"]
        save_file({**load_file(self.path), **(arrays or {})}, self.path, metadata=metadata)

    def test_older_files_without_digests_are_read(self):
        self.saved(digests=False, value=float("nan"))
        params, notes = read_params(self.path)
        self.assertIsNone(notes.value)
        np.testing.assert_array_equal(params["task"]["bias"], PARAMS["task"]["bias"])

    @parameterized.parameters(
        ({"task/bias": np.float32([3])}, True, {}, "task/bias is damaged, its SHA-256"),
        ({"task/bias": np.float32([np.inf])}, False, {}, "task/bias has numbers .* not finite"),
        ({"task/bias/x": np.float32([3])}, False, {}, "task/bias/x is in the place of another"),
        ({}, True, {"step": 8}, "notes is damaged, its SHA-256"),
        ({}, False, {"step": "8"}, 'notes: step is "8", must be a whole number'),
        ({}, False, {"encoder": {**ENCODER, "num_layers": 10**9}}, "encoder.num_layers is 1000000"),
    )
    def test_what_is_damaged_or_wrong_is_named(self, arrays, digests, changes, message):
        self.saved(arrays, digests, **changes)
        with self.assertRaisesRegex(ValueError, f"best.safetensors.*{message}"):
            read_params(self.path)
