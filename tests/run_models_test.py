"""Runs of replaced-token detection and of VECO: gone on from, exported, and fine-tuned from."""

import dataclasses
import pathlib
import tempfile

import flax.linen as nn
import jax
import numpy as np
from absl.testing import absltest, parameterized
from ml_collections import ConfigDict

from configs import quickstart, veco, xy_lent
from input_pipeline.packed_dataset import PackedDataset
from tests import commands, factories, folders, tiny_tasks, tiny_translation
from tests.cli.models_test import OTHER, TOKENIZER, VOCAB
from tests.cli.stores import write_dataset
from xlm.experiment import data as data_builders
from xlm.experiment import evaluators, model, objectives, translation
from xlm.experiment.initial import initial_params
from xlm.experiment.masked_lm import masked_lm_of
from xlm.experiment.pretrained import Pretrained, read_pretrained, read_settings
from xlm.interop import model_folder, vocabulary
from xlm.models.encoder import CROSS_ATTENTION, Encoder, without_cross_attention
from xlm.objectives.replaced_token import DISCRIMINATOR, GENERATOR, HEAD
from xlm.training.checkpoint import Checkpoints

KEYS = {
    "store.length": 16, "model.max_length": 16, "model.num_layers": 1, "model.hidden_size": 8,
    "model.embedding_size": 4, "model.mlp_size": 8, "model.num_heads": 2,
    "model.distance_buckets": 8, "data.pair_share": 0.0, "mesh.vocab_multiple": 16,
    "replaced_token.generator_width": 0.5,
}  # fmt: skip


def config(**changes) -> ConfigDict:
    found = xy_lent.get_config("runlocal")
    found.update_from_flattened_dict({**KEYS, **changes})
    return found


def write_rows(
    folders: data_builders.Folders, tokenizer: bytes = TOKENIZER, size: int = VOCAB,
    length: int = KEYS["store.length"],
) -> PackedDataset:  # fmt: skip
    folders.rows.mkdir(parents=True)
    statistics = factories.write_rows(folders.rows, ["aa"], length, 6, 96, 300, size)
    return write_dataset(folders.workdir, tokenizer, size, length, statistics)


def mesh():
    return factories.one_device(config())


def write_run(folders: data_builders.Folders, settings: ConfigDict, dataset: PackedDataset):
    """A run with a checkpoint of random parameters; returns its objective and parameters."""
    objective = objectives.objective(settings, dataset, mesh())
    data_builders.open_train_stage(settings, folders).claim()
    params = factories.random_params(objective)
    functions = model.train_functions(settings, objective, mesh())
    with Checkpoints(folders.train / "checkpoints", keep=1) as checkpoints:
        checkpoints.save(7, factories.first_state(functions, params))
    return objective, params


class TestCase(folders.FolderTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.parent = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.folders = data_builders.Folders(cls.parent / "work")
        cls.dataset = write_rows(cls.folders)
        cls.objective, cls.params = write_run(cls.folders, config(), cls.dataset)
        # Each has a table of its own, so that none of these is taken for another.
        assert cls.objective.settings.embeddings == "disentangled"


class InitialTest(TestCase):
    def start(self, source: pathlib.Path, folders: data_builders.Folders | None = None, **changes):
        """Reader of the initial parameters of another run, on the same rows by default."""
        settings = config(**{"train.init_from": str(source), **changes})
        objective = objectives.objective(settings, self.dataset)
        folders = folders or data_builders.Folders(self.new_folder())
        if not folders.rows.exists():
            write_rows(folders)
        return initial_params(settings, objective, folders)

    def test_generator_and_discriminator_of_a_run(self):
        changes = {"optimizer.learning_rate": 1e-5, "replaced_token.weight": 10.0}
        self.assertIsNone(initial_params(config(), self.objective, self.folders))
        found = self.start(self.folders.workdir, **changes)()
        self.assertEqual(set(found), {GENERATOR, DISCRIMINATOR, HEAD})
        jax.tree.map(np.testing.assert_array_equal, found, self.params)

    @parameterized.parameters(
        ({"model.hidden_size": 16}, r"has shape \(8,\) in the run in .*work and \(16,\) in this"),
        ({"replaced_token.generator_layers": 2}, r"generator.layers.* shape \(1, .* and \(2, "),
        ({"replaced_token.embeddings": "shared"}, "discriminator.embeddings.table has shape .*no"),
    )
    def test_other_parameters(self, changes, message):
        with self.assertRaisesRegex(ValueError, f"train.init_from: parameter .*{message}"):
            self.start(self.folders.workdir, **changes)

    def test_starts_that_cannot_be(self):
        with self.assertRaisesRegex(
            ValueError, "is .*work, a run with a generator .*: its objective is replaced_token; set"
        ):
            self.start(self.folders.workdir, objective="masked_lm")
        folders = data_builders.Folders(self.new_folder())
        write_rows(folders, OTHER)
        with self.assertRaisesRegex(ValueError, "is not .*spm.model, with which this run's rows"):
            self.start(self.folders.workdir, folders)
        with self.assertRaisesRegex(ValueError, "is no --workdir of train.py; .* two encoders"):
            self.start(self.new_folder())
        # A run that has started needs its start no more.
        (folders.train / "checkpoints").mkdir(parents=True)
        self.start(folders.workdir / "gone", folders)

    def test_a_checkpoint_without_a_generator(self):
        source = data_builders.Folders(self.new_folder())
        write_run(source, config(objective="masked_lm"), write_rows(source))
        with self.assertRaisesRegex(
            ValueError,
            "is .*new, a run without a generator and .*: its objective is masked_lm; .* name one",
        ):
            self.start(source.workdir)


def run(command: str, workdir: pathlib.Path, changes, *flags: str):
    """A command with the config."""
    keys = (f"--config.{key}={value}" for key, value in {**KEYS, **changes}.items())
    config = "--config=configs/xy_lent.py:runlocal"
    return commands.execute(command, config, *keys, f"--workdir={workdir}", *flags)


class ExportTest(TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.discriminator, cls.generator = cls.parent / "encoder", cls.parent / "generator"
        for output, flags in ((cls.discriminator, ()), (cls.generator, ("--part=generator",))):
            flags = (f"--output={output}", *flags)
            result = commands.execute("export_model", f"--workdir={cls.folders.workdir}", *flags)
            assert result.returncode == 0, result.stderr
            has_head = output == cls.generator
            assert ("head" in model_folder.read_model(output)[1]) == has_head

    def logits(self, pretrained: Pretrained, tokens: np.ndarray) -> jax.Array:
        """Logits of the discriminator's head over the states of what fine-tuning reads."""
        settings = dataclasses.replace(pretrained.settings, dropout_rate=0.0)
        states = Encoder(settings).apply(
            {"params": pretrained.params}, tokens, np.ones_like(tokens),
            np.tile(np.arange(tokens.shape[1]), (len(tokens), 1)),
            deterministic=True, method="encode",
        )  # fmt: skip
        return self.objective._head.apply({"params": self.params[HEAD]}, states)

    def test_fine_tuning_reads_the_discriminator_from_run_and_folder(self):
        tokens = np.random.default_rng(0).integers(5, VOCAB, (2, 12)).astype(np.int32)
        expected = self.objective.logits(self.params, tokens)
        of_run, of_folder = (
            read_pretrained(str(path)) for path in (self.folders.workdir, self.discriminator)
        )
        np.testing.assert_allclose(self.logits(of_run, tokens), expected, atol=1e-6)
        np.testing.assert_array_equal(self.logits(of_folder, tokens), self.logits(of_run, tokens))
        self.assertEqual(of_run.settings, self.objective.encoder.settings)
        self.assertEqual(of_run.tokenizer, of_folder.tokenizer)
        for found in (of_run, of_folder):
            self.assertNotIn("head", found.params)

    def test_the_generator_is_a_masked_lm_of_the_same_exact_loss(self):
        narrow = {"model.hidden_size": 4, "model.num_heads": 1, "model.mlp_size": 4}
        changes = {"objective": "masked_lm", "model.num_layers": 1, **narrow}
        settings = config(**changes, **{"train.init_from": str(self.generator)})
        alone = objectives.objective(settings, self.dataset)
        folders = data_builders.Folders(self.new_folder())
        write_rows(folders)
        start = initial_params(settings, alone, folders)()
        without = config(objective="masked_lm", **{"train.init_from": str(self.discriminator)})
        wide = objectives.objective(without, self.dataset)
        with self.assertRaisesRegex(ValueError, "without a masked-LM head, .* --part=generator"):
            initial_params(without, wide, folders)
        found, expected = (
            evaluators.exact_masked_lm(
                settings, masked_lm_of(one), self.dataset, mesh(), in_training=False
            ).run(params)
            for one, params in ((alone, start), (self.objective, self.params))
        )
        self.assertEqual(found, expected)

    def test_the_discriminator_on_another_vocabulary(self):
        """Imported and pruned as by the tools, with an encoder without a head."""
        sizes, params = model_folder.read_model(self.discriminator)
        table, bias = model_folder.table_of(params)
        self.assertEqual(np.abs(bias).max(), 0)
        old, new = vocabulary.vocabulary(TOKENIZER), vocabulary.vocabulary(OTHER)
        swapped = vocabulary.swap(old, new, table, bias)
        pruned, kept = vocabulary.prune(TOKENIZER, ["ab cd"])
        for tokenizer, new_table, new_bias in (
            (OTHER, swapped.table, swapped.bias),
            (pruned, table[kept], bias[kept]),
        ):
            expected = model_folder.with_table(params, new_table, new_bias)
            folder = self.new_folder()
            model_folder.write_model(folder, expected, sizes, tokenizer)
            again, found = model_folder.read_model(folder)
            jax.tree.map(np.testing.assert_array_equal, found, expected)
            self.assertEqual(again, {**sizes, "vocab_size": len(new_table)})
            self.assertNotIn("head", found)


# An XLM-R but for its size and cross-attention.
VECO_KEYS = {
    "store.length": 16, "model.max_length": 24, "model.hidden_size": 8, "model.embedding_size": 8,
    "model.mlp_size": 8, "model.num_heads": 2, "model.position": "learned",
    "model.norm_position": "post", "data.pair_share": 0.0, "mesh.vocab_multiple": 16,
}  # fmt: skip
MASKED_LM = {"objective": "masked_lm", "model.cross_attention": False}


def veco_config(**changes):
    found = veco.get_config("runlocal")
    found.update_from_flattened_dict({**VECO_KEYS, **changes})
    return found


class VecoTest(absltest.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.parent = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.folders = data_builders.Folders(cls.parent / "run")
        _, params = write_run(cls.folders, veco_config(), write_rows(cls.folders))
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
        write_run(folders, veco_config(**MASKED_LM), write_rows(folders))
        result = self.export("none", "--part=encoder_decoder", workdir=folders.workdir)
        self.assertEqual(result.returncode, 2, result.stderr)
        self.assertRegex(
            result.stderr, r"error \([^\n]*encoder_decoder, but [^\n]*cross_attention is False; exp"
        )
        self.assertFalse((self.parent / "none").exists())
        with self.assertRaisesRegex(ValueError, "masked_lm has no cross-attention; .*veco"):
            self.start(folders.workdir, "last")


class PretrainedTest(folders.FolderTest):
    def test_a_folder_of_transformers(self):
        found = read_pretrained(str(tiny_tasks.encoder_folder(2)))
        self.assertEqual(found.settings, tiny_tasks.SETTINGS)
        self.assertEqual(read_settings(str(tiny_tasks.encoder_folder(2))), tiny_tasks.SETTINGS)
        self.assertEqual(found.tokenizer, tiny_tasks.tokenizer())
        jax.tree.map(np.testing.assert_array_equal, found.params, tiny_tasks.params())

    def test_its_digests_are_of_parameters_and_tokenizer(self):
        found = read_pretrained(str(tiny_tasks.encoder_folder(2)))
        digests = found.digests()
        self.assertEqual(read_pretrained(str(tiny_tasks.encoder_folder(2))).digests(), digests)
        table = found.params["embeddings"]["table"].copy()
        table[3, 1] += 1e-3
        changed = {**found.params, "embeddings": {**found.params["embeddings"], "table": table}}
        other = dataclasses.replace(found, params=changed).digests()
        self.assertNotEqual(other["parameters"], digests["parameters"])
        self.assertEqual(other["tokenizer"], digests["tokenizer"])
        other = dataclasses.replace(found, tokenizer=b"another").digests()
        self.assertEqual(other["parameters"], digests["parameters"])
        self.assertNotEqual(other["tokenizer"], digests["tokenizer"])

    def test_a_run_of_train(self):
        config = quickstart.get_config("runlocal")
        config.model.update(num_layers=0, embedding_size=8, hidden_size=16, num_heads=2)
        config.model.update(position="gated", distance_buckets=8, max_distance=16)
        config.output_layer.kind = "full"
        folders = data_builders.Folders(self.folder / "work")
        tokenizer, length = tiny_tasks.tokenizer(), config.store.length
        dataset = write_rows(folders, tokenizer, tiny_tasks.VOCAB, length)
        data_builders.open_train_stage(config, folders).claim()
        with self.assertRaisesRegex(ValueError, "holds no checkpoint; run train.py"):
            read_pretrained(str(folders.workdir))

        config.train.batch_size = 8  # of the devices here; that of the run need not fit them
        mesh = model.mesh(config)
        objective = objectives.objective(config, dataset, mesh)
        state = model.train_functions(config, objective, mesh).init(np.int32(3))
        with Checkpoints(folders.train / "checkpoints", keep=1) as checkpoints:
            checkpoints.save(7, state)
        found = read_pretrained(str(folders.workdir))
        self.assertEqual(found.settings, objective.encoder.settings)
        self.assertEqual(read_settings(str(folders.workdir)), found.settings)
        self.assertEqual(found.tokenizer, tokenizer)
        jax.tree.map(np.testing.assert_array_equal, found.params, jax.device_get(state.params))
