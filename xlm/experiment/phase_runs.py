"""Phases of a pre-training: runs in turn, each from the final state of another one.

`config.phases` has a mapping for each phase: its "name", and keys that differ from the config, such
as "mask.rate" or "corpus.languages". WORKDIR/phases/NAME is its working directory, on the
vocabulary of WORKDIR. A phase continues parameters and optimizer of the phase "after", by default
the one before. Its schedule and its random streams are its own. A phase with "merge" has no steps:
it merges the models of other phases. WORKDIR/rows and WORKDIR/train are links to the last phase
with steps, so that other commands read WORKDIR as any run.
"""

import dataclasses
import logging
import os
import pathlib
from typing import Any

from ml_collections import ConfigDict

from xlm.common import declarations, outputs
from xlm.common.executors import Executor
from xlm.experiment.data import Folders

_OWN = ("name", "after", "merge", "method")
# Keys that all phases share, and keys that are derived here.
_SHARED = ("phases", "objective", "vocab", "mesh", "train.init_from", "train.init_optimizer",
           "optimizer.steps_before")  # fmt: skip
_SEED_STRIDE = 1_000_003


@dataclasses.dataclass(frozen=True)
class Phase:
    """A phase: its config, the phase that it continues, "" for none, and those it merges."""

    name: str
    config: ConfigDict
    changes: dict[str, Any]
    after: str
    merges: tuple[str, ...] = ()
    method: str = "mean"


def phases_of(config: ConfigDict) -> list[Phase]:
    """Return the phases of a config; ValueError for an unknown key or phase in one."""
    found: list[Phase] = []
    for number, given in enumerate(config.phases):
        own = {key: given[key] for key in _OWN if key in given}
        name = declarations.check_name(
            str(own.get("name", "")), f"phases: the name of phase {number + 1}", "correct it"
        )
        known = [one.name for one in found]
        after = own.get("after", known[-1] if known else "")
        merges = tuple(own.get("merge", ()))
        if name in known:
            raise ValueError(f"phases: two are called {name!r}; each needs a name of its own")
        if unknown := sorted({after, *merges} - {"", *known}):
            raise ValueError(
                f"phases: {name} names {unknown[0]!r}, which is no earlier phase; name one of "
                f"{', '.join(known) or 'none: it is the first'}"
            )
        changes = {key: value for key, value in given.items() if key not in _OWN}
        of_phase = config.copy_and_resolve_references()
        of_phase.phases = ()
        for key, value in changes.items():
            _set(of_phase, name, key, value)
        if number:
            of_phase.train.seed = (of_phase.train.seed + number * _SEED_STRIDE) % (1 << 31)
        method = str(own.get("method", "mean"))
        if merges and (len(merges) < 2 or method not in ("mean", "ties")):
            raise ValueError(
                f"phases: {name} merges {len(merges)} phases by {method!r}; name two or more, and "
                'the method "mean" or "ties"'
            )
        found.append(Phase(name, of_phase, changes, after, merges, method))
    if found and found[0].merges:
        raise ValueError(
            f"phases: {found[0].name} is the first and merges; it has nothing to merge"
        )
    return found


def _set(config: ConfigDict, phase: str, key: str, value: Any) -> None:
    section, _, last = key.rpartition(".")
    if key in _SHARED or section in _SHARED:
        raise ValueError(
            f"phases: {phase} sets {key}, which is the same in all phases; set it once"
        )
    there = config.get(section) if section else None
    if not isinstance(there, ConfigDict) or last not in there:
        raise ValueError(f"phases: {phase} sets {key}, which is no key; docs/keys.md lists them")
    there[last] = value


class PhasedExperiment:
    """The stages of an experiment with phases; `xlm.experiment.Experiment` calls them."""

    def __init__(self, config: ConfigDict, folders: Folders):
        """Check the configs of all phases."""
        from xlm.experiment import schema

        self._phases, self._folders = phases_of(config), folders
        for phase in self._phases:
            try:
                schema.checked(phase.config)
            except ValueError as error:
                raise ValueError(f"phases: {phase.name}: {error}") from error

    def prepare(self, executor: Executor | None = None) -> None:
        """Write the packed dataset of each phase, once where text and rows are the same."""
        from xlm.experiment import rows

        written: dict[str, str] = {}
        for phase in self._with_steps():
            folders = self._of(phase.name)
            _link(folders.vocab, self._folders.vocab)
            sections = phase.config.corpus, phase.config.clean, phase.config.store
            content = repr([one.to_dict() for one in sections])
            if (same := written.setdefault(content, phase.name)) != phase.name:
                _link(folders.rows, self._of(same).rows)
                continue
            logging.info("phase %s: preparing its rows", phase.name)
            rows.run(phase.config, folders, executor)
        _link(self._folders.rows, folders.rows)

    def train(self) -> None:
        """Train the phases in turn; finished ones do nothing."""
        from xlm.experiment import training

        for number, phase in enumerate(self._phases, start=1):
            changes = ", ".join(f"{key} {value!r}" for key, value in phase.changes.items())
            message = "phase %d of %d, %s%s: %s"
            start = f", after {phase.after}" if phase.after else ""
            logging.info(message, number, len(self._phases), phase.name, start, changes or "as is")
            if phase.merges:
                self._merge(phase)
            else:
                training.run(self._continuing(phase), self._of(phase.name))
                _link(self._folders.train, self._of(phase.name).train)

    def evaluate(self) -> pathlib.Path:
        """Evaluate the last phase with steps; return its report."""
        from xlm.experiment import evaluation

        phase = list(self._with_steps())[-1]
        folders = self._of(phase.name)
        path = evaluation.run(self._continuing(phase), folders) or folders.report / "report.md"
        _link(self._folders.report, folders.report)
        return path

    def _continuing(self, phase: Phase) -> ConfigDict:
        """Return the config of a phase whose predecessor has ended."""
        config = phase.config.copy_and_resolve_references()
        if not phase.after:
            return config
        before = next(one for one in self._phases if one.name == phase.after)
        config.train.init_from = str(self._of(before.name).workdir)
        if not before.merges:
            config.train.init_optimizer = True
            config.optimizer.steps_before = self._steps_of(before)
        return config

    def _steps_of(self, phase: Phase) -> int:
        """Return the steps that the optimizer has taken at the end of a phase."""
        checkpoints = self._of(phase.name).train / "checkpoints"
        steps = [int(one.name) for one in checkpoints.glob("*") if one.name.isdigit()]
        if not steps:
            raise ValueError(f"phases: {phase.name} has no checkpoint; run train.py first")
        return max(steps) + self._continuing(phase).optimizer.steps_before

    def _merge(self, phase: Phase) -> None:
        from xlm.experiment import merging

        output = self._of(phase.name).workdir
        if (output / "config.json").exists():
            return
        base = str(self._of(phase.after).workdir) if phase.method == "ties" else None
        models = [str(self._of(name).workdir) for name in phase.merges]
        with outputs.folder(str(output), overwrite=False) as aside:
            merging.merge(aside, models, phase.method, base)
        logging.info("phase %s: wrote the merger; xlm export --model=%s", phase.name, output)

    def _with_steps(self) -> list[Phase]:
        return [phase for phase in self._phases if not phase.merges]

    def _of(self, name: str) -> Folders:
        return Folders(self._folders.workdir / "phases" / name)


def _link(path: pathlib.Path, target: pathlib.Path) -> None:
    """Make `path` a relative link to a folder; ValueError if it is something else."""
    to = os.path.relpath(target, path.parent)
    if path.is_symlink():
        if os.readlink(path) == to:
            return
        path.unlink()
    elif path.exists():
        raise ValueError(
            f"{path} is a folder of a run without config.phases; give --workdir another folder"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(to, target_is_directory=True)
