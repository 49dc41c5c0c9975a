"""Evaluation of the latest checkpoint of a run, and the report of the whole job."""

import logging
import pathlib
from typing import Any

import sentencepiece as spm
from jax.sharding import Mesh
from ml_collections import ConfigDict

from input_pipeline.packed_dataset import PackedDataset
from knn_sampling.settings import OutputLayerSettings
from vocap import record
from xlm.common import artifacts
from xlm.common.schema import settings
from xlm.evaluation import report
from xlm.evaluation.examples import Examples
from xlm.evaluation.replaced_token import PairReplacedTokenDetection
from xlm.evaluation.retrieval import Retrieval
from xlm.evaluation.settings import sentence_layer
from xlm.evaluation.translation_gain import TranslationGain
from xlm.experiment import data as data_builders
from xlm.experiment import evaluators, output_layers, seen, text_warnings
from xlm.experiment import model as builders
from xlm.experiment.data import evaluation_settings
from xlm.experiment.evaluators import check_retrieval
from xlm.experiment.masked_lm import encoder_of, masked_lm_of
from xlm.objectives.masked_lm import MaskedLM
from xlm.objectives.replaced_token import ReplacedToken
from xlm.training import hosts, run_report
from xlm.training.metrics import read_metrics

_GAIN_SENTENCES = 256  # of a language, at most; the report has the error


def run(config: ConfigDict, folders: data_builders.Folders) -> pathlib.Path | None:
    """Write the report; return its path, None on hosts that do not write."""
    dataset = data_builders.open_packed_dataset(folders)
    config = output_layers.resolved(seen.with_steps(config, dataset), dataset, folders)
    data_builders.open_train_stage(config, folders)  # refuses the checkpoints of another config
    mesh = builders.mesh(config)
    trained = builders.restore(config, dataset, folders, mesh)
    masked_lm, encoder = masked_lm_of(trained.objective), encoder_of(trained.objective)
    losses = evaluators.exact_masked_lm(config, masked_lm, dataset, mesh, in_training=False)
    retriever = retrieval(config, encoder, dataset, mesh)
    processor = spm.SentencePieceProcessor(model_proto=folders.read_tokenizer())
    pieces = [processor.id_to_piece(i) for i in range(dataset.vocab_size)]
    seed, built = evaluation_settings(config).seed, folders.vocab / "allocation.json"
    examples = Examples(masked_lm, dataset, pieces, seed=seed, mesh=mesh)
    detection = evaluators.detection(config, trained.objective, dataset, mesh, in_training=False)
    gain, on_pairs = _on_pairs(config, masked_lm, encoder, dataset, mesh)
    stage = artifacts.Stage(folders.report, None, reads=[folders.vocab, folders.rows])
    with hosts.locked(stage, claims=False):
        logging.info("exact loss of the held-out text in %d languages", len(dataset.languages))
        found = losses.run(trained.params)
        if dataset.parallel:
            logging.info("retrieval in %d parallel sets", len(dataset.parallel))
        results = report.Results(
            step=trained.step,
            losses=found,
            retrieval=retriever.run(trained.params),
            examples=examples.run(trained.params),
            detection=detection.run(trained.params) if detection else {},
            translations=gain.run(trained.params) if gain else {},
            pair_detection=on_pairs.run(trained.params) if on_pairs else {},
        )
        if not hosts.is_first():
            return None
        path = report.write_report(
            folders.report, results, dataset=dataset,
            output_layer=settings(OutputLayerSettings, config.output_layer),
            allocation=record.read(built) if built.exists() else None,  # None if it was given
            metrics=read_metrics(folders.train / "metrics.jsonl"),
            full_softmax_from=masked_lm.full_softmax_from,
            title=folders.workdir.absolute().name, num_steps=config.train.num_steps,
            more=[*text_warnings.section(folders), *seen.section(config, dataset, trained.step),
                  *run_report.time_section(folders.report, [run_report.read(folders.workdir)])],
        )  # fmt: skip
    return path


def retrieval(
    config: ConfigDict, encoder: MaskedLM | ReplacedToken, dataset: PackedDataset, mesh: Mesh
) -> Retrieval:
    """Build retrieval on the parallel sets of the packed dataset.

    Raises ValueError as `check_retrieval`.
    """
    check_retrieval(config, encoder, dataset)
    options = evaluation_settings(config)
    num_layers = encoder.encoder.settings.num_layers
    layer = sentence_layer(options.retrieval_layer, num_layers)
    return Retrieval(
        encoder, dataset, layer=layer, pivot=options.retrieval_pivot,
        batch_size=options.batch_size, max_sentences=options.retrieval_max_sentences, mesh=mesh,
    )  # fmt: skip


def _on_pairs(
    config: ConfigDict, masked_lm: MaskedLM, encoder: MaskedLM | ReplacedToken,
    dataset: PackedDataset, mesh: Mesh,
) -> tuple[TranslationGain | None, PairReplacedTokenDetection | None]:  # fmt: skip
    """Build the evaluations of masked LM and discriminator on pairs; None where one is missing."""
    options, data = evaluation_settings(config), data_builders.data_settings(config)
    if not data.pair_share:
        return None, None
    sentences = min(options.retrieval_max_sentences or _GAIN_SENTENCES, _GAIN_SENTENCES)
    common: dict[str, Any] = {
        "pivot": options.retrieval_pivot, "positions_restart": data.pair_positions == "restart",
        "batch_size": options.batch_size, "max_sentences": sentences, "seed": options.seed,
        "mesh": mesh,
    }  # fmt: skip
    gain = TranslationGain(masked_lm, dataset, num_folds=options.num_folds, **common)
    if not isinstance(encoder, ReplacedToken):
        return gain, None
    return gain, PairReplacedTokenDetection(encoder, dataset, **common)
