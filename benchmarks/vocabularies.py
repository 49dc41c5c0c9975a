"""Nested unigram training against SentencePiece trained per size: agreement and cost.

    python -m benchmarks.vocabularies --config=configs/real_text.py:DATA \\
        --corpora=cs,he,zh,latin=en+de+es+fr

Each corpus is a language, or several joined. Both trainers use the same sentences and one thread.

- Agreement, at a sample of the feasible sizes: difference of the ALP, and Jaccard index of the
  pieces.
- Cost, in CPU time: all sizes with their ALP by the nested trainer, including the counting of the
  text, against one SentencePiece training at 8,000 pieces, as medians of interleaved runs. Against
  SentencePiece for every size, training and encoding: the sampled sizes are timed, those between
  them interpolated.

Compilation is timed separately; numba caches its result.
"""

import dataclasses
import time
from collections.abc import Sequence

import numpy as np
import sentencepiece as spm
from absl import flags
from ml_collections import config_flags

from benchmarks.corpora import load
from vocap import unigram
from vocap.runs import count_runs
from vocap.settings import TrainerSettings
from xlm.common import entry_point
from xlm.experiment import data as builders

_CONFIG = config_flags.DEFINE_config_file("config", None, "Says where the text is.")
_CORPORA = flags.DEFINE_list("corpora", None, "Languages, or name=language+language.")
_STEP = flags.DEFINE_integer("step", 1000, "Sizes are multiples of this,")
_LARGEST = flags.DEFINE_integer("largest", 50_000, "up to this.")
_SAMPLES = flags.DEFINE_integer("samples", 5, "Sizes at which SentencePiece is trained.")
_REPETITIONS = flags.DEFINE_integer("repetitions", 3, "Of the timings.")
_REFERENCE_SIZE = 8000


@dataclasses.dataclass(frozen=True)
class Reference:
    """SentencePiece training: its vocabulary, and CPU seconds of training and encoding."""

    pieces: frozenset[str]
    alp: float
    training: float
    encoding: float


def cpu_seconds(function, *arguments):
    """Call a function; return its result and CPU seconds."""
    begin = time.process_time()
    result = function(*arguments)
    return result, time.process_time() - begin


def nested(sentences: Sequence[str], settings: TrainerSettings) -> unigram.Vocabularies:
    """Train all sizes with their ALP on sentences."""
    found = unigram.train_vocabularies(count_runs(sentences), settings)
    assert found is not None
    return found


def reference(sentences: Sequence[str], table, size: int, settings: TrainerSettings) -> Reference:
    """Train SentencePiece at one size, with its ALP measured as for the nested trainer."""
    settings = dataclasses.replace(settings, trainer="sentencepiece", sizes=(size,))
    model, training = cpu_seconds(unigram.sentencepiece_model, sentences, size, settings)
    processor = spm.SentencePieceProcessor(model_proto=model)
    _, encoding = cpu_seconds(processor.encode, list(sentences))
    found = unigram.measure_models([model], table, settings)
    return Reference(frozenset(found.curve.vocabulary(0)), found.curve.alp[0], training, encoding)


def sampled(sizes: Sequence[int], number: int) -> list[int]:
    """Sample the first, the last and geometrically spaced sizes between them."""
    wanted = np.geomspace(sizes[0], sizes[-1], number)
    return sorted({min(sizes, key=lambda size: abs(size - w)) for w in wanted})


def row(name: str, sentences: Sequence[str], settings: TrainerSettings) -> list[float]:
    """Measure one corpus and print its line of the table; return the figures."""
    ours, one_size = [], []
    # The reference size if feasible, otherwise the nearest.
    found, _ = cpu_seconds(nested, sentences, settings)
    at_8k = min(found.curve.sizes, key=lambda size: abs(size - _REFERENCE_SIZE))
    for _ in range(_REPETITIONS.value):
        found, seconds = cpu_seconds(nested, sentences, settings)
        ours.append(seconds)
        _, seconds = cpu_seconds(unigram.sentencepiece_model, sentences, at_8k, settings)
        one_size.append(seconds)

    table = count_runs(sentences)
    sample = sampled(found.curve.sizes, _SAMPLES.value)
    alp, jaccard, cost = [], [], []
    for size in sample:
        other = reference(sentences, table, size, settings)
        s = found.curve.sizes.index(size)
        pieces = set(found.curve.vocabulary(s))
        alp.append(100 * abs(found.curve.alp[s] - other.alp) / abs(other.alp))
        jaccard.append(len(pieces & other.pieces) / len(pieces | other.pieces))
        cost.append(other.training + other.encoding)
    every = float(np.interp(found.curve.sizes, sample, cost).sum())
    median = float(np.median(ours))
    ratios = [median / float(np.median(one_size)), every / median]
    megabytes = sum(len(s.encode()) + 1 for s in sentences) / 1e6
    print(
        f"| {name} | {megabytes:.1f} | {found.curve.sizes[0]} to {found.curve.sizes[-1]} "
        f"({len(found.curve.sizes)}) | {len(sample)} | {np.mean(alp):.4f} | {max(alp):.4f} "
        f"| {np.mean(jaccard):.4f} | {min(jaccard):.4f} | {median:.2f} | {ratios[0]:.2f} "
        f"| {ratios[1]:.0f} |",
        flush=True,
    )
    return [float(np.mean(alp)), max(alp), float(np.mean(jaccard)), min(jaccard), *ratios]


def main(_) -> None:
    config = _CONFIG.value
    corpora = dict(load(config, _CORPORA.value))
    sizes = tuple(range(_STEP.value, _LARGEST.value + 1, _STEP.value))
    settings = dataclasses.replace(
        builders.vocabulary_settings(config).training, trainer="nested", sizes=sizes
    )
    small = dataclasses.replace(settings, sizes=(100, 200, 400, 800, 1600, 3200))
    _, seconds = cpu_seconds(nested, next(iter(corpora.values()))[:500], small)
    print(f"compilation, or loading its result: {seconds:.1f} s of CPU\n")
    print(
        "| corpus | MB | sizes | compared | ALP difference mean % | max % | Jaccard mean | min "
        "| all sizes, CPU s | of one SentencePiece at 8K | every size by SentencePiece, times |\n"
        "|---|" + "---:|" * 10
    )
    rows = []
    for name, sentences in corpora.items():
        rows.append(row(name, sentences, settings))
    means = np.array(rows)
    print(
        f"| **all** | | | | {means[:, 0].mean():.4f} | {means[:, 1].max():.4f} "
        f"| {means[:, 2].mean():.4f} | {means[:, 3].min():.4f} | | {means[:, 4].max():.2f} (most) "
        f"| {means[:, 5].min():.0f} (least) |"
    )


if __name__ == "__main__":
    entry_point.run(main, required=("config", "corpora"))
