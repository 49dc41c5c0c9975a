"""Every config builds all its objects; wrong keys and sizes that do not fit are named."""

import functools
import importlib
import pathlib
import tempfile

import numpy as np
from absl.testing import absltest, parameterized
from ml_collections import ConfigDict

from builders import data as data_builders
from builders import model as builders
from configs import quickstart
from input_pipeline.row_store import RowStore, SpecialIds

CONFIGS = sorted(
    path.stem
    for path in pathlib.Path(quickstart.__file__).parent.glob("*.py")
    if path.stem != "__init__"
)
SPECIAL = SpecialIds(bos=0, pad=1, eos=2, unk=3, mask=4)


@functools.cache
def rows_folder() -> pathlib.Path:
    folder = tempfile.TemporaryDirectory()
    rows_folder.folder = folder  # removed when the process ends
    return pathlib.Path(folder.name)


def write_store(vocab_size: int = 600, length: int = 128) -> RowStore:
    """Two languages with a few rows."""
    folder = rows_folder()
    statistics = {}
    for language, num_tokens in (("en", 3000), ("sw", 1000)):
        rows = np.random.default_rng(0).integers(5, vocab_size, (3, length)).astype(np.uint16)
        np.save(folder / f"{language}.train.npy", rows)
        np.save(folder / f"{language}.heldout.npy", rows)
        counts = np.arange(vocab_size) * (1 if language == "en" else 2)
        np.save(folder / f"{language}.counts.npy", counts)
        one = {"tokens": num_tokens, "characters": 3 * num_tokens, "rows": 3}
        statistics[language] = {"train": one, "heldout": one}
    return RowStore(folder, vocab_size, length, "", SPECIAL, statistics, {})


def runlocal() -> ConfigDict:
    config = quickstart.get_config("runlocal")
    config.mesh.update(data=4, model=2)
    return config


SETTINGS = {
    "corpus": data_builders.corpus_spec,
    "vocab": data_builders.vocabulary_settings,
    "store": data_builders.row_store_settings,
    "data": data_builders.data_settings,
    "evaluation": data_builders.evaluation_settings,
    "train": builders.train_settings,
    "model": lambda config: builders.objective(config, write_store()),
    "mask": lambda config: builders.objective(config, write_store()),
    "output_layer": lambda config: builders.objective(config, write_store()),
    "mesh": lambda config: builders.objective(config, write_store()),
    "optimizer": lambda config: builders.program(
        config, builders.objective(runlocal(), write_store()), write_store()
    ),
}


class ConfigsTest(parameterized.TestCase):
    @parameterized.product(name=CONFIGS, arg=("", "runlocal"))
    def test_it_builds_everything(self, name, arg):
        config = importlib.import_module(f"configs.{name}").get_config(arg)
        self.assertEqual(set(config), set(SETTINGS))
        for section, build in SETTINGS.items():
            if section != "optimizer":
                build(config)
        config.mesh.data = 4  # of the eight devices here
        config.mesh.model = 2
        store = write_store(config.vocab.target_size, config.store.length)
        objective = builders.objective(config, store)
        program = builders.program(config, objective, store)
        table = program.abstract_state.params["embeddings"]["table"]
        self.assertEqual(table.shape[1], config.model.embedding_size)
        self.assertGreaterEqual(table.shape[0], config.vocab.target_size)
        batch = next(builders.batches(config, store)(range(1)))
        self.assertEqual(batch["tokens"].shape, (config.train.batch_size, config.store.length))
        for in_training in (True, False):
            builders.exact_masked_lm(config, objective, store, in_training=in_training)
        builders.retrieval(config, objective, store)

    @parameterized.parameters(*CONFIGS)
    def test_it_is_documented(self, name):
        module = importlib.import_module(f"configs.{name}")
        self.assertIn(f"configs/{name}.py", module.__doc__)
        self.assertIn("Hardware:", module.__doc__)


class KeysTest(parameterized.TestCase):
    @parameterized.parameters(*SETTINGS)
    def test_an_unknown_key_is_named(self, section):
        config = runlocal()
        with config.unlocked():
            config[section].num_typos = 1
        with self.assertRaisesRegex(ValueError, rf"config.{section}: unknown keys \['num_typos'\]"):
            SETTINGS[section](config)

    @parameterized.parameters(*SETTINGS)
    def test_a_missing_key_is_named(self, section):
        config = runlocal()
        key = sorted(config[section])[-1]
        with config.unlocked():
            del config[section][key]
        with self.assertRaisesRegex(ValueError, rf"config.{section}: .*missing keys \['{key}'\]"):
            SETTINGS[section](config)


class FitTest(parameterized.TestCase):
    def test_all_targets_of_a_batch_must_fit_the_candidates(self):
        config = runlocal()
        config.mask.rate = 0.15  # 20 slots of a row of 128
        config.train.batch_size = 4
        config.output_layer.capacity = 80
        builders.objective(config, write_store())
        config.output_layer.capacity = 79
        with self.assertRaisesRegex(
            ValueError, "output_layer.capacity is 79, .* 4 rows .* 80 .* lower train.batch_size"
        ):
            builders.objective(config, write_store())

    def test_a_capacity_of_the_whole_vocabulary_is_enough(self):
        config = runlocal()
        config.train.batch_size = 4000
        config.output_layer.capacity = 640
        builders.objective(config, write_store())

    @parameterized.parameters((4, 1, 2, 4), (2, 2, 2, 4), (8, 1, 1, 8), (-1, 4, 1, 8))
    def test_the_batch_must_fit_the_mesh(self, data, fsdp, model, multiple):
        config = runlocal()
        config.mesh.update(data=data, fsdp=fsdp, model=model)
        objective = builders.objective(config, write_store())
        config.train.batch_size = multiple
        builders.program(config, objective, write_store())
        config.train.batch_size = multiple + 2
        with self.assertRaisesRegex(
            ValueError, f"train.batch_size is {multiple + 2}, must be a multiple of {multiple}"
        ):
            builders.program(config, objective, write_store())

    def test_rows_must_fit_the_positions(self):
        config = runlocal()
        config.model.max_length = 127
        with self.assertRaisesRegex(
            ValueError, r"model.max_length is 127, but rows have 128 tokens \(store.length\)"
        ):
            builders.objective(config, write_store())


class ObjectiveTest(absltest.TestCase):
    def test_the_target_probabilities_are_those_of_the_stream(self):
        config = runlocal()
        config.data.alpha = 1.0
        objective = builders.objective(config, write_store(vocab_size=600))
        # Three quarters of the text are English; both have counts that grow with the id.
        expected = np.zeros(640)
        for share, slope in ((0.75, 1), (0.25, 2)):
            counts = np.arange(600) * slope + 1.0
            counts[[0, 1, 2, 4]] = 0
            expected[:600] += share * counts / counts.sum()
        np.testing.assert_allclose(objective.target_probabilities, expected, rtol=1e-6)
        self.assertEqual(objective.encoder.settings.vocab_size, 640)
        self.assertEqual(objective.output_layer.num_valid, 600)
        self.assertEqual(objective.num_targets, 4 * objective.mask.slots(128))


class FoldersTest(absltest.TestCase):
    def test_what_is_missing_is_told_with_what_to_run(self):
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        folders = data_builders.Folders(folder)
        with self.assertRaisesRegex(ValueError, "rows holds no .* run prepare_data.py"):
            data_builders.open_row_store(folders)
        with self.assertRaisesRegex(ValueError, "spm.model does not exist; run build_vocab.py"):
            folders.read_tokenizer()


if __name__ == "__main__":
    absltest.main()
