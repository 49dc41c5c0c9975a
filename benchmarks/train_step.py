"""Cost of a training step with every output layer, and reduction of the vocabulary's cost.

    python -m benchmarks.train_step                        # a CPU, small sizes, minutes
    python -m benchmarks.train_step --preset=base          # XLM-R Base in bf16, for a GPU

The whole step is timed: masking, encoder, output layer, optimizer. Batches are synthetic: targets
by Zipf's law, and an embedding table with clusters, since trained embeddings have them and |V'| is
half as large as with random ones. T_none is the step with a tiny vocabulary. With T_full, and T_knn
including the refresh of the index amortised over its n steps,

    R = (T_full - T_knn) / (T_full - T_none)

is the share of the vocabulary's cost that is saved; the paper's is 0.70 (from its Table 2).
"""

import dataclasses
import json
import math
import pathlib
import time

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

from benchmarks.machine import describe_machine, interleaved_medians
from input_pipeline.stream import PACKED
from knn_sampling.noise import cumulative_thresholds
from knn_sampling.output_layer import (
    OutputLayerSettings,
    TokenStatistics,
    make_exact_layer,
    make_output_layer,
)
from models.encoder import Encoder, EncoderSettings
from objectives.batch import Batch
from objectives.masked_lm import NEIGHBOURS, MaskedLM
from objectives.masking import MaskSettings
from objectives.objective import Objective
from training.optimizer import OptimizerSettings
from training.sharding import MeshSettings, make_mesh
from training.step import TrainFunctions, make_train_functions

BOS, PAD, EOS, UNK, MASK = range(5)
TINY = 1024  # pieces of a vocabulary of negligible cost
MODES = {
    "full": ("full", "dense"),
    "blockwise": ("blockwise", "dense"),
    "k-NN + dense AdamW": ("knn", "dense"),
    "k-NN + row AdamW": ("knn", "rows"),
    "target sampling + row AdamW": ("target_sampling", "rows"),
    "NCE + row AdamW": ("nce", "rows"),
    "NEG + row AdamW": ("neg", "rows"),
}


@dataclasses.dataclass(frozen=True)
class Preset:
    """Preset of model and batch sizes.

    Attributes:
      vocab_sizes: V of the table's rows.
      embedding_sizes: E.
      capacity: C of k-NN target sampling.
      peak_tflops: of one device, for the utilisation; 0 to leave it out.
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
    peak_tflops: float
    repetitions: int
    steps: int


PRESETS = {
    "base": Preset(
        hidden_size=768,
        num_layers=12,
        num_heads=12,
        mlp_size=3072,
        batch_size=32,
        length=512,
        dtype="bfloat16",
        vocab_sizes=(250_112, 500_224, 1_000_448),
        embedding_sizes=(768, 384),
        k=50,
        capacity=57_344,
        num_negatives=8192,
        clusters_of=64,
        peak_tflops=989.0,
        repetitions=5,
        steps=10,
    ),
    "small": Preset(
        hidden_size=128,
        num_layers=2,
        num_heads=4,
        mlp_size=256,
        batch_size=8,
        length=64,
        dtype="float32",
        vocab_sizes=(32_768, 65_536, 131_072),
        embedding_sizes=(128,),
        k=10,
        capacity=4096,
        num_negatives=512,
        clusters_of=16,
        peak_tflops=0.0,
        repetitions=5,
        steps=3,
    ),
}

_PRESET = flags.DEFINE_enum("preset", "small", sorted(PRESETS), "Sizes.")
_VOCAB = flags.DEFINE_list("vocab_sizes", None, "V, instead of the preset's.")
_WIDTHS = flags.DEFINE_list("embedding_sizes", None, "E, instead of the preset's.")
_REFRESH = flags.DEFINE_integer("refresh_every", 1000, "n, over which a refresh is shared out.")
_MODES = flags.DEFINE_list("modes", None, "Rows of the table; all by default.")
_ATTENTION = flags.DEFINE_enum("attention", "xla", ["xla", "cudnn"], "Attention of the encoder.")
_OUT = flags.DEFINE_string("out", None, "A JSON file for the figures.")


def statistics_of(vocab_size: int) -> TokenStatistics:
    """Token statistics by Zipf's law, in an order independent of the table's."""
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
        vocab_size=vocab_size,
        embedding_size=width,
        hidden_size=preset.hidden_size,
        num_layers=preset.num_layers,
        num_heads=preset.num_heads,
        mlp_size=preset.mlp_size,
        max_length=preset.length,
        norm_position="post",
        dropout_rate=0.1,
        attention_dropout_rate=0.0,
        dtype=preset.dtype,
        attention=_ATTENTION.value,
        unroll=preset.num_layers if preset.num_layers < 6 else 1,
    )
    settings = OutputLayerSettings(
        kind=kind,
        k=preset.k,
        capacity=preset.capacity,
        row_capacity=0,
        num_negatives=preset.num_negatives,
        group_size=0,
        refresh_every=_REFRESH.value,
        log_q_correction=False,
        full_softmax_fraction=0.0,
        frequency_bias=False,
    )
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
        """Compile the step; without `searches`, neighbours are taken from the token's cluster."""
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
        jax.block_until_ready(self.state.extra)
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

        Returns:
          [V] cluster of each token.
        """
        rng = np.random.default_rng(1)
        clusters = rng.integers(
            0, max(self.vocab_size // self.preset.clusters_of, 1), self.vocab_size
        )
        centres = rng.normal(size=(clusters.max() + 1, width)).astype(np.float32)
        noise = rng.normal(size=(self.vocab_size, width)).astype(np.float32)
        table = self.state.params["embeddings"]["table"]
        values = 0.02 * (centres[clusters] + 0.5 * noise)
        self.state.params["embeddings"]["table"] = jax.device_put(values, table.sharding)
        return clusters

    def _neighbours_of(self, clusters: np.ndarray) -> None:
        """Set as each token's neighbours the k tokens from itself on in its cluster."""
        order = np.argsort(clusters, kind="stable")
        sizes = np.bincount(clusters)
        start = (np.cumsum(sizes) - sizes)[clusters]
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        turns = (place - start)[:, None] + np.arange(self.preset.k)
        neighbours = order[start[:, None] + turns % sizes[clusters][:, None]].astype(np.int32)
        neighbours = jax.device_put(neighbours, self.state.extra[NEIGHBOURS].sharding)
        extra = {**self.state.extra, NEIGHBOURS: neighbours}
        self.state = dataclasses.replace(self.state, extra=extra)

    def _batch(self, seed: int) -> Batch:
        rng = np.random.default_rng(seed)
        p = np.asarray(self.objective.statistics.probabilities, np.float64)
        shape = (self.preset.batch_size, self.preset.length)
        tokens = rng.choice(len(p), shape, p=p / p.sum()).astype(np.int32)
        tokens[:, 0], tokens[:, -1] = BOS, EOS
        return Batch({"tokens": jnp.asarray(tokens)}, PACKED)


def functions_of(objective: Objective, update: str) -> TrainFunctions:
    optimizer = OptimizerSettings(
        learning_rate=1e-4,
        warmup_steps=10,
        decay_power=1.0,
        beta1=0.9,
        beta2=0.98,
        epsilon=1e-6,
        weight_decay=0.01,
        clip_norm=1.0,
        embedding_update=update,
    )
    mesh = MeshSettings(data=1, fsdp=1, model=1, vocab_multiple=1, rules=())
    devices = make_mesh(mesh, jax.devices()[:1])
    return make_train_functions(objective, optimizer, mesh, devices, num_steps=100_000)


def model_flops(preset: Preset, vocab_size: int, width: int) -> float:
    """Model FLOPs of a step with the full softmax, forward and backward."""
    d, length = preset.hidden_size, preset.length
    tokens = preset.batch_size * length
    layer = 2 * (4 * d * d + 2 * d * preset.mlp_size) + 4 * length * d
    masked = math.ceil(0.15 * length) * preset.batch_size
    head = 2 * masked * (d * width + width * vocab_size)
    project = 2 * tokens * d * width if width != d else 0
    return 3.0 * (tokens * layer * preset.num_layers + head + project)


@dataclasses.dataclass
class Row:
    """Median figures of one output layer at one size."""

    mode: str
    vocab_size: int
    width: int
    step: float
    refresh: float
    candidates: float
    overflow: float

    @property
    def total(self) -> float:
        """Seconds per step, including its share of a refresh."""
        return self.step + self.refresh / _REFRESH.value


def measure(preset: Preset, modes: list[str], vocab_size: int, width: int) -> list[Row]:
    """Measure all modes at one size, and "none", a tiny full softmax, interleaved."""
    cases = {mode: Case(preset, mode, vocab_size, width) for mode in modes}
    cases["none"] = Case(preset, "full", TINY, width)
    runs = {mode: case.run for mode, case in cases.items()}
    seconds = interleaved_medians(runs, preset.repetitions)
    refreshes = {
        mode: [case.refresh() for _ in range(2)] for mode, case in cases.items() if case.uses_index
    }
    return [
        Row(
            mode,
            vocab_size,
            width,
            seconds[mode] / preset.steps,
            min(refreshes.get(mode, [0.0])),
            case.candidates,
            case.overflow,
        )
        for mode, case in cases.items()
    ]


def table_of(preset: Preset, rows: list[Row]) -> str:
    """Format the rows of one size as Markdown."""
    by_mode = {row.mode: row for row in rows}
    none, full = by_mode["none"].total, by_mode.get("full")
    vocab_size, width = rows[0].vocab_size, rows[0].width
    flops = model_flops(preset, vocab_size, width)
    lines = [
        f"\nV = {vocab_size:,}, E = {width}; refresh shared out over {_REFRESH.value} steps\n",
        "| output layer | ms/step | refresh | tokens/s | utilisation | over full | R | V' |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        over, removed = "", ""
        if full and row.mode != "none":
            over = f"{full.total / row.total:.2f}x"
            removed = f"{(full.total - row.total) / (full.total - none):.3f}"
        used = f"{flops / row.total / preset.peak_tflops / 1e12:.1%}" if preset.peak_tflops else ""
        overflow = f" (+{row.overflow:,.0f} left out)" if row.overflow else ""
        lines.append(
            f"| {row.mode} | {1e3 * row.total:.2f} | {1e3 * row.refresh / _REFRESH.value:.2f} | "
            f"{preset.batch_size * preset.length / row.total:,.0f} | "
            f"{used if row.mode != 'none' else ''} | {over} | {removed} | "
            f"{row.candidates:,.0f}{overflow} |"
        )
    return "\n".join(lines)


def scaling(rows: list[Row]) -> str:
    """Format the growth of each mode's cost from the smallest to the largest vocabulary."""
    lines = ["\n| output layer | E | V | T(largest V) / T(smallest V) |", "|---|---|---|---|"]
    for mode, width in dict.fromkeys((row.mode, row.width) for row in rows):
        same = sorted(
            (row for row in rows if (row.mode, row.width) == (mode, width)),
            key=lambda row: row.vocab_size,
        )
        if mode != "none" and len(same) > 1:
            span = f"{same[0].vocab_size:,} to {same[-1].vocab_size:,}"
            ratio = same[-1].total / same[0].total
            lines.append(f"| {mode} | {width} | {span} | {ratio:.2f} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def main(_) -> None:
    preset = PRESETS[_PRESET.value]
    modes = _MODES.value or list(MODES)
    print(describe_machine())
    print(f"preset {_PRESET.value}: {dataclasses.asdict(preset)}")
    found = []
    for width in map(int, _WIDTHS.value or preset.embedding_sizes):
        for vocab_size in map(int, _VOCAB.value or preset.vocab_sizes):
            rows = measure(preset, modes, vocab_size, width)
            print(table_of(preset, rows), flush=True)
            found += rows
    print(scaling(found))
    if _OUT.value:
        figures = [dataclasses.asdict(row) for row in found]
        pathlib.Path(_OUT.value).write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    app.run(main)
