"""A pre-training experiment: the way in for commands and for Python."""

import importlib.util
import os
import pathlib
from typing import Any

from ml_collections import ConfigDict

from xlm.common import packages
from xlm.experiment import schema
from xlm.experiment.data import Folders


class Experiment:
    """The four stages of a recipe in a working directory.

    Each stage writes to a folder of its own, does nothing where that is up to date, and resumes
    where it was stopped. `xlm build-vocab`, `prepare`, `train` and `evaluate` are these methods.

        experiment = xlm.Experiment("configs/quickstart.py", workdir="runs/mine", train__seed=1)
        experiment.build_vocab().prepare().train()
        print(experiment.evaluate().read_text())
    """

    def __init__(self, config: str | ConfigDict, workdir: str | os.PathLike[str], **overrides: Any):
        """Check the config; nothing is read or written yet.

        Args:
          config: a config, or the path of a recipe, "configs/X.py" or "configs/X.py:ARGUMENT".
          workdir: where results go.
          **overrides: keys with "__" for the dot, such as `train__num_steps=1000`.

        Raises:
          ValueError: there is no such recipe, or a key or value is wrong; the message names it.
        """
        found = load_recipe(config) if isinstance(config, str) else config
        found = found.copy_and_resolve_references() if overrides else found
        for name, value in overrides.items():
            section, _, key = name.rpartition("__")
            there = found.get(section) if section else found
            if not isinstance(there, ConfigDict) or key not in there:
                raise ValueError(f"{name}: no such key; docs/keys.md lists those there are")
            with there.unlocked():
                there[key] = value
        self.config = schema.checked(found)
        self.folders = Folders(pathlib.Path(workdir))

    def build_vocab(self) -> "Experiment":
        """Write WORKDIR/vocab: spm.model, report.md and allocation.json."""
        from xlm.experiment import vocabulary

        vocabulary.run(self.config, self.folders)
        return self

    def prepare(self, *, plans_only: bool = False) -> "Experiment":
        """Write WORKDIR/rows, the packed dataset.

        Args:
          plans_only: whether to stop before the first task, which Beam then runs.
        """
        from xlm.experiment import rows

        rows.run(self.config, self.folders, plans_only=plans_only)
        return self

    def train(self, *, continue_from: int | None = None) -> "Experiment":
        """Write WORKDIR/train: checkpoints and metrics.

        Args:
          continue_from: step of a checkpoint from which to go on with other settings.

        Raises:
          Stopped: a signal asked for it; the state is saved.
          FloatingPointError: the loss or the state is not finite.
        """
        from xlm.experiment import model, training

        model.set_up_compilation(self.config)
        training.run(self.config, self.folders, continue_from)
        return self

    def evaluate(self) -> pathlib.Path:
        """Write WORKDIR/report; return the path of its report.md."""
        from xlm.experiment import evaluation
        from xlm.training import compilation

        compilation.use_cache()
        path = evaluation.run(self.config, self.folders)
        return path or self.folders.report / "report.md"


def load_recipe(path: str) -> ConfigDict:
    """The config of a recipe, "FILE" or "FILE:ARGUMENT".

    Raises:
      ValueError: there is no such file, or it is no recipe.
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
