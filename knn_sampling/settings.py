"""Settings of the output layer. Nothing here needs jax."""

import dataclasses
from typing import Any

EXACT = ("full", "blockwise")
SAMPLED = ("knn", "target_sampling", "nce", "neg")
KINDS = (*EXACT, *SAMPLED)


def _key(default: Any, *, choices: tuple[str, ...] = (), **limits: float) -> Any:
    """Declare a key of a config, like `xlm.common.schema.key`."""
    metadata = {"key": True, "choices": choices, "effect": "results", **limits}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class OutputLayerSettings:
    """Settings of the output layer; the `output_layer` section of a config.

    Attributes:
      kind: "full" for the softmax over the vocabulary; "blockwise" for the same in blocks, without
        all logits in memory; "knn" for k-NN target sampling; "target_sampling" for the softmax over
        the group's targets and sampled classes (Jean et al. 2015); "nce" for noise-contrastive
        estimation; "neg" for negative sampling; "auto" for the cheapest of the first four by an
        estimate of the step (`costs`), sampled ones with `log_q_correction`.
      k: neighbours per target, K.
      capacity: C, slots in a group's candidate set.
      num_negatives: S, draws from the unigram distribution for a group: with replacement (nce,
        neg), or distinct non-targets (target_sampling; 0 for only the targets).
      group_size: sequences that share a V'; 0 for the whole batch.
      refresh_every: n of Algorithm 2, steps.
      log_q_correction: whether to correct the softmax over V' by `inclusion.log_inclusion`. Without
        it, as in the paper, the loss leaves rare classes too probable.
      full_softmax_fraction: share of the steps, at the end of the run, that train with the softmax
        over the whole vocabulary; 0 in the paper.
      frequency_bias: whether the output bias starts with the log frequency of each piece instead of
        zero. Classes before their first sample then have their unigram probability.
      z_loss: weight of the squared log partition function in the training loss of a softmax, such
        as 1e-5; 0 for none. The logged training loss includes it, evaluation does not.
      row_capacity: R, most table rows that a step reads and updates. 0 allows as many as any batch
        can need. V or more always reads the whole table. See `working_rows`.
    """

    kind: str = _key("full", choices=(*KINDS, "auto"))
    k: int = _key(50, at_least=0)
    capacity: int = _key(65_536, at_least=0)
    num_negatives: int = _key(50_000, at_least=0)
    group_size: int = _key(0, at_least=0)
    refresh_every: int = _key(1000, at_least=1)
    log_q_correction: bool = _key(False)
    full_softmax_fraction: float = _key(0.0, at_least=0, at_most=1)
    frequency_bias: bool = _key(False)
    z_loss: float = _key(0.0, at_least=0)
    row_capacity: int = _key(0, at_least=0)

    def __post_init__(self):
        # The reader of a config checks the limits of single keys.
        if self.kind == "knn":
            require(self.k >= 1, "k", self.k, "at least 1")
        if self.kind in ("nce", "neg"):
            require(self.num_negatives >= 1, "num_negatives", self.num_negatives, "at least 1")
            limit = f"0 with kind {self.kind!r}, which has no partition function"
            require(not self.z_loss, "z_loss", self.z_loss, limit)

    @property
    def is_sampled(self) -> bool:
        """Whether the loss is over part of the vocabulary."""
        return self.kind in SAMPLED

    def num_groups(self, batch_size: int) -> int:
        """G, see `num_groups`."""
        return num_groups(batch_size, self.group_size)


def num_groups(batch_size: int, group_size: int) -> int:
    """G, number of groups in a batch; ValueError if the group size does not divide it."""
    if not group_size:
        return 1
    if batch_size % group_size:
        raise ValueError(
            f"output_layer.group_size is {group_size}, must divide the batch of {batch_size} "
            "sequences; 0 makes the batch one group"
        )
    return batch_size // group_size


def require(holds: bool, key: str, value: Any, limit: str) -> None:
    if not holds:
        raise ValueError(f"output_layer.{key} is {value!r}, must be {limit}")
