"""An experiment, of pre-training or of a task: the way in for commands and for Python."""

import importlib.util
import os
import pathlib
from typing import Any

from ml_collections import ConfigDict

from xlm.common import packages, places
from xlm.common.executors import Executor
from xlm.experiment import schema
from xlm.experiment.data import Folders
from xlm.experiment.run_folder import RESULTS


class Experiment:
    """A recipe in a working directory: a pre-training, or a task that starts from one.

    Each stage writes to a folder of its own, does nothing if that is up to date, and resumes after
    a stop. `xlm build-vocab`, `prepare`, `train`, `evaluate` and `finetune` are these methods.

        experiment = xlm.Experiment("configs/quickstart.py", workdir="runs/mine", train__seed=1)
        experiment.build_vocab().prepare().train()
        print(experiment.evaluate().read_text())

        tagger = xlm.Experiment(
            "configs/finetune/udpos.py:DATA", workdir="runs/tagger", init_from="runs/mine"
        )
        print(tagger.train().evaluate().read_text())

    Attributes:
      is_task: whether the recipe is of a task: fine-tuning, retrieval, mining or translation. A
        task has no vocabulary and no rows of its own.
    """

    def __init__(self, config: str | ConfigDict, workdir: str | os.PathLike[str], **overrides: Any):
        """Check the config, and neither read nor write results.

        Raises ValueError if there is no such recipe, or a key or value is wrong.

        Args:
          config: a config, or the path of a recipe, "configs/X.py" or "configs/X.py:ARGUMENT".
          workdir: folder of the results. `folders` are in a local copy of s3://BUCKET/run.
          **overrides: keys with "__" for the dot, such as `train__num_steps=1000`.
        """
        found = load_recipe(config) if isinstance(config, str) else config
        found = found.copy_and_resolve_references() if overrides else found
        for name, value in overrides.items():
            section, _, key = name.rpartition("__")
            there = found.get(section) if section else found
            if not isinstance(there, ConfigDict) or key not in there:
                raise ValueError(f"{name}: no such key; docs/keys.md lists all")
            with there.unlocked():
                there[key] = value
        self.is_task = isinstance(found, ConfigDict) and "task" in found
        if self.is_task:
            from xlm.experiment import task_schema

            self.config = task_schema.checked(found)
        else:
            self.config = schema.checked(found)
        self._workdir = str(workdir)
        self.folders = Folders(places.local(workdir))
        self._phased, self._notes = None, dict[str, Any]()
        if not self.is_task and self.config.phases:
            from xlm.experiment.phase_runs import PhasedExperiment

            self._phased = PhasedExperiment(self.config, self.folders)

    def build_vocab(self) -> "Experiment":
        """Write WORKDIR/vocab: spm.model, report.md and allocation.json."""
        from xlm.experiment import vocabulary

        self._check_is_pretraining("build_vocab")
        with places.locked(self._workdir):
            vocabulary.run(self.config, self.folders)
        return self

    def prepare(self, *, executor: Executor | None = None) -> "Experiment":
        """Write WORKDIR/rows, the packed dataset.

        The executor is `Dask` or `Beam` of xlm.common.executors, by default `store.num_workers`
        processes.
        """
        from xlm.experiment import rows

        self._check_is_pretraining("prepare")
        with places.locked(self._workdir):
            if self._phased:
                self._phased.prepare(executor)
            else:
                rows.run(self.config, self.folders, executor)
        return self

    def train(self, *, continue_from: int | None = None) -> "Experiment":
        """Write checkpoints and metrics: to WORKDIR/train, or to WORKDIR for a task.

        A task also evaluates at its end. A pre-training resumes from its checkpoint of the step
        `continue_from` with other settings. Raises Stopped after a signal, once the state is saved,
        and FloatingPointError if loss or state is not finite.
        """
        from xlm.experiment import model

        model.set_up_compilation(self.config)
        if self._phased and continue_from is not None:
            raise ValueError(
                f"--continue_from is {continue_from}, but the config has phases; change or add one"
            )
        model.check_one_host(self._workdir)
        with places.locked(self._workdir):
            if self.is_task:
                from xlm.experiment import task_runs

                task_runs.run(self.config, self.folders.workdir, notes=self._notes)
            elif self._phased:
                self._phased.train()
            else:
                from xlm.experiment import training

                training.run(self.config, self.folders, continue_from)
        return self

    def tune(self, minutes: float) -> "Experiment":
        """Search the settings of a task's later stages, see `xlm.experiment.tuning.search`."""
        from xlm.experiment import model, tuning

        model.set_up_compilation(self.config)
        with places.locked(self._workdir):
            self.config, self._notes = tuning.search(self.config, self.folders.workdir, minutes)
        return self

    def evaluate(self, *, seeds: int = 0) -> pathlib.Path:
        """Evaluate, after training a task if necessary, and return the path of the results.

        They are WORKDIR/report/report.md, or WORKDIR/results.json of a task. With `seeds` a task
        has as many runs, in WORKDIR/seed0 and so on, and WORKDIR/seeds.json.
        """
        if seeds:
            from xlm.experiment import model, tuning

            model.set_up_compilation(self.config)
            model.check_one_host(self._workdir)
            with places.locked(self._workdir) as folder:
                return tuning.run_seeds(self.config, folder, seeds, self._notes)
        if self.is_task:
            self.train()
            return self.folders.workdir / RESULTS
        from xlm.experiment import evaluation
        from xlm.training import compilation

        compilation.use_cache()
        with places.locked(self._workdir):
            if self._phased:
                return self._phased.evaluate()
            path = evaluation.run(self.config, self.folders)
            return path or self.folders.report / "report.md"

    def _check_is_pretraining(self, stage: str) -> None:
        if self.is_task:
            raise ValueError(
                f"{stage}: the config is of the task {self.config.task.name}, which reads the "
                "vocabulary of init_from and its own files; only train and evaluate apply"
            )


def load_recipe(path: str) -> ConfigDict:
    """The config of a recipe, "FILE" or "FILE:ARGUMENT".

    Raises ValueError if there is no such file, or it is no recipe.
    """
    file, _, argument = packages.recipe(path).partition(":")
    spec = importlib.util.spec_from_file_location("recipe", file)
    if spec is None or spec.loader is None or not os.path.exists(file):
        raise ValueError(f"{file}: no such config file; correct the path")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise ValueError(f"{file} has no function get_config, which must return its config; add it")
    return module.get_config(argument) if argument else module.get_config()
