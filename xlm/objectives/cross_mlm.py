"""Inner- and cross-sequence masked LM (IS-MLM and CS-MLM) of VECO, with TLM.

Section and equation numbers are those of VECO's anonymous submission to ICLR 2021. At ACL 2021 the
authors let both masked sequences see all of themselves: `context` "full" here.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from xlm.models.encoder import Context, run_encoder
from xlm.models.segments import other_segment_mask, split_in_halves
from xlm.objectives.masked_lm import MaskedLM, OnMaskedLM
from xlm.objectives.masked_lm import Plan as MaskedPlan
from xlm.objectives.objective import AuxState, Batch, LossAndMetrics, Touched
from xlm.objectives.settings import VecoSettings


class Plan(NamedTuple):
    """IS-MLM's plan, within sides.

    `sides` [B, L] int32 are 2 i - 1 for x and 2 i for y of a row's i-th pair of sides, 0 for
    padding.
    """

    masked_lm: MaskedPlan
    sides: jax.Array


@dataclasses.dataclass(frozen=True, eq=False)
class CrossMLM(OnMaskedLM):
    """VECO's objective on sequences with sides x and y (Eq. 8), for one kind of batch.

    - IS-MLM: masked LM within each side (Eq. 5).
    - CS-MLM: the same masked tokens of y, from y up to them and, by cross-attention, from IS-MLM's
      detached states of x (Eq. 7). The same pass predicts x from y.
    - TLM: the same masked tokens from both sides as one segment, for translations.

    The terms share masks, candidates and table rows. Eq. 8 is symmetric in x and y and each side
    has its own positions, so swapping the sides of an example changes nothing.

    `masked_lm` takes packed sequences, whose halves are the sides, without a `translation_lm`. Or
    it takes rows of pairs whose sentences are separate segments.
    """

    masked_lm: MaskedLM
    settings: VecoSettings
    translation_lm: MaskedLM | None = None

    def plan(
        self, aux_state: AuxState, batch: Batch, key: jax.Array, step: jax.Array
    ) -> tuple[Plan, Touched]:
        """Mask a batch once for all terms; split packed sequences into halves."""
        plan, touched = self.masked_lm.plan(aux_state, batch, key, step)
        if self.translation_lm is not None:
            return Plan(plan, plan.segments), touched
        segments, positions, sides = split_in_halves(plan.segments, plan.positions)
        return Plan(plan._replace(segments=segments, positions=positions), sides), touched

    def example_axes(self, plan: Plan, num_shards: int) -> Plan | None:
        """Return the axes of the sequences; None if masked LM has none."""
        axes = self.masked_lm.example_axes(plan.masked_lm, num_shards)
        return None if axes is None else Plan(axes, 0)  # type: ignore[arg-type]

    def loss(self, params, rows, plan: Plan, key: jax.Array | None) -> tuple[LossAndMetrics, None]:
        """Return the weighted sum of the terms over masked tokens; without a key, no dropout."""
        one, settings = self.masked_lm, self.settings
        states = one.states(params, rows, plan.masked_lm, key)
        losses = one.losses_from(params, rows, plan.masked_lm, states)
        found = one.metrics_of(losses, plan.masked_lm)
        inner, weight = found["loss"]
        found |= _by_side("is_loss", losses, plan.masked_lm, plan.sides)
        total = settings.is_weight * inner
        if settings.cs_weight:
            cross_plan = self._cross_plan(plan)
            # Detached, since only IS-MLM trains the encoder (VECO, Section 2.2).
            decoded = self.decoded(params, rows, plan, jax.lax.stop_gradient(states), key)
            losses = one.losses_from(params, rows, cross_plan, decoded)
            found |= _by_side("cs_loss", losses, cross_plan, plan.sides)
            total += settings.cs_weight * found["cs_loss"][0]
        if self.translation_lm is not None and settings.tlm_weight:
            joined, tlm = self._joined_plan(plan), self.translation_lm
            states = tlm.states(params, rows, joined, _of_pass(key, 1))
            translation = tlm.losses_from(params, rows, joined, states).sum()
            found["tlm_loss"] = translation, weight
            total += settings.tlm_weight * translation
        return {**found, "loss": (total, weight)}, None

    def decoded(
        self, params, rows, plan: Plan, states: jax.Array, key: jax.Array | None
    ) -> jax.Array:
        """Decode each side with IS-MLM's states [B, L, D] of the other one, to [B, L, D]."""
        one, found = self.masked_lm, plan.masked_lm
        return run_encoder(
            one.encoder, one.encoder_params(params), found.tokens, found.segments, found.positions,
            Context(states, other_segment_mask(plan.sides)),
            is_causal=self.settings.context == "causal", key=_of_pass(key, 0),
            table=rows.get(one.table_path, one.output_table(params)[0]), method="decode",
        )  # fmt: skip

    def _cross_plan(self, plan: Plan) -> MaskedPlan:
        """Return the plan of CS-MLM, without targets whose side has no other side to see."""
        masked = plan.masked_lm.masked
        has_other = other_segment_mask(plan.sides).matrix().any(axis=3)[:, 0]  # [B, L]
        if self.translation_lm is None and not self.settings.flip:
            has_other &= plan.sides == 2  # predict only the second side from the first
        weights = masked.weights * jnp.take_along_axis(has_other, masked.positions, axis=1)
        return plan.masked_lm._replace(masked=masked._replace(weights=weights))

    def _joined_plan(self, plan: Plan) -> MaskedPlan:
        """Return TLM's plan: each pair is one segment `<s> a </s> </s> b </s>`."""
        found, is_start = plan.masked_lm, plan.masked_lm.positions == 0
        is_second = (plan.sides > 0) & (plan.sides % 2 == 0)
        # y's <s>, after an </s>.
        tokens = jnp.where(is_start & is_second, jnp.roll(found.tokens, 1, axis=1), found.tokens)
        positions = found.positions
        assert self.translation_lm is not None
        if not self.translation_lm.positions_restart:
            index = jnp.broadcast_to(jnp.arange(positions.shape[1]), positions.shape)
            start = jax.lax.cummax(jnp.where(is_start & ~is_second, index, 0), axis=1)
            positions = index - start
        segments = (plan.sides + 1) // 2
        return found._replace(tokens=tokens, segments=segments, positions=positions)

    @functools.cached_property
    def exact(self) -> "CrossMLM":
        tlm = self.translation_lm
        exact = None if tlm is None else dataclasses.replace(tlm, output_layer=tlm.exact_layer)
        return dataclasses.replace(self, masked_lm=self.masked_lm.exact, translation_lm=exact)


def _by_side(name: str, losses: jax.Array, plan: MaskedPlan, sides: jax.Array) -> LossAndMetrics:
    """Sum losses [B, M] as `name`, and by predicted side (the terms of Eq. 8) as name/x, name/y."""
    weights = plan.masked.weights
    of_targets = jnp.take_along_axis(sides, plan.masked.positions, axis=1)
    found = {name: (losses.sum(), weights.sum())}
    for rest, letter in ((1, "x"), (0, "y")):
        here = of_targets % 2 == rest
        found[f"{name}/{letter}"] = (losses * here).sum(), (weights * here).sum()
    return found


def _of_pass(key: jax.Array | None, number: int) -> jax.Array | None:
    """Return the key of a further pass with dropout, None without dropout."""
    # Masked LM splits the key into three, which may equal keys folded with 0, 1 and 2.
    return None if key is None else jax.random.fold_in(key, 3 + number)
