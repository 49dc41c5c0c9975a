"""Peak memory of building one language's vocabularies, against the size of its text.

    python -m benchmarks.vocabulary_memory --config=configs/real_text.py:DATA \\
        --corpora=en,cjk=ja+zh+ko

Each corpus is a language, or several joined, and is cut to a quarter, a half and all of its
sentences. Every measurement runs in a separate process that receives the sentences, counts their
runs and trains all sizes; its memory with only the sentences is printed beside the peak.
"""

import concurrent.futures
import dataclasses
import multiprocessing
import resource
from collections.abc import Sequence

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
_SIZES = tuple(range(1000, 50_001, 1000))


def measure(sentences: Sequence[str], settings: TrainerSettings) -> tuple[int, float, float]:
    """Characters in the table, and MB before and at the peak; to be run in a separate process."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    table = count_runs(sentences)
    unigram.train_vocabularies(table, settings)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return len(table.text.characters), before, peak


def main(_) -> None:
    config = _CONFIG.value
    settings = dataclasses.replace(
        builders.vocabulary_settings(config).training, trainer="nested", sizes=_SIZES
    )
    context = multiprocessing.get_context("spawn")
    print("| corpus | MB of text | characters of distinct runs, M | before, MB | peak, MB |")
    print("|---|---:|---:|---:|---:|")
    for name, sentences in load(config, _CORPORA.value):
        for step in (4, 2, 1):
            part = sentences[::step]
            with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
                characters, before, peak = pool.submit(measure, part, settings).result()
            megabytes = sum(len(s.encode()) + 1 for s in part) / 1e6
            cells = (f"{megabytes:.1f}", f"{characters / 1e6:.2f}", f"{before:.0f}", f"{peak:.0f}")
            print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    entry_point.run(main, required=("config", "corpora"))
