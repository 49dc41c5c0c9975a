"""Every config builds all its objects; errors name wrong keys and sizes."""

import ast
import functools
import importlib
import pathlib

import flax.linen as nn
import jax
import numpy as np
from absl.testing import absltest, parameterized
from ml_collections import ConfigDict

from configs import quickstart, veco, xy_lent
from input_pipeline.cleaning.settings import CleaningSettings
from input_pipeline.corpus import load_corpus
from input_pipeline.packed_dataset import PackedDataset
from tests import factories, folders, tiny_tasks
from xlm.common.schema import settings as settings_of
from xlm.experiment import data as data_builders
from xlm.experiment import evaluation, evaluators, masked_lm, objectives, robust, schema, streams
from xlm.experiment import model as builders
from xlm.experiment.schema import default_config
from xlm.objectives.settings import ReplacedTokenSettings, VecoSettings
from xlm.training.loop import train
from xlm.training.metrics import read_metrics
from xlm.training.sinks import SINKS

CONFIGS = sorted(
    path.stem
    for path in pathlib.Path(quickstart.__file__).parent.glob("*.py")
    if path.stem not in ("__init__", "base", "small")  # which are no runs
)
ROOT = pathlib.Path(__file__).resolve().parent.parent
ROOMS = ("xlm", "input_pipeline", "knn_sampling", "vocap")


def write_dataset(vocab_size: int = 600, length: int = 128) -> PackedDataset:
    """Two languages with a few rows."""
    folder, statistics = tiny_tasks.scratch() / "builders", {}
    folder.mkdir(exist_ok=True)
    for language, num_tokens in (("en", 3000), ("sw", 1000)):
        rows = np.random.default_rng(0).integers(5, vocab_size, (3, length)).astype(np.uint16)
        np.save(folder / f"{language}.train.npy", rows)
        np.save(folder / f"{language}.heldout.npy", rows)
        counts = np.arange(vocab_size) * (1 if language == "en" else 2)
        np.save(folder / f"{language}.counts.npy", counts)
        np.save(folder / f"set.{language}.bitext.npy", np.full(9, 7, np.uint16))
        np.save(folder / f"set.{language}.ends.npy", np.array([2, 9]))
        one = {"tokens": num_tokens, "characters": 3 * num_tokens, "rows": 3}
        statistics[language] = {"train": one, "heldout": one}
    bitexts = {"set": tuple(statistics)}
    return factories.with_pair_rows(PackedDataset(
        folder, vocab_size, length, "", factories.SPECIAL_IDS, statistics, {}, bitexts
    ))  # fmt: skip


def runlocal(**changes) -> ConfigDict:
    """The quickstart in miniature, on four devices by two; changes are section__key=value."""
    config = quickstart.get_config("runlocal")
    config.mesh.update(data=4, model=2)
    config.update_from_flattened_dict({k.replace("__", "."): v for k, v in changes.items()})
    return config


def objective_of(config: ConfigDict, mesh=None):
    """Objects for rows of the config's length."""
    return objectives.objective(config, write_dataset(length=config.store.length), mesh)


def section_of(config: ConfigDict, name: str, kind: type):
    """Settings of a section that other objectives do not read."""
    return settings_of(kind, config[name])


SETTINGS = {
    "corpus": data_builders.corpus_spec,
    "clean": functools.partial(section_of, name="clean", kind=CleaningSettings),
    "vocab": data_builders.vocabulary_settings,
    "store": data_builders.packed_dataset_settings, "data": data_builders.data_settings,
    "evaluation": data_builders.evaluation_settings, "train": builders.train_settings,
    **dict.fromkeys(("model", "mask", "contrast", "output_layer", "mesh"), objective_of),
    "robust": robust.robust_settings,
    **{
        name: functools.partial(section_of, name=name, kind=kind)
        for name, kind in (("replaced_token", ReplacedTokenSettings), ("veco", VecoSettings))
    },
    "optimizer": lambda config: builders.train_functions(
        config, objective_of(runlocal()), builders.mesh(config)
    ),
}  # fmt: skip


class ConfigsTest(folders.FolderTest):
    def test_own_text_without_pairs_is_not_contrasted(self):
        share = lambda: quickstart.get_config(str(self.folder)).data.contrast_share  # noqa: E731
        self.assertEqual(share(), 0)
        (self.folder / "en-sw.tsv.gz").touch()
        self.assertEqual(share(), 0.5)

    @parameterized.product(name=CONFIGS, arg=("", "runlocal"))
    def test_it_builds_everything(self, name, arg):
        module = importlib.import_module(f"configs.{name}")
        self.assertIn(f"configs/{name}.py", module.__doc__)
        self.assertIn("Hardware:", module.__doc__)
        config = module.get_config(arg)
        if not config.train.num_steps:  # tokens or epochs of missing text
            config.train.update(num_steps=1_000_000, num_epochs=0.0, num_tokens=0)
        self.assertEqual(set(config), {*SETTINGS, "objective", "phases"})
        # All keys have their defaults in one place.
        defaults = default_config()
        for section in SETTINGS:
            self.assertEqual(set(config[section]), set(defaults[section]), section)
        for section, build in SETTINGS.items():
            if section != "optimizer":
                build(config)
        config.mesh.data = 4  # of the eight devices here
        config.mesh.model = 2
        dataset = write_dataset(config.vocab.target_size, config.store.length)
        mesh = builders.mesh(config)
        objective = objectives.objective(config, dataset, mesh)
        functions = builders.train_functions(config, objective, mesh)
        one = masked_lm.masked_lm_of(objective)
        table, _ = one.output_table(functions.abstract_state.params)
        self.assertEqual(table.shape[1], config.model.embedding_size)
        self.assertGreaterEqual(table.shape[0], config.vocab.target_size)
        _, batch = next(streams.training_data(config, dataset, mesh).batches(range(1)))
        tokens = config.train.batch_size * config.store.length
        self.assertEqual(batch["tokens"].size, tokens)  # of rows, or of shorter pairs
        found = evaluators.training_evaluators(config, objective, dataset, mesh)
        self.assertLen(found, 3 if config.objective == "replaced_token" else 2)
        evaluators.exact_masked_lm(config, one, dataset, mesh, in_training=False)
        evaluation.retrieval(config, one, dataset, mesh)

    @parameterized.parameters(veco, xy_lent)
    def test_nearly_all_pairs_are_trained_on_and_retrieval_ends(self, of):
        for run in of.RUNS:
            found = of.get_config(run)
            self.assertBetween(found.corpus.parallel_heldout_fraction, 1e-4, 0.02)
            self.assertEqual(found.evaluation.retrieval_max_sentences, 1000)
        for run in ("small", "runlocal"):
            self.assertEqual(of.get_config(run).evaluation.retrieval_max_sentences, 0)

    def test_of_text_of_ones_own_no_block_is_on_both_sides(self):
        sentences = [f"Document {i} has a sentence." for i in range(40)]
        self.write("en.txt", "\n\n".join(sentences * 2))
        corpus = load_corpus(data_builders.corpus_spec(quickstart.get_config(str(self.folder))))
        heldout = corpus.sentences("en", "heldout")
        self.assertNotEmpty(heldout)
        self.assertCountEqual([*corpus.sentences("en"), *heldout], sentences)


def runlocals() -> dict[str, tuple[str, ConfigDict]]:
    """The miniature configs that no other test runs, similar ones once."""
    found = {
        name: importlib.import_module(f"configs.{name}").get_config("runlocal") for name in CONFIGS
    }
    different = {config.to_json_best_effort(): (name, config) for name, config in found.items()}
    quick = found["quickstart"]
    del different[quick.to_json_best_effort()]  # tests/end_to_end_test.py
    for _, config in different.values():
        # That test runs the layers of most. Without layers a step compiles in half the time.
        if (config.objective, config.model) == (quick.objective, quick.model):
            config.model.num_layers = config.evaluation.retrieval_layer = 0
    return different


class RunlocalTest(folders.FolderTest):
    @parameterized.named_parameters(runlocals().values())
    def test_it_takes_two_steps(self, config):
        dataset = write_dataset(config.vocab.target_size, config.store.length)
        mesh = factories.one_device(config)
        objective = objectives.objective(config, dataset, mesh)
        state = train(
            builders.train_functions(config, objective, mesh), builders.train_settings(config),
            self.folder, streams.training_data(config, dataset, mesh),
            evaluators.training_evaluators(config, objective, dataset, mesh)[:1],
        )  # fmt: skip
        records = read_metrics(self.folder / "metrics.jsonl")
        self.assertGreaterEqual(state.step, 2)
        losses = [record["train/loss"] for record in records if "train/loss" in record]
        self.assertLen(losses, config.train.num_steps)
        self.assertIn("eval/loss", records[-1])
        of_pairs = "trtd_loss" if config.objective == "replaced_token" else "tlm_loss"
        for share, name in (("pair_share", of_pairs), ("contrast_share", "contrast_loss")):
            found = any(f"train/{name}" in record for record in records)
            self.assertEqual(config.data[share] > 0, found, name)
        self.assertTrue(np.isfinite(records[-1]["eval/loss"]))


class KeysTest(parameterized.TestCase):
    def test_every_key_is_read_somewhere(self):
        """Each key is a field of a settings class, and some code reads it by name."""
        read = set(SINKS)  # by name
        for room in ROOMS:
            for path in (ROOT / room).rglob("*.py"):
                tree = ast.parse(path.read_text(encoding="utf-8"))
                read |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        config = quickstart.get_config()
        self.assertIn("objective", read)
        unread = {f"{name}.{key}" for name in SETTINGS for key in config[name] if key not in read}
        self.assertEmpty(unread)


class AxesTest(absltest.TestCase):
    def test_rules_may_name_the_axes_that_parameters_have(self):
        config = runlocal(objective="replaced_token", model__position="learned")
        boxed = jax.eval_shape(objective_of(config).init, jax.random.key(0))
        leaves = jax.tree.leaves(
            boxed, is_leaf=lambda one: isinstance(one, nn.LogicallyPartitioned)
        )
        found = {name for one in leaves for name in one.names if name is not None}
        self.assertEqual(found, set(schema.LOGICAL_AXES))

        # An objective of another package may have others.
        config = runlocal(objective="mine:build", mesh__rules=(("experts", "model"),))
        self.assertIs(schema.checked(config), config)


class VocabularyTest(folders.FolderTest):
    def setUp(self):
        super().setUp()
        self.config = runlocal()

    def test_amounts_come_from_a_file(self):
        self.assertEqual(data_builders.vocabulary_settings(self.config).amounts, {})
        path = self.write("amounts.json", '{"en": 300.8, "sw": 2}')
        self.config.vocab.amounts = str(path)
        settings = data_builders.vocabulary_settings(self.config)
        self.assertEqual(settings.amounts, {"en": 300.8, "sw": 2})
        self.assertEqual(settings.target_size, self.config.vocab.target_size)

    @parameterized.parameters(
        (None, "/amounts.json: no such file; correct the path"),
        ("{}", r"/amounts.json: its content is \{\}.*; write one object, \{.en.: 300.8, ...\}"),
        ('{"en": "300.8"}', '/amounts.json: en is "300.8", must be a number'),
        ('{"../en": 1}', "/amounts.json: a key of the object must be text without slashes"),
    )
    def test_an_amounts_file_that_cannot_be_is_named(self, content, message):
        if content is not None:
            self.write("amounts.json", content)
        self.config.vocab.amounts = str(self.folder / "amounts.json")
        with self.assertRaisesRegex(ValueError, f"vocab.amounts: .*{message}"):
            data_builders.vocabulary_settings(self.config)

    def test_parallel_lines_are_those_of_all_languages(self):
        self.assertEqual(data_builders.parallel_sentences(self.config), {})
        for name, lines in (("en", "one\ntwo\nthree\n"), ("swa", "moja\n\ntatu\n"), ("de", "x\n")):
            self.write(f"same/{name}.txt", lines)
        self.config.vocab.parallel = str(self.folder / "same")
        self.config.corpus.update(languages=("en", "sw"), language_codes={"swa": "sw"})
        found = data_builders.parallel_sentences(self.config)
        self.assertEqual(found, {"en": ["one", "three"], "sw": ["moja", "tatu"]})

    @parameterized.parameters(
        ({}, "which is no folder; correct the path"),
        ({"en": "a\nb\n", "sw": "c\n"}, "sw.txt: 1 lines, but en.txt has 2"),
        ({"en": "\n", "sw": "c\n"}, "no line in all of its languages, en, sw; it must have files"),
    )
    def test_parallel_text_that_cannot_be_is_named(self, files, message):
        for language, content in files.items():
            self.write(f"same/{language}.txt", content)
        self.config.vocab.parallel = str(self.folder / "same")
        self.config.corpus.languages = ()
        with self.assertRaisesRegex(ValueError, message):
            data_builders.parallel_sentences(self.config)

    def allocation(self, content: str) -> dict[str, int]:
        """Sizes that languages begin at by a file for the config's T and beta."""
        path = self.write("allocation.json", content)
        self.config.vocab.update(allocation=str(path), target_size=600, beta=0.7)
        return data_builders.vocabulary_settings(self.config).initial_sizes

    def test_sizes_to_begin_at_come_from_a_file(self):
        self.assertEqual(data_builders.vocabulary_settings(self.config).initial_sizes, {})
        content = '{"target_size": 600, "beta": 0.7, "sizes": {"en": 300, "sw": 100}}'
        self.assertEqual(self.allocation(content), {"en": 300, "sw": 100})
        self.config.vocab.method = "uniform"
        with self.assertRaisesRegex(ValueError, "set vocab.method=vocap, or vocab.allocation=''"):
            self.allocation(content)

    @parameterized.parameters(
        ("{}", "the object lacks the field target_size; export it from the report.html"),
        (
            '{"target_size": 700, "beta": 0.3, "sizes": {"en": 300}}',
            "is for target_size 700 and beta 0.3, the config has target_size 600 and beta 0.7; add "
            "--config.vocab.target_size=700 --config.vocab.beta=0.3$",
        ),
        ('{"target_size": 600, "beta": 0, "sizes": {"en": 300}}', "; add --config.vocab.beta=0$"),
    )
    def test_an_allocation_file_that_cannot_be_is_named(self, content, message):
        with self.assertRaisesRegex(ValueError, f"^vocab.allocation: .*{message}"):
            self.allocation(content)

    def tables(self, *names: str):
        """The tables found, by language, as file names, in a folder with the files `names`."""
        for name in names:
            (self.folder / name).touch()
        self.config.vocab.tables = str(self.folder)
        train, heldout = data_builders.count_tables(self.config)
        for path in (*train.values(), *heldout.values()):
            self.assertEqual(path.parent, self.folder)
        return tuple({k: path.name for k, path in found.items()} for found in (train, heldout))

    def test_tables_are_found_by_their_names_and_languages(self):
        names = (
            "en.runs.gz", "zh_Hant.runs.gz", "sw.runs.gz", "en.heldout.runs.gz", "README.md",
            "zh_Hant.heldout.runs.gz", "ka.heldout.runs.gz", "de.txt.gz", ".ka.runs.123.gz",
        )  # fmt: skip
        every = {"en": "en.runs.gz", "sw": "sw.runs.gz", "zh_Hant": "zh_Hant.runs.gz"}
        heldout = {"en": "en.heldout.runs.gz", "zh_Hant": "zh_Hant.heldout.runs.gz"}
        self.config.corpus.languages = ()
        self.assertEqual(self.tables(*names), (every, heldout))
        self.config.corpus.languages = ("sw", "zh_Hant")
        del every["en"], heldout["en"]
        self.assertEqual(self.tables(*names), (every, heldout))
        self.config.vocab.tables = str(self.folder / "lost")
        with self.assertRaisesRegex(ValueError, "lost has no tables of sw, zh_Hant"):
            data_builders.count_tables(self.config)

    @parameterized.parameters(
        (("en", "ka", "sw"), ["en.runs.gz"], r"no tables of ka, sw \(corpus.languages\)"),
        (("en",), ["en.heldout.runs.gz"], "no tables of en "),
        ((), ["en.heldout.runs.gz"], "no tables <lang>.runs.gz; make them with xlm count"),
        *(
            ((), ["sw.runs.gz", f"en{mark}0-of-2.runs.gz"], f"en[{mark}]0-of-2.* part of a table; ")
            for mark in "-_."
        ),
    )
    def test_a_folder_of_tables_that_will_not_do_is_named(self, languages, names, message):
        self.config.corpus.languages = languages
        with self.assertRaisesRegex(ValueError, message):
            self.tables(*names)
