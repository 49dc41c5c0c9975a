"""The commands for a TPU slice, and what is done about their statuses."""

import dataclasses
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile

from absl.testing import absltest, parameterized

from tests.malformed import harness
from xlm.launch import jobs, tpu_pod

POD = tpu_pod.Pod("base", "us-east5-b", "v6e-256", "v2-alpha-tpuv6e", project="lab", spot=True)
JOB = jobs.Job("base", "configs/base.py", "/mnt/base", ("train",), {"a.b": "(1, 2)"})
WHERE = ["--zone=us-east5-b", "--project=lab"]
# A sweep of two, named sweep-0 and sweep-1.
SWEEP = ["--config=configs/quickstart.py", "--workdir=/mnt/q", "--name=sweep", "--seeds=2"]
SWEEP += ["--zone=us-east5-b", "--accelerator=v6e-8", "--runtime=v2-alpha-tpuv6e"]
# gcloud with a quota of one slice, which are files beside it.
QUOTA_OF_ONE = """#!/usr/bin/env bash
cd "$(dirname "$0")/slices" || exit
case "$4" in
  create) [ -z "$(ls)" ] && touch "$5" ;;
  describe) [ -e "$5" ] && echo ACTIVE ;;
  delete) rm "$5" ;;
esac
"""
STOPPED, PREEMPTED = jobs.EXIT_STOPPED, 255


class Cloud:
    """Stands in for gcloud: a slice that is granted after one look, and statuses of training."""

    def __init__(
        self, *statuses: int, exists: str = "", granted: str = "ACTIVE", unanswered: int = 0
    ):
        self.state, self.granted, self.unanswered = exists, granted, unanswered
        self.statuses = list(statuses)
        self.done: list[str] = []

    def __call__(self, command: list[str]) -> tuple[int, str]:
        verb = command[4]
        if verb == "describe":
            now = self.state
            if now and self.unanswered:
                self.unanswered -= 1
                return 1, ""
            if self.state == "WAITING_FOR_RESOURCES":
                self.state = self.granted
            return (0, now + "\n") if now else (1, "")
        if verb == "ssh":
            verb = next(v for v in ("train.py", "venv", "ln -sf") if v in command[-3])
        self.done.append(verb)
        if verb == "create":
            self.state = "WAITING_FOR_RESOURCES"
        if verb == "delete":
            self.state = ""
        status = self.statuses.pop(0) if verb == "train.py" else 0
        if status == PREEMPTED:
            self.state = "SUSPENDED"
        return status, ""


class OneSlice:
    """Stands in for gcloud with a quota of one slice, for pods of several names.

    Args:
      held: names of slices that there are already.
      failing: names of pods on which training fails, "delete" to fail at that.
    """

    def __init__(self, *held: str, failing: tuple[str, ...] = ()):
        self.held, self.failing = list(held), failing
        self.done: list[str] = []

    def __call__(self, command: list[str]) -> tuple[int, str]:
        verb, name = command[4:6]
        if verb == "describe":
            return (0, "ACTIVE\n") if name in self.held else (1, "")
        if verb == "create":
            assert not self.held, f"{name} waits for ever behind {self.held}"
            self.held.append(name)
        elif verb == "delete":
            if name not in self.held or verb in self.failing:
                return 1, ""
            self.held.remove(name)
        elif "train.py" in command[-3]:
            verb = "train"
        else:
            return 0, ""
        self.done.append(f"{verb} {name}")
        return int(verb == "train" and name in self.failing), ""


class CommandsTest(parameterized.TestCase):
    def test_the_commands(self):
        tpus = ["gcloud", "compute", "tpus"]
        flags = "--config=configs/base.py --workdir=/mnt/base '--config.a.b=(1, 2)'"
        create, describe, copy, install, train = tpu_pod.commands(POD, JOB)
        self.assertEqual(
            create,
            [*tpus, "queued-resources", "create", "base", "--node-id=base",
             "--accelerator-type=v6e-256", "--runtime-version=v2-alpha-tpuv6e", "--spot", *WHERE],
        )  # fmt: skip
        self.assertEqual(
            describe,
            [*tpus, "queued-resources", "describe", "base", "--format=value(state.state)", *WHERE],
        )
        self.assertEqual(
            copy,
            [*tpus, "tpu-vm", "scp", "code.tar.gz", "base:code.tar.gz", "--worker=all", *WHERE],
        )
        self.assertEqual(install[:7], [*tpus, "tpu-vm", "ssh", "base", "--worker=all"])
        self.assertIn(f"'{jobs.jax_requirement('tpu')}'", install[7])
        self.assertEqual(
            train,
            [*tpus, "tpu-vm", "ssh", "base", "--worker=all",
             f"--command=cd code && ../.venv/bin/python train.py {flags} --distributed", *WHERE],
        )  # fmt: skip

    def test_other_stages_run_on_the_first_host(self):
        for stage in ("evaluate", "finetune"):
            training = [part.replace("train.py", f"{stage}.py") for part in POD.stage(JOB, "train")]
            self.assertEqual(POD.stage(JOB, stage), training)
        for stage in ("build_vocab", "prepare_data"):
            command = POD.stage(JOB, stage)
            self.assertIn("--worker=0", command)
            self.assertNotIn("--distributed", command[-3])
        (swept,) = jobs.expand(JOB, {"train.seed": ("1",)})
        link = tpu_pod.commands(POD, swept)[4]
        self.assertIn("--worker=0", link)
        self.assertIn("ln -sf /mnt/base/vocab /mnt/base/rows", link[-3])

    def test_a_host_unpacks_and_installs(self):
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        for name, text in (
            ("tar", 'echo "tar $*" >>"$LOG"; echo code >code/requirements.txt'),
            ("python3.11", 'echo "python $*" >>"$LOG"; mkdir -p .venv/bin; cp pip .venv/bin'),
            ("pip", 'printf "%s|" "$@" >>"$LOG"'),
        ):
            (folder / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
            (folder / name).chmod(0o755)
        command = dataclasses.replace(POD, setup="echo setup >>$LOG").install()[-3]
        environment = {
            **os.environ,
            "PATH": f"{folder}:{os.environ['PATH']}",
            "LOG": str(folder / "log"),
        }
        for _ in range(2):  # the second time over what the first left
            (folder / "log").unlink(missing_ok=True)
            subprocess.run(
                ["bash", "-c", command.removeprefix("--command=")],
                cwd=folder, env=environment, check=True,
            )  # fmt: skip
            self.assertEqual(
                (folder / "log").read_text().splitlines(),
                [
                    "setup",
                    "tar -xzf code.tar.gz -C code",
                    "python -m venv .venv",
                    f"install|--quiet|-r|code/requirements.txt|{jobs.jax_requirement('tpu')}|",
                ],
            )

    def test_shellcheck_finds_nothing(self):
        shellcheck = shutil.which("shellcheck")
        if not shellcheck:
            self.skipTest("shellcheck is not installed")
        (swept,) = jobs.expand(
            dataclasses.replace(JOB, workdir="/mnt/a b", stages=("train", "evaluate")),
            {"train.seed": ("1",)},
        )
        planned = tpu_pod.commands(dataclasses.replace(POD, setup="mountpoint -q /mnt"), swept)
        remote = [
            part.removeprefix("--command=")
            for command in planned
            for part in command
            if part.startswith("--command=")
        ]
        self.assertLen(remote, 4)
        for script in (shlex.join(command) for command in planned), remote:
            text = "#!/usr/bin/env bash\n" + "\n".join(script) + "\n"
            done = subprocess.run([shellcheck, "-"], input=text, text=True, capture_output=True)
            self.assertEqual(done.returncode, 0, done.stdout)

    @parameterized.parameters("zone", "accelerator", "runtime", "python", "project")
    def test_what_gcloud_would_not_take_is_refused(self, field):
        with self.assertRaisesRegex(ValueError, f"--{field} is 'a b', must be one word"):
            dataclasses.replace(POD, **{field: "a b"})


class RunTest(parameterized.TestCase):
    def run_on(self, cloud: Cloud, restarts: int = 3) -> list[str]:
        tpu_pod.run(POD, JOB, "x.tar.gz", cloud, restarts=restarts, sleep=lambda seconds: None)
        return cloud.done

    @parameterized.parameters(
        (Cloud(0), "create scp venv train.py"),
        (Cloud(0, exists="ACTIVE"), "scp venv train.py"),
        (Cloud(0, exists="SUSPENDED"), "delete create scp venv train.py"),
        (Cloud(0, unanswered=tpu_pod._UNANSWERED), "create scp venv train.py"),
        (Cloud(STOPPED, STOPPED, 0), "create scp venv train.py train.py train.py"),
        (Cloud(PREEMPTED, 0), "create scp venv train.py delete create scp venv train.py"),
    )
    def test_an_interrupted_run_is_started_again(self, cloud, expected):
        self.assertEqual(self.run_on(cloud), expected.split())

    def test_a_job_of_a_sweep_finds_its_rows(self):
        (swept,) = jobs.expand(JOB, {"train.seed": ("1",)})
        tpu_pod.run(POD, swept, "x.tar.gz", cloud := Cloud(0), restarts=0, sleep=lambda _: None)
        self.assertEqual(cloud.done, ["create", "scp", "venv", "ln -sf", "train.py"])

    @parameterized.parameters(
        (Cloud(1, 0), "train.py ended with status 1", "create scp venv train.py"),
        (Cloud(0, granted="FAILED"), "no slice: FAILED", "create"),
        (Cloud(0, unanswered=9), "gcloud does not find it; .* --delete gives it back", "create"),
        (Cloud(*[STOPPED] * 9), "4 times", "create scp venv train.py train.py train.py train.py"),
    )
    def test_other_failures_end_it(self, cloud, message, expected):
        with self.assertRaisesRegex(ValueError, message):
            self.run_on(cloud)
        self.assertEqual(cloud.done, expected.split())

    def test_a_failed_command_is_named(self):
        def execute(command):
            return (1, "") if "scp" in command else (0, "ACTIVE")

        copy = shlex.join(POD.copy("x.tar.gz"))
        with self.assertRaisesRegex(ValueError, re.escape(f"status 1 of: {copy}")):
            tpu_pod.run(POD, JOB, "x.tar.gz", execute, restarts=0)


class SweepTest(parameterized.TestCase):
    """Jobs base-0, base-1 and base-2, of which each has a slice of its own."""

    def setUp(self):
        super().setUp()
        swept = jobs.expand(JOB, {"train.seed": ("0", "1", "2")})
        self.jobs = [(dataclasses.replace(POD, name=job.name), job) for job in swept]
        self.pods = [pod for pod, _ in self.jobs]

    def run_on(self, cloud: OneSlice) -> list[str]:
        tpu_pod.run_all(self.jobs, "x.tar.gz", cloud, restarts=0, sleep=lambda seconds: None)
        return cloud.done

    def test_one_slice_is_held_at_a_time_and_the_last_is_kept(self):
        cloud = OneSlice()
        self.assertEqual(
            self.run_on(cloud),
            ["create base-0", "train base-0", "delete base-0",
             "create base-1", "train base-1", "delete base-1",
             "create base-2", "train base-2"],
        )  # fmt: skip
        self.assertEqual(cloud.held, ["base-2"])

    def test_that_of_a_single_job_is_kept(self):
        tpu_pod.run_all(self.jobs[:1], "x.tar.gz", cloud := OneSlice(), restarts=0)
        self.assertEqual(cloud.done, ["create base-0", "train base-0"])

    def test_a_failure_tells_what_is_held_and_the_same_command_goes_on_with_it(self):
        cloud = OneSlice(failing=("base-1",))
        delete = re.escape(shlex.join(self.pods[1].delete()))
        with self.assertRaisesRegex(
            ValueError, f"^base-1: train.py ended .* held, .*deleted: base-1, ACTIVE: {delete}$"
        ) as raised:
            self.run_on(cloud)
        self.assertNotIn("base-0", str(raised.exception))
        self.assertEqual(cloud.held, ["base-1"])
        again = self.run_on(OneSlice(*cloud.held))
        self.assertEqual(again[:3], ["train base-1", "delete base-1", "create base-0"])
        self.assertEqual(again[-1], "train base-2")

    def test_a_slice_that_cannot_be_deleted_is_told(self):
        cloud = OneSlice(failing=("delete",))
        delete = re.escape(shlex.join(self.pods[0].delete()))
        with self.assertRaisesRegex(
            ValueError, f"status 1 of: {delete}; still held, .*deleted: base-0, "
        ):
            self.run_on(cloud)
        self.assertEqual(cloud.done, ["create base-0", "train base-0"])

    def test_where_nothing_is_held_none_is_named(self):
        def execute(command):
            return 1, ""

        with self.assertRaisesRegex(ValueError, "gcloud finds no slice still held"):
            tpu_pod.run_all(self.jobs, "x.tar.gz", execute, restarts=0)

    def test_all_slices_of_a_sweep_are_given_back(self):
        tpu_pod.delete_all(self.pods, cloud := OneSlice("base-1", "base-2"))
        self.assertEqual(cloud.done, ["delete base-1", "delete base-2"])
        with self.assertRaisesRegex(
            ValueError, "did not delete base-0, base-1, base-2, .* finds no"
        ):
            tpu_pod.delete_all(self.pods, OneSlice())
        with self.assertRaisesRegex(
            ValueError, "did not delete .*; still held, .*deleted: base-1, ACTIVE"
        ):
            tpu_pod.delete_all(self.pods, OneSlice("base-1", failing=("delete",)))

    def test_the_command_holds_one_slice_at_a_time(self):
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        (folder / "slices").mkdir()
        (folder / "gcloud").write_text(QUOTA_OF_ONE)
        (folder / "gcloud").chmod(0o755)
        path = f"{folder}:{os.environ['PATH']}"
        self.enter_context(absltest.mock.patch.dict(os.environ, {"PATH": path}))
        done = harness.run("xlm.launch.tpu_pod", SWEEP)
        self.assertEqual(done.status, 0, done.errors)
        self.assertEqual(os.listdir(folder / "slices"), ["sweep-1"])
        done = harness.run("xlm.launch.tpu_pod", [*SWEEP, "--delete"])
        self.assertEqual(done.status, 0, done.errors)
        self.assertEmpty(os.listdir(folder / "slices"))

    def test_a_dry_run_shows_what_is_deleted(self):
        done = harness.run("xlm.launch.tpu_pod", [*SWEEP, "--dry_run"])
        self.assertEqual(done.status, 0, done.errors)
        found = re.findall(r"queued-resources (\w+ sweep-\d)", done.output)
        self.assertEqual(
            found,
            ["create sweep-0", "describe sweep-0", "delete sweep-0",
             "create sweep-1", "describe sweep-1"],
        )  # fmt: skip


if __name__ == "__main__":
    absltest.main()
