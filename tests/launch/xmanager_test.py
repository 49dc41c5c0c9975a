"""The plan, and what XManager is told to do about it: a stand-in writes it down."""

import importlib.util
import os
import subprocess
import types
from typing import Any
from unittest import mock

from absl.testing import absltest, parameterized

from tests.folders import FolderTest
from xlm.experiment.schema import default_config
from xlm.launch import jobs, xmanager

JOB = jobs.Job("base", "configs/base.py", "/gcs/b/x", ("train", "evaluate"), {"a.b": "(1, 2)"})
SWEEP = jobs.expand(JOB, {"train.seed": ("0", "1")})
COMMANDS = ['python train.py "$@"', 'python evaluate.py "$@"']
PLAN = {
    "title": "base",
    "package": {
        "kind": "python_container",
        "commands": [
            "set -e", 'mkdir -p "$WORKDIR"', 'ln -sf "$SHARED/vocab" "$SHARED/rows" "$WORKDIR/"',
            *COMMANDS,
        ],
        "base_image": "python:3.12-slim",
        "docker_instructions": [
            "ENV LANG=C.UTF-8", "WORKDIR /vocap", "COPY vocap/requirements.txt requirements.txt",
            xmanager._FOR_GPUS, "RUN python -m pip install --no-cache-dir -r requirements.txt",
            "COPY vocap/ /vocap",
        ],
    },
    "executor": {
        "platform": "vertex", "requirements": {"a100": 8, "cpu": 12, "memory": 64 * 2**30},
        "volumes": {}, "cloud_provider": "",
    },
    "jobs": [
        {
            "name": job.name,
            "args": {"config": "configs/base.py", "workdir": job.workdir, "config.a.b": "(1, 2)",
                     "config.train.seed": seed},
            "env_vars": {"WORKDIR": job.workdir, "SHARED": "/gcs/b/x"},
        }
        for job, seed in zip(SWEEP, ("0", "1"), strict=True)
    ],
}  # fmt: skip
# Of vertex, which can do most.
GIVEN = {
    "platform": "vertex", "workdir": "/gcs/b/x", "gpus": "", "cpus": 0, "memory_gib": 0,
    "python": "python", "base_image": "python:3.12-slim", "volume": [],
}  # fmt: skip


def plan_for(platform: str, found: list[jobs.Job] = SWEEP, **given) -> dict[str, Any]:
    values = {**GIVEN, "config": default_config(), "platform": platform, **given}
    return xmanager.make_plan(found, types.SimpleNamespace(**values))


class PlanTest(FolderTest):
    def test_the_plan(self):
        self.assertEqual(plan_for("vertex", gpus="A100=8", cpus=12, memory_gib=64), PLAN)

    def test_a_container_that_works_in_a_bucket_has_its_packages(self):
        job = jobs.Job("base", "configs/base.py", "gs://b/x", ("train",))
        for platform in ("vertex", "docker"):
            plan = plan_for(platform, [job], workdir="gs://b/x")
            self.assertIn("'/vocap[remote]'", plan["package"]["docker_instructions"][-1])
            self.assertEqual(plan["executor"]["volumes"], {})

    def test_this_machine_runs_its_own_code(self):
        plan = plan_for("local", [JOB], python=".venv/my py")
        commands = [one.replace("python", "'.venv/my py'") for one in COMMANDS]
        self.assertEqual(plan["package"]["commands"], [f"cd {jobs.ROOT}", "set -e", *commands])
        self.assertEqual([job["env_vars"] for job in plan["jobs"]], [{}])

    def test_a_container_has_the_working_directory_and_jax(self):
        plan = plan_for("docker", gpus="any=2")
        self.assertEqual(plan["executor"]["requirements"], {"local_gpu": 2})
        self.assertEqual(plan["executor"]["volumes"], {"/gcs/b/x": "/gcs/b/x"})
        without = plan_for("docker")["package"]["docker_instructions"]
        self.assertEqual(
            set(plan["package"]["docker_instructions"]) - set(without), {xmanager._FOR_GPUS}
        )
        plain = (jobs.ROOT / "requirements.txt").read_text()
        path = self.write("requirements.txt", plain)
        command = xmanager._FOR_GPUS.removeprefix("RUN ")
        subprocess.run(["sh", "-c", command], cwd=self.folder, check=True)
        found = path.read_text()
        self.assertEqual(found, plain.replace("\njax>=", "\njax[cuda13]>="))
        self.assertNotEqual(found, plain)

    def test_paths_that_a_container_does_not_see_are_refused(self):
        folder = self.folder
        data, text = f"{folder}/a b", str(self.write("text.txt", ""))
        os.mkdir(data)
        config = default_config()
        xmanager.check_mounted(config, ["/models"])
        config.corpus.root = data
        config.corpus.exclude = (text, f"{data}/../text.txt", f"{folder}/*", f"{folder}/none")
        config.vocab.tokenizer = "/"
        config.vocab.tables = "tests"
        with self.assertRaises(ValueError) as raised:
            xmanager.check_mounted(config, ["/models", f"{folder}/text"])
        self.assertEqual(
            str(raised.exception),
            f"--config.corpus.exclude is '{text}', --config.corpus.exclude is "
            f"'{data}/../text.txt', --config.corpus.root is '{data}', but the containers see only "
            f"/models, {folder}/text of this machine's files; add --volume={text} "
            f"--volume='{data}/../text.txt' --volume='{data}'",
        )
        with self.assertRaisesRegex(ValueError, f"add --volume={text} --volume='[^ ]* b/../t"):
            plan_for("docker", config=config, volume=[data])
        xmanager.check_mounted(config, [data, text])
        plan = plan_for("docker", config=config, volume=[f"{data}/", text])
        self.assertEqual(list(plan["executor"]["volumes"]), ["/gcs/b/x", data, text])
        for platform in ("local", "vertex", "kubernetes"):  # which mount nothing of this machine
            plan_for(platform, config=config)
        with self.assertRaisesRegex(ValueError, f"'{folder}/x', which does not exist"):
            plan_for("docker", volume=[f"{folder}/x"])

    @parameterized.parameters(("a100=8", ""), ("h100=8", "OTHER"))
    def test_kubernetes_is_asked_for_no_node_label_that_does_not_exist(self, gpus, provider):
        executor = plan_for("kubernetes", gpus=gpus)["executor"]
        self.assertEqual(executor["cloud_provider"], provider)

    @parameterized.parameters(
        ({"platform": "vertex", "gpus": "h100=8"}, "--gpus is h100=8"),
        ({"platform": "vertex", "workdir": "/runs"}, "give gs://BUCKET/FOLDER, or /gcs"),
        ({"platform": "local", "cpus": 4}, "have no effect with --platform=local"),
        ({"platform": "docker", "base_image": "a b"}, "--base_image is 'a b'"),
        ({"platform": "docker", "python": "a\nb"}, "--python is 'a.nb', must be one line"),
        ({"platform": "docker", "volume": ["/a\tb"]}, "--volume is '/a.tb', must be one line"),
        ({"platform": "local", "volume": ["/tmp"]}, "--volume is '/tmp', .*=local does not"),
        ({"platform": "kubernetes", "volume": ["/tmp"]}, "or use --platform=docker"),
        *(({"platform": "docker", "volume": [path]}, f"--volume is '{path}', must be an absolute")
          for path in ("tests", "/", "/a:/b", "")),
        *(({"platform": "docker", "gpus": text}, "must be KIND=NUMBER")
          for text in ("a100", "8", "a100=", "a100=0", "a100=x", "=8", "a 1=8")),
        ({"platform": "docker", "gpus": "tpu_v5e=8"}, "--on=tpu_pod is for TPUs"),
    )  # fmt: skip
    def test_what_does_not_go_together_is_refused(self, given, message):
        with self.assertRaisesRegex(ValueError, message):
            plan_for(**given)

    def test_each_job_is_added_with_the_package_and_a_failed_one_is_told(self):
        xm, xm_local = mock.MagicMock(), mock.MagicMock()
        experiment = xm_local.create_experiment.return_value.__enter__.return_value
        experiment.package.return_value = ["image"]
        xmanager.launch(PLAN, xm, xm_local)
        executor = xm_local.Vertex.return_value
        expected = [mock.call("image", executor, **job) for job in PLAN["jobs"]]
        self.assertEqual(xm.Job.call_args_list, expected)
        self.assertEqual(experiment.add.call_count, len(PLAN["jobs"]))
        xm_local.create_experiment.side_effect = RuntimeError("<Process> returned code: 2")
        with self.assertRaisesRegex(ValueError, "a job failed: .* code: 2; .* resume all jobs"):
            xmanager.launch(plan_for("local", [JOB]), xm, xm_local)


@absltest.skipIf(importlib.util.find_spec("xmanager") is None, "xmanager is not installed")
class RealXManagerTest(FolderTest):
    """In an environment of the extra [launch]."""

    def test_a_local_experiment_runs_each_job_with_its_flags(self):
        plan = plan_for("local")
        plan["package"]["commands"] = ['printf "%s\\n" "$@" >"$OUT"']
        for job in plan["jobs"]:
            job["env_vars"] = {"OUT": str(self.folder / job["name"])}
        self.enter_context(mock.patch.dict(os.environ, {"HOME": str(self.folder)}))
        from xmanager import xm, xm_local

        xmanager.launch(plan, xm, xm_local)
        for job in plan["jobs"]:
            found = (self.folder / job["name"]).read_text().splitlines()
            self.assertEqual(found, [f"--{key}={value}" for key, value in job["args"].items()])

    @parameterized.parameters(
        ("docker", "Local", "a100=1"), ("vertex", "Vertex", "a100=8"),
        ("vertex", "Vertex", "l4_24th=1"), ("kubernetes", "Kubernetes", "h100=8"),
    )  # fmt: skip
    def test_executors_and_packages_are_spelled_as_xmanager_does(self, platform, name, gpus):
        from xmanager import xm, xm_local

        plan = plan_for(platform, gpus=gpus, cpus=4, memory_gib=8)
        executor = xmanager.xm_executor(plan["executor"], xm, xm_local)
        self.assertIsInstance(executor, getattr(xm_local, name))
        resources = executor.requirements.task_requirements
        self.assertEqual(resources[xm.ResourceType.MEMORY], 8 * 2**30)
        self.assertEqual(executor.requirements.topology.chip_count, int(gpus[-1]))
        package, args = xmanager.xm_package(plan["package"], str(self.folder), xm)
        packaged = xm.Packageable(package, executor.Spec(), args=args)
        self.assertEqual(packaged.executable_spec.name, "vocap")
        for job in plan["jobs"]:
            flags = [f"--{key}={value}" for key, value in job["args"].items()]
            self.assertEqual(xm.Job("image", executor, **job).args.to_list(str), flags)
