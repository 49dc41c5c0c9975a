"""Cost of a step of replaced-token detection over one of masked LM at equal tokens, and its terms.

    python -m benchmarks.replaced_token                      # a CPU, small sizes, minutes
    python -m benchmarks.replaced_token --size=base          # XY-LENT Base in bf16, for a GPU

Masked LM has the discriminator's encoder, the same output layer and the same batch. The floor is
the ratio of the matrix products, each counted once: of the draws one pass over the table, of all
else forward and backward. Terms are compiled and timed alone, interleaved with the steps; what the
step fuses or shares makes their sum differ from it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags

from benchmarks import train_step
from benchmarks.machine import describe_machine, interleaved_medians, set_up
from benchmarks.train_step import BOS, EOS, PRESETS, Preset
from input_pipeline.stream import PACKED
from xlm.models.encoder import Encoder
from xlm.objectives.batch import Batch
from xlm.objectives.masked_lm import MaskedLM
from xlm.objectives.objective import Objective
from xlm.objectives.replaced_token import GENERATOR, ReplacedToken
from xlm.objectives.settings import ReplacedTokenSettings
from xlm.training.flops import matmul_flops

# A discriminator of as many layers as three generators.
SIZES = {
    "base": PRESETS["base"],
    "small": dataclasses.replace(
        PRESETS["small"], hidden_size=256, num_layers=6, mlp_size=1024, length=128
    ),
}
_SIZE = flags.DEFINE_enum("size", "small", sorted(SIZES), "Sizes.")
_LAYERS = flags.DEFINE_list("layers", ["full", "blockwise"], "Output layers.")
_PIECES = flags.DEFINE_integer("pieces", 0, "V, instead of the smallest of the size.")
_REPEATS = flags.DEFINE_integer("repeats", 5, "Timings of each.")

MLM, RTD = "masked LM, step", "replaced tokens, step"


def objectives_of(preset: Preset, layer: str, vocab_size: int) -> tuple[MaskedLM, ReplacedToken]:
    """Masked LM, and replaced-token detection with a generator of a third of its layers."""
    alone = train_step.objective_of(preset, layer, vocab_size, preset.hidden_size)
    sizes, num_layers = alone.encoder.settings, preset.num_layers // 3
    generator = dataclasses.replace(
        sizes, num_layers=num_layers, unroll=min(sizes.unroll, num_layers), dropout_rate=0.0
    )
    settings = ReplacedTokenSettings(num_layers, 50.0, 1.0, "disentangled")
    of_generator = dataclasses.replace(alone, encoder=Encoder(generator), scope=GENERATOR)
    return alone, ReplacedToken(of_generator, Encoder(sizes), settings)


def batch_of(preset: Preset, objective: MaskedLM) -> Batch:
    p = np.asarray(objective.statistics.probabilities, np.float64)
    shape = preset.batch_size, preset.length
    tokens = np.random.default_rng(0).choice(len(p), shape, p=p / p.sum()).astype(np.int32)
    tokens[:, 0], tokens[:, -1] = BOS, EOS
    return Batch({"tokens": jnp.asarray(tokens)}, PACKED)


class Step:
    """Compiled step of an objective, and its gradient alone."""

    def __init__(self, objective: Objective, batch: Batch):
        self.objective, self.batch = objective, batch
        self.functions = train_step.functions_of(objective, "dense")
        self.state = self.functions.init(np.int32(0))

    def __call__(self) -> Any:
        self.state, metrics = self.functions.train_step(self.objective, self.state, self.batch)
        return metrics

    def gradient(self, params) -> Any:
        key, plan = jax.random.key(0), self.planned()

        def loss(params):
            return self.objective.loss(params, {}, plan, key)[0]["loss"][0]

        return jax.grad(loss)(params)

    def planned(self) -> Any:
        return self.objective.plan({}, self.batch, jax.random.key(0), jnp.int32(0))[0]


def terms_of(step: Step) -> dict[str, Callable[[Any], Any]]:
    """Functions of the parameters, the terms of a step of replaced-token detection."""
    objective = step.objective
    assert isinstance(objective, ReplacedToken)
    generator, key = objective.generator, jax.random.key(0)

    def hidden_of(params, plan):
        states = generator.states(params, {}, plan.generator, None)
        return generator.predicted(params, states, plan.generator.masked.positions)

    def generator_pass(params):
        plan = step.planned()
        return jax.grad(lambda params: hidden_of(params, plan).astype(jnp.float32).sum())(params)

    def output_layer(params):
        plan = step.planned()
        hidden = jnp.ones(
            (*plan.generator.masked.targets.shape, generator.encoder.settings.embedding_size),
            generator.encoder.settings.dtype,
        )

        def loss(params, hidden):
            return generator.token_losses(params, {}, plan.generator, hidden).sum()

        return jax.grad(loss, argnums=(0, 1))(params, hidden)

    def draws(params):
        plan = step.planned()
        hidden = jnp.ones(
            (*plan.generator.masked.targets.shape, generator.encoder.settings.embedding_size),
            generator.encoder.settings.dtype,
        )
        return objective._corrupted(params, {}, plan, hidden, key)[0].tokens

    def discriminator(params):
        plan = step.planned().generator

        def loss(params):
            tables = objective._tables(params, {})
            layout = plan.segments, plan.positions
            logits = objective._logits(params, tables, plan.tokens, layout, key)
            return optax.sigmoid_binary_cross_entropy(logits, jnp.ones_like(logits)).sum()

        return jax.grad(loss)(params)

    return {
        "generator": generator_pass,
        "output layer": output_layer,
        "draws": draws,
        "discriminator": discriminator,
    }


def flops_of(function: Callable[..., Any], step: Step) -> float:
    return matmul_flops(jax.make_jaxpr(function)(step.state.params))


def print_layer(preset: Preset, layer: str, vocab_size: int) -> None:
    """Print the table of one output layer."""
    alone, objective = objectives_of(preset, layer, vocab_size)
    batch = batch_of(preset, alone)
    mlm, rtd = Step(alone, batch), Step(objective, batch)
    terms = terms_of(rtd)
    compiled = {name: jax.jit(f) for name, f in terms.items()}
    compiled |= {"gradient": jax.jit(rtd.gradient)}
    calls: dict[str, Callable[[], Any]] = {MLM: mlm, RTD: rtd}
    calls |= {
        name: lambda f=function: f(rtd.state.params)  # type: ignore[misc]
        for name, function in compiled.items()
    }
    seconds = interleaved_medians(calls, _REPEATS.value)
    # The output layer's products are counted where no loop hides or repeats them.
    plain = [Step(one, batch) for one in objectives_of(preset, "full", vocab_size)]
    counted = {name: flops_of(f, plain[1]) for name, f in terms_of(plain[1]).items()}
    masked = plain[0].planned().masked.targets.size
    counted["draws"] = 2.0 * masked * vocab_size * preset.hidden_size
    of_mlm = flops_of(plain[0].gradient, plain[0])
    seconds["optimizer and the rest"] = seconds[RTD] - seconds.pop("gradient")
    print(f"\n{layer}: V = {vocab_size:,}, {masked} masked tokens of {batch['tokens'].size}\n")
    print("| what | ms | share of the step | GFLOP of products |\n|---|---:|---:|---:|")
    products = {MLM: of_mlm, RTD: sum(counted.values()), **counted}
    for name, found in seconds.items():
        of_name = f"{products[name] / 1e9:.2f}" if name in products else ""
        print(f"| {name} | {1e3 * found:.1f} | {found / seconds[RTD]:.2f} | {of_name} |")
    ratio, floor = seconds[RTD] / seconds[MLM], products[RTD] / of_mlm
    print(f"\nratio of the steps {ratio:.2f}, of the products {floor:.2f}", flush=True)


def main(_) -> None:
    set_up()
    preset = SIZES[_SIZE.value]
    print(f"{describe_machine()}; {dataclasses.asdict(preset)}")
    for layer in _LAYERS.value:
        print_layer(preset, layer, _PIECES.value or preset.vocab_sizes[0])


if __name__ == "__main__":
    app.run(main)
