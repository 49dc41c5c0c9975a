"""Neighbour index against FAISS: speed and recall of a refresh.

    python -m benchmarks.neighbour_index --cores=1     # some minutes on a CPU
    python -m benchmarks.neighbour_index --vocab_sizes=500000 --width=768 --queries=65536   # a GPU

All methods answer the same queries, interleaved. Times are medians. FAISS' IndexFlatIP runs on the
CPU even if there is a GPU, and gets 1024 queries at a time. Its table is prepared in advance. Ours
is laid out again in each call, as in a refresh. `float32 products alone` is the matrix product
without selection, a lower bound for any index that scores all tokens in float32. Recall is against
sorted float64 products, for the first 256 queries. Tokens within float32's rounding error count as
found. Tokens have clusters, so they have neighbours.
"""

import functools
import importlib
import itertools
import os
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from benchmarks import machine
from knn_sampling.neighbours import SCORES, nearest_neighbours

_VOCAB_SIZES = flags.DEFINE_list("vocab_sizes", ["65536", "131072"], "V, tokens.")
_WIDTH = flags.DEFINE_integer("width", 256, "E, width of the table.")
_K = flags.DEFINE_integer("k", 50, "Neighbours per token.")
_QUERIES = flags.DEFINE_integer("queries", 8192, "Queries per timing.")
_BLOCK_SIZES = flags.DEFINE_list("block_sizes", ["128", "256", "512"], "Ours.")
machine.define_flags(cores=0, repetitions=3)

FAISS, PLAIN = "FAISS IndexFlatIP", "lax.top_k, blocks of {}"
FAISS_QUERIES = 1024
RECALL_QUERIES = 256
DEFAULT_BLOCK = 256

Run = Callable[[], jax.Array | np.ndarray]


def clustered_tokens(vocab_size: int, width: int) -> np.ndarray:
    """Embeddings [V, E] float32 in clusters of about 64, in random order, with norms around one."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(-(-vocab_size // 64), width))
    vectors = centres[rng.integers(0, len(centres), vocab_size)]
    vectors += rng.normal(size=vectors.shape)
    vectors *= rng.uniform(0.8, 1.2, size=(vocab_size, 1)) / np.sqrt(2 * width)
    return vectors.astype(np.float32)


@functools.partial(jax.jit, static_argnames=("k", "block_size"))
def plain_top_k(table: jax.Array, queries: jax.Array, k: int, block_size: int) -> jax.Array:
    """Search naively: products of a block of queries, and `lax.top_k` over all tokens."""

    def answer(block: jax.Array) -> jax.Array:
        scores = jnp.dot(block, table.T, precision=jax.lax.Precision.HIGHEST)
        return jax.lax.top_k(scores, k)[1]

    blocks = queries.reshape(-1, block_size, queries.shape[1])
    return jax.lax.map(answer, blocks).reshape(-1, k)


@functools.partial(jax.jit, static_argnames="block_size")
def products_alone(table: jax.Array, queries: jax.Array, block_size: int) -> jax.Array:
    """Compute all products; return a few, so that XLA keeps them."""

    def answer(block: jax.Array) -> jax.Array:
        scores = jnp.dot(block, table.T, precision=jax.lax.Precision.HIGHEST)
        return jax.lax.optimization_barrier(scores)[:, ::1024]

    return jax.lax.map(answer, queries.reshape(-1, block_size, queries.shape[1]))


def faiss_run(vectors: np.ndarray, num_queries: int, k: int) -> Run | None:
    """Build a search by FAISS; None if it is not installed."""
    try:
        faiss = importlib.import_module("faiss")
    except ModuleNotFoundError:
        return None
    faiss.omp_set_num_threads(flags.FLAGS.cores or os.cpu_count())
    index = faiss.IndexFlatIP(vectors.shape[1])
    index.add(vectors)
    starts = range(0, num_queries, FAISS_QUERIES)
    stops = [min(start + FAISS_QUERIES, num_queries) for start in starts]
    return lambda: np.concatenate(
        [index.search(vectors[a:b], k)[1] for a, b in zip(starts, stops, strict=True)]
    )


def runs_of(vectors: np.ndarray, num_queries: int, k: int) -> dict[str, Run]:
    """Return the benchmarked methods by name."""
    table, ids = jnp.asarray(vectors), jnp.arange(num_queries)
    queries = table[:num_queries]
    runs: dict[str, Run] = {}
    peer = faiss_run(vectors, num_queries, k)
    if peer:
        runs[FAISS] = peer
    block = DEFAULT_BLOCK
    runs[PLAIN.format(block)] = lambda: plain_top_k(table, queries, k, block)
    runs[f"float32 products alone, blocks of {block}"] = lambda: products_alone(
        table, queries, block
    )
    ours = functools.partial(nearest_neighbours, table, k=k, num_valid=len(vectors), query_ids=ids)
    for scores, size in itertools.product(SCORES, map(int, _BLOCK_SIZES.value)):
        runs[f"ours, {scores}, blocks of {size}"] = functools.partial(
            ours, block_size=size, scores=scores
        )
    return runs


def recall(index: np.ndarray, vectors: np.ndarray) -> float:
    """Return the recall of true neighbours in the lists [Q, K] of the first tokens."""
    index = index[:RECALL_QUERIES]
    k = index.shape[1]
    found = 0.0
    for ids, query in zip(index, vectors.astype(np.float64), strict=False):
        scores = vectors @ query
        last = np.partition(scores, -k)[-k]
        found += np.unique(ids[scores[ids] >= last - 1e-6 * np.abs(last)]).size
    return found / index.size


def main(_) -> None:
    report = machine.start()
    k, num_queries = _K.value, _QUERIES.value
    if num_queries % DEFAULT_BLOCK:
        raise ValueError(f"--queries is {num_queries}, must be a multiple of {DEFAULT_BLOCK}")
    columns = {"V": ",", "": "", "us a query": ".0f", "over the first": ".2f", "recall": ".4f"}
    report.table(f"{num_queries} queries, E = {_WIDTH.value}, k = {k}", columns)
    for vocab_size in map(int, _VOCAB_SIZES.value):
        vectors = clustered_tokens(vocab_size, _WIDTH.value)
        runs = runs_of(vectors, num_queries, k)
        peer = next(iter(runs))  # lax.top_k where FAISS is not installed
        seconds = machine.interleaved_medians(runs, flags.FLAGS.repetitions)
        for name, run in runs.items():
            found = None if "products alone" in name else recall(np.asarray(run()), vectors)
            ratio = seconds[peer] / seconds[name]
            report.row(vocab_size, name, 1e6 * seconds[name] / num_queries, ratio, found)


if __name__ == "__main__":
    app.run(main)
