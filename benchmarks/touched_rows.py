"""Table rows touched by a step of k-NN sampling, against the bound for any batch.

    python -m benchmarks.touched_rows

For choosing `output_layer.row_capacity` before a run, whose metric `train/table_rows` then gives
the actual number. Tokens follow Zipf's law; the neighbours of a token are those of its cluster, as
after some training, or random, as at the start. The default is the batch of
`configs/vocap_paper.py`: 256 sequences of 512 tokens in 8 groups, 15 % masked, k = 50.
"""

import numpy as np
from absl import app, flags

_VOCAB_SIZES = flags.DEFINE_list("vocab_sizes", ["250000", "500000", "1000000"], "V.")
_GROUPS = flags.DEFINE_integer("groups", 8, "G, groups of the batch.")
_GROUP_TOKENS = flags.DEFINE_integer("group_tokens", 32 * 512, "Tokens of a group.")
_K = flags.DEFINE_integer("k", 50, "Neighbours of a target.")
_CAPACITY = flags.DEFINE_integer("capacity", 65_536, "C, candidates of a group.")
_MASKED = flags.DEFINE_float("masked", 0.15, "Share of the tokens that are targets.")


def needed_rows(vocab_size: int, clustered: bool, rng: np.random.Generator) -> tuple[int, int, int]:
    """Count rows of inputs and targets, rows including all candidates, and the largest |V'|."""
    p = 1 / (rng.permutation(vocab_size) + 10.0)
    tokens = rng.choice(vocab_size, (_GROUPS.value, _GROUP_TOKENS.value), p=p / p.sum())
    targets = tokens[:, : int(_MASKED.value * _GROUP_TOKENS.value)]
    touched, required, largest = set(), set(np.unique(tokens).tolist()), 0
    for group in targets:
        distinct = np.unique(group)
        if clustered:  # clusters mix frequent and rare tokens
            near = distinct[:, None] // _K.value * _K.value + np.arange(_K.value)
        else:
            near = rng.integers(0, vocab_size, (len(distinct), _K.value))
        union = np.unique(np.concatenate([distinct, np.minimum(near, vocab_size - 1).ravel()]))
        largest = max(largest, len(union))
        touched |= set(union[: _CAPACITY.value].tolist())
    return len(required), len(required | touched), largest


def main(_) -> None:
    rng = np.random.default_rng(0)
    tokens = _GROUPS.value * _GROUP_TOKENS.value
    masked = _GROUPS.value * int(_MASKED.value * _GROUP_TOKENS.value)
    print(f"{tokens:,} tokens in {_GROUPS.value} groups, {masked:,} masked, k = {_K.value}\n")
    print("| V | neighbours | inputs and targets | all rows | largest V' | any batch |")
    print("|---:|---|---:|---:|---:|---:|")
    for vocab_size in map(int, _VOCAB_SIZES.value):
        bound = min(_GROUPS.value * _CAPACITY.value, vocab_size) + min(tokens, vocab_size)
        for name, clustered in (("clustered", True), ("random", False)):
            required, rows, largest = needed_rows(vocab_size, clustered, rng)
            print(
                f"| {vocab_size:,} | {name} | {required:,} | {rows:,} | {largest:,} | {bound:,} |"
            )


if __name__ == "__main__":
    app.run(main)
