"""Masked language modelling (MLM) on packed sequences, on pairs (TLM) or both."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from knn_sampling.inclusion import NeighbourIndex
from knn_sampling.output_layer import OutputLayer
from knn_sampling.sampled_layers import KNNSampling
from knn_sampling.samples import Sample, TokenStatistics, example_axes
from knn_sampling.working_rows import num_distinct_rows, working_rows
from xlm.models.encoder import Encoder, init_params, output_table, run_encoder
from xlm.models.segments import packed_segments
from xlm.objectives.masking import Masked, mask_tokens
from xlm.objectives.objective import AuxState, Batch, LossAndMetrics, Objective, Touched
from xlm.objectives.settings import MaskSettings

TABLE = "embeddings/table"
NEIGHBOURS = "neighbours"  # [V, K], a part of the auxiliary state that terms of a mixture share


class Plan(NamedTuple):
    """Masked batch and the classes of its softmax.

    Attributes:
      segments, positions: [B, L] int32; tokens attend within their segment.
      tokens: [B, L] int32, `masked.inputs` as indices of the rows given to the loss.
      sample: the classes of the softmax; None for the whole vocabulary.
      num_rows: scalar int32, number of table rows that the step needs; None without sampling.
      language: [B] int32, see `MaskedLM.languages`; None without metrics by language.
      mask_rate: scalar float32, of text; None if it is constant.
      task: [B] int32, see `MaskedLM`; None for a batch of one task.
      factor: [B] float32, multiplies the losses of each row; None for a batch of one task.
    """

    masked: Masked
    segments: jax.Array
    positions: jax.Array
    tokens: jax.Array
    sample: Sample | None
    num_rows: jax.Array | None
    language: jax.Array | None
    mask_rate: jax.Array | None
    task: jax.Array | None = None
    factor: jax.Array | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class MaskedLM(Objective):
    """Masked LM on batches with `tokens` [B, L] and, for metrics by language, `language` [B].

    Tokens attend within the documents of a packed sequence, or within the `segments` [B, L] of a
    batch that has them and `positions` [B, L]. If both sentences of a pair are one segment, this is
    TLM (Conneau and Lample 2019). A batch with `task` [B] has rows of text (0), which are packed
    sequences, and of pairs (1). They share one pass and the classes of the softmax. The loss of
    such a batch is the sum of each task's mean loss.

    Attributes:
      exact_layer: the output layer without sampling, for evaluation and the full-softmax phase.
      num_steps: steps of the run, over which the mask rate changes.
      bos, pad, mask_id: ids of `<s>`, padding and `<mask>`.
      special_ids: ids that are never masked.
      across_documents: whether attention crosses the documents of a sequence.
      name: unique within a mixture; names the objective's part of the auxiliary state.
      statistics: of the tokens as targets; empty if neither sampling nor the bias needs them.
      later_statistics: (step, statistics) pairs that replace `statistics` from a step on.
      row_capacity: R, most table rows that a step reads and updates. 0 allows as many as any batch
        can need. V or more always reads the whole table.
      languages: names for metrics by language; empty for none.
      frequency_bias: whether the output bias starts with log frequencies.
      full_softmax_from: first step with an exact softmax; None for no such phase.
      scope: key of the model's parameters among those of a larger objective, "" if there are none.
      positions_restart: whether positions restart in the second sentence of a segment.
      pair_weight: weight of the loss on pairs, in batches with both tasks.
    """

    encoder: Encoder
    output_layer: OutputLayer
    exact_layer: OutputLayer
    mask: MaskSettings
    num_steps: int
    bos: int
    pad: int
    mask_id: int
    special_ids: tuple[int, ...]
    across_documents: bool
    statistics: TokenStatistics
    name: str = "mlm"
    later_statistics: tuple[tuple[int, TokenStatistics], ...] = ()
    row_capacity: int = 0
    languages: tuple[str, ...] = ()
    frequency_bias: bool = False
    full_softmax_from: int | None = None
    scope: str = ""
    positions_restart: bool = False
    pair_weight: float = 1.0

    @property
    def table_path(self) -> str:
        return f"{self.scope}/{TABLE}" if self.scope else TABLE

    @property
    def tables(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.table_path,)

    @property
    def used_dtype(self) -> str:  # type: ignore[override]
        return self.encoder.settings.dtype

    def encoder_params(self, params):
        """Return the parameters of the encoder and its head, among all parameters."""
        return params[self.scope] if self.scope else params

    def output_table(self, params) -> tuple[jax.Array, jax.Array]:
        """Return output embeddings [V, E] and output bias [V]."""
        return output_table(self.encoder_params(params))

    def init(self, key: jax.Array):
        params = init_params(self.encoder, key)
        if self.frequency_bias:
            bias = params["head"]["bias"]
            # Padding rows have probability zero and an unused logit.
            log_frequency = jnp.log(jnp.maximum(self.statistics.probabilities, 1e-10))
            params["head"]["bias"] = bias.replace_boxed(log_frequency.astype(jnp.float32))
        return {self.scope: params} if self.scope else params

    def plan(
        self, aux_state: AuxState, batch: Batch, key: jax.Array, step: jax.Array
    ) -> tuple[Plan, Touched]:
        """Mask a batch; select the classes of its softmax and the table rows that it reads."""
        mask_key, _, sample_key = jax.random.split(key, 3)
        mask, rate = self.mask, self.mask.rate_at(step, self.num_steps)
        rates, task = rate, batch.arrays.get("task")
        if task is not None and mask.pair_rate:
            rates = jnp.where(task == 1, mask.pair_rate, mask.rate if rate is None else rate)
            mask = dataclasses.replace(mask, rate=max(mask.rate, mask.pair_rate))
        masked = mask_tokens(
            mask_key, batch["tokens"], mask, vocab_size=self.output_layer.num_valid,
            mask_id=self.mask_id, special_ids=self.special_ids, rate=rates,
        )  # fmt: skip
        segments, positions = self.layout(batch)
        index = self._index(aux_state)
        sample = self.output_layer.sample(
            sample_key, masked.targets, masked.weights, self.statistics_at(step), index
        )
        language = batch["language"] if self.languages else None
        factor = None if task is None else self._factor(masked, task)
        plan = Plan(
            masked, segments, positions, masked.inputs, sample, None, language, rate, task, factor
        )
        if sample is None:
            return plan, {}
        return self._with_rows(plan, sample)

    def layout(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """Return segments and positions [B, L] int32 of the tokens of a batch."""
        if "segments" not in batch.arrays:
            return self._packed(batch["tokens"])
        given = batch["segments"], batch["positions"]
        if "task" not in batch.arrays:
            return given
        is_pair = (batch["task"] == 1)[:, None]
        packed = self._packed(batch["tokens"])
        return jax.tree.map(lambda one, two: jnp.where(is_pair, one, two), given, packed)

    def _factor(self, masked: Masked, task: jax.Array) -> jax.Array:
        """Return factors [B] that turn the mean over masked tokens into the sum of tasks' means."""
        num_masked = masked.weights.sum(axis=1)
        weights = jnp.where(task == 1, self.pair_weight, 1.0)
        return weights * num_masked.sum() / jnp.maximum(task_totals(num_masked, task), 1)

    def _packed(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        return packed_segments(
            tokens, bos=self.bos, pad=self.pad, across_documents=self.across_documents
        )

    def _with_rows(self, plan: Plan, sample: Sample) -> tuple[Plan, Touched]:
        """Index tokens and candidates by touched table rows, if they are few."""
        vocab_size = self.encoder.settings.vocab_size
        ids, tokens = sample.candidates.ids, plan.masked.inputs
        if not reads_few_rows(ids.size, tokens.size, vocab_size, self.row_capacity):
            num_rows = num_distinct_rows(ids, tokens, vocab_size)
            return plan._replace(num_rows=num_rows), {}
        rows = working_rows(
            ids, tokens, vocab_size, self.row_capacity, required=plan.masked.targets
        )
        sample = sample._replace(candidate_rows=rows.candidates)
        plan = plan._replace(tokens=rows.tokens, sample=sample, num_rows=rows.num_needed)
        return plan, {self.table_path: rows.ids}

    def example_axes(self, plan: Plan, num_shards: int) -> Plan | None:
        """Return the axes of the sequences; None if groups cross shards, or the encoder does."""
        sample = None if plan.sample is None else example_axes(plan.sample, num_shards)
        crosses_shards = plan.sample is not None and sample is None
        if crosses_shards or not self.encoder.settings.can_map_shards():
            return None
        return Plan(
            masked=0, segments=0, positions=0, tokens=0, sample=sample,  # type: ignore[arg-type]
            num_rows=None, language=0, mask_rate=None, task=0, factor=0,  # type: ignore[arg-type]
        )  # fmt: skip

    def loss(self, params, rows, plan: Plan, key: jax.Array | None) -> tuple[LossAndMetrics, None]:
        """Return the negative log-likelihood of masked tokens; without a key, no dropout."""
        losses = self.losses_from(params, rows, plan, self.states(params, rows, plan, key))
        found = self.metrics_of(losses, plan)
        if plan.task is not None:
            of_rows = losses.sum(axis=1), plan.masked.weights.sum(axis=1)
            found |= sums_of_tasks({"_loss": of_rows}, plan.task, ("mlm", "tlm"))
        return found, None

    def states(self, params, rows, plan: Plan, key: jax.Array | None) -> jax.Array:
        """Return the encoder's hidden states [B, L, D]."""
        return run_encoder(
            self.encoder, self.encoder_params(params), plan.tokens, plan.segments, plan.positions,
            key=None if key is None else jax.random.split(key, 3)[1],
            table=rows.get(self.table_path, self.output_table(params)[0]),
            positions_restart=self.positions_restart,
        )  # fmt: skip

    def losses_from(self, params, rows, plan: Plan, states: jax.Array) -> jax.Array:
        """Return losses [B, M] of the masked tokens from the hidden states [B, L, D]."""
        hidden = self.predicted(params, states, plan.masked.positions)
        return self.token_losses(params, rows, plan, hidden)

    def token_losses(self, params, rows, plan: Plan, hidden: jax.Array) -> jax.Array:
        """Return losses [B, M] of the masked tokens from output layer inputs [B, M, E]."""
        table, bias = self.output_table(params)
        table = rows.get(self.table_path, table)
        targets, weights = plan.masked.targets, plan.masked.weights
        return self.output_layer.loss(hidden, targets, weights, table, bias, plan.sample)

    def metrics_of(self, losses: jax.Array, plan: Plan) -> LossAndMetrics:
        """Return loss and metrics, given the losses [B, M] of the masked tokens."""
        masked, one = plan.masked, jnp.float32(1)
        found = {
            "loss": (losses.sum(), masked.weights.sum()),
            **{name: (value, one) for name, value in self.sampling_metrics(plan).items()},
        }
        if plan.mask_rate is not None:
            found["mask_rate"] = (plan.mask_rate, one)
        if plan.language is not None:
            found |= self._by_language(losses, masked.weights, plan.language)
        if plan.factor is not None:
            found["loss"] = (losses.sum(axis=1) * plan.factor).sum(), found["loss"][1]
        return found

    def predicted(self, params, states: jax.Array, positions: jax.Array) -> jax.Array:
        """Return inputs [B, M, E] of the output layer from the states at `positions` [B, M]."""
        chosen = jnp.take_along_axis(states, positions[:, :, None], axis=1)  # [B, M, D]
        return self.encoder.apply({"params": self.encoder_params(params)}, chosen, method="predict")

    def sampling_metrics(self, plan: Plan) -> dict[str, jax.Array]:
        """Return candidates per group, overflow of V', and table rows needed."""
        if plan.sample is None:
            classes = jnp.float32(self.output_layer.num_valid)
            return {"candidates": classes, "overflow": jnp.float32(0)}
        found = plan.sample.candidates
        assert plan.num_rows is not None
        return {
            "candidates": found.union_size.mean(dtype=jnp.float32),
            "overflow": found.overflow().mean(dtype=jnp.float32),
            "table_rows": plan.num_rows.astype(jnp.float32),
        }

    def describe_table_reads(self, batch_size: int, length: int) -> str:
        """Describe which table rows a step on packed sequences reads and updates, and why."""
        vocab_size = self.encoder.settings.vocab_size
        tokens = jax.ShapeDtypeStruct((batch_size, length), jnp.int32)
        language = jax.ShapeDtypeStruct((batch_size,), jnp.int32)
        batch = Batch({"tokens": tokens, "language": language}, "packed")
        key, step = jax.eval_shape(lambda: (jax.random.key(0), jnp.int32(0)))
        aux_state = jax.eval_shape(self.init_aux_state)
        plan, touched = jax.eval_shape(self.plan, aux_state, batch, key, step)
        if plan.sample is None:
            return f"all {vocab_size:,} table rows in every step: the softmax is over all of them"
        groups, slots = plan.sample.candidates.ids.shape
        most = f"{groups} x {slots:,} candidates and {batch_size * length:,} tokens"
        if not touched:
            why = f"output_layer.row_capacity is {self.row_capacity:,}, not fewer"
            if not self.row_capacity:
                why = (
                    f"{most} are not fewer; the metric table_rows shows how many a step needs, "
                    "output_layer.row_capacity limits them"
                )
            return f"all {vocab_size:,} table rows in every step: {why}"
        rows = touched[self.table_path].shape[0]
        why = "output_layer.row_capacity" if rows == self.row_capacity else most
        return f"at most {rows:,} of {vocab_size:,} table rows a step: {why}"

    def _by_language(
        self, losses: jax.Array, weights: jax.Array, language: jax.Array
    ) -> LossAndMetrics:
        """Sum losses and weights [B, M] by language; absent languages have weight zero."""
        of_sequences = jnp.stack([losses, weights]).sum(axis=2)  # [2, B]
        totals = jax.ops.segment_sum(of_sequences.T, language, len(self.languages))  # [N, 2]
        return {
            f"loss/{name}": (totals[i, 0], totals[i, 1]) for i, name in enumerate(self.languages)
        }

    def predictions(
        self, params, inputs: jax.Array, positions: jax.Array,
        layout: tuple[jax.Array, jax.Array] | None = None,
    ) -> jax.Array:  # fmt: skip
        """Return inputs [B, M, E] of the output layer for masked sequences [B, L] int32.

        `layout` gives their segments and positions [B, L] int32, None for packed sequences.
        """
        states = run_encoder(
            self.encoder, self.encoder_params(params), inputs, *(layout or self._packed(inputs)),
            key=None, positions_restart=layout is not None and self.positions_restart,
        )  # fmt: skip
        return self.predicted(params, states, positions)

    @functools.cached_property
    def exact(self) -> "MaskedLM":
        """The same objective with the softmax over the whole vocabulary."""
        return dataclasses.replace(self, output_layer=self.exact_layer, full_softmax_from=None)

    def at_step(self, step: int) -> "MaskedLM":
        is_exact = self.full_softmax_from is not None and step >= self.full_softmax_from
        return self.exact if is_exact else self

    def statistics_at(self, step: jax.Array) -> TokenStatistics:
        """Return the statistics of the targets of a step, scalar int32."""
        found = self.statistics
        for first, later in self.later_statistics:
            found = jax.tree.map(lambda a, b, f=first: jnp.where(step >= f, b, a), found, later)
        return found

    @property
    def inclusion_name(self) -> str:
        """Name of the part of the auxiliary state with inclusion probabilities [V] per target."""
        return f"inclusion_{self.name}"

    def _index(self, aux_state: AuxState) -> NeighbourIndex | None:
        if not isinstance(self.output_layer, KNNSampling):
            return None
        return NeighbourIndex(aux_state[NEIGHBOURS], aux_state.get(self.inclusion_name))

    def init_aux_state(self) -> AuxState:
        """Initialise a placeholder of the neighbour index; refresh it before use."""
        if not isinstance(self.output_layer, KNNSampling):
            return {}
        index = self.output_layer.init_index(self.encoder.settings.vocab_size)
        has_inclusion = index.inclusion is not None
        own = {self.inclusion_name: index.inclusion} if has_inclusion else {}
        return {NEIGHBOURS: index.neighbours, **own}

    def due(self, step: int) -> tuple[str, ...]:
        layer = self.output_layer
        if not isinstance(layer, KNNSampling):
            return ()
        index = () if step % layer.refresh_every else (NEIGHBOURS,)
        changes = index or any(step == first for first, _ in self.later_statistics)
        return (*index, self.inclusion_name) if layer.log_q_correction and changes else index

    def refresh(
        self, params, aux_state: AuxState, names: tuple[str, ...], step: jax.Array
    ) -> tuple[AuxState, LossAndMetrics]:
        """Recompute the neighbour index from the output embeddings (paper Algorithm 2)."""
        layer, statistics = self.output_layer, self.statistics_at(step)
        assert isinstance(layer, KNNSampling)
        report: LossAndMetrics = {}
        if NEIGHBOURS in names:
            table, _ = self.output_table(params)
            neighbours, found = layer.refresh(aux_state[NEIGHBOURS], table, statistics)
            aux_state = {**aux_state, NEIGHBOURS: neighbours}
            report = {name: (value, jnp.float32(1)) for name, value in found.items()}
        if self.inclusion_name in names:
            own = layer.inclusion(aux_state[NEIGHBOURS], statistics)
            aux_state = {**aux_state, self.inclusion_name: own}
        return aux_state, report


def task_totals(of_rows: jax.Array, task: jax.Array | None) -> jax.Array:
    """Sum values [B] over the rows of each row's `task` [B], to [B]; without tasks, to a scalar."""
    if task is None:
        return of_rows.sum()
    return jax.ops.segment_sum(of_rows, task, 2)[task]


def sums_of_tasks(
    of_rows: Mapping[str, tuple[jax.Array, jax.Array]], task: jax.Array | None, names: Sequence[str]
) -> LossAndMetrics:
    """Sum metrics of rows, [B] each, by task name; without tasks under the first name."""
    here: list[Any] = [1.0] if task is None else [task == number for number in range(len(names))]
    return {
        f"{name}{metric}": ((total * own).sum(), (weight * own).sum())
        for name, own in zip(names, here, strict=False)
        for metric, (total, weight) in of_rows.items()
    }


def reads_few_rows(num_slots: int, num_tokens: int, vocab_size: int, row_capacity: int) -> bool:
    """Return whether a step with G C candidate slots and B L tokens gathers its table rows."""
    return (row_capacity or num_slots + num_tokens) < vocab_size


class OnMaskedLM(Objective):
    """Objective with the table, the neighbour index and the phases of a masked LM."""

    masked_lm: MaskedLM

    @functools.cached_property
    def exact(self) -> Any:
        """The same objective with the softmax over the whole vocabulary, always one object."""
        own: Any = self  # of a class that is a dataclass
        return dataclasses.replace(own, masked_lm=self.masked_lm.exact)

    @property
    def tables(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.masked_lm.tables

    @property
    def used_dtype(self) -> str:  # type: ignore[override]
        return self.masked_lm.used_dtype

    def init(self, key: jax.Array):
        return self.masked_lm.init(key)

    def plan(
        self, aux_state: AuxState, batch: Batch, key: jax.Array, step: jax.Array
    ) -> tuple[Any, Touched]:
        return self.masked_lm.plan(aux_state, batch, key, step)

    def init_aux_state(self) -> AuxState:
        return self.masked_lm.init_aux_state()

    def due(self, step: int) -> tuple[str, ...]:
        return self.masked_lm.due(step)

    def refresh(
        self, params, aux_state: AuxState, names: tuple[str, ...], step: jax.Array
    ) -> tuple[AuxState, LossAndMetrics]:
        return self.masked_lm.refresh(params, aux_state, names, step)

    def at_step(self, step: int) -> Any:
        return self if self.masked_lm.at_step(step) is self.masked_lm else self.exact
