"""Replacement of a model's vocabulary by another, and pruning to the pieces that texts use.

A vocabulary is its pieces in the order of their ids. A replacement computes a row of the embedding
table, and an entry of the output bias, for every new piece. The rest of the model is unchanged.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import sentencepiece as spm
from google.protobuf.message import Message

from vocap import model_proto
from vocap.settings import BOS_ID, BPE, EOS_ID, MASK_ID, PAD_ID, SPECIALS, UNIGRAM, UNK_ID
from xlm.common import artifacts, declarations
from xlm.interop import bpe_json, normalizer_json, tokenizer_json

TOKENIZER = "spm.model"  # SentencePiece model of the ids, beside a model's weights
_JSON, _FAIRSEQ = tokenizer_json.NAME, "sentencepiece.bpe.model"
# Files of a folder's tokenizer, the best source of its segmentation first.
TOKENIZER_FILES = (TOKENIZER, _FAIRSEQ, _JSON)
# The same files, the best source of its ids first.
_ID_FILES = (TOKENIZER, _JSON, _FAIRSEQ)
_SPACE = normalizer_json.SPACE
_KINDS = model_proto.ModelProto.SentencePiece
# The first three pieces of a SentencePiece model. fairseq drops them, and adds special tokens at
# both ends.
_FAIRSEQ_SKIPPED = ("<unk>", "<s>", "</s>")
_BATCH = 4096


@dataclasses.dataclass(frozen=True)
class ModelVocabulary:
    """Pieces of a model by id, with specials; `scores` [V] float64 are -inf for unused pieces."""

    pieces: tuple[str, ...]
    scores: np.ndarray
    kind: str = UNIGRAM

    def __post_init__(self):
        missing = [token for token in SPECIALS if token not in self.pieces]
        if missing:
            raise ValueError(
                f"the vocabulary has no {' '.join(missing)}; a masked language model needs "
                f"{' '.join(SPECIALS)}"
            )
        if len(set(self.pieces)) < len(self.pieces):
            raise ValueError("the vocabulary has a piece twice; give each piece one id")


@dataclasses.dataclass(frozen=True)
class Swapped:
    """Embeddings [V', D] and biases [V'] float32 of a new vocabulary, with counts of its pieces.

    `copied` pieces, including special tokens, are in both vocabularies. `segmented` pieces have the
    mean of their segmentation into old pieces. `unknown` pieces, without any known part, have the
    mean of all old pieces.
    """

    table: np.ndarray
    bias: np.ndarray
    copied: int
    segmented: int
    unknown: int


def read_vocabulary(folder: pathlib.Path) -> ModelVocabulary:
    """Read the vocabulary of a model's folder, with the model's ids.

    It reads the first of spm.model (this project's), tokenizer.json, sentencepiece.bpe.model (with
    fairseq's ids), and vocab.json with merges.txt. Raises ValueError if none exists or the file is
    unreadable.
    """
    config = folder / "config.json"
    kind = artifacts.read_object(config).get("model_type") if config.exists() else None
    of_fairseq = functools.partial(_of_fairseq, is_camembert=kind == "camembert")
    readers: Sequence[Callable[[bytes], ModelVocabulary]] = (vocabulary, _of_json, of_fairseq)
    for name, read in zip(_ID_FILES, readers, strict=True):
        path = folder / name
        if path.exists():
            with declarations.of_file(path):
                return read(artifacts.read_bytes(path))
    if of_parts := _json_of_parts(folder):
        with declarations.of_file(folder):
            return _of_json(of_parts)
    raise ValueError(
        f"{folder} has no {TOKENIZER}, {_JSON} or {_FAIRSEQ}; write the model's tokenizer into it "
        "with save_pretrained"
    )


def check_kept(folder: pathlib.Path, old: ModelVocabulary, model: bytes) -> None:
    """Raise ValueError if a folder's own tokenizer, as `model`, has pieces that `old` lacks."""
    known = set(old.pieces)
    unknown = [piece for piece in vocabulary(model).pieces if piece not in known]
    if unknown:
        ids = next(folder / name for name in _ID_FILES if (folder / name).exists())
        raise ValueError(
            f"{tokenizer_file(folder)} has {len(unknown)} pieces that {ids} lacks, such as "
            f"{unknown[0]!r}, so they belong to different models; copy the tokenizer of this "
            "model, or write both again with save_pretrained"
        )


def check_sizes(folder: pathlib.Path, num_pieces: int, num_rows: int) -> None:
    """Raise ValueError unless a folder's SentencePiece model has a piece for each embedding."""
    if num_pieces != num_rows:
        raise ValueError(
            f"{folder / TOKENIZER} has {num_pieces} pieces, but the model {num_rows} embeddings; "
            "copy the tokenizer of this model, or, if the table is padded, remove the padding with "
            "xlm import"
        )


def with_added(model: bytes, old: ModelVocabulary) -> tuple[bytes, list[str]]:
    """Add the pieces of `old` that its SentencePiece model lacks, its added tokens, to the model.

    They become user-defined pieces, which match in any text. Returns the model, and the tokens that
    it cannot hold: those with blanks, or all if they would prevent a tokenizer.json.
    """
    proto = parse(model)
    known = {piece.piece for piece in proto.pieces}.union(tokenizer_json.NOT_USED)
    added = [piece for piece in old.pieces if piece not in known] if old.kind == UNIGRAM else []
    kept = [piece for piece in added if [piece] == piece.replace(_SPACE, " ").split()]
    spec = proto.normalizer_spec
    if normalizer_json.fault(spec, kept) and not normalizer_json.fault(spec):
        return model, added
    for piece in kept:
        proto.pieces.add(piece=piece, type=_KINDS.USER_DEFINED)
    proto.trainer_spec.vocab_size = len(proto.pieces)
    return proto.SerializeToString(), [piece for piece in added if piece not in kept]


def vocabulary(model: bytes) -> ModelVocabulary:
    """Return the vocabulary of a SentencePiece model, with the model's ids."""
    return _of_proto(parse(model))


def _of_proto(proto: Message) -> ModelVocabulary:
    matched = (_KINDS.NORMAL, _KINDS.USER_DEFINED)
    return _vocabulary(
        [piece.piece for piece in proto.pieces],
        [piece.score if piece.type in matched else -np.inf for piece in proto.pieces],
        kind(proto),
    )


def kind(proto: Message) -> str:
    """Return the kind of a SentencePiece model, "unigram" or "bpe"; ValueError for any other."""
    name = model_proto.TrainerSpec.ModelType.Name(proto.trainer_spec.model_type)
    if name.lower() not in (UNIGRAM, BPE):
        raise ValueError(f"the model is of type {name}, must be UNIGRAM as XLM-R's, or BPE")
    return name.lower()


def tokenizer_file(folder: pathlib.Path) -> pathlib.Path | None:
    """Return the first of a folder's files in `TOKENIZER_FILES`; None without one."""
    paths = (folder / name for name in TOKENIZER_FILES)
    return next((path for path in paths if path.exists()), None)


def existing_file(path: pathlib.Path, remedy: str) -> pathlib.Path:
    """Return a file, or the tokenizer of a folder; ValueError, in this case with `remedy`."""
    found = tokenizer_file(path) if path.is_dir() else path
    if found is None:
        raise ValueError(f"{path} has none of {', '.join(TOKENIZER_FILES)}; {remedy}")
    return artifacts.existing(found)


def sentencepiece_model(path: pathlib.Path) -> bytes:
    """Convert a model's own vocabulary to a SentencePiece model of this project's kind.

    It keeps pieces, scores and normaliser, and gives new ids, `SPECIALS` first. It drops added
    tokens of a tokenizer.json, which SentencePiece does not match in text.

    `path` is a SentencePiece model, with special tokens of this project or of SentencePiece, or a
    tokenizer.json of the Unigram kind or of a BPE like Gemma's. Or it is a folder, and the first of
    spm.model, sentencepiece.bpe.model and tokenizer.json counts. Raises ValueError if there is no
    such file, or it is unreadable or neither unigram nor BPE.
    """
    remedy = (
        "write the model's tokenizer into it with save_pretrained, or give a --vocabulary for the "
        "model to continue with"
    )
    path = existing_file(path, remedy)
    content = artifacts.read_bytes(path)
    with declarations.of_file(path):
        if path.suffix == ".json":
            return _of_this_project(_parse_json(content))
        proto = parse(content)
        kind(proto)
        if tuple(piece.piece for piece in proto.pieces[: len(SPECIALS)]) == SPECIALS:
            return content
        return _of_this_project(_parse_fairseq(content))


def _of_this_project(proto: Message) -> bytes:
    """Serialise a model with `SPECIALS` in place of its own special tokens; raises as `parse`."""
    # Other models may have <pad> and <mask> among their pieces.
    pieces = [piece for piece in proto.pieces if piece.piece not in SPECIALS]
    del proto.pieces[:]
    for i, token in enumerate(SPECIALS):
        kind = _KINDS.UNKNOWN if i == UNK_ID else _KINDS.CONTROL
        proto.pieces.add(piece=token, score=0.0, type=kind)
    proto.pieces.extend(pieces)
    spec = proto.trainer_spec
    spec.vocab_size = len(proto.pieces)
    spec.bos_id, spec.pad_id, spec.eos_id, spec.unk_id = BOS_ID, PAD_ID, EOS_ID, UNK_ID
    spec.bos_piece, spec.pad_piece, spec.eos_piece, spec.unk_piece = SPECIALS[:MASK_ID]
    spec.control_symbols.append(SPECIALS[MASK_ID])
    model = proto.SerializeToString()
    parse(model)  # a tokenizer.json can have a piece twice
    return model


def swap(
    old: ModelVocabulary, new: ModelVocabulary, table: np.ndarray, bias: np.ndarray
) -> Swapped:
    """Initialise the embeddings of a new vocabulary from those of the old one.

    Pieces of both vocabularies and special tokens keep their embedding and bias. Other pieces get
    the mean embedding, and the mean bias, of their best segmentation under the old scores, without
    unknown parts. `table` [>= V, D] and `bias` [>= V] may have further rows. Fewer raise
    ValueError.
    """
    if len(table) < len(old.pieces) or len(table) != len(bias):
        raise ValueError(
            f"the vocabulary has {len(old.pieces)} pieces, but the model {len(table)} embeddings "
            f"and {len(bias)} biases; give the tokenizer of this model"
        )
    # One array, to treat embeddings and biases alike.
    rows = np.concatenate([table, bias[:, None]], axis=1, dtype=np.float32)[: len(old.pieces)]
    old_ids = {piece: i for i, piece in enumerate(old.pieces)}
    sources = np.array([old_ids.get(piece, -1) for piece in new.pieces], np.int64)
    result = np.empty((len(sources), rows.shape[1]), np.float32)
    result[sources >= 0] = rows[sources[sources >= 0]]

    fallback = rows[np.isfinite(old.scores)].mean(axis=0, dtype=np.float64)
    processor, num_unknown = _segmenter(old), 0
    made = np.flatnonzero(sources < 0)
    for batch in np.array_split(made, range(_BATCH, len(made), _BATCH)):
        segmented = processor.encode([new.pieces[i] for i in batch])
        unknown = processor.unk_id()
        known = [[part for part in parts if part != unknown] for parts in segmented]
        num_unknown += sum(not parts for parts in known)
        result[batch] = mean_rows(rows, known, fallback)
    return Swapped(
        table=np.ascontiguousarray(result[:, :-1]), bias=np.ascontiguousarray(result[:, -1]),
        copied=len(sources) - len(made), segmented=len(made) - num_unknown, unknown=num_unknown,
    )  # fmt: skip


def mean_rows(rows: np.ndarray, parts: Sequence[Sequence[int]], fallback: np.ndarray) -> np.ndarray:
    """Return the mean of the rows [V, D] of each new piece's parts; `fallback` [D] without any."""
    found = [rows[one].mean(axis=0, dtype=np.float64) if one else fallback for one in parts]
    return np.array(found, np.float32).reshape(len(parts), rows.shape[1])


def prune(
    model: bytes, texts: Iterable[str], keep: Collection[str] = ()
) -> tuple[bytes, np.ndarray]:
    """Prune a model to the pieces that texts use, without a change of their segmentations.

    It keeps the special tokens, the pieces of the segmentations, BPE's merges on the way to them,
    all their characters that are pieces, the piece with the lowest score, and existing pieces of
    `keep`. Returns the smaller model, and the old ids [V'] int64 of its pieces, ascending. Raises
    ValueError if there is no text, or the model is neither unigram nor BPE.
    """
    kept = used_pieces(model, texts, keep)
    return with_pieces(model, kept), kept


def used_pieces(model: bytes, texts: Iterable[str], keep: Collection[str] = ()) -> np.ndarray:
    """Return the ids [V'] of the pieces that `prune` keeps, ascending."""
    proto = parse(model)
    processor = spm.SentencePieceProcessor(model_proto=model)
    used = np.zeros(len(proto.pieces), bool)
    for batch in batches(texts):
        for ids in processor.encode(batch):
            used[ids] = True
    if not used.any():
        raise ValueError("the texts are empty; give text in the languages to keep")
    # The characters of an unknown are no pieces, so these are all relevant characters.
    found = [proto.pieces[i].piece for i in np.flatnonzero(used).tolist()]
    wanted = set(keep).union(*found)
    if kind(proto) == BPE:
        normal = {one.piece: one.score for one in proto.pieces if one.type == _KINDS.NORMAL}
        wanted.update(*(_merged(piece, normal) for piece in found))
    types = np.array([piece.type for piece in proto.pieces])
    used |= types != _KINDS.NORMAL
    used |= np.array([piece.piece in wanted for piece in proto.pieces])
    # SentencePiece scores an unknown character by the lowest score of the vocabulary. Another score
    # might change the choice between a piece and an unknown.
    scores = np.array([piece.score for piece in proto.pieces])
    used[np.argmin(np.where(types == _KINDS.NORMAL, scores, np.inf))] = True

    return np.flatnonzero(used)


def with_pieces(model: bytes, kept: np.ndarray) -> bytes:
    """Return a model of the pieces with ids `kept` [V']."""
    proto = parse(model)
    pieces = [proto.pieces[i] for i in kept.tolist()]
    pruned = model_proto.ModelProto()
    pruned.CopyFrom(proto)
    del pruned.pieces[:]
    pruned.pieces.extend(pieces)
    pruned.trainer_spec.vocab_size = len(pieces)
    return pruned.SerializeToString()


def _merged(piece: str, scores: Mapping[str, float]) -> Iterator[str]:
    """Yield BPE's merges from the characters of a piece to the piece, in any context."""
    parts, none = list(piece), float("-inf")
    while len(parts) > 1:
        of_pairs = [scores.get(one + two, none) for one, two in itertools.pairwise(parts)]
        best = of_pairs.index(max(of_pairs))
        if of_pairs[best] == none:  # merges do not make the piece, such as an unknown
            return
        parts[best : best + 2] = [parts[best] + parts[best + 1]]
        yield parts[best]


def batches(texts: Iterable[str]) -> Iterator[list[str]]:
    remaining = iter(texts)
    while batch := list(itertools.islice(remaining, _BATCH)):
        yield batch


def parse(model: bytes) -> Message:
    """Parse the proto of a serialised SentencePiece model; ValueError for other bytes."""
    try:
        spm.SentencePieceProcessor(model_proto=model)
    except RuntimeError as error:
        raise ValueError(
            f"not a SentencePiece model: {error}; copy or download it again"
        ) from error
    proto = model_proto.ModelProto.FromString(model)
    if not proto.pieces:
        raise ValueError("not a SentencePiece model: it has no pieces; copy or download it again")
    return proto


def _parse_fairseq(model: bytes) -> Message:
    """Parse a model of fairseq, without its three special tokens, or raise ValueError."""
    proto = parse(model)
    first = tuple(piece.piece for piece in proto.pieces[: len(_FAIRSEQ_SKIPPED)])
    if first != _FAIRSEQ_SKIPPED:
        raise ValueError(
            f"the model begins with {' '.join(first)}, must begin with "
            f"{' '.join(_FAIRSEQ_SKIPPED)} like XLM-R's; name a model of this project {TOKENIZER}"
        )
    del proto.pieces[: len(_FAIRSEQ_SKIPPED)]
    return proto


def _parse_json(text: bytes) -> Message:
    """Build the SentencePiece model of a tokenizer.json, without special tokens."""
    if tokenizer_json.kind(text) == "BPE":
        return bpe_json.sentencepiece_model(bpe_json.read(text))
    value = tokenizer_json.read(text)
    if exported := tokenizer_json.exported(value):
        return exported
    pieces = tokenizer_json.unigram(value)
    normal = [
        (piece, score)
        for piece, score in zip(*pieces, strict=True)
        if np.isfinite(score) and piece not in SPECIALS
    ]
    tokenizer_json.check_pieces([piece for piece, _ in normal])
    proto = model_proto.ModelProto()
    proto.trainer_spec.model_type = model_proto.TrainerSpec.UNIGRAM
    for piece, score in normal:
        proto.pieces.add(piece=piece, score=score, type=_KINDS.NORMAL)
    proto.normalizer_spec.CopyFrom(tokenizer_json.normalizer_spec(value))
    return proto


def _of_fairseq(model: bytes, *, is_camembert: bool) -> ModelVocabulary:
    normal = _parse_fairseq(model).pieces
    first: Sequence[str] = SPECIALS[:MASK_ID]
    if is_camembert:
        bos, eos, unknown = tokenizer_json.NOT_USED
        first = bos, SPECIALS[PAD_ID], eos, SPECIALS[UNK_ID], unknown, *_FAIRSEQ_SKIPPED[1:]
    pieces = [*first, *(piece.piece for piece in normal)]
    scores = [*[-np.inf] * len(first), *(piece.score for piece in normal)]
    if SPECIALS[MASK_ID] not in pieces:  # an extended model has it before the new pieces
        pieces, scores = [*pieces, SPECIALS[MASK_ID]], [*scores, 0.0]
    return _vocabulary(pieces, scores)


def _json_of_parts(folder: pathlib.Path) -> bytes:
    """Return a tokenizer.json for `bpe_json.read` from the older files; b"" without them."""
    vocab, merges = folder / "vocab.json", folder / "merges.txt"
    if not (vocab.exists() and merges.exists()):
        return b""
    lines = artifacts.read_bytes(merges).decode().splitlines()
    pairs = [line for line in lines if line and not line.startswith("#version")]
    model = {"type": "BPE", "vocab": artifacts.read_object(vocab), "merges": pairs}
    return json.dumps({"model": model, "pre_tokenizer": {"type": "ByteLevel"}}).encode()


def _of_json(text: bytes) -> ModelVocabulary:
    if tokenizer_json.kind(text) == "WordPiece":
        return _vocabulary(*bpe_json.word_pieces(text))
    if tokenizer_json.kind(text) == "BPE":
        return _vocabulary(*bpe_json.pieces(bpe_json.read(text)), BPE)
    value = tokenizer_json.read(text)
    if exported := tokenizer_json.exported(value):
        own = _of_proto(exported)
        return _vocabulary(*tokenizer_json.with_added(value, [*own.pieces], own.scores.tolist()))
    return _vocabulary(*tokenizer_json.unigram(value))


def _vocabulary(pieces: list[str], scores: list[float], kind: str = UNIGRAM) -> ModelVocabulary:
    """Build a vocabulary; special tokens lose the scores that some formats give them."""
    is_special = np.array([piece in SPECIALS for piece in pieces], bool)
    return ModelVocabulary(
        tuple(pieces), np.where(is_special, -np.inf, np.array(scores, np.float64)), kind
    )


def _segmenter(old: ModelVocabulary) -> spm.SentencePieceProcessor:
    """Build a processor without normalisation over the pieces of `old`, with its ids."""
    proto = model_proto.ModelProto()
    proto.trainer_spec.model_type = model_proto.TrainerSpec.ModelType.Value(old.kind.upper())
    for piece, score in zip(old.pieces, old.scores.tolist(), strict=True):
        if np.isfinite(score):
            proto.pieces.add(piece=piece, score=score, type=_KINDS.NORMAL)
        else:  # matches no text
            kind = _KINDS.UNKNOWN if piece == SPECIALS[UNK_ID] else _KINDS.CONTROL
            proto.pieces.add(piece=piece, type=kind)
    return model_proto.plain_processor(proto)
