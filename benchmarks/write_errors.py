"""Let writes of the commands of a small job fail, or the power, and compare what comes of it.

    python -m benchmarks.write_errors --errors=20 --cuts=20

Every stage, from a vocabulary to translations, is run once on a sound disk, and its changes are
recorded. Then it is run on one that fails, by a library that the loader puts before libc
(faulty_disk.c, which a C compiler makes; Linux only):

- full: there is no room from the Nth change on. The command must end with a plain error and
  status 2, what it has published must be whole, and the same command must then end well.
- io: the Nth change fails with EIO, as a disk that breaks. The same is asked.
- short: the Nth write takes half of its bytes. Nothing may come of it.
- cut: what a disk may hold after a power cut at the Nth change is written down (power_cut.py), and
  the command must end well on it.

In the end all files and the arrays of the last checkpoint must be equal to the bit; otherwise the
exit status is 1. N is spread over all changes of a stage, with cuts half of the time just after a
name was given. The table also counts those names, and of how many data and name were synced.

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
_STAGES = flags.DEFINE_list("stages", None, "Which to try; all by default.")
_SEED = flags.DEFINE_integer("seed", 0, "Of the moments.")

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
    "vocab.num_workers": 1,  # changes come in an order
    "store.num_workers": 1,
}
_GROWING = ("metrics.jsonl", "speed.jsonl", "goodput.jsonl")  # not whole before the end


@dataclasses.dataclass(frozen=True)
class Trial:
    """A stage, whose job is made for each failure.

    Attributes:
      name: of the stage.
      run: the stage, in a folder that does not exist.
      before: the job before the stage.
      expected: digests of its results.
      library: compiled from faulty_disk.c.
    """

    name: str
    run: small_job.Run
    before: pathlib.Path
    expected: dict[str, str]
    library: pathlib.Path

    def faulty(self, folder: pathlib.Path, **more: str) -> dict[str, str]:
        """Environment of a failing disk; counts go to a file beside the folder."""
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
        """Run the stage for a job on a sound disk; return its changes, and how many of each kind.

        The paths that it records are those of the failing runs: it is run where they are.
        """
        log = job.with_suffix(".changes")
        log.unlink(missing_ok=True)
        own = self.run.job
        shutil.rmtree(own, ignore_errors=True)  # of the stage before
        shutil.copytree(self.before, own)
        environment = self.faulty(own, FAULTY_LOG=str(log))
        dataclasses.replace(self.run, environment=environment).finish()
        recording = power_cut.Recording(self.before, own.resolve(), log)
        shutil.rmtree(job)
        shutil.move(own, job)
        return recording, collections.Counter(fields[0] for fields, _ in power_cut.records(log))

    def fail(self, kind: str, number: int) -> str:
        """Let a change fail, and resume; return what was wrong, "" for nothing."""
        shutil.copytree(self.before, self.run.job)
        environment = self.faulty(self.run.job, FAULTY_KIND=kind, FAULTY_AT=str(number))
        failing = dataclasses.replace(self.run, environment=environment)
        with failing.started() as process:
            try:
                status = process.wait(small_job.TIMEOUT)
            except subprocess.TimeoutExpired:
                return "it hangs"
        _, failures = struct.unpack("qq", self.run.job.with_suffix(".counts").read_bytes())
        # With status 0 it was a file to remove, which the next command removes; all is there.
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
        """Take the stage to its end; return what was wrong."""
        try:
            self.run.finish()
        except RuntimeError as error:
            return f"resumed, it {error}"
        found = small_job.differences(self.expected, self.run.digests())
        return f"{len(found)} results differ, such as {found[0]}" if found else ""


def try_stage(
    trial: Trial, job: pathlib.Path, kinds: list[str], cuts: int, rng: random.Random
) -> list[str]:
    """Run a stage in a job, and again with failures; print rows of the table; return the faults."""
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
    """Numbers of trials of each stage."""
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
