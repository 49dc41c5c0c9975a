"""Output layers: six kinds behind one interface, selected by one config key.

A step makes two calls. `sample` selects the classes of the step's loss from the targets and the
neighbour index alone, so that the caller can gather their table rows before differentiation.
`loss` then scores hidden states against these rows, and `draw` draws classes from their
distribution.
"""

import dataclasses
from typing import Any, Protocol

import jax
from jax.sharding import AbstractMesh, Mesh

from knn_sampling.draws import Draws
from knn_sampling.exact_layers import BlockwiseSoftmax, FullSoftmax
from knn_sampling.inclusion import NeighbourIndex
from knn_sampling.sampled_layers import NCE, KNNSampling, NegativeSampling, TargetSampling
from knn_sampling.samples import Sample, TokenStatistics, num_groups
from knn_sampling.table_sharding import TableSharding

EXACT = ("full", "blockwise")
SAMPLED = ("knn", "target_sampling", "nce", "neg")
KINDS = (*EXACT, *SAMPLED)


class OutputLayer(Protocol):
    """Loss of masked positions over the vocabulary, or over a sample of it."""

    @property
    def num_valid(self) -> int:
        """Number of classes; table rows from here on are padding."""

    def sample(
        self,
        key: jax.Array,
        targets: jax.Array,
        weights: jax.Array,
        statistics: TokenStatistics,
        index: NeighbourIndex | None,
    ) -> Sample | None:
        """Select the classes in the loss of a batch; None for all.

        Args:
          targets: [B, M] int32 target ids.
          weights: [B, M] float, 0 for unused positions.
          statistics: of the tokens, for a table of V rows.
          index: neighbour index, for "knn" only.

        Raises:
          ValueError: groups that do not divide the batch.
        """

    def loss(
        self,
        hidden: jax.Array,
        targets: jax.Array,
        weights: jax.Array,
        table: jax.Array,
        bias: jax.Array,
        sample: Any,
    ) -> jax.Array:
        """Weighted losses [B, M] of the positions, float32 nats.

        Args:
          hidden: [B, M, E] hidden states.
          targets: [B, M] int32; weights: [B, M] float, both as passed to `sample`.
          table: [R, E] table rows, at least those of the sample; the whole table if `sample` is
            None, or if its `candidate_rows` are its ids, as `sample` returns them.
          bias: [V] output bias.
          sample: from `sample`, with the `candidate_rows` of this table.
        """

    def draw(
        self,
        key: jax.Array,
        hidden: jax.Array,
        weights: jax.Array,
        table: jax.Array,
        bias: jax.Array,
        sample: Any,
        temperature: float,
    ) -> Draws:
        """Draw a class at each position from softmax((h . v + b) / temperature).

        Sampled layers draw from V'. If they know the probability Q_j that V' holds a class, each is
        drawn in proportion to exp((h . v_j + b_j) / temperature) / Q_j, as an estimate of the
        softmax over the vocabulary. No gradient flows.

        Args:
          hidden, weights, table, bias, sample: as passed to `loss`.
          temperature: at least 0, static; 0 draws the likeliest class.

        Raises:
          ValueError: a negative temperature.
        """


@dataclasses.dataclass(frozen=True)
class OutputLayerSettings:
    """Settings of the output layer; the `output_layer` section of a config.

    Attributes:
      kind: "full" for the softmax over the vocabulary; "blockwise" for the same in blocks, without
        holding its logits; "knn" for k-NN target sampling; "target_sampling" for the softmax over
        the group's targets and sampled classes (Jean et al. 2015); "nce" for noise-contrastive
        estimation; "neg" for negative sampling.
      k: neighbours per target, K.
      capacity: C, slots in a group's candidate set.
      num_negatives: S, classes drawn from the unigram distribution for a group: with replacement
        (nce, neg), or distinct non-targets (target_sampling; 0 for targets alone).
      group_size: sequences that share a V'; 0 for the whole batch.
      refresh_every: n of Algorithm 2, steps.
      log_q_correction: correct the softmax over V' by `inclusion.log_inclusion`. The paper does
        not; without it the loss leaves rare classes too probable.
      full_softmax_fraction: share of the steps, at the end of the run, that train with the softmax
        over the whole vocabulary; 0 in the paper.
      frequency_bias: initialise the output bias with the log frequency of each piece instead of
        zero, so that classes not yet sampled have their unigram probability.
      row_capacity: R, most table rows that a step reads and updates; 0 for as many as any batch
        can need, V or more to always read the whole table. See `working_rows`.
    """

    kind: str
    k: int
    capacity: int
    num_negatives: int
    group_size: int
    refresh_every: int
    log_q_correction: bool
    full_softmax_fraction: float
    frequency_bias: bool
    row_capacity: int

    def __post_init__(self):
        _require(self.kind in KINDS, "kind", self.kind, f"one of {KINDS}")
        _require(self.refresh_every >= 1, "refresh_every", self.refresh_every, "at least 1")
        _require(self.group_size >= 0, "group_size", self.group_size, "0 or more sequences")
        _require(self.row_capacity >= 0, "row_capacity", self.row_capacity, "0 or more rows")
        fraction = self.full_softmax_fraction
        _require(0 <= fraction <= 1, "full_softmax_fraction", fraction, "between 0 and 1")
        if self.kind == "knn":
            _require(self.k >= 1, "k", self.k, "at least 1")
        if self.kind in ("nce", "neg"):
            _require(self.num_negatives >= 1, "num_negatives", self.num_negatives, "at least 1")
        if self.kind == "target_sampling":
            _require(self.num_negatives >= 0, "num_negatives", self.num_negatives, "0 or more")

    @property
    def is_sampled(self) -> bool:
        """Whether the loss is over a part of the vocabulary."""
        return self.kind in SAMPLED

    def num_groups(self, batch_size: int) -> int:
        """G, number of groups in a batch of sequences.

        Raises:
          ValueError: the group size does not divide the batch size.
        """
        return num_groups(batch_size, self.group_size)


def make_output_layer(
    settings: OutputLayerSettings,
    *,
    num_valid: int,
    mesh: Mesh | AbstractMesh | None = None,
    vocab_axes: tuple[str, ...] = (),
    embed_axes: tuple[str, ...] = (),
) -> OutputLayer:
    """Build the output layer of the settings' kind.

    Args:
      num_valid: size of the vocabulary, without padding rows.
      mesh: devices that the table and the batch are sharded over; None for a single one.
      vocab_axes, embed_axes: mesh axes that the rows and columns of the table are sharded over.

    Raises:
      ValueError: more neighbours than pieces, or a kind without a layer.
    """
    if not settings.is_sampled:
        return make_exact_layer(
            settings, num_valid=num_valid, mesh=mesh, vocab_axes=vocab_axes, embed_axes=embed_axes
        )
    common: dict[str, Any] = {
        "num_valid": num_valid,
        "group_size": settings.group_size,
        "sharding": TableSharding(mesh, vocab_axes, embed_axes),
    }
    if settings.kind == "nce":
        return NCE(num_negatives=settings.num_negatives, **common)
    if settings.kind == "neg":
        return NegativeSampling(num_negatives=settings.num_negatives, **common)
    common["log_q_correction"] = settings.log_q_correction
    if settings.kind == "target_sampling":
        return TargetSampling(num_negatives=settings.num_negatives, **common)
    if settings.kind == "knn":
        limit = f"between 1 and the vocabulary's {num_valid} pieces"
        _require(settings.k <= num_valid, "k", settings.k, limit)
        return KNNSampling(
            k=settings.k,
            capacity=settings.capacity,
            refresh_every=settings.refresh_every,
            **common,
        )
    raise ValueError(
        f"output_layer.kind is {settings.kind!r}, which no layer is built for; add it to "
        "make_output_layer"
    )


def make_exact_layer(
    settings: OutputLayerSettings,
    *,
    num_valid: int,
    mesh: Mesh | AbstractMesh | None = None,
    vocab_axes: tuple[str, ...] = (),
    embed_axes: tuple[str, ...] = (),
) -> OutputLayer:
    """Build the full-vocabulary softmax for exact steps and evaluation; arguments as above."""
    exact_layer = FullSoftmax if settings.kind == "full" else BlockwiseSoftmax
    return exact_layer(num_valid, TableSharding(mesh, vocab_axes, embed_axes))


def _require(holds: bool, key: str, value: Any, limit: str) -> None:
    if not holds:
        raise ValueError(f"output_layer.{key} is {value!r}, must be {limit}")
