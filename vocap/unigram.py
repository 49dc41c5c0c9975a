"""Unigram vocabularies of one language at growing sizes, and their ALP."""

import dataclasses
import io
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np
import sentencepiece as spm

from vocap import lattice, model_proto, nested
from vocap.alp import average_log_probability
from vocap.curves import Curve
from vocap.pretokens import TRAINER, PretokenTable, Text
from vocap.settings import TrainerSettings

_NORMAL = model_proto.ModelProto.SentencePiece.NORMAL
_CHARACTERS_AT_ONCE = 10_000_000  # of a text to segment, whose lattice takes 40 bytes for each


@dataclasses.dataclass(frozen=True, eq=False)
class Vocabularies:
    """One language's vocabularies; `log_probs` [S] are float32 arrays, as `curve.members`."""

    curve: Curve
    log_probs: tuple[np.ndarray, ...]


def train_vocabularies(
    table: PretokenTable, settings: TrainerSettings, sentences: Iterable[str] | None = None
) -> Vocabularies | None:
    """Train one unigram vocabulary per feasible size and measure its ALP; None if none is feasible.

    It omits sizes below the number of required characters, or above the number of pieces that the
    text supports. Raise ValueError if the trainer "sentencepiece" lacks the `sentences` of `table`.
    """
    if not len(table.text):
        return None
    if settings.trainer == "sentencepiece":
        if sentences is None:
            raise ValueError(
                "vocab.trainer is 'sentencepiece', which needs text, but the source is a table of "
                "runs; set vocab.trainer=nested, or give text"
            )
        return _train_reference(list(sentences), table, settings)
    found = nested.train(
        table,
        settings.sizes or None,
        limit=settings.limit,
        character_coverage=settings.character_coverage,
        max_piece_length=settings.max_piece_length,
        max_seeds=settings.max_seeds,
    )
    if not found.vocabularies:
        return None
    return _measured(found, table.num_sentences, settings.alp_probabilities)


def _measured(
    found: nested.NestedVocabularies, num_sentences: int, alp_probabilities: str
) -> Vocabularies:
    alp = []
    for one in found.vocabularies:
        with_unknown = np.append(one.counts, found.num_unknown)
        if alp_probabilities == "model":
            probabilities = nested.with_unknown(one.log_probs)
        else:
            # Unused pieces have no share, but nothing reads their log probability.
            shares = np.where(with_unknown > 0, with_unknown, 1) / with_unknown.sum()
            probabilities = np.log(shares)
        alp.append(average_log_probability(with_unknown, probabilities, num_sentences))
    curve = Curve(
        sizes=tuple(len(one.ids) for one in found.vocabularies),
        alp=tuple(alp),
        pieces=found.pieces,
        members=tuple(one.ids for one in found.vocabularies),
    )
    return Vocabularies(curve, tuple(v.log_probs.astype(np.float32) for v in found.vocabularies))


def _train_reference(
    sentences: Sequence[str], table: PretokenTable, settings: TrainerSettings
) -> Vocabularies | None:
    models = []
    for size in settings.sizes:
        try:
            models.append(sentencepiece_model(sentences, size, settings))
        except RuntimeError as error:
            message = str(error)
            if "smaller than required_chars" in message:
                continue
            if "too high" in message:
                break  # and so is every larger size
            raise
    return measure_models(models, table, settings) if models else None


def measure_models(
    models: Sequence[bytes], table: PretokenTable, settings: TrainerSettings
) -> Vocabularies:
    """Return the vocabularies of SentencePiece models of ascending size, with ALP on `table`."""
    index: dict[str, int] = {}
    vocabularies = []
    num_unknown = 0.0
    for model in models:
        proto = model_proto.ModelProto.FromString(model)
        pieces = [p.piece for p in proto.pieces if p.type == _NORMAL]
        scores = np.array([p.score for p in proto.pieces if p.type == _NORMAL], np.float64)
        counts = segmented_counts(lattice.build_trie(pieces), scores, table)
        num_unknown = counts[-1]
        ids = np.array([index.setdefault(piece, len(index)) for piece in pieces], np.int32)
        by_score = np.argsort(-scores, kind="stable")
        of_size = ids[by_score], scores[by_score], counts[:-1][by_score]
        vocabularies.append(nested.SizedVocabulary(*of_size))
    found = nested.NestedVocabularies(tuple(index), tuple(vocabularies), num_unknown)
    return _measured(found, table.num_sentences, settings.alp_probabilities)


def sentencepiece_model(sentences: Sequence[str], size: int, settings: TrainerSettings) -> bytes:
    """Train a SentencePiece unigram model of `size` pieces; return the serialised ModelProto."""
    model = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        model_type="unigram",
        vocab_size=size + 1,
        character_coverage=settings.character_coverage,
        max_sentencepiece_length=settings.max_piece_length,
        seed_sentencepiece_size=settings.max_seeds,
        **TRAINER,
    )
    return model.getvalue()


def segmented_counts(trie: lattice.Trie, log_probs: np.ndarray, table: PretokenTable) -> np.ndarray:
    """Count pieces, and last the unknown characters, in the best segmentation: [V + 1] float64."""
    scores = nested.with_unknown(log_probs)
    offsets, begin = table.text.offsets, 0
    counts = np.zeros(len(scores))
    while begin < len(table.text):
        limit = offsets[begin] + _CHARACTERS_AT_ONCE
        end = max(begin + 1, int(np.searchsorted(offsets, limit, "right")) - 1)
        text = Text(
            table.text.characters[offsets[begin] : offsets[end]],
            offsets[begin : end + 1] - offsets[begin],
        )
        paths = trie.match(text).best_paths(scores)
        counts += paths.counts(table.counts[begin:end], len(scores))
        begin = end
    return counts


def write_vocabularies(path: pathlib.Path, vocabularies: Vocabularies) -> None:
    curve = vocabularies.curve
    np.savez(
        path,
        sizes=np.array(curve.sizes, np.int64),
        alp=np.array(curve.alp, np.float64),
        pieces=np.frombuffer("\n".join(curve.pieces).encode(), np.uint8),
        members=np.concatenate(curve.members),
        log_probs=np.concatenate(vocabularies.log_probs),
    )


def read_vocabularies(path: pathlib.Path) -> Vocabularies:
    with np.load(path, allow_pickle=False) as arrays:
        ends = np.cumsum(arrays["sizes"])[:-1]
        curve = Curve(
            sizes=tuple(arrays["sizes"].tolist()),
            alp=tuple(arrays["alp"].tolist()),
            pieces=tuple(arrays["pieces"].tobytes().decode().split("\n")),
            members=tuple(np.split(arrays["members"], ends)),
        )
        return Vocabularies(curve, tuple(np.split(arrays["log_probs"], ends)))
