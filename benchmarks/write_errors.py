"""Fail the writes or the power under the commands of a small job, and compare the results.

    python -m benchmarks.write_errors --errors=20 --cuts=20

Every stage, from a vocabulary to translations, runs once on a sound disk, and its changes are
recorded. Then it runs on a failing disk, simulated by a library loaded before libc (faulty_disk.c).
That needs Linux and a C compiler. Failures:

- full: the disk is full from the Nth change on. The command must end with a plain error and status
  2, its published files must be complete, and a rerun must succeed.
- io: the Nth change fails with EIO, like a broken disk. The same must hold.
- short: the Nth write takes half of its bytes. This must have no effect.
- cut: the power fails at the Nth change. power_cut.py writes a possible disk, and the command must
  succeed on it.

In the end all files and the arrays of the last checkpoint must be equal to the bit. Otherwise the
exit status is 1. N is spread over all changes of a stage. Half of the cuts come just after a
rename. The table also counts renames, and those with synced data and name.

Hardware: 2 CPU cores; 20 errors and 20 cuts take 8 minutes.
"""

import collections
import dataclasses
import functools
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile

from absl import app, flags

from benchmarks import power_cut, small_job

_ERRORS = flags.DEFINE_integer("errors", 20, "Failing writes, over all stages.", lower_bound=0)
_CUTS = flags.DEFINE_integer("cuts", 20, "Power cuts, over all stages.", lower_bound=0)
_STAGES = flags.DEFINE_list("stages", None, "Stages to try; all by default.")
_SEED = flags.DEFINE_integer("seed", 0, "Random seed of the moments.")

_SOURCE = pathlib.Path(__file__).with_name("faulty_disk.c")
_KINDS = ("full", "io", "short")
# Changes that each kind of failure counts.
_COUNTED = {
    "full": ("write", "create", "mkdir"),
    "io": ("write", "create", "mkdir", "sync", "rename", "truncate"),
    "short": ("write",),
}
_OVERRIDES = {
    "train.num_steps": 12,
    "train.checkpoint_every": 4,
    "train.evaluate_every": 6,
    "optimizer.embedding_update": "rows",
    "vocab.num_workers": 1,  # the order of changes is fixed
    "store.num_workers": 1,
}
_GROWING = ("metrics.jsonl", "speed.jsonl", "goodput.jsonl")  # incomplete until the end


@dataclasses.dataclass(frozen=True)
class Trial:
    """Stage with a new job for each failure.

    Attributes:
      name: name of the stage.
      run: the stage, in a folder that does not exist yet.
      before: the job before the stage.
      expected: digests of its results.
      library: compiled faulty_disk.c.
    """

    name: str
    run: small_job.Run
    before: pathlib.Path
    expected: dict[str, str]
    library: pathlib.Path

    def faulty(self, folder: pathlib.Path, **more: str) -> dict[str, str]:
        """Return the environment of a failing disk; counts go to a file beside the folder."""
        counts = folder.with_suffix(".counts")
        counts.write_bytes(bytes(16))
        return {
            **self.run.environment,
            "LD_PRELOAD": str(self.library),
            "FAULTY_FOLDER": str(folder.resolve()),
            "FAULTY_COUNTS": str(counts),
            **more,
        }

    def record(self, job: pathlib.Path) -> tuple[power_cut.Recording, collections.Counter[str]]:
        """Run the stage on a sound disk; return its changes, and their number by kind.

        It runs in the folder of the failing runs, so the recorded paths are theirs.
        """
        log = job.with_suffix(".changes")
        log.unlink(missing_ok=True)
        own = self.run.job
        shutil.rmtree(own, ignore_errors=True)  # of the earlier stage
        shutil.copytree(self.before, own)
        environment = self.faulty(own, FAULTY_LOG=str(log))
        dataclasses.replace(self.run, environment=environment).finish()
        recording = power_cut.Recording(self.before, own.resolve(), log)
        shutil.rmtree(job)
        shutil.move(own, job)
        return recording, collections.Counter(fields[0] for fields, _ in power_cut.records(log))

    def fail(self, kind: str, number: int) -> str:
        """Let a change fail, and resume; return the fault, or ""."""
        shutil.copytree(self.before, self.run.job)
        environment = self.faulty(self.run.job, FAULTY_KIND=kind, FAULTY_AT=str(number))
        failing = dataclasses.replace(self.run, environment=environment)
        with failing.started() as process:
            try:
                status = process.wait(small_job.TIMEOUT)
            except subprocess.TimeoutExpired:
                return "it hangs"
        _, failures = struct.unpack("qq", self.run.job.with_suffix(".counts").read_bytes())
        # With status 0 a removal failed. The next command repeats it, and all results exist.
        if failures and kind != "short" and status:
            if status != 2:
                return f"status {status}: {failing.last_line()}"
            if failing.has_traceback():
                return f"a traceback, and: {failing.last_line()}"
            torn = [
                name for name, one in self._whole().items() if self.expected.get(name, one) != one
            ]
            if torn:
                return f"{torn[0]} is not whole"
        elif status:
            return f"status {status}: {failing.last_line()}"
        return self.resume()

    def _whole(self) -> dict[str, str]:
        found = self.run.digests()
        return {name: one for name, one in found.items() if not name.endswith(_GROWING)}

    def resume(self) -> str:
        """Run the stage to its end; return the fault."""
        try:
            self.run.finish()
        except RuntimeError as error:
            return f"resumed, it {error}"
        found = small_job.differences(self.expected, self.run.digests())
        return f"{len(found)} results differ, such as {found[0]}" if found else ""


def try_stage(
    trial: Trial, job: pathlib.Path, kinds: list[str], cuts: int, rng: random.Random
) -> list[str]:
    """Run a stage, and again with failures; print table rows; return the faults."""
    recording, changes = trial.record(job)
    trial = dataclasses.replace(trial, expected=small_job.digests(job, trial.run.stage.results))
    names = recording.published()
    safe = [sum(one.is_data_safe for one in names), sum(one.is_name_safe for one in names)]
    print(
        f"| {trial.name} | {recording.count} changes; {len(names)} names given, {safe[0]} after "
        f"their data were synced, {safe[1]} of which the folder was then synced |",
        flush=True,
    )
    faults = []
    for place, kind in enumerate(kinds):
        total = sum(changes[one] for one in _COUNTED[kind])
        number = 1 + int((place + rng.random()) / len(kinds) * total)
        faults += _tried(
            trial, f"{kind} {number} of {total}", functools.partial(trial.fail, kind, number)
        )
    for place in range(cuts):
        moments = recording.renames if place % 2 else range(recording.count)
        moment = rng.choice(moments or range(recording.count))

        def cut(moment: int = moment) -> str:
            recording.write(trial.run.job, moment, rng)
            return trial.resume()

        faults += _tried(trial, f"cut {moment} of {recording.count}", cut)
    return faults


def _tried(trial: Trial, what: str, attempt) -> list[str]:
    shutil.rmtree(trial.run.job, ignore_errors=True)
    fault = attempt()
    print(f"| {trial.name} | {what}: {fault or 'equal to the bit'} |", flush=True)
    return [f"{trial.name}, {what}: {fault}"] if fault else []


def _shares(total: int, names: list[str]) -> dict[str, int]:
    """Return the numbers of trials of each stage."""
    return {name: (total + place) // len(names) for place, name in enumerate(names)}


def main(_) -> None:
    known = small_job.stages(overrides=_OVERRIDES)
    names = _STAGES.value or list(known)
    if unknown := [name for name in names if name not in known]:
        raise app.UsageError(f"--stages: no {unknown[0]!r}, only {', '.join(known)}")
    rng, faults = random.Random(_SEED.value), []
    errors, cuts = _shares(_ERRORS.value, names), _shares(_CUTS.value, names)
    kinds = [_KINDS[number % 3] for number in range(_ERRORS.value)]
    print("| stage | |\n|---|---|")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        library, job = folder / "faulty_disk.so", folder / "job"
        compiler = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE)]
        subprocess.run(compiler, check=True)
        environment = small_job.environment(folder / "compiled")
        small_job.write_inputs(job)
        for stage, one in known.items():
            before = folder / "before"
            shutil.copytree(job, before)
            if stage in names:
                run = small_job.Run(one, folder / "own", environment)
                trial = Trial(stage, run, before, {}, library)
                own, kinds = kinds[: errors[stage]], kinds[errors[stage] :]
                faults += try_stage(trial, job, own, cuts[stage], rng)
            else:
                small_job.Run(one, job, environment).finish()
            shutil.rmtree(before)
    print(f"\n{_ERRORS.value} errors, {_CUTS.value} power cuts, {len(faults)} faults")
    print(*faults, sep="\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    app.run(main)
