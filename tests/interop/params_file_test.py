"""Parameters to a file and back, and files that are none."""

import pathlib
import tempfile

import numpy as np
from absl.testing import absltest
from safetensors.numpy import save_file

from interop.params_file import read_params, write_params

PARAMS = {
    "encoder": {"layers": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3)}},
    "task": {"kernel": np.float32([[-0.0, 1e-30]]), "bias": np.float32([np.pi])},
}
NOTES = {"step": 7, "value": 0.5, "sizes": {"hidden_size": 8}, "tokenizer": "чи"}


class ParamsFileTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.path = folder / "best.safetensors"

    def test_what_was_written_is_read(self):
        # Arrays that are not contiguous too.
        turned = {**PARAMS, "turned": PARAMS["encoder"]["layers"]["kernel"].T}
        write_params(self.path, turned, NOTES)
        params, notes = read_params(self.path)
        self.assertEqual(notes, NOTES)
        for name in ("encoder", "task"):
            self.assertEqual(params[name].keys(), PARAMS[name].keys())
        found = params["task"]["kernel"]
        self.assertEqual(found.dtype, np.float32)
        np.testing.assert_array_equal(
            found.view(np.uint32), PARAMS["task"]["kernel"].view(np.uint32)
        )
        np.testing.assert_array_equal(params["turned"], turned["turned"])
        np.testing.assert_array_equal(
            params["encoder"]["layers"]["kernel"], PARAMS["encoder"]["layers"]["kernel"]
        )

    def test_a_new_file_takes_the_place_of_the_old_one(self):
        write_params(self.path, PARAMS, NOTES)
        write_params(self.path, {"task": PARAMS["task"]}, {"step": 8})
        params, notes = read_params(self.path)
        self.assertEqual((set(params), notes), ({"task"}, {"step": 8}))
        self.assertEqual([path.name for path in self.path.parent.iterdir()], [self.path.name])

    def test_files_that_are_none(self):
        with self.assertRaisesRegex(
            ValueError, "does not exist; copy .* delete DONE and checkpoints .* run finetune.py"
        ):
            read_params(self.path)
        self.path.write_bytes(b"nothing of the kind")
        with self.assertRaisesRegex(ValueError, "best.safetensors: cannot be read"):
            read_params(self.path)
        save_file({"x": np.zeros(3)}, self.path)  # of another program
        with self.assertRaisesRegex(ValueError, "best.safetensors: cannot be read"):
            read_params(self.path)
        write_params(self.path, PARAMS, NOTES)
        self.path.write_bytes(self.path.read_bytes()[:-8])
        with self.assertRaisesRegex(ValueError, "best.safetensors: cannot be read"):
            read_params(self.path)


if __name__ == "__main__":
    absltest.main()
