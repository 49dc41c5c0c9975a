"""Replaced-token detection (RTD): a generator's samples, and a discriminator that finds them.

ELECTRA's objective (Clark et al. 2020, arXiv 2003.10555) on multilingual text, MRTD, and on pairs
of translations, TRTD, as in XLM-E (Chi et al. 2022) and XY-LENT (Patra et al. 2023, Section 4).
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from knn_sampling.output_layer import without_z_loss
from xlm.models.encoder import Encoder, MaskedLMHead, Tables, init_params, run_encoder
from xlm.models.heads import ReplacedTokenHead
from xlm.objectives import masked_lm
from xlm.objectives.masked_lm import TABLE, MaskedLM, OnMaskedLM, sums_of_tasks, task_totals
from xlm.objectives.objective import AuxState, Batch, LossAndMetrics, Touched, replace_table
from xlm.objectives.pair_losses import PairSums, init_pair_losses, pair_sums, update_pair_losses
from xlm.objectives.settings import ReplacedTokenSettings

# Keys of the two models and of the discriminator's head in the parameters.
GENERATOR, DISCRIMINATOR, HEAD = "generator", "discriminator", "replaced_token_head"
_OWN_TABLE = f"{DISCRIMINATOR}/{TABLE}"
PAIR_LOSSES = "pair_losses"  # part of the auxiliary state: moving averages by language pair


class Plan(NamedTuple):
    """Plan of a step.

    Attributes:
      generator: the generator's plan, with the masked batch.
      is_text: [B, L] bool, tokens to classify: all but special ones and padding.
      scale: lambda times masked tokens per classified one, float32, scalar or [B] by the row's
        task. The engine divides summed losses by the number of masked tokens, so the
        discriminator's mean gets the weight lambda.
      pair: [B] int32 index of each row's language pair, -1 for text; None without losses by pair.
    """

    generator: masked_lm.Plan
    is_text: jax.Array
    scale: jax.Array
    pair: jax.Array | None


class Corrupted(NamedTuple):
    """Batch with sampled tokens at the masked positions."""

    tokens: jax.Array  # [B, L] int32, as indices of the table rows given to the loss
    is_replaced: jax.Array  # [B, L] bool, tokens that differ from the original ones


@dataclasses.dataclass(frozen=True, eq=False)
class ReplacedToken(OnMaskedLM):
    """Replaced-token detection on the batches of its generator.

    The generator fills the masked positions with samples of its output distribution. A right sample
    counts as original. The discriminator classifies every text token. Its gradient does not reach
    the generator through the samples. Parameters are {"generator": encoder with masked-LM head,
    "discriminator": encoder without one, "replaced_token_head": its head}. A discriminator that
    corrects has a masked-LM head as well, see `_corrective`.

    Attributes:
      generator: masked LM with the scope "generator", on packed sequences (MRTD), pairs (TRTD) or
        batches with both tasks.
      encoder: the discriminator, the result of pre-training.
      name: prefix of the metrics of a batch of one task.
      num_pairs: N, language pairs whose losses the run tracks by `pair` [B] of the batches, for
        robust sampling; 0 for none.
      pair_rate: rate of the moving average of these losses, see `pair_losses`.
    """

    generator: MaskedLM
    encoder: Encoder
    settings: ReplacedTokenSettings
    name: str = "mrtd"
    num_pairs: int = 0
    pair_rate: float = 0.1

    @property
    def tables(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*super().tables, *([] if self._shares_table else [_OWN_TABLE]))

    used_dtype = "float32"  # of the sum of the discriminator's tables

    @property
    def masked_lm(self) -> MaskedLM:  # type: ignore[override]
        return self.generator

    @property
    def bos(self) -> int:
        return self.generator.bos

    @property
    def pad(self) -> int:
        return self.generator.pad

    @property
    def special_ids(self) -> tuple[int, ...]:
        return self.generator.special_ids

    @property
    def _shares_table(self) -> bool:
        return self.settings.embeddings == "shared"

    @property
    def _head(self) -> ReplacedTokenHead:
        return ReplacedTokenHead(self.encoder.settings)

    def init(self, key: jax.Array) -> dict[str, Any]:
        generator_key, encoder_key, head_key = jax.random.split(key, 3)
        s = self.encoder.settings
        shared = jnp.zeros((1, s.embedding_size)) if self._shares_table else None
        encoder = init_params(self.encoder, encoder_key, shared, has_head=False)
        if self.settings.embeddings == "disentangled":
            table = encoder["embeddings"]["table"]
            zero = table.replace_boxed(jnp.zeros_like(nn.unbox(table)))
            encoder = replace_table(encoder, TABLE, zero)
        head = self._head.init(head_key, jnp.zeros((1, 1, s.hidden_size)))["params"]
        generator = self.generator.init(generator_key)
        if self.settings.corrective_weight:
            states, one = jnp.zeros((1, 1, s.hidden_size)), jax.random.fold_in(head_key, 1)
            corrective = MaskedLMHead(s).init(one, states)["params"]
            bias = generator[GENERATOR]["head"]["bias"]  # log frequencies, or zeros
            encoder = {**encoder, "head": {**corrective, "bias": bias}}
        return {**generator, DISCRIMINATOR: encoder, HEAD: head}

    def encoder_params(self, params) -> dict[str, Any]:
        """Return the parameters of the discriminator's encoder, with its token embeddings."""
        own, (table, _) = params[DISCRIMINATOR], self.generator.output_table(params)
        if self.settings.embeddings == "separate":
            return own
        if self.settings.embeddings == "disentangled":
            table = table + own["embeddings"]["table"]
        return replace_table(own, TABLE, table)

    def plan(
        self, aux_state: AuxState, batch: Batch, key: jax.Array, step: jax.Array
    ) -> tuple[Plan, Touched]:
        """Mask a batch, and select the classes of replacements: V' for a sampled softmax."""
        plan, touched = self.generator.plan(aux_state, batch, key, step)
        is_text = ~jnp.isin(batch["tokens"], jnp.array(self.special_ids))
        num_masked, num_text = (
            task_totals(one.sum(axis=1), plan.task) for one in (plan.masked.weights, is_text)
        )
        scale = self.settings.weight * num_masked / jnp.maximum(num_text, 1)
        if touched and not self._shares_table:
            touched = {**touched, _OWN_TABLE: touched[self.generator.table_path]}
        return Plan(plan, is_text, scale, batch["pair"] if self.num_pairs else None), touched

    def example_axes(self, plan: Plan, num_shards: int) -> Plan | None:
        """Return the axes of the sequences; None if the generator has none."""
        axes = self.generator.example_axes(plan.generator, num_shards)
        scale = 0 if plan.scale.ndim else None
        return None if axes is None else Plan(axes, 0, scale, 0)  # type: ignore[arg-type]

    def loss(
        self, params, rows: Mapping[str, jax.Array], plan: Plan, key: jax.Array | None
    ) -> tuple[LossAndMetrics, PairSums | None]:
        """Sum L_MLM, lambda L_RTD and any L_LM; without a key, no dropout and fixed samples."""
        generator = self.generator
        sample_key, dropout_key = jax.random.split(jax.random.key(0) if key is None else key)
        # The generator has no dropout (XY-LENT Section 5).
        states = generator.states(params, rows, plan.generator, None)
        positions = plan.generator.masked.positions
        hidden = generator.predicted(params, states, positions)  # [B, M, E]
        of_masked = generator.token_losses(params, rows, plan.generator, hidden)
        found = generator.metrics_of(of_masked, plan.generator)
        corrupted, is_right = self._corrupted(params, rows, plan, hidden, sample_key)
        layout = plan.generator.segments, plan.generator.positions
        tables = self._tables(params, rows)
        states = self._states(
            params, tables, corrupted.tokens, layout, None if key is None else dropout_key
        )
        logits = self._head.apply({"params": params[HEAD]}, states)
        of_text = optax.sigmoid_binary_cross_entropy(logits, corrupted.is_replaced)
        of_text = jnp.where(plan.is_text, of_text, 0.0)  # [B, L]
        factor, names = plan.generator.factor, [self.name]
        of_rows = self._metrics(plan, of_masked, of_text, is_right, corrupted, logits)
        totals = of_masked.sum(axis=1) + plan.scale * of_text.sum(axis=1)  # [B]
        if weight := self.settings.corrective_weight:
            corrected = self._corrective(params, tables, plan, states, logits, corrupted)
            totals = totals + weight * corrected.sum(axis=1)
            of_rows["/corrective_loss"] = corrected.sum(axis=1), of_rows["/generator_loss"][1]
        if factor is not None:
            names = ["mrtd", "trtd"]
            of_rows["_loss"] = totals, of_rows["/generator_loss"][1]
            totals = factor * totals
        found["loss"] = totals.sum(), found["loss"][1]
        found |= sums_of_tasks(of_rows, plan.generator.task, names)
        return found, self._pair_sums(plan, of_masked, of_text)

    def _pair_sums(self, plan: Plan, of_masked: jax.Array, of_text: jax.Array) -> PairSums | None:
        """Sum L_MLM + lambda L_RTD of each example with text by language pair."""
        if plan.pair is None:
            return None
        num_masked = plan.generator.masked.weights.sum(axis=1)  # [B]
        mlm = of_masked.sum(axis=1) / jnp.maximum(num_masked, 1)
        detection = of_text.sum(axis=1) / jnp.maximum(plan.is_text.sum(axis=1), 1)
        losses = jax.lax.stop_gradient(mlm + self.settings.weight * detection)
        counts = (num_masked > 0).astype(jnp.float32)
        return pair_sums(losses, counts, plan.pair, self.num_pairs)

    def learn(self, aux_state: AuxState, observed: PairSums | None) -> AuxState:
        """Add the losses of a batch to the moving averages of its language pairs."""
        if observed is None:
            return aux_state
        updated = update_pair_losses(PairSums(*aux_state[PAIR_LOSSES]), observed, self.pair_rate)
        return {**aux_state, PAIR_LOSSES: updated}

    def _corrupted(
        self, params, rows: Mapping[str, jax.Array], plan: Plan, hidden: jax.Array, key: jax.Array
    ) -> tuple[Corrupted, jax.Array]:
        """Sample the masked tokens; return the batch, and whether the generator is right [B, M]."""
        generator, masked = self.generator, plan.generator.masked
        table, bias = generator.output_table(params)
        draws = generator.output_layer.draw(
            key, hidden, masked.weights, rows.get(generator.table_path, table), bias,
            plan.generator.sample, self.settings.temperature,
        )  # fmt: skip
        tokens, positions = plan.generator.tokens, masked.positions
        is_used = masked.weights > 0
        # Unused slots, like positions without a mask, hold the original token.
        kept = jnp.take_along_axis(tokens, positions, axis=1)
        of_batch = jnp.arange(len(tokens))[:, None]
        tokens = tokens.at[of_batch, positions].set(
            jnp.where(is_used, draws.rows, kept), unique_indices=True
        )
        is_wrong = is_used & (draws.ids != masked.targets)
        is_replaced = jnp.zeros(tokens.shape, bool)
        is_replaced = is_replaced.at[of_batch, positions].set(is_wrong, unique_indices=True)
        return Corrupted(tokens, is_replaced), is_used & (draws.best == masked.targets)

    def _tables(self, params, rows: Mapping[str, jax.Array]) -> Tables:
        """Return the tables of the discriminator's embeddings, or their touched rows."""
        path = self.generator.table_path
        of_generator = rows.get(path, self.generator.output_table(params)[0])
        if self._shares_table:
            return of_generator
        own = rows.get(_OWN_TABLE, params[DISCRIMINATOR]["embeddings"]["table"])
        if self.settings.embeddings == "separate":
            return own
        return jax.lax.stop_gradient(of_generator), own

    def _states(
        self, params, tables: Tables, tokens: jax.Array, layout: tuple[jax.Array, jax.Array],
        dropout_key: jax.Array | None,
    ) -> jax.Array:  # fmt: skip
        """Return the discriminator's states [B, L, D]; without a key, no dropout."""
        return run_encoder(
            self.encoder, params[DISCRIMINATOR], tokens, *layout, key=dropout_key, table=tables,
            positions_restart=self.generator.positions_restart,
        )  # fmt: skip

    def _corrective(
        self, params, tables: Tables, plan: Plan, states: jax.Array, logits: jax.Array,
        corrupted: Corrupted,
    ) -> jax.Array:  # fmt: skip
        """Return losses [B, M] of the masked tokens' originals (COCO-LM, Section 3.2).

        An original has the probability p [it is there] + (1 - p) softmax(h . v + b). p is the
        detector's probability of an original token, and passes no gradient. The softmax is over the
        generator's classes, with the discriminator's table.
        """
        masked, layer = plan.generator.masked, without_z_loss(self.generator.output_layer)
        chosen = jnp.take_along_axis(states, masked.positions[:, :, None], axis=1)
        own = params[DISCRIMINATOR]
        hidden = self.encoder.apply({"params": own}, chosen, method="predict")
        table = tables[0] + tables[1] if isinstance(tables, tuple) else tables
        losses = layer.loss(
            hidden, masked.targets, masked.weights, table, own["head"]["bias"],
            plan.generator.sample,
        )  # fmt: skip
        logits, is_replaced = (
            jnp.take_along_axis(one, masked.positions, axis=1)
            for one in (jax.lax.stop_gradient(logits), corrupted.is_replaced)
        )
        written = jax.nn.log_sigmoid(logits) - losses
        copied = jnp.where(is_replaced, -jnp.inf, jax.nn.log_sigmoid(-logits))
        return jnp.where(masked.weights > 0, -jnp.logaddexp(copied, written), 0.0)

    def logits(
        self, params, tokens: jax.Array, original: jax.Array | None = None,
        layout: tuple[jax.Array, jax.Array] | None = None,
    ) -> jax.Array:  # fmt: skip
        """Return logits [B, L] float32; positive ones predict a replacement.

        `layout` gives segments and positions [B, L] int32, by default those of packed sequences.
        Documents then end as in `original`, the sequences before the replacement (by default
        `tokens`), since a generator can sample special tokens.
        """
        borders = tokens if original is None else original
        layout = layout or self.generator.layout(Batch({"tokens": borders}, "packed"))
        states = self._states(params, self._tables(params, {}), tokens, layout, None)
        return self._head.apply({"params": params[HEAD]}, states)

    def corrupt(
        self, params, tokens: jax.Array, key: jax.Array,
        layout: tuple[jax.Array, jax.Array] | None = None,
    ) -> tuple[jax.Array, jax.Array, jax.Array]:  # fmt: skip
        """Mask sequences [B, L] and fill them with samples of the generator, [B, L] int32.

        Also returns the generator's loss and number of masked tokens of each sequence, [B] float32.
        The mask rate is that of the first step and the softmax exact, which makes corruptions of
        all steps alike. `layout` is that of `logits`.
        """
        exact_layer = without_z_loss(self.generator.exact_layer)
        generator = dataclasses.replace(
            self.generator.exact, languages=(), output_layer=exact_layer
        )
        exact = dataclasses.replace(self, generator=generator, num_pairs=0)
        mask_key, sample_key = jax.random.split(key)
        arrays = {"tokens": tokens}
        if layout:
            arrays |= {"segments": layout[0], "positions": layout[1]}
        plan, _ = exact.plan({}, Batch(arrays, "packed"), mask_key, jnp.int32(0))
        states = generator.states(params, {}, plan.generator, None)
        hidden = generator.predicted(params, states, plan.generator.masked.positions)
        losses = generator.token_losses(params, {}, plan.generator, hidden)
        corrupted, _ = exact._corrupted(params, {}, plan, hidden, sample_key)
        counts = plan.generator.masked.weights.sum(axis=1)
        return corrupted.tokens, losses.sum(axis=1), counts

    def _metrics(
        self, plan: Plan, of_masked: jax.Array, of_text: jax.Array, is_right: jax.Array,
        corrupted: Corrupted, logits: jax.Array,
    ) -> dict[str, tuple[jax.Array, jax.Array]]:  # fmt: skip
        """Return sums and weights of metrics by row, [B] each."""

        def count(condition: jax.Array) -> jax.Array:
            return condition.sum(axis=1, dtype=jnp.float32)

        masked, text = plan.generator.masked.weights.sum(axis=1), count(plan.is_text)
        is_replaced, is_found = (plan.is_text & one for one in (corrupted.is_replaced, logits > 0))
        replaced, right = count(is_replaced), count(is_found & is_replaced)
        segments = plan.generator.segments
        return {
            "/generator_loss": (of_masked.sum(axis=1), masked),
            "/generator_accuracy": (count(is_right), masked),
            "/discriminator_loss": (of_text.sum(axis=1), text),
            "/replaced": (replaced, text),
            "/precision": (right, count(is_found)),
            "/recall": (right, replaced),
            "/padding": (count(segments == 0), count(segments >= 0)),
        }

    def init_aux_state(self) -> AuxState:
        own = {PAIR_LOSSES: init_pair_losses(self.num_pairs)} if self.num_pairs else {}
        return {**super().init_aux_state(), **own}

    @functools.cached_property
    def exact(self) -> "ReplacedToken":
        return dataclasses.replace(self, generator=self.generator.exact)
