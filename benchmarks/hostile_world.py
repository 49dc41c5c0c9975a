"""Broken copies of a small job, the commands run on them, and their checks."""

import collections
import contextlib
import dataclasses
import functools
import os
import pathlib
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks import small_job

JOB = "runs/job"  # of the checkout in which a command starts, as for users
_NO_RIGHTS = ("setpriv", "--inh-caps=-all", "--bounding-set=-dac_override,-dac_read_search")
_ERROR = re.compile(r"^error", re.MULTILINE)
# Own files of each copy of the checkout; all others are links.
_PACKAGES = [path.name for path in small_job.ROOT.iterdir() if (path / "__init__.py").exists()]


@dataclasses.dataclass(frozen=True)
class World:
    """A folder with a copy of the job, and files that a command must not touch.

    Attributes:
      folder: parent of all of them.
    """

    folder: pathlib.Path

    @property
    def root(self) -> pathlib.Path:
        """Checkout in which commands start."""
        return self.folder / "checkout"

    @property
    def job(self) -> pathlib.Path:
        return self.root / JOB

    @property
    def outside(self) -> pathlib.Path:
        """Folder of the user that no command is given."""
        return self.folder / "outside"

    @property
    def canary(self) -> pathlib.Path:
        """File written by code that must not run."""
        return self.folder / "canary"

    def snapshot(self) -> dict[str, tuple]:
        """Kind, size, time and target of every file."""
        found = {}
        for folder, folders, files in os.walk(self.folder):
            for name in (*folders, *files):
                path = os.path.join(folder, name)
                one = os.lstat(path)
                target = os.readlink(path) if stat.S_ISLNK(one.st_mode) else ""
                times = () if stat.S_ISDIR(one.st_mode) else (one.st_size, one.st_mtime_ns)
                found[os.path.relpath(path, self.folder)] = (one.st_mode, *times, target)
        return found


@dataclasses.dataclass(frozen=True)
class Command:
    """Command of the job.

    Attributes:
      arguments: after `python`; JOB stands for the folder.
      result: file or folder that it writes, relative to the job; "" for none.
      own: existing files that it may change, relative to the job.
    """

    arguments: tuple[str, ...]
    result: str = ""
    own: tuple[str, ...] = ()

    def with_flags(self, *changes: str) -> list[str]:
        """Return the arguments with some flags replaced or added."""
        names = {one.partition("=")[0] for one in changes}
        kept = [one for one in self.arguments if one.partition("=")[0] not in names]
        return [one.replace("JOB", JOB) for one in (*kept, *changes)]


@dataclasses.dataclass(frozen=True)
class Condition:
    """Hostile condition.

    Attributes:
      kind: kind of condition.
      name: unique within its kind.
      command: a key of `commands()`.
      breaks: changes the world.
      flags: replace flags of the command.
      statuses: allowed exit statuses.
      shell: bash code that starts the command.
      environment: additional variables; None removes a variable.
      result: place of its results, if not the usual one.
      is_same: whether the results must equal those of the unbroken job.
      is_unprivileged: whether root's rights on files are dropped.
      sent: a signal and its moment, as a share of the usual duration.
      rival: flags of a second, concurrent process, and the share of the usual duration at which it
        stops until the first has ended (None: it does not stop).
      again: undoes `breaks`, after which the command must succeed; None for no second try.
      needs: raises an OSError if the system cannot make the condition.
    """

    kind: str
    name: str
    command: str
    breaks: Callable[[World], Any] = lambda world: None
    flags: tuple[str, ...] = ()
    statuses: tuple[int, ...] = (0, 2)
    shell: str = 'exec "$@"'
    environment: Mapping[str, str | None] = dataclasses.field(default_factory=dict)
    result: str | None = None
    is_same: bool = True
    is_unprivileged: bool = False
    sent: tuple[signal.Signals, float] | None = None
    rival: tuple[tuple[str, ...], float | None] | None = None
    again: Callable[[World], Any] | None = None

    @property
    def title(self) -> str:
        return f"{self.kind}: {self.name}"


def commands() -> dict[str, Command]:
    """Return the commands by name."""
    stages = small_job.stages(
        overrides={"train.num_steps": 4, "train.checkpoint_every": 2, "train.evaluate_every": 2,
                   "vocab.num_workers": 1, "store.num_workers": 1}
    )  # fmt: skip
    work = stages["train"].arguments[1:]
    tool = ("-m", "xlm")
    moved = {
        "build": ("build_vocab.py", "new", "vocab"),
        "cached": ("build_vocab.py", "voc", "vocab"),
        "built": ("build_vocab.py", "work", ""),
        "prepare": ("prepare_data.py", "voc", "rows"),
        "prepared": ("prepare_data.py", "work", ""),
        "verify": ("prepare_data.py", "work", ""),
        "bare": ("train.py", "bare", "train"),
        "train": ("train.py", "half", "train"),
        "evaluate": ("evaluate.py", "work", "report"),
    }
    found = {
        name: Command(
            (script, *(one.replace("JOB/work", f"JOB/{workdir}") for one in work)),
            f"{workdir}/{stage}" if stage else "",
            (f"{workdir}/{stage}",) if stage else (),
        )
        for name, (script, workdir, stage) in moved.items()
    }
    found["verify"] = dataclasses.replace(
        found["verify"], arguments=(*found["verify"].arguments, "--verify")
    )
    found["cached"] = dataclasses.replace(
        found["cached"], arguments=(*found["cached"].arguments, "--config.vocab.alpha=0.5")
    )
    fresh = (one.replace("JOB/tuned", "JOB/fresh") for one in stages["finetune"].arguments)
    model, out = "--model=JOB/model", "--output=JOB/out/"
    return found | {
        "finetune": Command(tuple(fresh), "fresh", ("fresh",)),
        "retune": Command(stages["finetune"].arguments),
        "predict": Command(
            ("predict.py", "--workdir=JOB/tuned", "--input=JOB/in.txt", f"{out}found.jsonl"),
            "out/found.jsonl",
        ),
        "translate": Command(
            ("predict.py", "--workdir=JOB/translation", "--input=JOB/in.txt", f"{out}found.txt"),
            "out/found.txt",
        ),
        "search": Command(
            ("predict.py", "--workdir=JOB/search", "--input=JOB/in.txt,JOB/in.txt",
             f"{out}pairs.jsonl"), "out/pairs.jsonl",
        ),
        "count": Command(
            (*tool, "count", "--input=JOB/text/en.txt", f"{out}en.runs.gz"),
            "out/en.runs.gz",
        ),
        "tokenizer": Command(
            (*tool, "export-tokenizer", "--model=JOB/work/vocab/spm.model", f"{out}hf"),
            "out/hf",
        ),
        "import": Command((*tool, "import", model, f"{out}imported"), "out/imported"),
        "export": Command((*tool, "export", *work, f"{out}model"), "out/model"),
        "tuned": Command(
            (*tool, "export", "--workdir=JOB/tuned", f"{out}tuned"), "out/tuned"
        ),
        "score": Command(
            (*tool, "score-tokenizer", "--tokenizers=a=JOB/work/vocab/spm.model",
             "--text=JOB/text", "--sentences=50", f"{out}score"), "out/score"
        ),
        "table": Command((*tool, "table", "--runs=JOB/tuned", f"{out}table"),
                         "out/table"),
        "memory": Command(
            (*tool, "estimate", "--config=configs/finetune/text.py:JOB/data",
             "--config.init_from=JOB/model")
        ),
    }  # fmt: skip


class Bench:
    """The unbroken job, made in an empty folder; runs conditions on copies of it."""

    def __init__(self, folder: pathlib.Path, timeout: float):
        self._folder, self._timeout, self._commands = folder, timeout, commands()
        self._environment = small_job.environment(folder / "compiled")
        self._template = World(folder / "template")
        self._locks: dict[str, threading.Lock] = collections.defaultdict(threading.Lock)
        root, job = self._template.root, self._template.job
        job.parent.mkdir(parents=True)
        for path in small_job.ROOT.iterdir():
            if path.name in (*_PACKAGES, "corpus"):
                (root / path.name).symlink_to(path)
            elif path.suffix == ".py":
                shutil.copy2(path, root)
        small_job.write_inputs(job, lines=200)
        self._run_stages()

    def _run_stages(self) -> None:
        root, job = self._template.root, self._template.job
        stages = small_job.stages(
            overrides={"train.num_steps": 4, "train.checkpoint_every": 2,
                       "train.evaluate_every": 2, "vocab.num_workers": 1, "store.num_workers": 1}
        )  # fmt: skip
        for name in ("build_vocab", "prepare_data", "train", "evaluate", "finetune", "translation"):
            self._sound([one.replace("JOB", JOB) for one in stages[name].arguments])
        self._sound(self._commands["export"].with_flags("--output=JOB/model"))
        self._sound(
            ["finetune.py", f"--config=configs/finetune/tatoeba.py:{JOB}/data",
             f"--workdir={JOB}/search", f"--config.init_from={JOB}/work", "--config.task.layer=1"]
        )  # fmt: skip
        lines = (job / "lines.txt").read_text(encoding="utf-8").splitlines()
        (job / "in.txt").write_text("\n".join(lines[:3]) + "\n", encoding="utf-8")
        for name, kept in (("voc", ("vocab",)), ("bare", ("vocab", "rows")),
                           ("half", ("vocab", "rows", "train"))):  # fmt: skip
            for stage in kept:
                shutil.copytree(job / "work" / stage, job / name / stage)
        (job / "half" / "train" / "DONE").unlink()
        shutil.rmtree(job / "half" / "train" / "checkpoints" / "4")
        shutil.rmtree(job / "work" / "train" / "checkpoints" / "2")
        outside = self._template.outside
        outside.mkdir()
        (outside / "mine.txt").write_text("of the user\n", encoding="utf-8")
        (root / "runs" / "evil").mkdir()
        (root / "runs" / "evil" / "canary.py").write_text(_CANARY, encoding="utf-8")

    def _sound(self, arguments: Sequence[str]) -> None:
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self._template.root, env=self._environment,
            capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{' '.join(arguments)}\n{done.stderr[-2000:]}")

    @functools.cache  # noqa: B019
    def _reference_now(self, name: str) -> tuple[dict[str, str], float]:
        with self._world() as world:
            start = time.monotonic()
            one = Condition("reference", name, name)
            done = self._finish(self._start(one, world), self._timeout)
            if done.status:
                raise RuntimeError(f"{name} ended with {done.status}: {done.errors[-2000:]}")
            return self._digests(one, world), time.monotonic() - start

    def reference(self, name: str) -> tuple[dict[str, str], float]:
        """Return the results and seconds of a command in the unbroken job."""
        with self._locks[name]:
            return self._reference_now(name)

    def _digests(self, one: Condition, world: World) -> dict[str, str]:
        result = one.result or self._commands[one.command].result
        top = str(pathlib.PurePath(result))
        if not result or not os.path.lexists(world.job / result):
            return {}
        found = small_job.digests(world.job, result, reads_states=False)
        # Cache entries that a command does not read stay unchanged, damaged or not.
        return {
            name.removeprefix(top): value for name, value in found.items() if "/cache/" not in name
        }

    @contextlib.contextmanager
    def _world(self) -> Iterator[World]:
        folder = pathlib.Path(tempfile.mkdtemp(dir=self._folder))
        try:
            shutil.copytree(self._template.folder, folder, symlinks=True, dirs_exist_ok=True)
            yield World(folder)
        finally:
            subprocess.run(["chmod", "-R", "u+rwX", folder], capture_output=True)
            shutil.rmtree(folder, ignore_errors=True)

    def _start(self, one: Condition, world: World, *flags_of_rival: str) -> subprocess.Popen:
        command = self._commands[one.command].with_flags(*one.flags, *flags_of_rival)
        environment = {**self._environment, "CANARY": str(world.canary), **one.environment}
        rights = _NO_RIGHTS if one.is_unprivileged and os.geteuid() == 0 else ()
        return subprocess.Popen(
            [*rights, "bash", "-c", one.shell, "bash", sys.executable, *command],
            cwd=world.root, start_new_session=True,
            env={key: value for key, value in environment.items() if value is not None},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def _finish(self, process: subprocess.Popen, timeout: float) -> "Ended":
        try:
            output, errors = process.communicate(timeout=timeout)
            hangs = False
        except subprocess.TimeoutExpired:
            hangs = True
        left = _kill_group(process.pid)
        if hangs:
            output, errors = process.communicate()
        status = process.returncode
        return Ended(
            128 - status if status < 0 else status,
            errors.decode(errors="replace") + output.decode(errors="replace"),
            "hangs" if hangs else "leaves processes" if left else "",
        )

    def run(self, one: Condition) -> tuple[str, str]:
        """Run a condition; return "passed", "skipped" or a fault, and the last line of output."""
        with self._world() as world, contextlib.ExitStack() as undo:
            if one.command:
                self.reference(one.command)
            try:
                undo.callback(one.breaks(world) or (lambda: None))
            except (OSError, subprocess.CalledProcessError) as error:
                return "skipped", str(error)
            before = world.snapshot()
            done = self._run(one, world)
            said = done[0].errors.strip().splitlines()[-1:] or [""]
            faults = self._faults(one, world, done)
            faults += self._changes(one, before, world.snapshot())
            if one.again is not None and not faults and done[0].status:
                one.again(world)
                plain = dataclasses.replace(
                    one, shell='exec "$@"', environment={}, sent=None, is_unprivileged=False
                )
                ended = self._finish(self._start(plain, world), self._timeout)
                faults += [f"again: {x}" for x in self._faults_of(plain, world, ended, (0,))]
                said = ended.errors.strip().splitlines()[-1:] or [""]
            return "; ".join(faults) or "passed", said[0]

    def _run(self, one: Condition, world: World) -> list["Ended"]:
        """Run the command, and its rival if any."""
        _, usual = self.reference(one.command)
        if one.rival is None:
            process = self._start(one, world)
            if one.sent:
                number, share = one.sent
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(share * usual)
                process.send_signal(number)
            return [self._finish(process, self._timeout)]
        flags_of_rival, stopped_at = one.rival
        other = self._start(one, world, *flags_of_rival)
        if stopped_at is None:
            first = self._finish(self._start(one, world), self._timeout)
            return [first, self._finish(other, self._timeout)]
        with contextlib.suppress(subprocess.TimeoutExpired):
            other.wait(stopped_at * usual)
        other.send_signal(signal.SIGSTOP)
        first = self._finish(self._start(one, world), self._timeout)
        other.send_signal(signal.SIGCONT)
        return [first, self._finish(other, self._timeout)]

    def _faults(self, one: Condition, world: World, done: Sequence["Ended"]) -> list[str]:
        if len(done) == 1:
            return self._faults_of(one, world, done[0], one.statuses)
        faults = [x for ended in done for x in self._faults_of(one, None, ended, (0, 2))]
        statuses = [ended.status for ended in done]
        stopped_at = one.rival[1] if one.rival else None
        if 0 not in statuses or (stopped_at is not None and statuses.count(0) != 1):
            faults.append(f"statuses {statuses}")
        elif stopped_at is None or statuses[0] == 0:
            faults += self._of_results(one, world)
        return faults

    def _faults_of(
        self, one: Condition, world: World | None, ended: "Ended", statuses: Sequence[int]
    ) -> list[str]:
        faults = [ended.fault] if ended.fault else []
        if ended.status not in statuses and ended.fault != "hangs":
            faults.append(f"status {ended.status}")
        if "Traceback (most recent call last)" in ended.errors:
            faults.append("a traceback")
        elif ended.status in (2, 3) and "2>" not in one.shell and not _ERROR.search(ended.errors):
            faults.append("no line says what is wrong")
        if ended.status == 0 and world is not None:
            faults += self._of_results(one, world)
        return faults

    def _of_results(self, one: Condition, world: World) -> list[str]:
        found = self._digests(one, world)
        expected, _ = self.reference(one.command)
        if not one.is_same:
            return [] if bool(found) == bool(expected) else ["no results"]
        differ = small_job.differences(expected, found)
        return [f"results differ: {differ[0] or 'the file'}"] if differ else []

    def _changes(self, one: Condition, before: dict, after: dict) -> list[str]:
        """Return the forbidden changes."""
        command, prefix = self._commands[one.command], f"checkout/{JOB}/"
        own = [prefix + path for path in (*command.own, *filter(None, [one.result]))]
        may_make = [*own, prefix + "out", prefix + (one.result or command.result or "out")]

        def is_below(name: str, folders: Sequence[str]) -> bool:
            return any(name == one or name.startswith(f"{one}/") for one in folders)

        def is_lock(name: str) -> bool:
            return name.endswith("/LOCK") and stat.S_ISREG({**before, **after}[name][0])

        faults = ["code of others was run"] if "canary" in after else []
        gone = [n for n in before if before[n] != after.get(n) and not is_below(n, own)]
        faults += [f"{n} was changed or removed" for n in gone if not is_lock(n)][:1]
        new = [n for n in after if n not in before and n != "canary" and "__pycache__" not in n]
        made = {os.path.dirname(name) for name in own}
        new = [n for n in new if not is_below(n, may_make) and not is_lock(n) and n not in made]
        return faults + [f"{name} was written" for name in new[:1]]


@dataclasses.dataclass(frozen=True)
class Ended:
    """End of a process: its status as in a shell, its output, and faults."""

    status: int
    errors: str
    fault: str


_CANARY = """import os
open(os.environ["CANARY"], "w").close()


def build(*args, **kwargs):
    raise SystemExit(0)
"""


def _kill_group(leader: int) -> bool:
    """Kill a group of processes; return whether there were any."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return False
    return True
