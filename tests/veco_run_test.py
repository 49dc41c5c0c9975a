"""A run of VECO's objective, with a checkpoint: exported, and started from to translate."""

import pathlib
import tempfile

import flax.linen as nn
import jax
import numpy as np
from absl.testing import absltest

from configs import veco
from tests import commands, tiny_translation
from tests.cli.models_test import TOKENIZER, VOCAB
from tests.run_models_test import write_rows, write_run
from xlm.experiment import data as data_builders
from xlm.experiment import translation
from xlm.interop import model_folder
from xlm.models.encoder import CROSS_ATTENTION, without_cross_attention

# An XLM-R but for its size and cross-attention.
KEYS = {
    "store.length": 16, "model.max_length": 24, "model.hidden_size": 8, "model.embedding_size": 8,
    "model.mlp_size": 8, "model.num_heads": 2, "model.position": "learned",
    "model.norm_position": "post", "data.pair_share": 0.0, "mesh.vocab_multiple": 16,
}  # fmt: skip
MASKED_LM = {"objective": "masked_lm", "model.cross_attention": False}


def config(**changes):
    found = veco.get_config("runlocal")
    found.update_from_flattened_dict({**KEYS, **changes})
    return found


class RunTest(absltest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.parent = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.folders = data_builders.Folders(cls.parent / "run")
        _, params = write_run(cls.folders, config(), write_rows(cls.folders))
        # Without the rows that pad the table.
        table, bias = (x[:VOCAB] for x in model_folder.table_of(params))
        cls.params = model_folder.with_table(params, table, bias)

    def export(self, name: str, *flags: str, workdir: pathlib.Path | None = None):
        """Export the run, or another one, into a folder of this name."""
        given = f"--workdir={workdir or self.folders.workdir}", f"--output={self.parent / name}"
        return commands.execute("export_model", *given, *flags)

    def start(self, folder: pathlib.Path, end: str):
        """Parameters that a translation starts from, and shapes of all that it has."""
        settings = tiny_translation.config(
            random_init=False, init_from=str(folder), translation__decoder_from=end,
            translation__needs_cross_attention=True,
        )  # fmt: skip
        pretrained = translation.read_start(settings)
        model = translation.model(settings, pretrained)
        make = translation.initial_params(settings, pretrained, model)
        assert make is not None
        init = translation.objective(settings, model).init
        return make(), nn.unbox(jax.eval_shape(init, jax.random.key(0)))

    def test_the_encoder_is_exported_as_an_xlm_roberta(self):
        result = self.export("encoder")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        sizes, found = model_folder.read_model(self.parent / "encoder")
        self.assertFalse(sizes["cross_attention"])
        expected = without_cross_attention(self.params)
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        self.assertEqual(model_folder.read_tokenizer(self.parent / "encoder"), TOKENIZER)

    def test_translation_starts_from_the_run_and_from_its_export(self):
        result = self.export("both", "--part=encoder_decoder")
        self.assertEqual(result.returncode, 0, result.stderr)
        card = (self.parent / "both" / "README.md").read_text(encoding="utf-8")
        self.assertIn("cross_attention is True", card)
        _, exported = model_folder.read_model(self.parent / "both")
        jax.tree.map(np.testing.assert_array_equal, exported, self.params)
        for place, end in enumerate(("first", "last")):
            found, shapes = self.start(self.folders.workdir, end)
            again, _ = self.start(self.parent / "both", end)
            jax.tree.map(np.testing.assert_array_equal, found, again)
            self.assertEqual(jax.tree.map(np.shape, found), jax.tree.map(np.shape, shapes))
            layers = self.params["layers"]
            expected = jax.tree.map(lambda x, i=place: x[i : i + 1], layers)
            jax.tree.map(np.testing.assert_array_equal, found["decoder"]["layers"], expected)
            self.assertContainsSubset(CROSS_ATTENTION, expected)

    def test_a_run_without_cross_attention_has_no_decoder(self):
        folders = data_builders.Folders(self.parent / "masked_lm")
        write_run(folders, config(**MASKED_LM), write_rows(folders))
        result = self.export("none", "--part=encoder_decoder", workdir=folders.workdir)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertRegex(
            result.stderr, r"error \([^\n]*encoder_decoder, but [^\n]*cross_attention is False; exp"
        )
        self.assertFalse((self.parent / "none").exists())
        with self.assertRaisesRegex(ValueError, "masked_lm has no cross-attention; .*veco"):
            self.start(folders.workdir, "last")
