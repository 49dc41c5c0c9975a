"""Generator and discriminator of a run: gone on from, exported, and fine-tuned from."""

import dataclasses
import pathlib
import tempfile

import jax
import numpy as np
from absl.testing import parameterized
from ml_collections import ConfigDict

from configs import xy_lent
from input_pipeline.packed_dataset import PackedDataset
from tests import commands, factories
from tests.cli.models_test import OTHER, TOKENIZER, VOCAB
from tests.cli.stores import write_dataset
from xlm.experiment import data as data_builders
from xlm.experiment import evaluators, model, objectives
from xlm.experiment.initial import initial_params
from xlm.experiment.masked_lm import masked_lm_of
from xlm.experiment.pretrained import Pretrained, read_pretrained
from xlm.interop import model_folder, vocabulary
from xlm.models.encoder import Encoder
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


def write_rows(folders: data_builders.Folders, tokenizer: bytes = TOKENIZER) -> PackedDataset:
    folders.rows.mkdir(parents=True)
    length, rng = KEYS["store.length"], np.random.default_rng(0)
    np.save(folders.rows / "aa.counts.npy", np.arange(VOCAB))
    for split in ("train", "heldout"):
        rows = rng.integers(5, VOCAB, (6, length)).astype(np.uint16)
        np.save(folders.rows / f"aa.{split}.npy", rows)
    one = {"rows": 6, "tokens": 96, "unknown": 0, "characters": 300}
    statistics = {"aa": {"train": one, "heldout": one}}
    return write_dataset(folders.workdir, tokenizer, VOCAB, length, statistics)


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


class TestCase(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.parent = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.folders = data_builders.Folders(cls.parent / "work")
        cls.dataset = write_rows(cls.folders)
        cls.objective, cls.params = write_run(cls.folders, config(), cls.dataset)
        # Each has a table of its own, so that none of these is taken for another.
        assert cls.objective.settings.embeddings == "disentangled"

    def new_folder(self) -> pathlib.Path:
        return pathlib.Path(self.enter_context(tempfile.TemporaryDirectory())) / "new"


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
