"""Examples of predictions: one held-out sentence of each language, with one piece masked."""

import dataclasses
import html
import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from input_pipeline.packed_dataset import PackedDataset
from knn_sampling.losses import ABSENT
from xlm.common import tables
from xlm.common.languages import label
from xlm.evaluation.batch_layout import BatchLayout
from xlm.objectives.masked_lm import MaskedLM

GAP = "[____]"
# Limits of a sentence, in pieces.
SHORTEST, LONGEST = 8, 48
# Minimum occurrences of a masked piece in the language's training text.
MIN_COUNT = 10
NUM_LIKELIEST = 5

_SPACE = "\u2581"  # SentencePiece's mark at the beginning of a word
# A mark, with closing quotation marks, before a space. Scripts without spaces need no space.
_SENTENCE_END = re.compile(rf"[.!?…؟۔।॥။።។][\"'”’»)\]]*(?={_SPACE})|[。！？][”’」』)]*")
_MAX_ROWS = 32  # sequences per language from which to draw a sentence
_BATCH = 16  # small, since memory holds logits [B, V]


@dataclasses.dataclass(frozen=True)
class Example:
    """A sentence with a gap, and the model's predictions for the gap.

    Attributes:
      text: the model's whole input, a sentence with `GAP` in place of the masked piece.
      truth: the masked piece.
      probability: of the truth, in the softmax over the whole vocabulary.
      rank: of the truth among all pieces, 1 for the likeliest.
      likeliest: the likeliest pieces and their probabilities, in descending order.
    """

    language: str
    text: str
    truth: str
    probability: float
    rank: int
    likeliest: Sequence[tuple[str, float]]


class Cloze(NamedTuple):
    """A sentence [n] of token ids without specials, and the position of the token to mask."""

    language: str
    tokens: np.ndarray
    position: int


class Examples:
    """Predictions of the masked piece of one held-out sentence of each language; see `choose`."""

    def __init__(
        self, objective: MaskedLM, dataset: PackedDataset, pieces: Sequence[str], *, seed: int,
        mesh: Mesh | None = None,
    ):  # fmt: skip
        self._objective = objective
        self._special, self._length = dataset.special, dataset.length
        self._pieces = pieces
        self._batches = BatchLayout(mesh, _BATCH)
        self._predict = self._batches.jit(self._predictions)
        self.clozes = choose(dataset, pieces, seed)

    def run(self, params) -> list[Example]:
        """Return one example for each language with a suitable sentence."""
        size = self._batches.size
        found: list[Example] = []
        for start in range(0, len(self.clozes), size):
            clozes = self.clozes[start : start + size]
            arrays = self._batches.placed(*self._arrays(clozes))
            # Padding sequences fill the last batch.
            predictions = zip(*jax.device_get(self._predict(params, *arrays)), strict=True)
            found += map(self._example, clozes, predictions)
        return found

    def _arrays(self, clozes: Sequence[Cloze]) -> tuple[np.ndarray, ...]:
        """Return masked tokens [B, L], positions [B] of the masks and targets [B], all int32."""
        special, size = self._special, self._batches.size
        tokens = np.full((size, self._length), special.pad, np.int32)
        positions, targets = np.zeros((2, size), np.int32)
        for i, (_, sentence, position) in enumerate(clozes):
            # Ends with </s> even within a sentence, like the segments of packed sequences.
            tokens[i, : len(sentence) + 2] = [special.bos, *sentence, special.eos]
            targets[i], positions[i] = sentence[position], position + 1
            tokens[i, positions[i]] = special.mask
        return tokens, positions, targets

    def _predictions(self, params, tokens: jax.Array, positions: jax.Array, targets: jax.Array):
        """Return top probabilities [B, 5], their ids, target probabilities [B] and ranks [B]."""
        hidden = self._objective.predictions(params, tokens, positions[:, None])[:, 0]  # [B, E]
        table, bias = self._objective.output_table(params)
        is_piece = jnp.arange(len(bias)) < self._objective.exact_layer.num_valid
        logits = jnp.dot(hidden, table.astype(hidden.dtype).T, preferred_element_type=jnp.float32)
        logits += jnp.where(is_piece, bias.astype(jnp.float32), ABSENT)[None, :]
        probabilities = jax.nn.softmax(logits)
        largest, ids = jax.lax.top_k(probabilities, NUM_LIKELIEST)
        own = jnp.take_along_axis(probabilities, targets[:, None], axis=1)
        # Ties go to the lowest id, as in `top_k`.
        is_first = jnp.arange(len(bias))[None, :] < targets[:, None]
        before = (probabilities > own) | ((probabilities == own) & is_first)
        return largest, ids, own[:, 0], 1 + before.sum(axis=1)

    def _example(self, cloze: Cloze, predictions) -> Example:
        largest, ids, own, rank = predictions
        language, tokens, position = cloze
        shown = [self._pieces[token] for token in tokens]
        truth = shown[position]
        shown[position] = _SPACE * truth.startswith(_SPACE) + GAP
        return Example(
            language=language,
            text=_read_bytes("".join(shown)).replace(_SPACE, " ").strip(),
            truth=truth,
            probability=float(own),
            rank=int(rank),
            likeliest=[(self._pieces[i], float(p)) for i, p in zip(ids, largest, strict=True)],
        )


def _read_bytes(text: str) -> str:
    """Replace byte pieces by their text."""

    def spelled(found: re.Match[str]) -> str:
        return bytes.fromhex(re.sub("<0x|>", "", found[0])).decode("utf-8", "replace")

    return re.sub("(?:<0x[0-9A-F]{2}>)+", spelled, text)


def choose(dataset: PackedDataset, pieces: Sequence[str], seed: int) -> list[Cloze]:
    """Draw a held-out sentence of each language, and a piece of it, independently of any model.

    Whole sentences of `SHORTEST` to `LONGEST` pieces come first, then parts of sentences of that
    length. The piece has a letter and occurs at least `MIN_COUNT` times in the language's training
    text. Languages without such a piece have no example. `pieces` [V] are the tokenizer's, by id.
    """
    is_word = np.array([_is_word(piece) for piece in pieces])
    is_word[list(dataclasses.astuple(dataset.special))] = False
    found = []
    for i, language in enumerate(dataset.languages):
        rng = np.random.default_rng([seed, i])
        can_mask = is_word & (dataset.token_counts(language) >= MIN_COUNT)
        rows = dataset.rows(language, "heldout")
        sentences = [
            (sentence, is_whole)
            for row in rng.permutation(len(rows))[:_MAX_ROWS]
            for sentence, is_whole in _sentences(rows[row], dataset, pieces)
            if len(sentence) >= SHORTEST and can_mask[sentence].any()
        ]
        if sentences:
            drawn = [one for one, whole in sentences if whole] or [one for one, _ in sentences]
            sentence = drawn[rng.integers(len(drawn))]
            position = int(rng.choice(np.flatnonzero(can_mask[sentence])))
            found.append(Cloze(language, sentence, position))
    return found


def _is_word(piece: str) -> bool:
    return any(map(str.isalpha, piece)) and not piece.startswith("<0x")  # byte piece


def _sentences(
    row: np.ndarray, dataset: PackedDataset, pieces: Sequence[str]
) -> list[tuple[np.ndarray, bool]]:
    """Split a sequence [L] into sentences of at most `LONGEST` pieces; flag the whole ones."""
    found: list[np.ndarray] = []
    for segment in np.split(row, np.flatnonzero(row == dataset.special.bos)):
        text = segment[~np.isin(segment, dataset.special.special_ids())].astype(np.int32)
        shown = [pieces[token] for token in text]
        ends = np.cumsum([len(piece) for piece in shown])
        marks = [match.end() for match in _SENTENCE_END.finditer("".join(shown))]
        parts = np.split(text, np.flatnonzero(np.isin(ends, marks)) + 1)
        found += [part for part in parts if len(part)]
    longest = min(LONGEST, dataset.length - 2)
    # Documents span sequences, so the first and the last sentence may be incomplete.
    return [
        (sentence[:longest], 0 < i < len(found) - 1 and len(sentence) <= longest)
        for i, sentence in enumerate(found)
    ]


def examples_table(examples: Sequence[Example]) -> str:
    rows = []
    for one in examples:
        found = {piece: _prediction(piece, probability) for piece, probability in one.likeliest}
        if one.truth in found:
            found[one.truth] = f"**{found[one.truth]}**"
        rows.append(
            {
                "language": one.language,
                "sentence": tables.text_cell(one.text).replace(tables.escaped(GAP), GAP),
                "likeliest pieces": " · ".join(found.values()),
                "truth": _prediction(one.truth, one.probability),
                "rank": one.rank,
            }
        )
    return tables.markdown(rows, left=4)


def example_cards(examples: Sequence[Example]) -> str:
    """Return the examples as HTML, a line each that opens on a click."""
    found: list[str] = []
    for one in examples:
        text = html.escape(one.text).replace(GAP, "<mark>____</mark>")
        guesses = dict(one.likeliest) | {one.truth: one.probability}  # an unlikely truth is last
        lines = "".join(
            f"<li{' class=truth' * (piece == one.truth)}><bdi>{html.escape(_holder(piece))}</bdi>"
            f'<span>{_percent(share)} %</span><i style="width: {100 * share:.1f}%"></i></li>'
            for piece, share in guesses.items()
        )
        found.append(
            f'<details class="example" name="example"{" open" * (not found)}><summary>'
            f"{html.escape(label(one.language))} <small>the truth is guess {one.rank:,}</small>"
            f'</summary><blockquote dir="auto">{text}</blockquote><ol>{lines}</ol></details>\n'
        )
    return "".join(found)


def _prediction(piece: str, probability: float) -> str:
    return f"{tables.text_cell(_holder(piece))} {_percent(probability)} %"


def _percent(probability: float) -> str:
    return np.format_float_positional(100 * probability, 2, fractional=False, trim="-")


def _holder(piece: str) -> str:
    """Return a piece for display: with a placeholder below a combining mark, and visible spaces."""
    holder = "◌" * unicodedata.category(piece[0]).startswith("M")
    return holder + piece.replace(_SPACE, "␣")
