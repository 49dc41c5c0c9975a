"""Pre-training of a run."""

import pathlib

from absl import logging
from jax.sharding import Mesh
from ml_collections import ConfigDict

from input_pipeline.dataset import StreamedData
from input_pipeline.packed_dataset import PackedDataset
from xlm.common import places
from xlm.experiment import data as data_builders
from xlm.experiment import model as builders
from xlm.experiment import objectives, output_layers, seen, streams
from xlm.experiment.evaluators import training_evaluators
from xlm.experiment.initial import initial_params
from xlm.training import hosts, rewind
from xlm.training.loop import LearnedData, train
from xlm.training.signals import StopRequest


def run(config: ConfigDict, folders: data_builders.Folders, begins_at: int | None = None) -> None:
    """Train to the end, or until a signal asks to stop.

    With other settings it resumes from the checkpoint of step `begins_at`. Raises Stopped after a
    signal, once the state is saved; the same call resumes.
    """
    dataset = data_builders.open_packed_dataset(folders)
    config = output_layers.resolved(seen.with_steps(config, dataset), dataset, folders)
    stage = data_builders.open_train_stage(config, folders, begins_at)
    mesh = builders.mesh(config)
    data = _data(config, dataset, mesh, folders.train)
    parts = seen.section(config, dataset, config.train.num_steps, logging.warning)
    logging.debug("%s", "\n\n".join(filter(None, parts)))  # also in the report
    objective = objectives.objective(config, dataset, mesh)
    builders.log_choices(config, objective, dataset)
    functions = builders.train_functions(config, objective, mesh)
    start = initial_params(config, objective, folders)
    settings = builders.train_settings(config)
    continued = None
    if config.train.init_optimizer:
        continued = places.local(config.train.init_from) / "train" / "checkpoints"
        if not continued.exists():
            raise ValueError(
                f"train.init_optimizer is True, but train.init_from is {config.train.init_from!r}, "
                "which is no run with checkpoints; set it to False"
            )
    evaluators = training_evaluators(config, objective, dataset, mesh)
    # Claimed after all checks and before anything is written, which depends on the settings.
    try:
        claims = begins_at is None
        with hosts.locked(stage, claims=claims), StopRequest() as should_stop:
            if begins_at is not None and not stage.claimed:
                by_rows = config.optimizer.embedding_update == "rows"
                rewind.rewind(folders.train, begins_at, functions, by_rows=by_rows)
                if hosts.is_first():
                    stage.claim()
            train(
                functions, settings, folders.train, data, evaluators,
                initial_params=None if continued else start, continued_from=continued,
                should_stop=should_stop,
            )  # fmt: skip
    except FloatingPointError as error:
        raise FloatingPointError(f"{error}{rewind.advice(folders.train)}") from error
    if hosts.is_first():
        stage.finish()


def _data(
    config: ConfigDict, dataset: PackedDataset, mesh: Mesh, folder: pathlib.Path
) -> LearnedData | StreamedData:
    if config.robust.num_phases:
        from xlm.experiment import robust

        return robust.training_data(config, dataset, mesh, folder)
    return streams.training_data(config, dataset, mesh)
