"""The shell scripts of Slurm and TPU slices, as a shell runs them with stand-ins beside it."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile

from absl.testing import parameterized

from tests.folders import FolderTest
from xlm.launch import jobs, start
from xlm.training.clock import EXIT_HUNG

FOLDER = jobs.ROOT / "xlm" / "launch"
FLAGS = ["--config=configs/base.py", "--workdir=/runs/it's a b", "--config.k=*;#`x`$(y)\\ ü"]
# Writes down its arguments and ends with the next status that the test wants of training.
SLURM = r"""
printf '%s\n' "${0##*/} $(printf '%q ' "$@")" >>"$LOG"
case "$*" in *train.py*) exit "$STATUS" ;; esac
"""
# A slice that is granted after one look, and its hosts, which are this machine.
GCLOUD = r"""
cd "${0%/*}"
verb=$4 now=$(cat state)
case $verb in
  describe)
    if [ -z "$now" ]; then exit 1; fi
    if [ "$now" = WAITING ] && [ -s lost ]; then sed -i 1d lost; exit 1; fi
    case $now in WAITING) echo "$GRANTED" >state ;; esac
    echo "$now"
    exit ;;
  create) echo WAITING >state ;;
  delete) : >state ;;
  ssh)
    case "$7" in
      *"-m venv"*) verb=install ;;
      *"ln -sf"*) verb=link ;;
      *) verb=${6#--worker=} ;;
    esac ;;
esac
echo "$verb" >>log
printf '%s\n' "$7" >"last_$verb"
if [ "$verb" = all ]; then
  status=$(head -n 1 statuses)
  sed -i 1d statuses
  if [ "$status" = 255 ]; then echo SUSPENDED >state; fi
  exit "$status"
fi
"""


class ScriptTest(FolderTest):
    def stand_in(self, name: str, text: str) -> None:
        (self.folder / name).write_text(f"#!/usr/bin/env bash\n{text}")
        (self.folder / name).chmod(0o755)

    def bash(self, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.folder}:{os.environ['PATH']}"
        return subprocess.run(
            ["bash", *map(str, arguments)], cwd=jobs.ROOT, text=True, capture_output=True,
            env={**os.environ, "PATH": path, **environment},
        )  # fmt: skip

    @parameterized.parameters("slurm.sh", "tpu_pod.sh", "code.sh")
    def test_a_shell_and_shellcheck_find_nothing(self, name):
        self.assertEqual(self.bash("-n", FOLDER / name).stderr, "")
        beside = pathlib.Path(sys.executable).with_name("shellcheck")
        shellcheck = shutil.which("shellcheck") or (str(beside) if beside.exists() else "")
        if not shellcheck:
            self.skipTest("shellcheck is not installed")
        done = subprocess.run([shellcheck, FOLDER / name], text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_the_code_is_what_git_does_not_ignore(self):
        subprocess.run(["git", "init", "-q", self.folder], check=True)
        (self.folder / ".gitignore").write_text("runs/\n*.gz\n")
        for name in ("train.py", "room/a b\nc.py", "runs/big.bin", "gone.py"):
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_text("")
        subprocess.run(["git", "-C", self.folder, "add", "."], check=True)
        (self.folder / "gone.py").unlink()
        command = ["bash", FOLDER / "code.sh", "code.tar.gz"]
        subprocess.run(command, cwd=self.folder, check=True)
        with tarfile.open(self.folder / "code.tar.gz") as packed:
            names = sorted(packed.getnames())
        self.assertEqual(names, [".gitignore", "room/a b\nc.py", "train.py"])
        with tempfile.TemporaryDirectory() as other:
            done = subprocess.run(command, cwd=other, capture_output=True, text=True)
        self.assertIn("not a git repository", done.stderr)
        self.assertNotEqual(done.returncode, 0)


class SlurmTest(ScriptTest):
    def run_script(
        self, stages: str, status: int = 0, tasks: int = 8, gpus: int = 8, **environment: str
    ):
        """Status of the script where training ends with `status`, and its calls."""
        for name in ("srun", "scontrol"):
            self.stand_in(name, SLURM)
        done = self.bash(
            FOLDER / "slurm.sh", stages, *FLAGS, PYTHON="my py", STATUS=str(status),
            LOG=str(self.folder / "log"), SLURM_JOB_ID="123", SLURM_CPUS_PER_TASK="6",
            SLURM_NTASKS_PER_NODE=str(tasks), SLURM_NTASKS=str(tasks), SLURM_GPUS_ON_NODE=str(gpus),
            **environment,
        )  # fmt: skip
        calls = (self.folder / "log").read_text() if (self.folder / "log").exists() else ""
        # An interpreter of bash read what the stand-ins were given, whatever is in it.
        return done, [self.words(line) for line in calls.splitlines()]

    def words(self, line: str) -> list[str]:
        return self.bash("-c", f"printf '%s\\0' {line}").stdout.split("\0")[:-1]

    def test_stages_follow_each_other_with_their_flags(self):
        done, calls = self.run_script("prepare_data,train,evaluate")
        self.assertEqual(done.returncode, 0, done.stderr)
        one = ["srun", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1", "my py"]
        step = ["srun", "--kill-on-bad-exit=0", "--wait=300", "my py"]
        self.assertEqual(
            calls,
            [[*one, "prepare_data.py", *FLAGS], [*step, "train.py", *FLAGS, "--distributed"],
             [*step, "evaluate.py", *FLAGS, "--distributed"]],
        )  # fmt: skip

    def test_one_process_joins_no_others(self):
        _, calls = self.run_script("finetune", tasks=1, gpus=0)
        self.assertEqual(calls[0][4:], ["finetune.py", *FLAGS])

    def test_a_stopped_run_queues_again_and_a_failed_one_does_not(self):
        done, calls = self.run_script("train,evaluate", start.EXIT_STOPPED)
        self.assertEqual(done.returncode, start.EXIT_STOPPED)
        self.assertEqual(calls[1:], [["scontrol", "requeue", "123"]])
        (self.folder / "log").unlink()
        done, calls = self.run_script("train,evaluate", 1)
        self.assertEqual((done.returncode, len(calls)), (1, 1))

    @parameterized.product(calls=((0, 2), (2, 2), (3, 1)), status=(134, EXIT_HUNG))
    def test_a_run_that_crashed_or_hung_queues_again_a_few_times(self, calls, status):
        restarts, num_calls = calls
        done, calls = self.run_script("train", status, SLURM_RESTART_COUNT=str(restarts))
        self.assertEqual((done.returncode, len(calls)), (status, num_calls))

    def test_as_many_processes_as_gpus(self):
        done, calls = self.run_script("train", tasks=1)
        self.assertEqual((done.returncode, calls), (2, []))
        self.assertIn("give --ntasks-per-node=8", done.stderr)

    def test_sbatch_reads_options_before_any_command(self):
        text = (FOLDER / "slurm.sh").read_text()
        options = re.findall(r"^#SBATCH (\S+)$", text, re.M)
        self.assertContainsSubset(["--requeue", "--signal=TERM@300"], options)
        self.assertLess(text.rindex("#SBATCH"), text.index("\nset "))


class TPUTest(ScriptTest):
    def run_script(
        self, *statuses: int, stages: str = "train", state: str = "", **environment: str
    ):
        self.stand_in("gcloud", GCLOUD)
        (self.folder / "state").write_text(state)
        (self.folder / "statuses").write_text("".join(f"{status}\n" for status in statuses))
        (self.folder / "log").write_text("")
        settings = {"NAME": "x", "ZONE": "z", "ACCELERATOR": "v6e-8", "RUNTIME": "r", "POLL": "0"}
        done = self.bash(
            FOLDER / "tpu_pod.sh", stages, *FLAGS,
            **{**settings, "GRANTED": "ACTIVE", "RESTARTS": "3", **environment},
        )  # fmt: skip
        return done, (self.folder / "log").read_text().split()

    def remote(self, verb: str) -> str:
        """What a host was last told to run."""
        return (self.folder / f"last_{verb}").read_text().removeprefix("--command=")

    @parameterized.parameters(
        ((0,), "", "create scp install all"),
        ((0,), "ACTIVE", "scp install all"),
        ((0,), "SUSPENDED", "delete create scp install all"),
        ((start.EXIT_STOPPED, start.EXIT_STOPPED, 0), "", "create scp install all all all"),
        ((137, 0), "", "create scp install all all"),
        ((EXIT_HUNG, 0), "", "create scp install all all"),
        ((255, 0), "", "create scp install all delete create scp install all"),
    )
    def test_an_interrupted_run_is_started_again(self, statuses, state, expected):
        done, calls = self.run_script(*statuses, state=state)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(calls, expected.split())
        self.assertEndsWith(done.stdout.strip(), "delete x --force --quiet --zone=z")

    @parameterized.parameters(
        ((1,), "ACTIVE", "train.py ended with status 1", "create scp install all"),
        ((0,), "FAILED", "no slice: FAILED", "create"),
        ((0,), "", "gcloud does not find it", "create"),
        ((75,) * 9, "ACTIVE", "interrupted 4 times", "create scp install all all all all"),
    )
    def test_other_failures_end_it(self, statuses, granted, message, expected):
        done, calls = self.run_script(*statuses, GRANTED=granted)
        self.assertEqual(done.returncode, 1)
        self.assertIn(message, done.stderr)
        self.assertEqual(calls, expected.split())

    @parameterized.parameters((5, 0), (6, 1))
    def test_a_query_without_an_answer_is_asked_again(self, times, status):
        (self.folder / "lost").write_text("lost\n" * times)
        done, calls = self.run_script(0)
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertEqual(calls, ["create", "scp", "install", "all"][: 4 if status == 0 else 1])

    def test_no_flag_breaks_out_of_its_quotes_on_a_host(self):
        shared = "/s h/it's"
        done, calls = self.run_script(
            0, stages="prepare_data,train", SHARED=shared, WORKDIR="/w $(x)"
        )
        self.assertEqual(calls, ["create", "scp", "install", "link", "0", "all"])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(
            shlex.split(self.remote("link")),
            ["mkdir", "-p", "/w $(x)", "&&", "ln", "-sf", f"{shared}/vocab", f"{shared}/rows",
             "/w $(x)/"],
        )  # fmt: skip
        for verb, stage, extra in (("0", "prepare_data", []), ("all", "train", ["--distributed"])):
            show = self.remote(verb).replace("../.venv/bin/python", "printf '%s\\0'")
            self.assertEqual("JAX_PLATFORMS=cpu" in show, verb == "0")
            shown = self.bash("-c", show.replace("cd code", "true")).stdout
            self.assertEqual(shown.split("\0")[:-1], [f"{stage}.py", *FLAGS, *extra])

    def test_a_host_unpacks_and_installs(self):
        self.run_script(0, SETUP="echo setup >>log", PROJECT="lab", SPOT="1")
        self.stand_in("sudo", 'echo "sudo $*" >>log')
        self.stand_in("python3.11", "mkdir -p .venv/bin; cp pip .venv/bin; [ -e ready ]")
        self.stand_in("pip", 'printf "%s|" "$@" >>log')
        with tarfile.open(self.folder / "code.tar.gz", "w:gz") as tar:
            tar.add(jobs.ROOT / "requirements.txt", "requirements.txt")
        for tries, expected in (
            (["sudo apt-get update", "sudo apt-get install -y python3.11-venv"], 1),
            ([], 0),
        ):
            (self.folder / "log").unlink()
            command = f"cd {self.folder} && {self.remote('install')}"
            self.assertEqual(self.bash("-c", command).returncode, expected)
            found = (self.folder / "log").read_text().splitlines()
            self.assertEqual(found[: 1 + len(tries)], ["setup", *tries])
            (self.folder / "ready").touch()
        self.assertEqual(found[1:], ["install|--quiet|-r|requirements-tpu.txt|"])
        plain = (jobs.ROOT / "requirements.txt").read_text()
        tpu = (self.folder / "requirements-tpu.txt").read_text()
        self.assertEqual(tpu.count("jax[tpu]>="), 1)
        self.assertEqual(tpu.replace("jax[tpu]>=", "jax>="), plain)

    def test_a_dry_run_only_prints(self):
        done, calls = self.run_script(PROJECT="lab", SPOT="1", DRY_RUN="1")
        self.assertEqual((done.returncode, calls), (0, []))
        lines = [shlex.split(line) for line in done.stdout.splitlines()]
        self.assertEqual([line[4] for line in lines[:4]], ["create", "scp", "ssh", "ssh"])
        self.assertEqual(lines[0][5:], ["x", "--node-id=x", "--accelerator-type=v6e-8",
             "--runtime-version=r", "--spot", "--zone=z", "--project=lab"])  # fmt: skip
        self.assertEqual(lines[3][5:7] + lines[3][8:], ["x", "--worker=all", *lines[0][-2:]])

    def test_what_is_missing_is_named(self):
        done, _ = self.run_script(0, ZONE="")
        self.assertIn("ZONE: such as us-east5-b", done.stderr)
        self.assertNotEqual(done.returncode, 0)
