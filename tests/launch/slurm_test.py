"""The batch script: as it is written, and as a shell runs it with stand-ins for Slurm."""

import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from absl.testing import absltest, parameterized

from xlm.launch import jobs, slurm

JOB = jobs.Job(
    "base",
    "configs/base.py",
    "/runs/base",
    ("prepare_data", "train", "evaluate"),
    {"a.b": "(1, 2)"},
)
CLUSTER = slurm.Cluster(
    nodes=4, gpus=8, cpus=6, time="24:00:00", options=("partition=long",), python="py", code="/code"
)
SCRIPT = """\
#!/usr/bin/env bash
#SBATCH --job-name=base
#SBATCH --output=/runs/base/base-%j.out
#SBATCH --open-mode=append
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=6
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --partition=long
set -euo pipefail
cd /code
export SRUN_CPUS_PER_TASK=6
srun --nodes=1 --ntasks=1 --ntasks-per-node=1 py prepare_data.py FLAGS
status=0
srun --kill-on-bad-exit=0 --wait=300 py train.py FLAGS --distributed || status=$?
if [ "$status" -eq 75 ]; then
  echo "stopped and saved; queueing again"
  scontrol requeue "$SLURM_JOB_ID"
fi
[ "$status" -eq 0 ] || exit "$status"
srun --kill-on-bad-exit=0 --wait=300 py evaluate.py FLAGS --distributed
""".replace("FLAGS", "--config=configs/base.py --workdir=/runs/base '--config.a.b=(1, 2)'")
# Writes down its arguments and ends with the status that the test wants of its stage.
STAND_IN = """#!/usr/bin/env bash
printf '%s\\n' "$(basename "$0") $*" >>"$LOG"
case "$*" in *train.py*) exit "$TRAIN_STATUS" ;; esac
"""


class BatchScriptTest(parameterized.TestCase):
    def test_the_script(self):
        self.assertEqual(slurm.batch_script(JOB, CLUSTER), SCRIPT)

    def test_the_output_is_in_a_working_directory_of_any_name(self):
        script = slurm.batch_script(dataclasses.replace(JOB, workdir="/runs/a b%j"), CLUSTER)
        self.assertIn("\n#SBATCH --output='/runs/a b%%j'/base-%j.out\n", script)

    def test_fine_tuning_is_started_and_queues_again_like_training(self):
        job = dataclasses.replace(JOB, stages=("finetune",))
        training = SCRIPT.splitlines()[SCRIPT.splitlines().index("status=0") :]
        lines = slurm.batch_script(job, CLUSTER).splitlines()
        found = lines[lines.index("status=0") :]
        self.assertEqual(found[1], training[1].replace("train.py", "finetune.py"))
        self.assertEqual(found[2:], training[2:7])

    @parameterized.parameters((1, 0, 1, False), (1, 1, 1, False), (1, 2, 2, True), (2, 0, 1, True))
    def test_processes_join_where_there_are_several(self, nodes, gpus, tasks, joins):
        script = slurm.batch_script(JOB, slurm.Cluster(nodes, gpus, 1))
        self.assertIn(f"#SBATCH --ntasks-per-node={tasks}\n", script)
        self.assertEqual("--distributed" in script, joins)
        self.assertEqual("--gpus-per-node" in script, gpus > 0)
        self.assertNotIn("--time", script)

    def run_script(self, status: int) -> tuple[int, list[str]]:
        """The status of the script where training ends with `status`, and what it called."""
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        for name in ("srun", "scontrol"):
            (folder / name).write_text(STAND_IN)
            (folder / name).chmod(0o755)
        script = slurm.batch_script(JOB, dataclasses.replace(CLUSTER, code=str(folder)))
        environment = {
            **os.environ,
            "PATH": f"{folder}:{os.environ['PATH']}",
            "LOG": str(folder / "log"),
            "TRAIN_STATUS": str(status),
            "SLURM_JOB_ID": "123",
        }
        done = subprocess.run(["bash"], input=script, text=True, env=environment)
        called = (folder / "log").read_text().splitlines()
        return done.returncode, called

    def test_stages_follow_each_other(self):
        status, called = self.run_script(0)
        self.assertEqual(status, 0)
        self.assertLen(called, 3)
        for line, stage in zip(called, JOB.stages, strict=True):
            self.assertIn(f" py {stage}.py ", line)
            self.assertIn("--config.a.b=(1, 2)", line)

    def test_a_stopped_run_queues_again(self):
        status, called = self.run_script(jobs.EXIT_STOPPED)
        self.assertEqual(status, jobs.EXIT_STOPPED)
        self.assertEqual(called[2:], ["scontrol requeue 123"])

    def test_a_failed_run_does_not(self):
        status, called = self.run_script(1)
        self.assertEqual(status, 1)
        self.assertLen(called, 2)

    def test_shellcheck_finds_nothing(self):
        beside = pathlib.Path(sys.executable).with_name("shellcheck")
        shellcheck = shutil.which("shellcheck") or (beside.exists() and str(beside))
        if not shellcheck:
            self.skipTest("shellcheck is not installed")
        (swept,) = jobs.expand(
            jobs.Job("base", "configs/base.py", "/runs/a b", ("train",)), {"train.seed": ("1",)}
        )
        for job in (JOB, swept):
            script = slurm.batch_script(job, CLUSTER)
            done = subprocess.run([shellcheck, "-"], input=script, text=True, capture_output=True)
            self.assertEqual(done.returncode, 0, done.stdout)

    @parameterized.parameters(
        ({"nodes": 0}, "--nodes is 0"),
        ({"gpus": -1}, "--gpus is -1"),
        ({"cpus": 0}, "--cpus is 0"),
        ({"time": "1 day"}, "--time is '1 day'"),
        ({"options": ("x\n#SBATCH y",)}, "--options is 'x.*without blanks"),
        ({"options": ("comment=a b",)}, "without blanks"),
        ({"options": ("comment=a\u00a0b",)}, "without blanks"),
        ({"options": ("comment='a'",)}, "quotes"),
        ({"options": ('comment="a"',)}, "quotes"),
        ({"options": ("comment=a#b",)}, "# and"),
        ({"options": ("comment=a\x7f",)}, "controls"),
        ({"code": "/code\n"}, "--code is '/code.n', must be one line"),
        ({"options": ("comment=a\\",)}, r"# and ."),
        ({"options": ("--partition=long",)}, "without its hyphens"),
        ({"options": ("",)}, "--options is ''"),
    )
    def test_what_slurm_would_not_take_is_refused(self, fields, message):
        with self.assertRaisesRegex(ValueError, message):
            dataclasses.replace(CLUSTER, **fields)

    @parameterized.parameters(
        "nodelist=node[01-04]", "constraint=a100&ib", "constraint=[rack1*2|rack2*4]", "exclusive",
        "distribution=*:block", "licenses=foo@db:4,bar", "comment=$(x);`y`!", "mail-user=a+b@c.org",
    )  # fmt: skip
    def test_options_of_sbatch_are_written_as_they_are(self, option):
        script = slurm.batch_script(JOB, dataclasses.replace(CLUSTER, options=(option,)))
        self.assertEqual(script, SCRIPT.replace("partition=long", option))

    def test_without_sbatch_it_says_what_to_do(self):
        self.enter_context(absltest.mock.patch.dict(os.environ, {"PATH": "/nowhere"}))
        with self.assertRaisesRegex(ValueError, "login node"):
            slurm.submit(SCRIPT)


if __name__ == "__main__":
    absltest.main()
