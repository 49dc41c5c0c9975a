"""Calibration of trained models by token frequency: predicted mass of frequent and rare tokens.

    python -m research.predicted_mass --config=research/configs/sampling_quality.py:DATA \\
        --workdir=runs/sampling_quality --runs=full/seed0,knn/seed0

Reads finished runs of the study `sampling_quality`. It ranks tokens by their counts in the training
sequences. For each class of ranks the table has the share of held-out targets, the mean probability
of the class under the full softmax at the same positions, and the loss of its targets. A calibrated
model has equal shares of targets and probability.
"""

import pathlib

import numpy as np
from absl import flags
from ml_collections import config_flags

from research.mass import classes_of, measure
from xlm.common import artifacts, entry_point
from xlm.experiment import data, model
from xlm.experiment.masked_lm import masked_lm_of

_CONFIG = config_flags.DEFINE_config_file("config", None, "Config of the study.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Working directory of the study.")
_RUNS = flags.DEFINE_list("runs", ["full/seed0", "knn/seed0"], "SETTING/seedN.")
_RANKS = flags.DEFINE_list("ranks", ["100", "1000", "5000", "15000"], "First ranks of the classes.")
_ROWS = flags.DEFINE_integer("rows", 96, "Held-out rows per language.")


def main(_) -> None:
    workdir, config = pathlib.Path(_WORKDIR.value), _CONFIG.value
    ranks = [int(rank) for rank in _RANKS.value]
    names = [f"from {rank:,}" for rank in (0, *ranks)]
    print("| run | | " + " | ".join(names) + " | all |")
    print("|---|---|" + "---:|" * (len(names) + 1))
    for run in _RUNS.value:
        folders = data.Folders(workdir / "runs" / run)
        dataset = data.open_packed_dataset(folders)
        trained = artifacts.read_json(folders.train / "settings.json")
        config.output_layer.update(trained["output_layer"])
        trained_run = model.restore(config, dataset, folders)
        masked_lm = masked_lm_of(trained_run.objective)
        counts = np.zeros(masked_lm.encoder.settings.vocab_size)
        for language in dataset.languages:
            counts[: dataset.vocab_size] += dataset.token_counts(language)
        counts[list(dataset.special.special_ids())] = 0
        classes = classes_of(counts, ranks, dataset.vocab_size)
        found = measure(masked_lm, trained_run.params, dataset, classes, max_sequences=_ROWS.value)
        targets, given, losses = found[:, : len(names)]
        for label, values, whole in (
            ("targets, %", 100 * targets / targets.sum(), ""),
            ("given, %", 100 * given / targets.sum(), ""),
            ("loss", losses / targets, f"{losses.sum() / targets.sum():.3f}"),
        ):
            cells = " | ".join(f"{value:.1f}" for value in values)
            print(f"| {run} | {label} | {cells} | {whole} |", flush=True)


if __name__ == "__main__":
    entry_point.run(main)
