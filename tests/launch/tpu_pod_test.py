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

from launch import jobs, tpu_pod

POD = tpu_pod.Pod("base", "us-east5-b", "v6e-256", "v2-alpha-tpuv6e", project="lab", spot=True)
JOB = jobs.Job("base", "configs/base.py", "/mnt/base", ("train",), {"a.b": "(1, 2)"})
WHERE = ["--zone=us-east5-b", "--project=lab"]
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


if __name__ == "__main__":
    absltest.main()
