"""Jobs, sweeps and grids, from flags."""

import json
import re

from absl.testing import parameterized

from configs import quickstart
from tests.malformed import harness
from xlm.launch import jobs

CONFIG = "configs/quickstart.py"
JOB = jobs.Job("run", CONFIG, "/runs/a", ("train",))


class JobTest(parameterized.TestCase):
    @parameterized.parameters(
        ({"name": "Run_1"}, "--name is 'Run_1'"),
        ({"name": "a" * 41}, "at most 40"),
        ({"workdir": "runs/a"}, "--workdir is 'runs/a'"),
        ({"workdir": "gs://b/a", "shared": "gs://b"}, "gs://b: jobs of a sweep link"),
        ({"stages": ()}, "--stages are ''"),
        ({"stages": ("train", "prepare_data")}, "in this order"),
        ({"stages": ("train", "train")}, "each once"),
        ({"stages": ("fine",)}, "--stages are 'fine'"),
        ({"stages": ("train", "finetune")}, "must be finetune, or some of"),
    )
    def test_what_no_cluster_would_take_is_refused(self, fields, message):
        fields = {"name": "run", "config": "x.py", "workdir": "/a", "stages": ("train",), **fields}
        with self.assertRaisesRegex(ValueError, re.escape(message)):
            jobs.Job(**fields)


class SweepTest(parameterized.TestCase):
    def test_the_product_of_all_values_each_in_its_folder(self):
        sweeps = ["optimizer.learning_rate=1e-3,0.01", "config.train.seed=0,1"]
        found = jobs.expand(JOB, jobs.parse_sweep(sweeps, quickstart.get_config()))
        self.assertEqual([job.name for job in found], ["run-0", "run-1", "run-2", "run-3"])
        values = [tuple(job.overrides.values()) for job in found]
        self.assertEqual(values, [("1e-3", "0"), ("1e-3", "1"), ("0.01", "0"), ("0.01", "1")])
        self.assertEqual(list(found[0].overrides), ["optimizer.learning_rate", "train.seed"])
        folder = "/runs/a/sweep/optimizer.learning_rate=1e-3,train.seed=1"
        self.assertEqual(found[1].workdir, folder)
        self.assertLen({job.workdir for job in found}, 4)
        self.assertEqual(jobs.title(found), "run")
        self.assertEqual(jobs.expand(JOB, {}), [JOB])

    @parameterized.parameters(
        (("train", "evaluate"), "/runs/a"), (("prepare_data", "train"), ""), (("build_vocab",), ""),
        (("finetune",), ""),
    )  # fmt: skip
    def test_rows_are_shared_unless_each_job_makes_its_own(self, stages, shared):
        (found,) = jobs.expand(jobs.Job("run", CONFIG, "/runs/a", stages), {"train.seed": ("1",)})
        self.assertEqual(found.shared, shared)

    @parameterized.parameters(
        *((text, "must be key=value,value") for text in ("train.seed", "=1,2", "train.seed=",
                                                         "train.seed=1,,2", "a=b/c", "a=b c")),
        ("train.seed=1,1", "a value twice"), ("train.sed=1", "no key train.sed"),
        ("nothing=1", "no key nothing"), ("train.seed.x=1", "no key train.seed.x"),
        ("train.num_steps=5,1e3", "train.num_steps=1e3: "),
        ("optimizer.learning_rate=fast", "optimizer.learning_rate=fast: "),
        ("data.across_documents=2", "data.across_documents=2: "),
        ("vocab.sizes=1,2", "only single values"), ("train=1", "train=1: "),
    )  # fmt: skip
    def test_what_the_config_would_refuse_is_refused_before_it_is_sent(self, text, message):
        with self.assertRaisesRegex(ValueError, f"--sweep.*{message}"):
            jobs.parse_sweep([text], quickstart.get_config())

    def test_no_key_is_given_twice(self):
        with self.assertRaisesRegex(ValueError, "train.seed is swept twice"):
            jobs.parse_sweep(["train.seed=1,2", "train.seed=3"], quickstart.get_config())
        job = jobs.Job("run", CONFIG, "/a", ("train",), {"train.seed": "3"})
        with self.assertRaisesRegex(ValueError, "both set and swept"):
            jobs.expand(job, {"train.seed": ("1",)})


class FlagsTest(parameterized.TestCase):
    def jobs_of(self, *arguments: str) -> list[dict[str, str]]:
        """Flags and shared folder of each job, as xlm.launch.xmanager prints them."""
        done = harness.run("xlm.launch.xmanager", ["--dry_run", "--workdir=/runs/a", *arguments])
        self.assertEqual(done.status, 0, done.errors)
        return [job["args"] | job["env_vars"] for job in json.loads(done.output)["jobs"]]

    def test_every_flag_reaches_the_stage(self):
        found = self.jobs_of(
            f"--config={CONFIG}:runlocal",
            "--config.train.num_steps=7",
            "--config.vocab.sizes=(1,2)",
            "--sweep=optimizer.warmup_steps=1,2",
        )
        workdir = "/runs/a/sweep/optimizer.warmup_steps=2"
        expected = {
            "config": f"{CONFIG}:runlocal", "workdir": workdir, "config.train.num_steps": "7",
            "config.vocab.sizes": "(1, 2)", "config.optimizer.warmup_steps": "2",
            "WORKDIR": workdir, "SHARED": "/runs/a",
        }  # fmt: skip
        self.assertLen(found, 2)
        self.assertEqual(found[1], expected)
        self.assertEqual(list(found[1]), list(expected))

    def test_a_grid_of_a_paper_and_seeds(self):
        given = ["--config=configs/finetune/tydiqa.py:DATA", "--stages=finetune", "--grid=vocap"]
        found = self.jobs_of(*given, "--config.init_from=/runs/b", "--seeds=2")
        self.assertLen(found, 8)  # of two rates, two numbers of epochs, two seeds
        self.assertEqual(
            found[1],
            {"config": "configs/finetune/tydiqa.py:DATA",
             "workdir": "/runs/a/sweep/optimizer.learning_rate=2e-5,train.epochs=6,train.seed=1",
             "config.init_from": "/runs/b", "config.optimizer.learning_rate": "2e-5",
             "config.train.epochs": "6", "config.train.seed": "1"},
        )  # fmt: skip

    def test_runs_of_a_grid_share_their_text(self):
        given = ["--config=research/configs/xlm_r.py:reference,DATA", "--grid=capacity",
                 "--config.data.prefetch=1"]  # fmt: skip
        text = self.jobs_of(*given, "--stages=build_vocab,prepare_data")
        self.assertLen(text, 3)  # 7, 15 and 30 languages
        found = self.jobs_of(*given, "--stages=train", "--seeds=2")
        self.assertLen({job["workdir"] for job in found}, 2 * 5)
        self.assertEqual({job["SHARED"] for job in found}, {job["workdir"] for job in text})
        workdir = "/runs/a/runs/wide_30/seed1"
        expected = {
            "config": "research/configs/xlm_r.py:wide_30,DATA", "workdir": workdir,
            "config.data.prefetch": "1", "config.train.seed": "1", "WORKDIR": workdir,
        }  # fmt: skip
        self.assertContainsSubset(expected.items(), found[-1].items())

    @parameterized.product(
        launcher=("start", "xmanager"),
        value=("workdir=/runs/a\nrm -rf b", "workdir=/runs/\udcff", "config.corpus.root=/t\x1b[2J",
               f"config={CONFIG}:a\u2028b", "name=a\nb", "python=py\r", "sweep=train.sed=1",
               "stages=prepare_data,finetune", "config=/etc/x.py"),
    )  # fmt: skip
    def test_a_wrong_value_is_an_error_of_one_line(self, launcher, value):
        flag, _, text = value.partition("=")
        given = {"config": CONFIG, "workdir": "/runs/a", flag: text}
        values = (f"--{key}={one}" for key, one in given.items())
        done = harness.run(f"xlm.launch.{launcher}", ["--dry_run", *values])
        self.assertEqual(done.status, 2, done.output)
        self.assertRegex(done.errors, rf"^error [^\n]*--{flag}[^\n]*\n$")

    def test_stages_of_both_kinds_of_a_grid_are_refused(self):
        given = [
            "--config=research/configs/xlm_r.py:reference,DATA",
            "--workdir=/a",
            "--grid=alpha",
        ]
        done = harness.run("xlm.launch.start", [*given, "--stages=prepare_data,train"])
        self.assertIn("start --stages=build_vocab,prepare_data first", done.errors)
        done = harness.run("xlm.launch.start", [*given, "--sweep=train.seed=1"])
        self.assertIn("exclude each other", done.errors)
