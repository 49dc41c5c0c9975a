"""Mutations of every artefact that commands read: each is refused in one line, or read as valid.

    python -m tests.fuzz_artefacts --seconds=3600 --seed=1
    python -m tests.fuzz_artefacts --count=5000
    python -m tests.fuzz_artefacts --seed=1 --first=317 --count=1     a failure, again

The readers are the functions that commands call first, in this process. A mutation is refused by a
ValueError or OSError of one line that names the file or its folder, or what is read equals what was
there before, or it is valid: a reader has checked it by its declaration, and what then uses it, a
model or a report, ends well. What was damaged byte by byte and has a digest is never valid.
"""

import argparse
import base64
import collections
import contextlib
import functools
import json
import pathlib
import pickle
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from configs import quickstart
from input_pipeline import pair_phases
from input_pipeline.tasks.tasks import TASKS
from tests import tiny_tasks, tiny_translation
from tests.malformed import templates
from vocap import building, record, report
from xlm.common import artifacts
from xlm.evaluation import (
    published,
    task_results,
    translation_report,
    xtreme_report,
    xtreme_runs,
    xtreme_submission,
)
from xlm.experiment import (
    data,
    prediction,
    pretrained,
    run_data,
    translation_prediction,
    tuned_export,
)
from xlm.experiment.data import Folders
from xlm.interop import charsmap, huggingface, model_folder, segmenter, vocabulary
from xlm.training import metrics

SECONDS = 60  # of one reader, which else hangs
_LEAVES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 3, 2**31, 2**63, -(2**63), 10**400, 0.5, -0.5, 1e308, -1e308,
    1e-320, float("nan"), float("inf"), "", "x", "en", "3", "../../x", "/etc/passwd", "/dev/zero",
    "a/b", ".", "a\nb", "a\0b", "\x1b[2J", "<script>alert(1)</script>", "é" * 200, "runs.x:build",
    [], {}, [[]], {"x": 1}, [None], ["en", 3],
)  # fmt: skip


class Target(NamedTuple):
    """Artefacts with what reads them.

    Attributes:
      source: folder that they are copied from.
      patterns: of the files that are mutated.
      read: folder -> what is read, to be compared.
      has_digests: whether changed bytes are always noticed, but in text.
    """

    name: str
    source: Callable[[], pathlib.Path]
    patterns: tuple[str, ...]
    read: Callable[[pathlib.Path], Any]
    has_digests: bool = False


def _built(folder: pathlib.Path) -> building.BuiltVocabulary:
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(2, 5))) for _ in range(60)]
    text = {
        language: [" ".join(rng.choices(words, k=5)) for _ in range(80)]
        for language in ("en", "sw")
    }
    settings = data.vocabulary_settings(_vocabulary_config())
    return building.build_vocabulary(
        text, text, settings, folder / "vocab/cache", lambda items, *_: items
    )


def _vocabulary_config(**changes: Any) -> Any:
    config = quickstart.get_config("runlocal")
    config.vocab.update(target_size=36, sizes=(18, 22, 26), num_workers=1, compare=("joint", "bpe"))
    config.vocab.update(changes)
    return config


@functools.cache
def _given() -> pathlib.Path:
    """Files of a user's own, and of no command's folder."""
    folder = tiny_tasks.scratch() / "given"
    artifacts.write_json(folder / "amounts.json", {"en": 300.8, "sw": 2})
    sizes = {"target_size": 36, "beta": 0.7, "sizes": {"en": 18, "sw": 22}}
    artifacts.write_json(folder / "allocation.json", sizes)
    shutil.copy(published.DEFAULT, folder)
    value = huggingface.tokenizer_json(tiny_tasks.tokenizer())
    rules = base64.b64encode(charsmap.compiled({"A": "a", "Ab": "b"})).decode()
    value["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": rules}
    value["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "WhitespaceSplit"},
        {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"},
    ]}  # fmt: skip
    artifacts.write_json(folder / "tokenizer.json", value)
    phase = pair_phases.Phase(
        4, {"en-sw": 0.5, "en-de": 0.5}, {"en-sw": 1.0, "en-de": None}, 0.1, 2.0
    )
    weights = pair_phases.PairRecord({"en-sw": 0.25, "en-de": 0.75}, (phase,))
    pair_phases.write_pair_record(folder / "pair_weights.json", weights)
    return folder


@functools.cache
def _vocabulary() -> pathlib.Path:
    folder = tiny_tasks.scratch() / "vocabulary-built"
    settings = data.vocabulary_settings(_vocabulary_config())
    report.write_report(folder / "vocab", _built(folder), settings)
    return folder


@functools.cache
def _translation() -> pathlib.Path:
    folder = tiny_tasks.scratch() / "runs" / "translation"
    tiny_tasks.run(tiny_translation.config(), folder)
    return folder


def _predicted(folder: pathlib.Path) -> Any:
    model = prediction.FineTuned(folder)
    tiny_tasks.write(folder.parent / "in.txt", "the cat\n")
    return list(model(model.read(folder.parent / "in.txt")))


def _translated(folder: pathlib.Path) -> Any:
    run = translation_prediction.TranslationRun(folder)
    return run(["the cat"], run.direction(""))


def _exported(folder: pathlib.Path) -> Any:
    out = folder.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    tuned_export.export(folder, out)
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


def _tabled(folder: pathlib.Path) -> Any:
    variants = xtreme_runs.variants([xtreme_runs.read_run(folder)], "mean")
    found = published.read()
    return xtreme_report.page(variants, found), [*xtreme_report.averages(variants, found)]


def _model(folder: pathlib.Path) -> Any:
    return model_folder.read_model(folder), model_folder.read_tokenizer(folder)


def _tokenizer(folder: pathlib.Path) -> Any:
    text = ["the cat runs .", "zebra"]
    found = segmenter.read_segmenter(folder / "tokenizer.json")
    old = vocabulary.read_vocabulary(folder)
    return old.pieces, old.scores, vocabulary.sentencepiece_model(folder), found.encode(text)


def _run_of_train(folder: pathlib.Path) -> Any:
    return pretrained.read_pretrained(str(folder)).digests()


def _rows(folder: pathlib.Path) -> Any:
    dataset = data.open_packed_dataset(Folders(folder))
    dataset.verify()
    return {path.name: path.read_bytes() for path in sorted((folder / "rows").glob("*.npy"))}


def _allocation(folder: pathlib.Path) -> Any:
    return report.allocation_table(record.read(folder / "vocab/allocation.json"))


def _threshold(folder: pathlib.Path) -> Any:
    return prediction.mining_threshold(prediction.run_config(folder), folder, "zh")


def _ended(folder: pathlib.Path) -> Any:
    paths = artifacts.read_object(tiny_tasks.finished("cola") / "data.json")
    return run_data.check_ended(folder, lambda: map(pathlib.Path, paths))


TARGETS = (
    Target("fine-tuned", lambda: tiny_tasks.finished("cola"),
           ("settings.json", "results.json", "best.safetensors", "spm.model"), _predicted, True),
    Target("export", lambda: tiny_tasks.finished("cola"),
           ("settings.json", "results.json", "best.safetensors"), _exported, True),
    Target("table", lambda: tiny_tasks.finished("cola"), ("settings.json", "results.json"),
           _tabled),
    Target("scores", lambda: tiny_tasks.finished("cola"), ("results.json",),
           lambda folder: task_results.table(
               TASKS["cola"], task_results.read_results(folder / "results.json"))),
    Target("data", lambda: tiny_tasks.finished("cola"), ("data.json",), _ended),
    Target("predictions", lambda: tiny_tasks.finished("cola"), ("predictions/*.jsonl",),
           lambda folder: [task_results.read_lines(path, xtreme_submission._Labelled)
                           for path in sorted(folder.glob("predictions/*"))]),
    Target("metrics", lambda: tiny_tasks.finished("cola"), ("metrics.jsonl",),
           lambda folder: metrics.read_metrics(folder / "metrics.jsonl")),
    Target("search", lambda: tiny_tasks.finished("bucc"), ("settings.json", "results.json"),
           _threshold),
    Target("translation", _translation, ("settings.json", "results.json", "best.safetensors"),
           _translated, True),
    Target("translations", _translation, ("predictions/*.jsonl", "metrics.jsonl"), lambda folder: [
        one["prediction"] for one in translation_report.some_translations(folder, "en-de")]),
    Target("model", lambda: tiny_tasks.encoder_folder(1),
           ("config.json", "model.safetensors", "spm.model"), _model, True),
    Target("own model", tiny_tasks.veco_folder,
           ("config.json", "model.safetensors", "spm.model"), _model, True),
    Target("tokenizer", _given, ("tokenizer.json",), _tokenizer),
    Target("amounts", _given, ("amounts.json",), lambda folder: data.vocabulary_settings(
        _vocabulary_config(amounts=str(folder / "amounts.json")))),
    Target("allocation", _given, ("allocation.json",), lambda folder: data.vocabulary_settings(
        _vocabulary_config(allocation=str(folder / "allocation.json")))),
    Target("published", _given, ("published.json",), lambda folder: xtreme_report.page(
        xtreme_runs.variants([xtreme_runs.read_run(tiny_tasks.finished("cola"))], "mean"),
        published.read(folder / "published.json"))),
    Target("pair weights", _given, ("pair_weights.json",),
           lambda folder: pair_phases.load_pair_record(folder / "pair_weights.json")),
    Target("record", _vocabulary, ("vocab/allocation.json",), _allocation),
    Target("caches", _vocabulary, ("vocab/cache/**/*",),
           lambda folder: _built(folder).model, True),
    Target("rows", lambda: templates.template("run") / "work",
           ("rows/*.json", "rows/*.npy", "vocab/spm.model"), _rows, True),
    Target("training", lambda: templates.template("run") / "work",
           ("train/settings.json", "train/checkpoints/**/*"), _run_of_train, True),
)  # fmt: skip


def mutated(content: bytes, name: str, rng: random.Random) -> tuple[bytes, str, bool]:
    """Return other content, what was done, and whether it was done to bytes and not to values."""
    if name.endswith(".safetensors") and rng.random() < 0.6:
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        inner = header.get("__metadata__", {})
        if inner and rng.random() < 0.7:  # JSON in JSON
            key = rng.choice(sorted(inner))
            with contextlib.suppress(ValueError):
                inner[key], how = _other_value(json.loads(inner[key]), rng)
                inner[key] = json.dumps(inner[key])
                return _with_header(header, content[8 + size :]), f"{key}: {how}", False
        header, how = _other_value(header, rng)
        return _with_header(header, content[8 + size :]), how, False
    if name.endswith((".json", "METADATA")) and rng.random() < 0.8:
        value, how = _other_value(json.loads(content), rng)
        return json.dumps(value).encode(), how, False
    if name.endswith(".jsonl") and rng.random() < 0.8:
        lines = content.splitlines()
        number = rng.randrange(len(lines))
        value, how = _other_value(json.loads(lines[number]), rng)
        lines[number] = json.dumps(value).encode()
        return b"\n".join(lines) + b"\n", f"line {number + 1}: {how}", False
    return *_other_bytes(content, rng), True


def _with_header(header: Any, rest: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + rest


def _other_value(value: Any, rng: random.Random) -> tuple[Any, str]:
    """Change one value, or the fields of one object, anywhere in a JSON value."""
    places = list(_places(value))
    path = rng.choice(places)
    if not path or rng.random() < 0.02:
        return rng.choice(_LEAVES), "all replaced"
    *parents, last = path
    place = functools.reduce(lambda found, key: found[key], parents, value)
    kind = rng.choice(("swap", "swap", "swap", "drop", "add", "name", "near", "deep"))
    shown = "/".join(map(str, path))
    if kind == "drop":
        del place[last]
    elif kind in ("add", "name") and isinstance(place, dict):
        name = rng.choice([one for one in _LEAVES if isinstance(one, str)])
        place[name] = place.pop(last) if kind == "name" else rng.choice(_LEAVES)
        shown += f" -> {name!r}"
    elif kind == "near" and isinstance(place[last], int | float):
        old = place[last]
        place[last] = rng.choice((old + 1, -old, 2 * old, 1000 * old))
        shown += f" = {place[last]!r}"
    elif kind == "deep":
        for _ in range(rng.choice((3, 150))):
            place[last] = [place[last]]
    else:
        place[last] = rng.choice(_LEAVES)
        shown += f" = {place[last]!r:.60}"
    return value, f"{kind} {shown}"


def _places(value: Any, path: tuple = ()) -> Any:
    yield path
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in items:
            yield from _places(one, (*path, key))


def _other_bytes(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    place = rng.randrange(len(content) or 1)
    kind = rng.choice(("flip", "flip", "cut", "empty", "zeros", "more", "nested", "latin"))
    changed = bytearray(content)
    if kind == "flip" and content:
        changed[place] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del changed[place:]
    elif kind == "empty":
        changed.clear()
    elif kind == "zeros":
        changed[place : place + 16] = bytes(len(changed[place : place + 16]))
    elif kind == "more":
        changed += rng.randbytes(9)
    elif kind == "nested":
        changed[:] = b"[" * 100_000
    elif content:
        changed[place] = 0xFF
    return bytes(changed), f"{kind} at {place}"


def _digest(value: Any) -> bytes:
    return pickle.dumps(value)


class Fuzzer:
    """Readers on mutations of copies of their folders, each mutation by its number."""

    def __init__(self, folder: pathlib.Path, seed: int = 0, only: str = ""):
        self._folder, self._seed = folder, seed
        self._targets = [one for one in TARGETS if only in one.name]
        self._right: dict[str, bytes] = {}
        self.counts: collections.Counter[str] = collections.Counter()

    def __call__(self, number: int) -> str:
        """Try one mutation; return what is wrong, or ""."""
        rng = random.Random(f"{self._seed} {number}")
        target = rng.choice(self._targets)
        folder = self._folder / target.name / "work"
        if target.name not in self._right:
            self._copy(target, folder)
            self._right[target.name] = _digest(target.read(folder))
        files = sorted({path for one in target.patterns for path in target.source().glob(one)})
        files = [path.relative_to(target.source()) for path in files if path.is_file()]
        path = folder / rng.choice(files)
        content, how, is_damage = mutated(
            (target.source() / path.relative_to(folder)).read_bytes(), path.name, rng
        )
        self._copy(target, folder)
        path.write_bytes(content)
        outcome, problem = self._outcome(target, folder, path, is_damage)
        self.counts[outcome] += 1
        where = f"{number}: {target.name}, {path.relative_to(folder)}, {how}"
        return f"{where}: {problem}" if problem else ""

    def _copy(self, target: Target, folder: pathlib.Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(target.source(), folder)

    def _outcome(
        self, target: Target, folder: pathlib.Path, path: pathlib.Path, is_damage: bool
    ) -> tuple[str, str]:
        signal.signal(signal.SIGALRM, _hang)
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            found = _digest(target.read(folder))
        except (ValueError, OSError) as error:
            text = str(error)
            others = text.splitlines()[1:]
            if isinstance(error, UnicodeError | json.JSONDecodeError | TimeoutError):
                return "failed", f"{type(error).__name__}: {text[:300]}"
            if others and not any(line.startswith("  ") for line in others):  # a list
                return "failed", f"several lines: {text[:300]!r}"
            # A checkpoint is one artefact, whose files are its own.
            within, _, _ = str(path).partition("/checkpoints/")
            names = (path.name, str(path.parent), f"{within}/checkpoints")
            if not any(name in text for name in names):
                return "failed", f"names no file: {text[:300]}"
            return "refused", ""
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return "failed", f"{type(error).__name__}: {str(error)[:300]}"
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if found == self._right[target.name]:
            return "the same", ""
        if is_damage and target.has_digests and path.suffix != ".json":
            return "failed", "other bytes are taken for right"
        return "valid", ""


def _hang(*_) -> None:
    raise TimeoutError


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("seed", 0), ("first", 0), ("count", 0), ("seconds", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", default="", help="a part of the names of artefacts")
    given = parser.parse_args()
    end = time.monotonic() + (given.seconds or 10**9)
    last = given.first + (given.count or 10**9)
    failures, number = 0, given.first
    with tempfile.TemporaryDirectory() as folder, tiny_tasks.quick():
        fuzzer = Fuzzer(pathlib.Path(folder), given.seed, given.only)
        while number < last and time.monotonic() < end:
            if problem := fuzzer(number):
                failures += 1
                print(problem, flush=True)
            number += 1
    print(f"seed {given.seed}, {number - given.first} mutations: {dict(fuzzer.counts)}")
    raise SystemExit(failures > 0)


if __name__ == "__main__":
    main()
