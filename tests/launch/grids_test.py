"""Grids of named runs: their configs, and the launchers' jobs of them."""

import types

from absl.testing import absltest, parameterized

from configs import veco, vocap_paper, xlm_r, xy_lent
from research.configs import mmbert, translation, vocap, xlm_r_full
from research.configs import xlm_r as small_xlm_r
from xlm.experiment import data, memory, objectives, schema
from xlm.launch import grids, jobs

SMALL = "research/configs/xlm_r.py"
# Files of a recipe, all of whose runs build.
RECIPES = (vocap_paper, veco, xy_lent, small_xlm_r, xlm_r_full, vocap, mmbert, translation)
# Those whose runs are all in grids, but for runs of one language.
IN_GRIDS = (small_xlm_r, xlm_r_full, vocap, mmbert)


def file_of(recipe: types.ModuleType) -> str:
    return recipe.__name__.replace(".", "/") + ".py"


class GridsTest(parameterized.TestCase):
    @parameterized.parameters(*RECIPES)
    def test_runs_build_and_grids_have_them(self, recipe):
        file, runs = file_of(recipe), [*recipe.RUNS, *getattr(recipe, "SMALL", ())]
        compared = {run for one in getattr(recipe, "GRIDS", {}).values() for run in one}
        self.assertContainsSubset(compared, runs)
        if recipe in IN_GRIDS:
            self.assertEqual(compared, {run for run in runs if not run.startswith("only_")})
        for run in runs:
            config = grids.load(grids.config_of(f"{file}:,DATA", run))
            self.assertEqual(config.corpus.root, "DATA")
            schema.checked(config)
            data.corpus_spec(config)
            data.vocabulary_settings(config)
            objectives.objective(config, memory.absent_rows(config))

    def test_what_is_not_there_is_told(self):
        with self.assertRaisesRegex(ValueError, "'alpha'; configs/quickstart.py has no grids"):
            grids.choose("configs/quickstart.py", "alpha")
        with self.assertRaisesRegex(ValueError, "--grid is 'beta'; .*xlm_r.py has languages, alph"):
            grids.choose("research/configs/xlm_r.py:reference,DATA", "beta")
        with self.assertRaisesRegex(ValueError, "no 'tiny'; there are base, large, xl"):
            xlm_r.get_config("tiny")
        for recipe in (small_xlm_r, xlm_r_full, vocap, mmbert, translation):
            with self.assertRaisesRegex(ValueError, "has no run 'beta'; there are [a-z]"):
                recipe.get_config("beta,DATA")

    def test_text_is_shared_where_it_may_be(self):
        job = jobs.Job("a", f"{SMALL}:reference,DATA", "/runs/a", ("build_vocab",))
        for name, count in (("alpha", 1), ("batch", 1), ("vocabulary", 4), ("corpora", 4)):
            self.assertLen(jobs.jobs_of_grid(job, name, 0), count, name)

    def test_numbers_of_languages_are_as_named(self):
        for by_count in (xlm_r_full.LANGUAGES, small_xlm_r.LANGUAGES):
            sets = {count: set(names) for count, names in by_count.items() if names}
            for count, names in sets.items():
                self.assertLen(names, count)
                self.assertContainsSubset(sets[7], names)
        self.assertLessEqual(set(small_xlm_r.LANGUAGES[60]), set(small_xlm_r.GIGABYTES))

    def test_width_keeps_the_number_of_parameters(self):
        for recipe, at, width, squares in (
            (xlm_r_full, 150_000, 768, 144), (small_xlm_r, 8000, 128, 16)
        ):  # fmt: skip
            total = at * width + squares * width**2
            for run in recipe.RUNS:
                if run.startswith("parameters_"):
                    config = recipe.get_config(run)
                    own = config.vocab.target_size * config.model.hidden_size
                    own += squares * config.model.hidden_size**2
                    self.assertAlmostEqual(own / total, 1, delta=0.05, msg=run)
                    self.assertEqual(config.model.hidden_size % config.model.num_heads, 0)


class PublishedTest(absltest.TestCase):
    def test_xlm_r_is_as_the_paper_says(self):
        for word, layers, width, heads in (("base", 12, 768, 12), ("large", 24, 1024, 16)):
            config = xlm_r.get_config(word)
            model = config.model
            self.assertEqual(
                (model.num_layers, model.hidden_size, model.num_heads), (layers, width, heads)
            )
            self.assertEqual((config.vocab.method, config.vocab.target_size), ("joint", 250_000))
            self.assertEqual((config.vocab.alpha, config.data.alpha), (0.3, 0.3))
            self.assertEqual((config.store.length, model.max_length), (512, 512))
            self.assertTrue(config.data.across_documents)
            self.assertEqual(config.output_layer.kind, "blockwise")
            self.assertEqual((config.train.batch_size, config.train.num_steps), (8192, 1_500_000))
        self.assertEqual(xlm_r_full.get_config().vocab.target_size, 150_000)
