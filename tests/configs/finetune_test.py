"""Every config of fine-tuning names data that is read, and builds what it needs."""

import importlib
import pathlib
import shlex

from absl.testing import parameterized
from ml_collections import ConfigDict

from configs import finetune
from configs.finetune import base, embeddings, glue, squad, sweeps, tags, text
from input_pipeline.tasks.tasks import TASKS
from tests import tiny_tasks, tiny_translation
from tests.malformed import harness
from xlm.evaluation.settings import sentence_layer
from xlm.experiment import fine_tuning, task_data, translation
from xlm.experiment.pretrained import read_pretrained
from xlm.experiment.task_kinds import SEARCHES
from xlm.experiment.task_settings import Tokenizer, task_settings
from xlm.launch import jobs
from xlm.training.optimizer import learning_rate_schedule

SHARED = {"__init__", "base", "questions", "sweeps"}
NAMES = sorted({path.stem for path in pathlib.Path(finetune.__file__).parent.glob("*.py")} - SHARED)
TRANSLATIONS = ("multi30k", "translation", "wmt14")
# tests/own_task_test.py
OWN = [
    (name, f"{one},")
    for name, module in (("text", text), ("tags", tags), ("embeddings", embeddings))
    for one in module.TASKS
]
OTHERS = ("embeddings", "glue", "squad", "text", "tags", *TRANSLATIONS)
ALL = [(name, "") for name in NAMES if name not in OTHERS]
ALL += [("glue", f"{task},") for task in glue.TASKS] + [("squad", f"{v},") for v in squad.TASKS]


def load(name: str, arg: str):
    return importlib.import_module(f"configs.finetune.{name}").get_config(arg)


class ConfigsTest(parameterized.TestCase):
    def test_every_task_has_one(self):
        configs = [*ALL, *OWN, *((name, "en-de,") for name in TRANSLATIONS)]
        self.assertEqual({load(*one).task.name for one in configs}, set(TASKS))

    @parameterized.parameters(*ALL)
    def test_its_files_are_found_and_its_objects_built(self, name, arg):
        config = tiny_tasks.config(name, arg)
        options = task_settings(config)
        tokenizer = Tokenizer(tiny_tasks.tokenizer())
        pretrained = read_pretrained(config.init_from)
        if options.task.kind in SEARCHES:
            for language in task_data.languages(options, "test"):
                self.assertNotEmpty(task_data.read_pairs(options, "test", language).gold)
            fine_tuning.sentence_encoder(config, pretrained, tokenizer)
            layer = load(name, arg).task.layer
            self.assertEqual([sentence_layer(layer, depth) for depth in (2, 12)], [1, 8])
            return
        data = {
            split: task_data.read_split(options, tokenizer, split) for split in task_data.SPLITS
        }
        self.assertEqual([one.language for one in data["train"]], ["en"])
        self.assertEqual([one.language for one in data["validation"]], ["en"])
        self.assertNotEmpty(data["test"])
        encoder = fine_tuning.encoder_settings(config, pretrained.settings)
        objective = fine_tuning.with_head(config, encoder)
        mesh = fine_tuning.mesh()
        functions = fine_tuning.train_functions(config, objective, mesh, 10)
        self.assertIn("task", functions.abstract_state.params)
        training_data = fine_tuning.training_data(config, data["train"], 1, mesh)
        ((_, batch),) = training_data.batches(range(1))
        self.assertEqual(batch["tokens"].shape, (8, tiny_tasks.LENGTH))

    @parameterized.parameters(*ALL)
    def test_tensorflow_datasets_has_what_is_asked_of_it(self, name, arg):
        options = task_settings(load(name, arg + base.TFDS))
        for split in task_data.SPLITS:
            if not getattr(options, split):
                continue
            if options.name == "bucc":  # it has no texts of it
                with self.assertRaisesRegex(ValueError, "no test split of bucc"):
                    options.patterns("test")
            elif (options.name, split) == ("americasnli", "test"):
                self.assertFalse(options.patterns(split)[0].startswith("tfds:"))
            else:
                self.assertRegex(options.patterns(split)[0], r"^tfds:.+:.+")

    @parameterized.parameters(*TRANSLATIONS)
    def test_a_translation_builds_its_model(self, name):
        config = load(name, "en-de+en-fr,DATA")
        config.init_from, config.random_init = str(tiny_translation.vocabulary_folder()), True
        model = translation.model(config, translation.read_start(config))
        self.assertEqual(model.decoder.num_layers, config.translation.decoder_layers)
        self.assertEqual(list(model.symbols), ["de", "fr"])
        objective = translation.objective(config, model)
        functions = translation.train_functions(config, objective, fine_tuning.mesh())
        table, _ = objective.output_table(functions.abstract_state.params)
        self.assertLen(table, tiny_tasks.VOCAB + 2)

    @parameterized.parameters(
        ("glue", "colla,x", "must be one of cola"), ("squad", "2,x", "1.1 or 2.0")
    )
    def test_another_argument_is_refused(self, name, arg, error):
        with self.assertRaisesRegex(ValueError, error):
            load(name, arg)

    def test_keys_of_other_types_can_be_set_on_the_command_line(self):
        given = [
            "--config.task.threshold=1.05",
            "--config.task.class_weights=('balanced',)",
            "--config.task.test=('a', 'b', 'c')",
        ]
        config = ["--config=configs/finetune/bucc.py:DATA", "--workdir=/runs/a"]
        done = harness.run("xlm.launch.start", ["--dry_run", "--stages=finetune", *config, *given])
        self.assertEqual(done.status, 0, done.errors)
        # As they were read, which is as they were meant.
        self.assertEqual(shlex.split(done.output)[-3:], given)


class WarmupTest(parameterized.TestCase):
    @parameterized.product(schedule=("linear", "wsd"), share=(0.0, 0.5, 0.99), steps=(1, 40))
    def test_fits_into_every_run(self, schedule, share, steps):
        optimizer = load("xnli", "").optimizer
        decay = 1 - share if schedule == "wsd" else 0.1
        optimizer.update(schedule=schedule, warmup_share=share, decay_fraction=decay)
        found = fine_tuning.warmup_steps(optimizer, steps)
        self.assertLessEqual(abs(found - share * steps), 1)
        learning_rate_schedule(ConfigDict({**optimizer, "warmup_steps": found}), steps)

    def test_more_than_the_run(self):
        optimizer = load("xnli", "").optimizer
        optimizer.update(schedule="wsd", warmup_share=0.6, decay_fraction=0.5)
        with self.assertRaisesRegex(ValueError, "_share is 0.6 and optimizer.decay_.* 0.5, t"):
            fine_tuning.warmup_steps(optimizer, 100)


class SweepsTest(parameterized.TestCase):
    @parameterized.parameters(*sweeps.GRIDS)
    def test_a_grid_is_one_of_keys_of_its_task(self, name):
        for task in sweeps.GRIDS[name]:
            config = load(task, "")
            jobs.parse_sweep(jobs.task_grid(name, config), config)

    def test_a_grid_that_is_not_there_is_refused(self):
        with self.assertRaisesRegex(ValueError, "--grid is 'paper'.*vocap .*xnli"):
            jobs.task_grid("paper", load("xnli", ""))
        with self.assertRaisesRegex(ValueError, "--grid is 'vocap', and .* task .* 'tatoeba'"):
            jobs.task_grid("vocap", load("tatoeba", ""))
        with self.assertRaisesRegex(ValueError, "'veco_translate_train', and .* task .* 'udpos'"):
            jobs.task_grid("veco_translate_train", load("udpos", ""))
        self.assertEqual(jobs.task_grid(None, load("xnli", "")), ())
