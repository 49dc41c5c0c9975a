"""Starts of fine-tuning: the checkpoint of a run of train.py, or a folder."""

import dataclasses

import jax
import numpy as np

from configs import quickstart
from tests import folders, tiny_tasks
from tests.cli.stores import write_dataset
from tests.factories import write_rows
from xlm.experiment import data as data_builders
from xlm.experiment import model, objectives
from xlm.experiment.pretrained import read_pretrained, read_settings
from xlm.training.checkpoint import Checkpoints


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
        folders.rows.mkdir(parents=True)
        np.save(folders.rows / "aa.counts.npy", np.arange(tiny_tasks.VOCAB))
        length, tokenizer = config.store.length, tiny_tasks.tokenizer()
        statistics = write_rows(folders.rows, ("aa",), length, 1, 1000, 3000)
        dataset = write_dataset(folders.workdir, tokenizer, tiny_tasks.VOCAB, length, statistics)
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
        self.assertEqual(found.tokenizer, tiny_tasks.tokenizer())
        jax.tree.map(np.testing.assert_array_equal, found.params, jax.device_get(state.params))
