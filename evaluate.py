"""Evaluates the latest checkpoint of a working directory and writes the report of the whole job.

    python evaluate.py --config=configs/quickstart.py --workdir=DIR

Reads DIR/vocab, DIR/rows and DIR/train, writes DIR/report: report.md, plots and results.json.
"""

import pathlib

import jax
from absl import flags, logging
from ml_collections import config_flags

import artifacts
import entry_point
from builders import data as data_builders
from builders import model as builders
from evaluation import report
from training.checkpoint import restore_latest
from training.metrics import read_metrics

_CONFIG = config_flags.DEFINE_config_file("config", None, "What to do, e.g. configs/quickstart.py.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where results go.")


def main(_) -> None:
    logging.info("devices: %s", jax.devices())
    config, folders = _CONFIG.value, data_builders.Folders(pathlib.Path(_WORKDIR.value))

    store = data_builders.open_row_store(folders)
    data_builders.open_train_stage(config, folders)  # refuses the checkpoints of another config
    mesh = builders.mesh(config)
    objective = builders.objective(config, store, mesh)
    program = builders.program(config, objective, store, mesh)
    step, state = restore_latest(folders.train / "checkpoints", program.abstract_state)
    state = program.flush(state)  # a run that was asked to stop has left that to us
    results = report.Results(
        step=step,
        losses=builders.exact_masked_lm(config, objective, store, in_training=False).run(
            state.params
        ),
        retrieval=builders.retrieval(config, objective, store).run(state.params),
    )
    path = report.write_report(
        folders.report,
        results,
        store=store,
        output_layer=objective.output_layer,
        allocation=artifacts.read_json(folders.vocab / "allocation.json"),
        metrics=read_metrics(folders.train / "metrics.jsonl"),
    )
    print(path.read_text(encoding="utf-8"))
    print(f"report: {path.absolute()}")


if __name__ == "__main__":
    entry_point.run(main)
