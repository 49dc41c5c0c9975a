"""Cost of a training step with each output layer, and the saved share of the vocabulary's cost.

    python -m benchmarks.train_step                        # a CPU, small sizes, minutes
    python -m benchmarks.train_step --preset=base --out=train_step.json    # XLM-R Base, for a GPU

The benchmark times the whole step: masking, encoder, output layer and optimizer. Batches are
synthetic, with targets by Zipf's law. The embedding table has clusters, as trained embeddings do:
then |V'| is half as large as with random ones. T_none is the step with a tiny vocabulary. T_knn
includes the refresh of the index, amortised over its n steps. Then

    R = (T_full - T_knn) / (T_full - T_none)

is the saved share of the vocabulary's cost. The paper's R is 0.70, by its speeds at 250K and 500K
pieces (Table 1, docs/performance.md).

On a GPU borrowed for minutes: the base preset measures one output layer after another, first those
of the goals, and the file of --out is complete after each. Measurements that run out of memory are
recorded and skipped. The command ends within --minutes. Rerun it to continue the file. TensorFlow
is not needed.
"""

import dataclasses
import functools
import gc
import math
import os
import threading
import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from benchmarks.machine import describe_machine, interleaved_medians, set_up
from benchmarks.step_results import FULL, KNN, NONE, Cell, Results, Row, goals, line, tables
from input_pipeline.stream import PACKED
from knn_sampling.noise import cumulative_thresholds
from knn_sampling.output_layer import make_exact_layer, make_output_layer
from knn_sampling.samples import TokenStatistics
from knn_sampling.settings import OutputLayerSettings
from xlm.models.encoder import Encoder, EncoderSettings
from xlm.objectives.masked_lm import NEIGHBOURS, MaskedLM
from xlm.objectives.objective import Batch, Objective
from xlm.objectives.settings import MaskSettings
from xlm.training.settings import MeshSettings, OptimizerSettings
from xlm.training.sharding import make_mesh
from xlm.training.step import TrainFunctions, make_train_functions

BOS, PAD, EOS, UNK, MASK = range(5)
TINY = 1024  # vocabulary size of negligible cost
MODES = {
    FULL: ("full", "dense"),
    KNN: ("knn", "rows"),
    "blockwise": ("blockwise", "dense"),
    "k-NN + dense AdamW": ("knn", "dense"),
    "target sampling + row AdamW": ("target_sampling", "rows"),
    "NCE + row AdamW": ("nce", "rows"),
    "NEG + row AdamW": ("neg", "rows"),
}
# Dense bfloat16, 10^12 FLOPs per second, by device name (vendors' data sheets).
PEAK_TFLOPS = {
    "H200": 989.0, "H100": 989.0, "A100": 312.0, "L4": 121.0, "V100": 125.0, "T4": 65.0,
    "TPU v4": 275.0, "TPU v5 lite": 197.0, "TPU v5": 459.0, "TPU v6 lite": 918.0,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Preset:
    """Preset of model and batch sizes.

    Attributes:
      vocab_sizes: values of V.
      embedding_sizes: values of E.
      capacity: C of k-NN target sampling.
      is_interleaved: whether output layers of a size are timed in turns, so noise affects all
        alike. Then all of them are in memory.
      searches: whether neighbours are searched before a step is timed. Otherwise they are from the
        token's cluster, and a refresh is timed after the step.
      minutes: time limit of the command; 0 for none.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    mlp_size: int
    batch_size: int
    length: int
    dtype: str
    vocab_sizes: tuple[int, ...]
    embedding_sizes: tuple[int, ...]
    k: int
    capacity: int
    num_negatives: int
    clusters_of: int
    is_interleaved: bool
    searches: bool
    minutes: float
    repetitions: int
    steps: int


PRESETS = {
    "base": Preset(
        hidden_size=768, num_layers=12, num_heads=12, mlp_size=3072, batch_size=32, length=512,
        dtype="bfloat16", vocab_sizes=(250_112, 500_224, 1_000_448), embedding_sizes=(768, 384),
        k=50, capacity=57_344, num_negatives=8192, clusters_of=64, is_interleaved=False,
        searches=False, minutes=9.0, repetitions=5, steps=10,
    ),
    "small": Preset(
        hidden_size=128, num_layers=2, num_heads=4, mlp_size=256, batch_size=8, length=64,
        dtype="float32", vocab_sizes=(32_768, 65_536, 131_072), embedding_sizes=(128,),
        k=10, capacity=4096, num_negatives=512, clusters_of=16, is_interleaved=True,
        searches=True, minutes=0.0, repetitions=5, steps=3,
    ),
}  # fmt: skip

_PRESET = flags.DEFINE_enum("preset", "small", sorted(PRESETS), "Sizes.")
_VOCAB = flags.DEFINE_list("vocab_sizes", None, "V, instead of the preset's.")
_WIDTHS = flags.DEFINE_list("embedding_sizes", None, "E, instead of the preset's.")
_REFRESH = flags.DEFINE_integer("refresh_every", 1000, "n, steps from one refresh to the next.")
_MODES = flags.DEFINE_list("modes", None, "Output layers; all by default.")
_LAYERS = flags.DEFINE_integer(
    "num_layers", None, "Layers of the encoder, instead of the preset's."
)
_MINUTES = flags.DEFINE_float("minutes", None, "Time limit, instead of the preset's; 0 for none.")
_PEAK = flags.DEFINE_float("peak_tflops", None, "Peak of the device; by default by its name.")
_ATTENTION = flags.DEFINE_enum(
    "attention", "xla", ["xla", "blockwise", "flash"], "Attention kernel of the encoder."
)
_OUT = flags.DEFINE_string(
    "out", None, "JSON file for the results; an earlier call's is continued."
)


def statistics_of(vocab_size: int) -> TokenStatistics:
    """Return token statistics by Zipf's law, in an order independent of the table."""
    probabilities = np.zeros(vocab_size)
    ranks = np.random.default_rng(0).permutation(vocab_size - MASK - 1)
    probabilities[MASK + 1 :] = 1 / (ranks + 10.0)
    probabilities /= probabilities.sum()
    return TokenStatistics(
        jnp.asarray(probabilities, jnp.float32),
        cumulative_thresholds(probabilities),
        jnp.zeros(vocab_size, jnp.int32),
    )


def objective_of(preset: Preset, kind: str, vocab_size: int, width: int) -> MaskedLM:
    encoder = EncoderSettings(
        vocab_size=vocab_size, embedding_size=width, hidden_size=preset.hidden_size,
        num_layers=preset.num_layers, num_heads=preset.num_heads, mlp_size=preset.mlp_size,
        max_length=preset.length, norm_position="post", dropout_rate=0.1,
        attention_dropout_rate=0.0, dtype=preset.dtype, attention=_ATTENTION.value,
        unroll=preset.num_layers if preset.num_layers < 6 else 1,
    )  # fmt: skip
    settings = OutputLayerSettings(
        kind=kind, k=preset.k, capacity=preset.capacity, row_capacity=0,
        num_negatives=preset.num_negatives, group_size=0, refresh_every=_REFRESH.value,
        log_q_correction=False, full_softmax_fraction=0.0, frequency_bias=False,
    )  # fmt: skip
    return MaskedLM(
        encoder=Encoder(encoder),
        output_layer=make_output_layer(settings, num_valid=vocab_size),
        exact_layer=make_exact_layer(settings, num_valid=vocab_size),
        mask=MaskSettings(rate=0.15, mask_share=0.8, random_share=0.1),
        num_steps=100_000,
        bos=BOS,
        pad=PAD,
        mask_id=MASK,
        special_ids=(BOS, PAD, EOS, MASK),
        across_documents=True,
        statistics=statistics_of(vocab_size),
    )


class Case:
    """Compiled step with its state, ready for timing."""

    def __init__(
        self, preset: Preset, mode: str, vocab_size: int, width: int, *, searches: bool = True
    ):
        """Compile the step; without `searches`, neighbours are from the token's cluster."""
        kind, update = MODES[mode]
        self.objective = objective_of(preset, kind, vocab_size, width)
        self.functions = functions_of(self.objective, update)
        self.preset, self.vocab_size = preset, vocab_size
        self.state = self.functions.init(np.int32(0))
        self.uses_index = bool(self.objective.due(0))
        if self.uses_index:
            clusters = self._cluster(width)
            if searches:
                self.refresh()
            else:
                self._neighbours_of(clusters)
        self.batches = [self._batch(seed) for seed in range(4)]
        self.candidates = self.overflow = 0.0

    def refresh(self) -> float:
        """Measure the seconds of a refresh of the neighbour index."""
        start = time.perf_counter()
        self.state, _ = self.functions.refresh(self.objective.due(0), self.state)
        jax.block_until_ready(self.state.aux_state)
        return time.perf_counter() - start

    def run(self) -> None:
        """Run the preset's number of steps."""
        for number in range(self.preset.steps):
            batch = self.batches[number % len(self.batches)]
            self.state, metrics = self.functions.train_step(self.objective, self.state, batch)
        jax.block_until_ready(self.state)
        self.candidates = float(metrics["candidates"][0])
        self.overflow = float(metrics["overflow"][0])

    def _cluster(self, width: int) -> np.ndarray:
        """Move each embedding towards the centre of its cluster, as training would.

        Returns the cluster [V] of each token.
        """
        number = max(self.vocab_size // self.preset.clusters_of, 1)
        clusters = np.random.default_rng(1).integers(0, number, self.vocab_size)
        table = self.state.params["embeddings"]["table"]

        @functools.partial(jax.jit, out_shardings=table.sharding)
        def values(clusters: jax.Array) -> jax.Array:  # on the device, since the host takes seconds
            centres = jax.random.normal(jax.random.key(1), (number, width))
            return 0.02 * (
                centres[clusters] + 0.5 * jax.random.normal(jax.random.key(2), table.shape)
            )

        self.state.params["embeddings"]["table"] = values(clusters)
        return clusters

    def _neighbours_of(self, clusters: np.ndarray) -> None:
        """Set each token's neighbours: the k tokens from itself on in its cluster."""
        order = np.argsort(clusters, kind="stable")
        sizes = np.bincount(clusters)
        start = (np.cumsum(sizes) - sizes)[clusters]
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        turns = (place - start)[:, None] + np.arange(self.preset.k)
        neighbours = order[start[:, None] + turns % sizes[clusters][:, None]].astype(np.int32)
        neighbours = jax.device_put(neighbours, self.state.aux_state[NEIGHBOURS].sharding)
        aux_state = {**self.state.aux_state, NEIGHBOURS: neighbours}
        self.state = dataclasses.replace(self.state, aux_state=aux_state)

    def _batch(self, seed: int) -> Batch:
        rng = np.random.default_rng(seed)
        p = np.asarray(self.objective.statistics.probabilities, np.float64)
        shape = (self.preset.batch_size, self.preset.length)
        tokens = rng.choice(len(p), shape, p=p / p.sum()).astype(np.int32)
        tokens[:, 0], tokens[:, -1] = BOS, EOS
        return Batch({"tokens": jnp.asarray(tokens)}, PACKED)


def functions_of(objective: Objective, update: str) -> TrainFunctions:
    optimizer = OptimizerSettings(
        learning_rate=1e-4, warmup_steps=10, decay_power=1.0, beta1=0.9, beta2=0.98, epsilon=1e-6,
        weight_decay=0.01, clip_norm=1.0, embedding_update=update,
    )  # fmt: skip
    mesh = MeshSettings(data=1, fsdp=1, model=1, vocab_multiple=1, rules=())
    devices = make_mesh(mesh, jax.devices()[:1])
    return make_train_functions(objective, optimizer, mesh, devices, num_steps=100_000)


def model_flops(preset: Preset, width: int, num_classes: float) -> float:
    """Return model FLOPs of a step with a softmax over `num_classes`, forward and backward."""
    d, length = preset.hidden_size, preset.length
    tokens = preset.batch_size * length
    layer = 2 * (4 * d * d + 2 * d * preset.mlp_size) + 4 * length * d
    masked = math.ceil(0.15 * length) * preset.batch_size
    head = 2 * masked * (d * width + width * num_classes)
    project = 2 * tokens * d * width if width != d else 0
    return 3.0 * (tokens * layer * preset.num_layers + head + project)


def peak_of(device_kind: str) -> float:
    """Return 10^12 FLOPs per second of a device; 0 if unknown."""
    return next((peak for name, peak in PEAK_TFLOPS.items() if name in device_kind), 0.0)


def plan(
    modes: Sequence[str], sizes: Sequence[int], widths: Sequence[int], *, is_interleaved: bool
) -> list[list[Cell]]:
    """Return groups of cells to measure together, the most informative first.

    First come the tiny vocabulary and the full and k-NN softmax at the middle size of each width,
    for R and the speed-up. Then these two at other sizes, for growth. Then the rest.
    """
    middle = sorted(sizes)[len(sizes) // 2]
    ordered = [middle, *sorted((size for size in sizes if size != middle), reverse=True)]
    found: list[list[Cell]] = []
    for width in widths:
        none = Cell(NONE, TINY, width)
        if is_interleaved:
            found += [[none, *(Cell(mode, size, width) for mode in modes)] for size in ordered]
            continue
        first, rest = ([m for m in modes if (m in (FULL, KNN)) == is_first] for is_first in (1, 0))
        cells = [none, *(Cell(mode, size, width) for size in ordered for mode in first)]
        # k-NN at the smallest size comes before the full softmax at the largest, with most memory.
        cells.sort(key=lambda cell: cell.mode == FULL and cell.vocab_size != middle)
        cells += [Cell(mode, size, width) for size in ordered for mode in rest]
        found += [[cell] for cell in cells]
    return found


def measure(preset: Preset, group: Sequence[Cell], results: Results) -> None:
    """Measure cells, interleaved, and keep their rows; after an error, measure them one by one."""
    cases: dict[Cell, Case] = {}
    try:
        for cell in group:
            mode = FULL if cell.mode == NONE else cell.mode
            cases[cell] = Case(preset, mode, cell.vocab_size, cell.width, searches=preset.searches)
        runs = {str(cell): case.run for cell, case in cases.items()}
        seconds = interleaved_medians(runs, preset.repetitions)
        rows = {
            cell: row_of(preset, cell, case, seconds[str(cell)]) for cell, case in cases.items()
        }
        for row in rows.values():
            results.add(row)
        for cell, case in cases.items():
            if case.uses_index:
                least = min(case.refresh() for _ in range(2))
                results.add(dataclasses.replace(rows[cell], refresh=least))
        return
    # device errors: memory, or a kernel that does not compile
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        if len(group) == 1:
            results.fail(group[0], str(error).strip().splitlines()[0][:300])
    cases.clear()
    gc.collect()
    for cell in group if len(group) > 1 else ():
        measure(preset, [cell], results)


def row_of(preset: Preset, cell: Cell, case: Case, seconds: float) -> Row:
    return Row(
        mode=cell.mode,
        vocab_size=cell.vocab_size,
        width=cell.width,
        step=seconds / preset.steps,
        refresh=None if case.uses_index else 0.0,
        refresh_every=_REFRESH.value,
        candidates=case.candidates,
        overflow=case.overflow,
        flops=model_flops(preset, cell.width, case.candidates),
    )


def _end_in_time(minutes: float, report: Callable[[], None]) -> threading.Timer:
    """Start a timer that reports and ends the process, even during a compilation."""

    def end() -> None:
        report()
        print(
            f"ended after {minutes:g} minutes (--minutes); rerun with --out to continue", flush=True
        )
        os._exit(0)

    timer = threading.Timer(60 * minutes, end)
    timer.daemon = True
    timer.start()
    return timer


def main(_) -> None:
    set_up()
    preset = PRESETS[_PRESET.value]
    if _LAYERS.value is not None:
        preset = dataclasses.replace(preset, num_layers=_LAYERS.value)
    sizes = sorted(map(int, _VOCAB.value or preset.vocab_sizes))
    widths = [int(width) for width in _WIDTHS.value or preset.embedding_sizes]
    modes = _MODES.value or list(MODES)
    minutes = preset.minutes if _MINUTES.value is None else _MINUTES.value
    peak = peak_of(jax.devices()[0].device_kind) if _PEAK.value is None else _PEAK.value
    made_by = {"machine": describe_machine(), "preset": dataclasses.asdict(preset)}
    made_by |= {"attention": _ATTENTION.value, "refresh_every": _REFRESH.value}
    results = Results(_OUT.value, made_by)
    print(f"{describe_machine()}\npreset {_PRESET.value}: {dataclasses.asdict(preset)}", flush=True)
    tokens = preset.batch_size * preset.length

    def report() -> None:
        print(tables(results, tokens, peak))
        print(goals(results, sizes, widths[0], peak), flush=True)

    timer = _end_in_time(minutes, report) if minutes else None
    for group in plan(modes, sizes, widths, is_interleaved=preset.is_interleaved):
        if wanted := [cell for cell in group if not results.has(cell)]:
            measure(preset, wanted, results)
            for cell in wanted:
                row = results.row(*cell)
                print(f"{cell.vocab_size:,}, {cell.width}:", results.failed.get(cell, ""), end=" ")
                print(line(results, row, tokens, peak) if row else cell.mode, flush=True)
    if timer:
        timer.cancel()
    report()


if __name__ == "__main__":
    app.run(main)
