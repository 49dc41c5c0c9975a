"""Grids of named runs: their configs, and the launchers' jobs of them."""

from absl.testing import absltest, parameterized

from configs import grids, vocap_paper, xlm_r
from xlm.experiment import data, memory, objectives, schema
from xlm.launch import jobs

# A run of each config whose grids are of any word.
_ANY = {"vocap_paper": "short_full", "veco": "base", "xy_lent": "base"}
# A value of --config for each word of each config that has grids.
ARGUMENTS = [
    f"configs/{name}.py:{word or _ANY.get(name, '')},DATA"
    for name, words in grids.GRIDS.items()
    for word in words
]


class GridsTest(parameterized.TestCase):
    @parameterized.parameters(*ARGUMENTS)
    def test_runs_of_a_word_are_all_in_grids_and_build(self, argument):
        names = {run for grid in grids.find(argument).values() for run in grid}
        word = grids.parse(argument).word
        if argument.startswith("configs/xlm_r"):
            runs = set(xlm_r.RUNS[word])
            self.assertEqual(names, {run for run in runs if not run.startswith("only_")})
        elif word == "small":
            self.assertEqual(names, set(vocap_paper.SMALL))
        for run in names:
            config = grids.load(grids.config_of(argument, run))
            schema.checked(config)
            data.corpus_spec(config)
            data.vocabulary_settings(config)
            objectives.objective(config, memory.absent_rows(config))

    def test_what_is_not_there_is_told(self):
        with self.assertRaisesRegex(ValueError, "quickstart.py', which has no grids; .*xlm_r"):
            grids.choose("configs/quickstart.py", "alpha")
        with self.assertRaisesRegex(ValueError, "no grids for 'base'; there are some for ablation"):
            grids.choose("configs/xlm_r.py:base,DATA", "alpha")
        with self.assertRaisesRegex(ValueError, "--grid is 'beta'; .* has: languages, alpha"):
            grids.choose("configs/xlm_r.py:small,DATA", "beta")
        with self.assertRaisesRegex(ValueError, "no 'tiny'; there are base, large"):
            xlm_r.get_config("tiny")
        with self.assertRaisesRegex(ValueError, "no run 'beta' of small; there are reference"):
            xlm_r.get_config("small.beta,DATA")

    def test_numbers_of_languages_are_as_named(self):
        for by_count in (xlm_r.LANGUAGES, xlm_r.SMALL_LANGUAGES):
            sets = {count: set(names) for count, names in by_count.items() if names}
            for count, names in sets.items():
                self.assertLen(names, count)
                self.assertContainsSubset(sets[7], names)
        self.assertLessEqual(set(xlm_r.SMALL_LANGUAGES[60]), set(xlm_r.GIGABYTES))

    def test_width_keeps_the_number_of_parameters(self):
        for word, at, width, squares in (("ablation", 150_000, 768, 144), ("small", 8000, 128, 16)):
            total = at * width + squares * width**2
            for run in xlm_r.RUNS[word]:
                if run.startswith("parameters_"):
                    config = xlm_r.get_config(f"{word}.{run}")
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
        self.assertEqual(xlm_r.get_config("ablation").vocab.target_size, 150_000)


class LaunchTest(absltest.TestCase):
    def job(self, *stages: str) -> jobs.Job:
        return jobs.Job(
            "a", "configs/xlm_r.py:small,DATA", "/runs/a", stages, {"data.prefetch": "1"}
        )

    def test_text_is_prepared_once_and_shared(self):
        text = jobs.jobs_of_grid(self.job("build_vocab", "prepare_data"), "capacity", 3)
        self.assertLen(text, 3)  # 7, 15 and 30 languages
        encoders = jobs.jobs_of_grid(self.job("train", "evaluate"), "capacity", 2)
        self.assertLen(encoders, 2 * 5)
        self.assertEqual({one.shared for one in encoders}, {one.workdir for one in text})
        last = encoders[-1]
        self.assertEqual(last.config, "configs/xlm_r.py:small.wide_30,DATA")
        self.assertEqual(last.workdir, "/runs/a/runs/wide_30/seed1")
        self.assertEqual(last.overrides, {"data.prefetch": "1", "train.seed": "1"})
        self.assertLen({one.name for one in (*encoders,)}, 10)

    def test_text_is_shared_where_it_may_be(self):
        for name, count in (("alpha", 1), ("batch", 1), ("vocabulary", 4), ("corpora", 4)):
            self.assertLen(jobs.jobs_of_grid(self.job("build_vocab"), name, 0), count, name)
