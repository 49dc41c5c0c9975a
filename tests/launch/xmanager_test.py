"""The plan, and what XManager is told to do about it: a stand-in writes it down."""

import dataclasses
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
from typing import Any

from absl.testing import absltest, parameterized

from tests.malformed import harness
from xlm.experiment.schema import default_config
from xlm.launch import jobs, xmanager

JOB = jobs.Job("base", "configs/base.py", "/gcs/b/x", ("train", "evaluate"), {"a.b": "(1, 2)"})
SWEEP = jobs.expand(JOB, {"train.seed": ("0", "1")})
FOLDER = "/gcs/b/x/sweep/train.seed="
PLAN = {
    "title": "base",
    "package": {
        "kind": "python_container",
        "commands": [
            "set -e",
            'mkdir -p "$WORKDIR"',
            'ln -sf "$SHARED/vocab" "$SHARED/rows" "$WORKDIR/"',
            'python train.py "$@"',
            'python evaluate.py "$@"',
        ],
        "base_image": "python:3.12-slim",
        "docker_instructions": [
            "ENV LANG=C.UTF-8",
            "WORKDIR /vocap",
            "COPY vocap/requirements.txt requirements.txt",
            "RUN python -m pip install --no-cache-dir -r requirements.txt "
            f"'{jobs.jax_requirement('cuda13')}'",
            "COPY vocap/ /vocap",
        ],
    },
    "executor": {
        "platform": "vertex",
        "requirements": {"a100": 8, "cpu": 12, "memory": 64 * 2**30},
        "volumes": {},
        "cloud_provider": "",
    },
    "jobs": [
        {
            "name": f"base-{seed}",
            "args": {
                "config": "configs/base.py",
                "workdir": f"{FOLDER}{seed}",
                "config.a.b": "(1, 2)",
                "config.train.seed": seed,
            },
            "env_vars": {"WORKDIR": f"{FOLDER}{seed}", "SHARED": "/gcs/b/x"},
        }
        for seed in ("0", "1")
    ],
}


def plan_for(platform: str, found: list[jobs.Job] = SWEEP, **kwargs) -> xmanager.Plan:
    return xmanager.make_plan(found, "base", platform=platform, workdir="/gcs/b/x", **kwargs)


@dataclasses.dataclass
class Called:
    """A call that was written down; what it returns is the call itself."""

    name: str
    args: tuple
    kwargs: dict[str, Any]

    def Spec(self) -> str:
        return f"{self.name} spec"


class Recorder(types.ModuleType):
    """A module in which every name is a function that writes down how it is called."""

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: Called(name, args, kwargs)


class Experiment:
    """An experiment that keeps what it is given, and the files of a container."""

    def __init__(self, title: str):
        self.title, self.added, self.is_over = title, [], False
        self.files: set[str] = set()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.is_over = True

    def package(self, packageables):
        (self.packaged,) = packageables
        folder = pathlib.Path(self.packaged.args[0].kwargs["path"])
        if folder.is_dir():
            self.files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
        return ["image"]

    def add(self, job):
        self.added.append(job)


class PlanTest(parameterized.TestCase):
    def test_the_plan(self):
        plan = plan_for("vertex", gpus=("a100", 8), cpus=12, memory_gib=64)
        self.assertEqual(json.loads(json.dumps(dataclasses.asdict(plan))), PLAN)

    def test_this_machine_runs_its_own_code(self):
        plan = plan_for("local", [JOB], python=".venv/bin/python")
        self.assertEqual(plan.package.kind, "binary")
        self.assertEqual(
            plan.package.commands,
            (
                f"cd {jobs.ROOT}",
                "set -e",
                '.venv/bin/python train.py "$@"',
                '.venv/bin/python evaluate.py "$@"',
            ),
        )
        self.assertEqual([job.env_vars for job in plan.jobs], [{}])

    def test_a_container_sees_the_working_directory_and_has_jax_for_its_devices(self):
        plan = plan_for("docker", gpus=("a100", 2))
        self.assertEqual(plan.executor.requirements, {"local_gpu": 2})
        self.assertEqual(plan.executor.volumes, {"/gcs/b/x": "/gcs/b/x"})
        self.assertIn("cuda", "".join(plan.package.docker_instructions))
        self.assertNotIn("cuda", "".join(plan_for("docker").package.docker_instructions))

    def test_a_container_sees_the_volumes_too(self):
        plan = plan_for("docker", volumes=("/data/text", "/gcs/b/x"))
        self.assertEqual(
            plan.executor.volumes, {"/gcs/b/x": "/gcs/b/x", "/data/text": "/data/text"}
        )

    def test_paths_that_a_container_does_not_see_are_refused(self):
        paths = (
            ("--config.corpus.root", "/data/a b"),
            ("--config.corpus.exclude", "/gcs/b/x/../y"),
            ("--config.corpus.exclude", "/gcs/b/xy"),
            ("--config.train.init_from", "/gcs/b/x/pretrained"),
        )
        with self.assertRaises(ValueError) as raised:
            plan_for("docker", volumes=("/models",), paths=paths)
        self.assertEqual(
            str(raised.exception),
            "--config.corpus.root is '/data/a b', --config.corpus.exclude is '/gcs/b/x/../y', "
            "--config.corpus.exclude is '/gcs/b/xy', but of this machine's files the containers "
            "see /gcs/b/x, /models alone; add --volume='/data/a b' --volume=/gcs/b/x/../y "
            "--volume=/gcs/b/xy",
        )
        plan_for("docker", volumes=("/data/a b", "/gcs/b"), paths=paths)
        for platform in ("local", "vertex", "kubernetes"):  # which mount nothing of this machine
            plan_for(platform, paths=paths)

    def test_paths_of_a_config_are_those_that_exist(self):
        folder = self.enter_context(tempfile.TemporaryDirectory())
        pathlib.Path(folder, "text.txt").touch()
        config = default_config()
        self.assertEmpty(xmanager.paths_of(config))
        config.corpus.root = folder
        config.corpus.exclude = (f"{folder}/text.txt", f"{folder}/*", f"{folder}/none")
        config.vocab.tokenizer = "/"
        config.vocab.tables = "tests"
        self.assertEqual(
            xmanager.paths_of(config),
            [
                ("--config.corpus.exclude", f"{folder}/text.txt"),
                ("--config.corpus.root", folder),
            ],
        )

    def test_volumes(self):
        folder = self.enter_context(tempfile.TemporaryDirectory())
        self.assertEqual(xmanager.parse_volumes([f"{folder}/", folder]), (folder, folder))
        for path in ("tests", "/", "/a:/b", ""):
            with self.assertRaisesRegex(ValueError, f"--volume is '{path}', must be an absolute"):
                xmanager.parse_volumes([path])
        with self.assertRaisesRegex(ValueError, f"--volume is '{folder}/x', .* does not exist"):
            xmanager.parse_volumes([f"{folder}/x"])

    def test_the_command_tells_which_volumes_a_config_needs(self):
        data = self.enter_context(tempfile.TemporaryDirectory())
        given = [f"--config=configs/finetune/xnli.py:{data}", "--stages=finetune", "--dry_run"]
        given += ["--workdir=/runs/xnli", "--platform=docker", "--config.init_from=/nowhere/at/all"]
        done = harness.run("xlm.launch.xmanager", given)
        self.assertEqual(done.status, 2)
        self.assertIn(f"--config.task.root is '{data}'", done.errors)
        self.assertIn(f"add --volume={data}\n", done.errors)
        done = harness.run("xlm.launch.xmanager", [*given, f"--volume={data}"])
        self.assertEqual(done.status, 0, done.errors)
        self.assertEqual(
            json.loads(done.output)["executor"]["volumes"],
            {"/runs/xnli": "/runs/xnli", data: data},
        )

    @parameterized.parameters(("a100", ""), ("h100", "OTHER"))
    def test_kubernetes_is_asked_for_no_node_label_that_does_not_exist(self, kind, provider):
        self.assertEqual(plan_for("kubernetes", gpus=(kind, 8)).executor.cloud_provider, provider)

    @parameterized.parameters(
        ({"platform": "borg"}, "--platform is 'borg'"),
        ({"platform": "vertex", "gpus": ("h100", 8)}, "--gpus is h100=8"),
        ({"platform": "local", "cpus": 4}, "mean nothing to --platform=local"),
        ({"platform": "docker", "base_image": "a b"}, "--base_image is 'a b'"),
        ({"platform": "docker", "volumes": ("/a\tb",)}, "--volume is '/a.tb', must be one line"),
        ({"platform": "local", "volumes": ("/data",)}, "--volume is '/data', .*=local does not"),
        ({"platform": "kubernetes", "volumes": ("/data",)}, "or use --platform=docker"),
    )
    def test_what_does_not_go_together_is_refused(self, kwargs, message):
        with self.assertRaisesRegex(ValueError, message):
            plan_for(**kwargs)

    def test_vertex_wants_a_bucket(self):
        with self.assertRaisesRegex(ValueError, "mounted as /gcs/BUCKET"):
            xmanager.make_plan([JOB], "base", platform="vertex", workdir="/runs")

    def test_gpus(self):
        self.assertEqual(xmanager.parse_gpus(""), ("", 0))
        self.assertEqual(xmanager.parse_gpus("A100=8"), ("a100", 8))
        for text in ("a100", "8", "a100=", "a100=0", "a100=x", "=8", "a 1=8"):
            with self.assertRaisesRegex(ValueError, "must be KIND=NUMBER"):
                xmanager.parse_gpus(text)
        with self.assertRaisesRegex(ValueError, "xlm.launch.tpu_pod"):
            xmanager.parse_gpus("tpu_v5e=8")

    def test_a_dry_run_needs_no_xmanager(self):
        # Not even one that cannot be imported.
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        (folder / "xmanager.py").write_text("raise AssertionError('imported')")
        command = [sys.executable, "-m", "xlm.launch.xmanager", "--config=configs/quickstart.py"]
        done = subprocess.run(
            [*command, "--workdir=/runs/a", "--seeds=2", "--dry_run"],
            cwd=jobs.ROOT,
            env={**os.environ, "PYTHONPATH": str(folder)},
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        plan = json.loads(done.stdout)
        self.assertEqual(plan["title"], "quickstart")
        self.assertEqual([job["name"] for job in plan["jobs"]], ["quickstart-0", "quickstart-1"])


class LaunchTest(parameterized.TestCase):
    def launch(self, plan: xmanager.Plan) -> Experiment:
        xm, xm_local = Recorder("xm"), Recorder("xm_local")
        experiments = []

        def create_experiment(title):
            experiments.append(Experiment(title))
            return experiments[-1]

        xm_local.create_experiment = create_experiment
        xmanager.launch(plan, xm, xm_local)
        (experiment,) = experiments
        self.assertTrue(experiment.is_over)
        return experiment

    def test_a_sweep_in_the_cloud(self):
        experiment = self.launch(plan_for("vertex", gpus=("a100", 8), cpus=12, memory_gib=64))
        self.assertEqual(experiment.title, "base")
        container, spec = experiment.packaged.args
        self.assertEqual((container.name, spec), ("PythonContainer", "Vertex spec"))
        self.assertEqual(experiment.packaged.kwargs, {"args": []})
        entrypoint = container.kwargs["entrypoint"]
        self.assertEqual(entrypoint, Called("CommandList", (PLAN["package"]["commands"],), {}))
        for name in ("base_image", "docker_instructions"):
            self.assertEqual(container.kwargs[name], PLAN["package"][name])
        # What the Dockerfile copies is the folder's own name, and what is in it is the code.
        self.assertEqual(pathlib.Path(container.kwargs["path"]).name, "vocap")
        self.assertEqual(experiment.files, set(jobs.code_files()))
        self.assertLen(experiment.added, 2)
        for job, planned in zip(experiment.added, PLAN["jobs"], strict=True):
            image, executor = job.args
            self.assertEqual((image, executor.name), ("image", "Vertex"))
            requirements = Called("JobRequirements", (PLAN["executor"]["requirements"],), {})
            self.assertEqual(executor.kwargs, {"requirements": requirements})
            self.assertEqual(job.kwargs, planned)

    def test_this_machine(self):
        experiment = self.launch(plan_for("local", [JOB]))
        binary, spec = experiment.packaged.args
        self.assertEqual((binary.name, spec), ("Binary", "Local spec"))
        commands = plan_for("local", [JOB]).package.commands
        self.assertEqual(
            experiment.packaged.kwargs, {"args": ["-c", "\n".join(commands), "stages"]}
        )

    def test_a_failed_job_is_told(self):
        failed = RuntimeError("Process <Process 1> returned non-zero code: 2")
        self.enter_context(absltest.mock.patch.object(Experiment, "__exit__", side_effect=failed))
        with self.assertRaisesRegex(ValueError, "a job failed: .* code: 2; .* goes on"):
            self.launch(plan_for("local", [JOB]))

    def test_kubernetes_and_docker(self):
        (job, *_) = self.launch(plan_for("kubernetes", gpus=("h100", 8))).added
        self.assertEqual(job.args[1].name, "Kubernetes")
        self.assertEqual(job.args[1].kwargs["cloud_provider"], "OTHER")
        (job, *_) = self.launch(plan_for("kubernetes", gpus=("a100", 8))).added
        self.assertNotIn("cloud_provider", job.args[1].kwargs)
        (job, *_) = self.launch(plan_for("docker")).added
        options = Called("DockerOptions", (), {"volumes": {"/gcs/b/x": "/gcs/b/x"}})
        self.assertEqual(job.args[1].kwargs["docker_options"], options)


@absltest.skipIf(importlib.util.find_spec("xmanager") is None, "xmanager is not installed")
class RealXManagerTest(parameterized.TestCase):
    """In an environment of the extra [launch]."""

    def test_a_local_experiment_runs_each_job_with_its_flags(self):
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        (script := folder / "show").write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@" >"$OUT"\n')
        script.chmod(0o755)
        plan = plan_for("local", python=str(script))
        plan = dataclasses.replace(
            plan,
            package=xmanager.Package("binary", ("set -e", f'{script} train.py "$@"')),
            jobs=tuple(
                dataclasses.replace(job, env_vars={"OUT": str(folder / job.name)})
                for job in plan.jobs
            ),
        )
        self.enter_context(absltest.mock.patch.dict(os.environ, {"HOME": str(folder)}))
        from xmanager import xm, xm_local

        xmanager.launch(plan, xm, xm_local)
        for job in plan.jobs:
            found = (folder / job.name).read_text().splitlines()
            self.assertEqual(found, ["train.py", *(f"--{k}={v}" for k, v in job.args.items())])

    @parameterized.parameters(
        ("docker", "Local", ("a100", 1)),
        ("vertex", "Vertex", ("a100", 8)),
        ("vertex", "Vertex", ("l4_24th", 1)),
        ("kubernetes", "Kubernetes", ("h100", 8)),
    )
    def test_executors_and_packages_are_spelled_as_xmanager_does(self, platform, name, gpus):
        from xmanager import xm, xm_local

        plan = plan_for(platform, gpus=gpus, cpus=4, memory_gib=8)
        executor = xmanager._xm_executor(plan.executor, xm, xm_local)
        self.assertIsInstance(executor, getattr(xm_local, name))
        resources = executor.requirements.task_requirements
        self.assertEqual(resources[xm.ResourceType.MEMORY], 8 * 2**30)
        self.assertEqual(executor.requirements.topology.chip_count, gpus[1])
        folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        package = xmanager._xm_package(plan.package, folder, xm)
        packaged = xm.Packageable(package, executor.Spec(), args=[])
        self.assertEqual(packaged.executable_spec.name, "vocap")
        for job in plan.jobs:
            made = xm.Job("image", executor, name=job.name, args=job.args, env_vars=job.env_vars)
            self.assertEqual(
                made.args.to_list(str), [f"--{key}={value}" for key, value in job.args.items()]
            )


if __name__ == "__main__":
    absltest.main()
