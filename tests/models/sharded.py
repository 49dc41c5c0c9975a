"""A masked-LM loss of an encoder on meshes of eight devices, laid out by the default rules."""

import contextlib
import dataclasses
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.collectives import collectives_of
from configs import quickstart
from tests.models.factories import boxed_shapes, encoder_settings, random_params
from xlm.models.encoder import Encoder, EncoderSettings, output_table
from xlm.training.settings import MeshSettings
from xlm.training.sharding import batch_sharding, make_mesh, param_shardings, replicated

# Sequences, their length, masked positions of each.
B, L, M = 16, 64, 10
# Wide enough for activations to outweigh everything else.
SETTINGS = encoder_settings(
    vocab_size=256, embedding_size=64, hidden_size=128, num_heads=4, mlp_size=512, max_length=L,
    norm_position="pre", dropout_rate=0.1,
)  # fmt: skip
GATED = dataclasses.replace(SETTINGS, position="gated", distance_slope=0.5)


def loss(settings: EncoderSettings, params, batch: dict[str, jax.Array]) -> jax.Array:
    """Mean negative log-likelihood of `targets` [B, M] at `masked` [B, M]."""
    encoder = Encoder(settings)
    inputs = (batch[name] for name in ("tokens", "segments", "positions"))
    states = encoder.apply(
        {"params": params}, *inputs, deterministic=False, method="encode",
        rngs={"dropout": jax.random.key(0)},
    )  # fmt: skip
    chosen = jnp.take_along_axis(states, batch["masked"][:, :, None], axis=1)
    hidden = encoder.apply({"params": params}, chosen, method="predict")
    table, bias = output_table(params)
    log_probabilities = jax.nn.log_softmax(hidden @ table.T + bias[None, None, :])
    return -jnp.take_along_axis(log_probabilities, batch["targets"][:, :, None], axis=2).mean()


@functools.cache
def batch() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    half = np.arange(L, dtype=np.int32) // (L // 2)
    arrays = {
        "tokens": rng.integers(0, SETTINGS.vocab_size, (B, L)),
        "segments": np.tile(1 + half, (B, 1)),
        "positions": np.tile(np.arange(L) % (L // 2), (B, 1)),
        "masked": np.stack([rng.choice(L, M, replace=False) for _ in range(B)]),
        "targets": rng.integers(0, SETTINGS.vocab_size, (B, M)),
    }
    return {name: array.astype(np.int32) for name, array in arrays.items()}


@dataclasses.dataclass(frozen=True)
class Sharded:
    """The compiled loss and gradients on a mesh: (params, batch) -> (loss, gradients)."""

    settings: EncoderSettings
    step: jax.stages.Compiled
    shardings: tuple

    def __call__(self) -> tuple:
        arguments = random_params(self.settings), batch()
        return jax.device_get(self.step(*jax.device_put(arguments, self.shardings)))

    def temporary_bytes(self) -> int:
        return self.step.memory_analysis().temp_size_in_bytes

    def collective_sizes(self) -> list[int]:
        return [size for one in collectives_of(self.step.as_text(), 8) for size in one.sizes]


@functools.cache
def on_mesh(
    data: int, fsdp: int, model: int, encoder: EncoderSettings, *, constrained: bool = True
) -> Sharded:
    """The loss on a mesh; without constraints its activations are the compiler's to lay out."""
    rules = quickstart.get_config().mesh.rules
    settings = MeshSettings(data, fsdp, model, vocab_multiple=8, rules=rules)
    mesh = make_mesh(settings, jax.devices()[: data * fsdp * model])
    boxed = boxed_shapes(encoder)
    of_params = param_shardings(boxed, mesh, settings)
    shardings = (of_params, batch_sharding(mesh))
    arguments = jax.tree.map(
        lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        (nn.unbox(boxed), batch()),
        (of_params, dict.fromkeys(batch(), batch_sharding(mesh))),
    )
    of_encoder = functools.partial(loss, encoder)
    step = jax.jit(jax.value_and_grad(of_encoder), out_shardings=(replicated(mesh), of_params))
    context = jax.sharding.use_abstract_mesh(mesh.abstract_mesh)
    with context if constrained else contextlib.nullcontext():
        return Sharded(encoder, step.lower(*arguments).compile(), shardings)
