"""Choice of the output layer of a run with `output_layer.kind` "auto"."""

import logging

import jax
from ml_collections import ConfigDict

from input_pipeline.packed_dataset import PackedDataset
from knn_sampling import costs
from knn_sampling.settings import SAMPLED, OutputLayerSettings
from xlm.common import artifacts
from xlm.common.schema import settings
from xlm.experiment.data import Folders
from xlm.objectives.settings import MaskSettings
from xlm.training.settings import MeshSettings


def resolved(config: ConfigDict, dataset: PackedDataset, folders: Folders) -> ConfigDict:
    """Return the config with a definite output layer: the recorded one, or else the cheapest.

    So a run keeps its first layer when it resumes on other devices, and when others read it.
    """
    if config.output_layer.kind != "auto":
        return config
    if (path := folders.train / "settings.json").exists():
        before = artifacts.read_object(path)["output_layer"]
        return with_kind(config, before["kind"], before["log_q_correction"])
    kind, words = choice(config, dataset, jax.device_count(), jax.default_backend())
    logging.info("%s", words)
    return with_kind(config, kind)


def choice(
    config: ConfigDict, dataset: PackedDataset, num_devices: int, backend: str
) -> tuple[str, str]:
    """Return the cheapest kind of output layer, and a line with the costs of each."""
    sizes, length, rows = config.model, dataset.length, config.train.batch_size
    is_split = any("model" in axes for axes in settings(MeshSettings, config.mesh).table_axes())
    kernels = 4 * sizes.hidden_size + (2 if sizes.mlp == "gelu" else 3) * sizes.mlp_size
    per_token = sizes.num_layers * sizes.hidden_size * (6 * kernels + 12 * length)
    step = costs.Step(
        backend=backend if backend in ("cpu", "tpu") else "gpu", num_devices=num_devices,
        table_shards=max(config.mesh.model, 1) if is_split else 1, sequences=rows,
        tokens=rows * length, targets=rows * settings(MaskSettings, config.mask).slots(length),
        parts=config.train.accumulation_steps, vocab_size=dataset.vocab_size,
        embedding_size=sizes.embedding_size, encoder_flops=rows * length * per_token,
        by_rows=config.optimizer.embedding_update == "rows",
        shards_optimizer=config.mesh.shard_optimizer_over_data,
    )  # fmt: skip
    found = costs.estimates(step, settings(OutputLayerSettings, config.output_layer))
    kind = costs.cheapest(found)
    each = ", ".join(f"{name} {1e3 * one:.3g}" for name, one in found.items())
    return kind, (
        f'output_layer.kind "auto" is {kind}: estimates of a step on {num_devices} devices '
        f"({backend}), in ms: {each}; a sampled layer must be {costs.SPEED_UP} times as fast"
    )


def with_kind(config: ConfigDict, kind: str, log_q_correction: bool | None = None) -> ConfigDict:
    """Return the config with a kind; a sampled one corrects by log Q, close to the exact one."""
    config = config.copy_and_resolve_references()
    if log_q_correction is None:
        log_q_correction = kind in SAMPLED or config.output_layer.log_q_correction
    config.output_layer.update(kind=kind, log_q_correction=log_q_correction)
    return config
