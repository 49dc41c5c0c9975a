"""Evaluate the latest checkpoint of a working directory and write the report of the whole job.

    python evaluate.py --config=configs/quickstart.py --workdir=DIR

Reads DIR/vocab, DIR/rows and DIR/train, writes DIR/report: report.md, which opens with the loss
against the unigram level and examples of predictions, plots and results.json. On several hosts,
start the same command on each with the flags that train.py has; the first writes.
"""

import functools
import pathlib

from absl import flags
from ml_collections import config_flags

from knn_sampling.settings import OutputLayerSettings
from vocap import record
from xlm.common import artifacts, entry_point
from xlm.common.schema import settings
from xlm.evaluation import report
from xlm.experiment import data as data_builders
from xlm.experiment import evaluators, memory, schema
from xlm.experiment import model as builders
from xlm.experiment.masked_lm import encoder_of, masked_lm_of
from xlm.training import compilation, hosts
from xlm.training.metrics import read_metrics

_CONFIG = config_flags.DEFINE_config_file("config", None, "What to do, e.g. configs/quickstart.py.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where results go.")
_join_hosts = hosts.define_flags()


def main(_) -> None:
    compilation.use_cache()
    _join_hosts()
    config = schema.checked(_CONFIG.value)
    folders = data_builders.Folders(pathlib.Path(_WORKDIR.value))

    store = data_builders.open_packed_dataset(folders)
    data_builders.open_train_stage(config, folders)  # refuses the checkpoints of another config
    mesh = builders.mesh(config)
    trained = builders.restore(config, store, folders, mesh)
    masked_lm, encoder = masked_lm_of(trained.objective), encoder_of(trained.objective)
    losses = evaluators.exact_masked_lm(config, masked_lm, store, mesh, in_training=False)
    retrieval = evaluators.retrieval(config, encoder, store, mesh)
    examples = evaluators.examples(config, masked_lm, store, folders, mesh)
    detection = evaluators.detection(config, trained.objective, store, mesh, in_training=False)
    stage = artifacts.Stage(folders.report, None, reads=[folders.vocab, folders.rows])
    with hosts.held(stage, claims=False):
        results = report.Results(
            step=trained.step,
            losses=losses.run(trained.params),
            retrieval=retrieval.run(trained.params),
            examples=examples.run(trained.params),
            detection=detection.run(trained.params) if detection else {},
        )
        if not hosts.is_first():
            return
        path = report.write_report(
            folders.report,
            results,
            store=store,
            output_layer=settings(OutputLayerSettings, config.output_layer),
            allocation=_allocation(folders),
            metrics=read_metrics(folders.train / "metrics.jsonl"),
            full_softmax_from=masked_lm.full_softmax_from,
        )
    print(path.read_text(encoding="utf-8"))
    print(f"report: {path.absolute()}")


def _allocation(folders: data_builders.Folders) -> record.Record | None:
    """Record of the vocabulary's build; None of a tokenizer that was given."""
    path = folders.vocab / "allocation.json"
    return record.read(path) if path.exists() else None


def run() -> None:
    entry_point.run(
        main,
        on_out_of_memory=lambda: memory.advice(_CONFIG.value),
        help_on=functools.partial(schema.help_of, schema.PRETRAINING),
    )
