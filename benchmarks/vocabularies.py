"""Nested unigram training against SentencePiece per size: agreement, cost and memory.

    python -m benchmarks.vocabularies --config=configs/real_text.py:DATA \\
        --corpora=cs,he,zh,latin=en+de+es+fr

Each corpus is a language, or several joined. Both trainers use the same sentences and one thread.

- Agreement, at a sample of the feasible sizes: difference of ALP, and Jaccard index of the pieces.
- Cost, in CPU time. The nested trainer counts the text and trains all sizes, with their ALP. It is
  compared with one SentencePiece training at 8,000 pieces, by medians of interleaved runs. It is
  also compared with SentencePiece for every size, training and encoding. Sampled sizes are timed,
  others interpolated.
- Memory (--study=memory), of counting pretokens and training all sizes. Each share of the
  sentences, a quarter, a half and all, has its own process. "before" is with only the sentences.

numba compiles before the timing.
"""

import concurrent.futures
import dataclasses
import multiprocessing
import resource
import time
from collections.abc import Iterator, Sequence

import numpy as np
import sentencepiece as spm
from absl import flags
from ml_collections import ConfigDict, config_flags

from benchmarks import machine
from input_pipeline.corpus import load_corpus
from vocap import unigram
from vocap.pretokens import count_pretokens
from vocap.settings import TrainerSettings
from xlm.common import entry_point
from xlm.experiment import data as builders

_CONFIG = config_flags.DEFINE_config_file("config", None, "Config with the text.")
_CORPORA = flags.DEFINE_list("corpora", None, "Languages, or name=language+language.")
_STUDY = flags.DEFINE_enum("study", "cost", ["cost", "memory"], "Study to run.")
_STEP = flags.DEFINE_integer("step", 1000, "Step between sizes.")
_LARGEST = flags.DEFINE_integer("largest", 50_000, "Largest size.")
_SAMPLES = flags.DEFINE_integer("samples", 5, "Number of sizes for SentencePiece.")
machine.define_flags(cores=0, repetitions=3)
_REFERENCE_SIZE = 8000


def load(config: ConfigDict, names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and all sentences of each corpus of --corpora."""
    corpora = {
        name: (members or name).split("+")
        for name, _, members in (corpus.partition("=") for corpus in names)
    }
    config.corpus.languages = tuple(sorted({lang for group in corpora.values() for lang in group}))
    config.corpus.heldout_fraction = 0.0
    config.corpus.max_train_bytes = 0
    corpus = load_corpus(builders.corpus_spec(config))
    for name, group in corpora.items():
        yield name, [sentence for language in group for sentence in corpus.sentences(language)]


def megabytes(sentences: Sequence[str]) -> float:
    return sum(len(sentence.encode()) + 1 for sentence in sentences) / 1e6


def cpu_seconds(function, *arguments):
    """Call a function; return its result and CPU seconds."""
    begin = time.process_time()
    result = function(*arguments)
    return result, time.process_time() - begin


def nested(sentences: Sequence[str], settings: TrainerSettings) -> unigram.Vocabularies:
    """Train all sizes on sentences, with their ALP."""
    found = unigram.train_vocabularies(count_pretokens(sentences), settings)
    assert found is not None
    return found


def reference(
    sentences: Sequence[str], table, size: int, settings: TrainerSettings
) -> tuple[frozenset[str], float, float]:
    """Train SentencePiece at one size; return pieces, ALP, and CPU seconds with encoding."""
    settings = dataclasses.replace(settings, trainer="sentencepiece", sizes=(size,))
    model, training = cpu_seconds(unigram.sentencepiece_model, sentences, size, settings)
    processor = spm.SentencePieceProcessor(model_proto=model)
    _, encoding = cpu_seconds(processor.encode, list(sentences))
    found = unigram.measure_models([model], table, settings)
    return frozenset(found.curve.vocabulary(0)), found.curve.alp[0], training + encoding


def cost_row(name: str, sentences: Sequence[str], settings: TrainerSettings) -> list:
    """Measure one corpus; return its table row."""
    found = nested(sentences, settings)
    sizes = found.curve.sizes
    at_8k = min(sizes, key=lambda size: abs(size - _REFERENCE_SIZE))  # nearest feasible size
    ours, one_size = [], []
    for _ in range(flags.FLAGS.repetitions):
        ours.append(cpu_seconds(nested, sentences, settings)[1])
        one_size.append(cpu_seconds(unigram.sentencepiece_model, sentences, at_8k, settings)[1])
    table = count_pretokens(sentences)
    wanted = np.geomspace(sizes[0], sizes[-1], _SAMPLES.value)
    sample = sorted({min(sizes, key=lambda size: abs(size - w)) for w in wanted})
    alp, jaccard, cost = [], [], []
    for size in sample:
        pieces, its_alp, seconds = reference(sentences, table, size, settings)
        own = set(found.curve.vocabulary(sizes.index(size)))
        alp.append(abs(found.curve.alp[sizes.index(size)] - its_alp) / abs(its_alp))
        jaccard.append(len(own & pieces) / len(own | pieces))
        cost.append(seconds)
    every = float(np.interp(sizes, sample, cost).sum())
    median = float(np.median(ours))
    span = f"{sizes[0]} to {sizes[-1]} ({len(sizes)})"
    agreement = [float(np.mean(alp)), max(alp), float(np.mean(jaccard)), min(jaccard)]
    ratios = [median / float(np.median(one_size)), every / median]
    return [name, megabytes(sentences), span, len(sample), *agreement, median, *ratios]


def memory_of(sentences: Sequence[str], settings: TrainerSettings) -> tuple[float, float, float]:
    """Return million characters in the table, and MB before and at the peak; in its own process."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    table = count_pretokens(sentences)
    unigram.train_vocabularies(table, settings)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return len(table.text.characters) / 1e6, before, peak


def main(_) -> None:
    report = machine.start()
    config = _CONFIG.value
    corpora = dict(load(config, _CORPORA.value))
    training = builders.vocabulary_settings(config).training
    sizes = tuple(range(_STEP.value, _LARGEST.value + 1, _STEP.value))
    settings = dataclasses.replace(training, trainer="nested", sizes=sizes)
    if _STUDY.value == "memory":
        columns = {"corpus": "", "MB of text": ".1f", "characters of distinct runs, M": ".2f",
                   "before, MB": ".0f", "peak, MB": ".0f"}  # fmt: skip
        report.table("Memory of all sizes", columns)
        context = multiprocessing.get_context("spawn")
        for name, sentences in corpora.items():
            for part in (sentences[::4], sentences[::2], sentences):
                with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
                    found = pool.submit(memory_of, part, settings).result()
                report.row(name, megabytes(part), *found)
        return
    small = dataclasses.replace(settings, sizes=(100, 200, 400, 800, 1600, 3200))
    nested(next(iter(corpora.values()))[:500], small)
    columns = {
        "corpus": "", "MB": ".1f", "sizes": "", "compared": "d", "ALP differs, mean": ".4%",
        "most": ".4%", "Jaccard, mean": ".4f", "least": ".4f", "all sizes, CPU s": ".2f",
        "of one SentencePiece at 8K": ".2f", "every size by SentencePiece, times": ".0f",
    }  # fmt: skip
    report.table("All sizes against SentencePiece", columns)
    for name, sentences in corpora.items():
        report.row(*cost_row(name, sentences, settings))


if __name__ == "__main__":
    entry_point.run(main, required=("config", "corpora"))
