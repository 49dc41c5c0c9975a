"""An objective of a user's own, as `config.objective` names it: nothing in `training` knows it.

Skip-gram with negative sampling (Mikolov et al. 2013) over two tables, of which a step touches few
rows. The noise is learned: besides parameters, a run counts the tokens it has seen.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax.linen.spmd import with_logical_partitioning

from xlm.objectives.objective import Objective

INPUT, OUTPUT = "input/table", "output/table"
DISTANCE = 2
NUM_NEGATIVES = 4


@dataclasses.dataclass(frozen=True)
class SkipGramSettings:
    """The `skip_gram` section of a config.

    Attributes:
      width: E.
    """

    width: int


def build(setup):
    return SkipGram(setup.vocab_size, setup.settings(SkipGramSettings, "skip_gram").width)


@dataclasses.dataclass(frozen=True, eq=False)
class SkipGram(Objective):
    """Tells a token two places on from tokens drawn by the counts so far.

    Attributes:
      vocab_size: V.
      width: E.
    """

    vocab_size: int
    width: int

    tables = (INPUT, OUTPUT)

    def init(self, key):
        make = with_logical_partitioning(jax.nn.initializers.normal(0.1), ("vocab", "embed"))
        shape = (self.vocab_size, self.width)
        keys = jax.random.split(key)
        tables = [{"table": make(one, shape, jnp.float32)} for one in keys]
        return {"input": tables[0], "output": tables[1], "scale": jnp.ones(self.width)}

    def init_aux_state(self):
        return {"counts": jnp.ones(self.vocab_size)}

    def learn(self, aux_state, observed):
        return {"counts": aux_state["counts"].at[observed].add(1)}

    def plan(self, aux_state, batch, key, step):
        tokens = batch["tokens"]
        drawn = jax.random.categorical(
            key, jnp.log(aux_state["counts"]), shape=(*tokens.shape[:1], NUM_NEGATIVES)
        )
        size = min(tokens.size + drawn.size, self.vocab_size)
        pad = {"size": size, "fill_value": self.vocab_size}
        inputs = jnp.unique(tokens, **pad)
        outputs = jnp.unique(jnp.concatenate([tokens.reshape(-1), drawn.reshape(-1)]), **pad)
        plan = {
            "tokens": tokens,
            "centres": jnp.searchsorted(inputs, tokens[:, :-DISTANCE]),
            "contexts": jnp.searchsorted(outputs, tokens[:, DISTANCE:]),
            "drawn": jnp.searchsorted(outputs, drawn),
        }
        return plan, {INPUT: inputs, OUTPUT: outputs}

    def loss(self, params, rows, plan, key):
        centres = rows[INPUT][plan["centres"]] * params["scale"][None, None, :]
        contexts, drawn = (rows[OUTPUT][plan[name]] for name in ("contexts", "drawn"))
        right = jnp.einsum("ble,ble->bl", centres, contexts)
        wrong = jnp.einsum("ble,bne->bln", centres, drawn)
        losses = jax.nn.softplus(-right) + jax.nn.softplus(wrong).sum(axis=2)
        weight = jnp.float32(losses.size)
        return {"loss": (losses.sum(), weight)}, plan["tokens"]
