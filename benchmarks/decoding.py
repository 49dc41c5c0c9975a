"""Cost per token of beam search by vocabulary size, and the share of the output layer.

    python -m benchmarks.decoding --cores=1                    # a CPU, some minutes
    python -m benchmarks.decoding --width=1024 --sentences=64  # a GPU

Random models that differ only in their tables translate the same number of tokens, since no
hypothesis ends before `--tokens`. The output layer is timed with a decoder that only looks up table
rows. It includes products with the table, softmax, choice and bookkeeping. The difference is the
cost of encoder and decoder, which should not depend on the vocabulary.
"""

import dataclasses
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from benchmarks import machine
from knn_sampling.exact_layers import FullSoftmax
from xlm.evaluation.decoding import TokenIds, beam_search
from xlm.evaluation.settings import DecodingSettings
from xlm.evaluation.translating import search
from xlm.models.encoder import Encoder
from xlm.models.settings import EncoderSettings
from xlm.objectives.translation import Translation

_VOCAB_SIZES = flags.DEFINE_list("vocab_sizes", ["8192", "65536", "250112"], "V, table rows.")
_BEAMS = flags.DEFINE_list("beams", ["1", "5"], "Hypotheses per sentence.")
_WIDTH = flags.DEFINE_integer("width", 256, "D, width of model and table.")
_LAYERS = flags.DEFINE_integer("layers", 6, "Layers of the encoder and of the decoder.")
_SENTENCES = flags.DEFINE_integer("sentences", 16, "Sentences per batch.")
_TOKENS = flags.DEFINE_integer("tokens", 32, "Tokens of a source and of a translation.")
machine.define_flags(cores=0, repetitions=5)

WHOLE, OUTPUT = "whole", "output layer"


def model_of(vocab_size: int) -> Translation:
    width = _WIDTH.value
    encoder = EncoderSettings(
        vocab_size, width, width, _LAYERS.value, max(1, width // 64), 4 * width,
        max_length=_TOKENS.value, norm_position="pre", dropout_rate=0.0,
        attention_dropout_rate=0.0, dtype="float32", unroll=_LAYERS.value,
    )  # fmt: skip
    decoder = dataclasses.replace(encoder, cross_attention=True)
    # The last row is no class.
    return Translation(Encoder(encoder), Encoder(decoder), FullSoftmax(vocab_size - 1), 0.0)


def batch_of(vocab_size: int) -> dict[str, jax.Array]:
    shape = _SENTENCES.value, _TOKENS.value
    tokens = np.random.default_rng(0).integers(vocab_size - 1, size=shape, dtype=np.int32)
    positions = np.broadcast_to(np.arange(shape[1], dtype=np.int32), shape)
    arrays = {"tokens": tokens, "segments": np.ones_like(tokens), "positions": positions}
    return jax.tree.map(jnp.asarray, {**arrays, "first_token": tokens[:, 0]})


def searches(vocab_size: int, beams: int) -> dict[str, Callable[[], jax.Array]]:
    """Return a search with a random model, and one with only its output layer."""
    objective, batch = model_of(vocab_size), batch_of(vocab_size)
    settings = DecodingSettings(beams=beams, max_length=_TOKENS.value)
    # The end token is no class, so no hypothesis ends before the last step.
    ids = TokenIds(eos=vocab_size - 1, pad=0, forbidden=(), num_classes=vocab_size - 1)
    params = nn.unbox(jax.jit(objective.init)(jax.random.key(0)))

    def output_layer(params, batch) -> jax.Array:
        table, bias = objective.output_table(params)

        def step(tokens, cache, index):
            del index
            return table[tokens] @ table.T + bias[None], cache

        return beam_search(step, batch["first_token"], (), settings, ids).tokens[:, 0]

    whole = jax.jit(lambda params, batch: search(objective, params, batch, settings, ids))
    alone = jax.jit(output_layer)
    return {WHOLE: lambda: whole(params, batch), OUTPUT: lambda: alone(params, batch)}


def main(_) -> None:
    report = machine.start()
    report.table(
        f"D = {_WIDTH.value}, {_LAYERS.value} layers each, {_SENTENCES.value} sentences of "
        f"{_TOKENS.value} tokens; microseconds a token",
        {"V": ",", "beams": "d", "whole": ".0f", "output layer": ".0f", "rest": ".0f",
         "tokens a second": ",.0f"},
    )  # fmt: skip
    count = _SENTENCES.value * _TOKENS.value
    for beams in map(int, _BEAMS.value):
        for vocab_size in map(int, _VOCAB_SIZES.value):
            runs = searches(vocab_size, beams)
            found = machine.interleaved_medians(runs, flags.FLAGS.repetitions)
            whole, output = (1e6 * found[name] / count for name in (WHOLE, OUTPUT))
            report.row(vocab_size, beams, whole, output, whole - output, 1e6 / whole)


if __name__ == "__main__":
    app.run(main)
