"""Small settings and objects for many tests, with changes as arguments."""

import dataclasses
import itertools
import pathlib
from collections.abc import Sequence
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from input_pipeline.packed_dataset import SPLITS, PackedDataset, SpecialIds
from input_pipeline.pair_rows import write_rows as write_rows_of_pairs
from knn_sampling.noise import cumulative_thresholds
from knn_sampling.output_layer import make_exact_layer, make_output_layer
from knn_sampling.samples import TokenStatistics
from knn_sampling.settings import OutputLayerSettings
from knn_sampling.table_sharding import TableSharding
from xlm.common.schema import settings as settings_of
from xlm.models.encoder import Encoder, EncoderSettings
from xlm.objectives.masked_lm import MaskedLM
from xlm.objectives.objective import AuxState, Objective
from xlm.objectives.replaced_token import GENERATOR, ReplacedToken
from xlm.objectives.settings import MaskSettings, ReplacedTokenSettings
from xlm.training.settings import MeshSettings, OptimizerSettings
from xlm.training.sharding import make_mesh
from xlm.training.state import TrainState
from xlm.training.step import TrainFunctions, make_train_functions

BOS, PAD, EOS, UNK, MASK = range(5)
SPECIAL = (BOS, PAD, EOS, MASK)
SPECIAL_IDS = SpecialIds(bos=BOS, pad=PAD, eos=EOS, unk=UNK, mask=MASK)


def write_rows(
    folder: pathlib.Path,
    languages: Sequence[str],
    length: int,
    rows: int = 1,
    tokens: int = 9,
    characters: int = 30,
    vocab_size: int = 0,
    seed: int = 0,
) -> dict[str, dict[str, dict[str, int]]]:
    """Write rows of padding, or of random text of a vocabulary with its counts.

    Returns their `PackedDataset.statistics`.
    """
    one = {"rows": rows, "tokens": tokens, "unknown": 0, "characters": characters}
    statistics = {language: dict.fromkeys(SPLITS, one) for language in languages}
    rng, array = np.random.default_rng(seed), np.full((rows, length), PAD)
    for language, split in itertools.product(languages, SPLITS):
        if vocab_size:
            array = rng.integers(MASK + 1, vocab_size, (rows, length))
            array[:, 0], array[:, -1] = BOS, EOS
            np.save(folder / f"{language}.counts.npy", np.arange(vocab_size))
        np.save(folder / f"{language}.{split}.npy", array.astype(np.uint16))
    return statistics


def with_pair_rows(dataset: PackedDataset) -> PackedDataset:
    """Write the rows of the pairs of a dataset's columns."""
    pairs = {
        name: [write_rows_of_pairs(dataset.folder, languages, dataset.length, name)]
        for name, languages in dataset.bitexts.items()
    }
    return dataclasses.replace(dataset, pairs=pairs)


ONE_DEVICE = MeshSettings(data=1, fsdp=1, model=1, vocab_multiple=1, rules=())


def encoder_settings(**changes) -> EncoderSettings:
    """One layer of 16 over 32 table rows, sequences of 16."""
    defaults = {
        "vocab_size": 32, "embedding_size": 8, "hidden_size": 16, "num_layers": 1, "num_heads": 2,
        "mlp_size": 16, "max_length": 16, "norm_position": "pre", "dropout_rate": 0.1,
        "attention_dropout_rate": 0.0, "dtype": "float32",
    }  # fmt: skip
    return EncoderSettings(**{**defaults, **changes})


def output_layer_settings(**changes) -> OutputLayerSettings:
    """k-NN sampling as published, with all 30 neighbours, so V' is the whole vocabulary."""
    defaults = {
        "kind": "knn", "k": 30, "capacity": 32, "row_capacity": 0, "num_negatives": 20,
        "group_size": 0, "refresh_every": 1, "log_q_correction": False,
        "full_softmax_fraction": 0.0, "frequency_bias": False,
    }  # fmt: skip
    return OutputLayerSettings(**{**defaults, **changes})


def token_statistics(num_valid: int, vocab_size: int) -> TokenStatistics:
    """Tokens of rising probability in one language; specials and padding have none."""
    ids = np.arange(vocab_size)
    probabilities = ids * (ids < num_valid) / (num_valid * (num_valid - 1) / 2)
    return TokenStatistics(
        jnp.asarray(probabilities, jnp.float32),
        cumulative_thresholds(probabilities),
        jnp.where(probabilities > 0, 0, -1),
    )


def masked_lm(
    layer: OutputLayerSettings | None = None,
    encoder: EncoderSettings | None = None,
    *,
    kind: type[MaskedLM] = MaskedLM,
    num_valid: int = 30,
    mesh: jax.sharding.Mesh | None = None,
    mesh_settings: MeshSettings = ONE_DEVICE,
    **changes,
) -> MaskedLM:
    """Masked LM of `num_valid` tokens."""
    layer, encoder = layer or output_layer_settings(), encoder or encoder_settings()
    sharding = TableSharding(mesh, *mesh_settings.table_axes())
    layout = {"num_valid": num_valid, "sharding": sharding}
    defaults = {
        "encoder": Encoder(encoder),
        "output_layer": make_output_layer(layer, **layout),
        "exact_layer": make_exact_layer(layer, **layout),
        "mask": MaskSettings(rate=0.3, mask_share=0.8, random_share=0.1),
        "num_steps": 10, "bos": BOS, "pad": PAD, "mask_id": MASK, "special_ids": SPECIAL,
        "across_documents": False,
        "statistics": token_statistics(num_valid, encoder.vocab_size),
        "row_capacity": layer.row_capacity, "frequency_bias": layer.frequency_bias,
    }  # fmt: skip
    return kind(**{**defaults, **changes})


def replaced_token(
    layer: OutputLayerSettings | None = None,
    encoder: EncoderSettings | None = None,
    *,
    temperature: float = 1.0,
    embeddings: Literal["shared", "separate", "disentangled"] = "disentangled",
    num_pairs: int = 0,
    **changes,
) -> ReplacedToken:
    """Generator and discriminator of equal sizes, without dropout; changes are the generator's."""
    encoder = encoder or encoder_settings(dropout_rate=0.0)
    generator = masked_lm(layer, encoder, scope=GENERATOR, **changes)
    settings = ReplacedTokenSettings(encoder.num_layers, 50.0, temperature, embeddings)
    return ReplacedToken(generator, Encoder(encoder), settings, num_pairs=num_pairs)


def random_params(objective: Objective, scale: float = 0.3):
    """Parameters unlike initial values, which have too many zeros and ones."""
    boxed = jax.eval_shape(lambda: objective.init(jax.random.key(0)))
    rng = np.random.default_rng(0)
    return jax.tree.map(
        lambda x: (scale * rng.normal(size=x.shape)).astype(x.dtype), nn.unbox(boxed)
    )


def first_aux_state(objective: Objective, params) -> AuxState:
    """The auxiliary state at the first step."""
    aux_state, names = objective.init_aux_state(), objective.due(0)
    return objective.refresh(params, aux_state, names, jnp.int32(0))[0] if names else aux_state


def first_state(functions: TrainFunctions, params, aux_state: AuxState | None = None) -> TrainState:
    """State of a run that begins with `params`; `init` would make others, and is slow."""
    zeros = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), functions.abstract_state)
    given = functions.objective.init_aux_state() if aux_state is None else aux_state
    first = dataclasses.replace(zeros, params=params, aux_state=given)
    return jax.tree.map(
        lambda x, like: jax.device_put(x, like.sharding), first, functions.abstract_state
    )


def packed_tokens(seed: int = 0, num_valid: int = 30) -> np.ndarray:
    """Sequences [4, 16] of two documents and some padding."""
    tokens = np.random.default_rng(seed).integers(MASK + 1, num_valid, (4, 16)).astype(np.int32)
    tokens[:, [0, 6]], tokens[:, [5, 13]], tokens[:, 14:] = BOS, EOS, PAD
    return tokens


def optimizer_settings(**changes) -> OptimizerSettings:
    """AdamW without warm-up, decay and clipping."""
    defaults = {
        "learning_rate": 0.1, "warmup_steps": 0, "decay_power": 1.0, "beta1": 0.9, "beta2": 0.98,
        "epsilon": 1e-6, "weight_decay": 0.0, "clip_norm": 0.0, "embedding_update": "dense",
    }  # fmt: skip
    return OptimizerSettings(**{**defaults, **changes})


def one_device(config: ConfigDict) -> Mesh:
    """The mesh of a config on the first device only, replaces `xlm.experiment.model.mesh`."""
    return make_mesh(settings_of(MeshSettings, config.mesh), jax.devices()[:1])


def train_functions(
    objective,
    optimizer: OptimizerSettings | None = None,
    mesh_settings: MeshSettings = ONE_DEVICE,
    num_steps: int = 10,
    **kwargs,
) -> TrainFunctions:
    """Compiled functions over as many devices as the mesh needs."""
    count = mesh_settings.data * mesh_settings.fsdp * mesh_settings.model
    mesh = make_mesh(mesh_settings, jax.devices()[:count])
    optimizer = optimizer or optimizer_settings()
    return make_train_functions(
        objective, optimizer, mesh_settings, mesh, num_steps=num_steps, **kwargs
    )
