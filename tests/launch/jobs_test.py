"""Jobs and sweeps, from text to shell commands."""

import pathlib
import re
import shlex
import subprocess
import tempfile

from absl.testing import absltest, parameterized

from configs import quickstart
from tests.malformed import harness
from xlm.launch import jobs
from xlm.training import signals

JOB = jobs.Job("run", "configs/quickstart.py", "/runs/a", ("train",))


class JobTest(parameterized.TestCase):
    def test_the_status_of_a_stopped_run_is_that_of_training(self):
        self.assertEqual(jobs.EXIT_STOPPED, signals.EXIT_STOPPED)

    def test_a_shell_reads_a_command_as_it_was_meant(self):
        values = {"corpus.root": "/my text/it's $HOME", "vocab.sizes": "(1, 2)", "a.b": "*;#`x`"}
        job = jobs.Job("run", "configs/a b.py:x", "/runs/a b", ("train",), values)
        command = job.command("train", "printf", "--distributed").replace("train.py", r"'%s\0'", 1)
        found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
        self.assertEqual(
            found.stdout.split("\0")[:-1],
            ["--config=configs/a b.py:x", "--workdir=/runs/a b"]
            + [f"--config.{key}={value}" for key, value in values.items()]
            + ["--distributed"],
        )

    def test_linked_folders_are_found_and_linking_again_changes_nothing(self):
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        for name in ("vocab", "rows"):
            (folder / name).mkdir()
            (folder / name / "file").write_text(name)
        (job,) = jobs.expand(
            jobs.Job("run", "configs/quickstart.py", str(folder), ("train",)),
            {"train.seed": ("1",)},
        )
        for _ in range(2):
            script = "\n".join(["set -e", *job.link_commands()])
            subprocess.run(["bash", "-c", script], check=True)
            linked = pathlib.Path(job.workdir)
            self.assertEqual({path.name for path in linked.iterdir()}, {"vocab", "rows"})
            self.assertEqual((linked / "rows" / "file").read_text(), "rows")
            self.assertEqual(len(list((folder / "rows").iterdir())), 1)

    @parameterized.parameters(
        ({"name": "Run_1"}, "--name is 'Run_1'"),
        ({"name": "a" * 41}, "at most 40"),
        ({"workdir": "runs/a"}, "--workdir is 'runs/a'"),
        ({"workdir": "gs://bucket/a"}, "mount a bucket"),
        ({"stages": ()}, "--stages are ''"),
        ({"stages": ("train", "prepare_data")}, "in this order"),
        ({"stages": ("train", "train")}, "each once"),
        ({"stages": ("fine",)}, "--stages are 'fine'"),
        ({"stages": ("train", "finetune")}, "finetune has configs of its own"),
        ({"overrides": {"train.seed --x": "1"}}, "keys of a config"),
    )
    def test_what_no_cluster_would_take_is_refused(self, fields, message):
        fields = {"name": "run", "config": "x.py", "workdir": "/a", "stages": ("train",), **fields}
        with self.assertRaisesRegex(ValueError, re.escape(message)):
            jobs.Job(**fields)


class SweepTest(parameterized.TestCase):
    def test_the_product_of_all_values_each_in_its_folder(self):
        sweep = jobs.parse_sweep(["optimizer.learning_rate=1e-3,0.01"], seeds=2)
        found = jobs.expand(JOB, sweep)
        self.assertEqual([job.name for job in found], ["run-0", "run-1", "run-2", "run-3"])
        self.assertEqual(
            [job.overrides for job in found],
            [
                {"optimizer.learning_rate": rate, "train.seed": seed}
                for rate in ("1e-3", "0.01")
                for seed in ("0", "1")
            ],
        )
        self.assertEqual(
            found[1].workdir, "/runs/a/sweep/optimizer.learning_rate=1e-3,train.seed=1"
        )
        self.assertLen({job.workdir for job in found}, 4)

    def test_seeds_are_short_for_a_sweep_of_the_seed(self):
        self.assertEqual(
            jobs.parse_sweep([], seeds=3), jobs.parse_sweep(["config.train.seed=0,1,2"])
        )
        self.assertEqual(jobs.expand(JOB, jobs.parse_sweep([])), [JOB])

    @parameterized.parameters(
        (("train", "evaluate"), "/runs/a"),
        (("prepare_data", "train"), ""),
        (("build_vocab",), ""),
        (("finetune",), ""),
    )
    def test_rows_are_shared_unless_each_job_makes_its_own(self, stages, shared):
        job = jobs.Job("run", "configs/quickstart.py", "/runs/a", stages)
        (found,) = jobs.expand(job, {"train.seed": ("1",)})
        self.assertEqual(found.shared, shared)

    @parameterized.parameters(
        "train.seed", "=1,2", "train.seed=", "train.seed=1,,2", "a=b/c", "a=b c"
    )
    def test_what_cannot_be_read_is_refused(self, text):
        with self.assertRaisesRegex(ValueError, "must be key=value,value"):
            jobs.parse_sweep([text])

    def test_nothing_is_given_twice(self):
        with self.assertRaisesRegex(ValueError, "train.seed is swept twice"):
            jobs.parse_sweep(["train.seed=1,2"], seeds=2)
        with self.assertRaisesRegex(ValueError, "a value twice"):
            jobs.parse_sweep(["train.seed=1,1"])
        job = jobs.Job("run", "x.py", "/a", ("train",), {"train.seed": "3"})
        with self.assertRaisesRegex(ValueError, "both set and swept"):
            jobs.expand(job, {"train.seed": ("1",)})

    @parameterized.parameters(
        ("train.sed=1", "no key train.sed"),
        ("nothing=1", "no key nothing"),
        ("train.seed.x=1", "no key train.seed.x"),
        ("train.num_steps=1e3", "'1e3' cannot be its value"),
        ("optimizer.learning_rate=fast", "'fast' cannot be its value"),
        ("data.across_documents=2", "'2' cannot be its value"),
        ("vocab.sizes=1,2", "only single values"),
        ("train=1", "only single values"),
    )
    def test_what_the_config_would_refuse_is_refused_before_it_is_sent(self, text, message):
        with self.assertRaisesRegex(ValueError, message):
            jobs.check_sweep(jobs.parse_sweep([text]), quickstart.get_config())

    @parameterized.parameters(
        "train.seed=1,-2", "optimizer.learning_rate=1e-3,1", "data.across_documents=true,False",
        "output_layer.kind=knn,full",
    )  # fmt: skip
    def test_what_the_config_takes_is_taken(self, text):
        jobs.check_sweep(jobs.parse_sweep([text]), quickstart.get_config())


class FlagsTest(parameterized.TestCase):
    def launch(self, *arguments: str, launcher: str = "slurm") -> harness.Result:
        return harness.run(f"xlm.launch.{launcher}", ["--dry_run", *arguments])

    def test_every_flag_reaches_the_stage(self):
        done = self.launch(
            "--config=configs/quickstart.py:runlocal",
            "--workdir=/runs/a",
            "--config.train.num_steps=7",
            "--config.vocab.sizes=(1,2)",
            "--sweep=optimizer.warmup_steps=1,2",
            "--nodes=1",
            "--gpus=1",
        )
        self.assertEqual(done.status, 0, done.errors)
        started = [line for line in done.output.splitlines() if line.startswith("srun")]
        self.assertLen(started, 2)
        self.assertEqual(
            shlex.split(started[1].removesuffix(" || status=$?"))[4:],
            [
                "train.py",
                "--config=configs/quickstart.py:runlocal",
                "--workdir=/runs/a/sweep/optimizer.warmup_steps=2",
                "--config.train.num_steps=7",
                "--config.vocab.sizes=(1, 2)",
                "--config.optimizer.warmup_steps=2",
            ],
        )

    def test_a_grid_of_a_paper_and_seeds(self):
        done = self.launch(
            "--config=configs/finetune/tydiqa.py:DATA",
            "--workdir=/runs/a",
            "--stages=finetune",
            "--config.init_from=/runs/b",
            "--grid=vocap",
            "--seeds=2",
            "--python=py",
            launcher="local",
        )
        self.assertEqual(done.status, 0, done.errors)
        lines = done.output.splitlines()
        self.assertLen(lines, 8)  # of two rates, two numbers of epochs, two seeds
        self.assertEqual(
            shlex.split(lines[1]),
            [
                "py",
                "finetune.py",
                "--config=configs/finetune/tydiqa.py:DATA",
                "--workdir=/runs/a/sweep/optimizer.learning_rate=2e-5,train.epochs=6,train.seed=1",
                "--config.init_from=/runs/b",
                "--config.optimizer.learning_rate=2e-5",
                "--config.train.epochs=6",
                "--config.train.seed=1",
            ],
        )

    @parameterized.product(
        launcher=("local", "slurm", "tpu_pod", "xmanager"),
        value=(
            "workdir=/runs/a\nrm -rf b", "workdir=/runs/\udcff", "config.corpus.root=/t\x1b[2J",
            "config=configs/quickstart.py:a\u2028b", "name=a\nb", "python=py\r",
        ),
    )  # fmt: skip
    def test_no_line_of_a_script_is_broken(self, launcher, value):
        given = {"config": "configs/quickstart.py", "workdir": "/runs/a"}
        if launcher == "tpu_pod":
            given |= {"zone": "z", "accelerator": "v6e-8", "runtime": "r"}
        flag, _, text = value.partition("=")
        values = (f"--{key}={one}" for key, one in {**given, flag: text}.items())
        done = self.launch(*values, launcher=launcher)
        self.assertEqual(done.status, 2, done.output)
        self.assertRegex(done.errors, rf"^error [^\n]*--{flag} is [^\n]*\n$")

    def test_a_wrong_value_is_told_without_a_traceback(self):
        done = self.launch("--config=configs/quickstart.py", "--workdir=/a", "--sweep=train.sed=1")
        self.assertEqual(done.status, 2)
        self.assertIn("the config has no key train.sed", done.errors)
        self.assertNotIn("Traceback", done.errors)


class CodeTest(absltest.TestCase):
    def test_the_code_is_what_git_does_not_ignore(self):
        root = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        with self.assertRaisesRegex(ValueError, "must be a git checkout"):
            jobs.code_files(root)
        subprocess.run(["git", "init", "-q", root], check=True)
        (root / ".gitignore").write_text("runs/\n")
        for name in ("train.py", "room/a b.py", "runs/big.bin"):
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_text("")
        self.assertEqual(jobs.code_files(root), [".gitignore", "room/a b.py", "train.py"])

    def test_an_accelerator_gets_the_same_jax(self):
        plain = jobs.jax_requirement("tpu").replace("[tpu]", "")
        self.assertIn(plain, (jobs.ROOT / "requirements.txt").read_text().splitlines())
        self.assertStartsWith(jobs.jax_requirement("tpu"), "jax[tpu]>=")


if __name__ == "__main__":
    absltest.main()
