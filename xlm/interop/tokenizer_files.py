"""Files of a tokenizer that can grow: SentencePiece models and tokenizer.json of Hugging Face."""

import abc
import collections
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import sentencepiece as spm

from vocap import model_proto
from vocap.byte_tokens import token_bytes
from vocap.extension import LONGEST, is_word
from vocap.settings import BPE, UNIGRAM
from xlm.interop import vocabulary
from xlm.interop.normalizer_json import BYTE, SPACE
from xlm.interop.segmenter import tokenizer_of

_KINDS = model_proto.ModelProto.SentencePiece
_REMEDY = "give a Unigram or BPE tokenizer, such as those of XLM-R, Llama or GPT-2"
_MATCHED_WHOLE = ("continuing_subword_prefix", "end_of_word_suffix")
_Line = Iterable[tuple[str, int]]


class Growing(abc.ABC):
    """A tokenizer's file that can take more pieces.

    Attributes:
      kind: "unigram" or "bpe".
      ids: all strings of the file, including special and added tokens, with their ids.
      scores: of the strings that segmentation uses; 0 for BPE in a tokenizer.json.
      is_bytes: whether pieces spell bytes by the alphabet of GPT-2.
      falls_back: whether a character that is no piece becomes its bytes, not an unknown.
    """

    kind: str
    ids: dict[str, int]
    scores: dict[str, float]
    is_bytes = False
    falls_back: bool

    @property
    def next_id(self) -> int:
        return max(self.ids.values()) + 1

    @abc.abstractmethod
    def normalized(self, lines: Sequence[str]) -> list[str]:
        """Return text as the model sees it, with visible spaces."""

    @abc.abstractmethod
    def grown(
        self, pieces: Sequence[str], scores: np.ndarray | None, fillers: Iterable[str]
    ) -> bytes:
        """Return the file with `fillers`, which match no text, and then the pieces."""

    @abc.abstractmethod
    def parts(self, pieces: Sequence[str]) -> list[list[int]]:
        """Return the ids of each new piece's old pieces, without unknowns."""

    @abc.abstractmethod
    def _segmented(self, lines: Iterable[str], characters: Sequence[str]) -> Iterator[_Line]:
        """Yield pieces of lines with their pre-token's number; `characters` are pieces too."""

    def may_be_new(self, piece: str) -> bool:
        """Return whether a string of several characters may become a piece."""
        text = self.spelled(piece)
        return piece not in self.ids and len(text) <= LONGEST and is_word(text)

    def spelled(self, piece: str) -> str:
        """Return the text of a piece, with U+FFFD for parts of a character."""
        return piece

    def characters(self, lines: Sequence[str]) -> collections.Counter[str]:
        """Count the characters of lines; none if pieces spell bytes."""
        return collections.Counter("" if self.is_bytes else "".join(self.normalized(lines)))

    def words(
        self, lines: Iterable[str], characters: Sequence[str]
    ) -> collections.Counter[tuple[str, ...]]:
        """Count the segmented words of lines, as if `characters` were pieces.

        Pieces of SentencePiece cross neither a visible space nor the end of the letters.
        """
        found: collections.Counter[tuple[str, ...]] = collections.Counter()
        usable = self.scores.keys() | set(characters)
        for line in self._segmented(lines, characters):
            word: list[str] = []
            last = -1
            for piece, number in line:
                ends = number != last or piece not in usable
                if word and (ends or (not self.is_bytes and _is_border(word[-1], piece))):
                    found[tuple(word)] += 1
                    word = []
                if piece in usable:
                    word.append(piece)
                last = number
            if word:
                found[tuple(word)] += 1
        return found


def _is_border(piece: str, following: str) -> bool:
    return following[0] == SPACE or is_word(piece[-1:]) != is_word(following[:1])


class SentencePieceFile(Growing):
    """A SentencePiece model."""

    def __init__(self, content: bytes):
        self._proto = vocabulary.parse(content)
        self.kind = vocabulary.kind(self._proto)
        if self._proto.trainer_spec.treat_whitespace_as_suffix:
            raise ValueError(f"the model's blanks end a word, must begin it; {_REMEDY}")
        self.ids = {piece.piece: i for i, piece in enumerate(self._proto.pieces)}
        normal = (piece for piece in self._proto.pieces if piece.type == _KINDS.NORMAL)
        self.scores = {piece.piece: piece.score for piece in normal}
        self.falls_back = any(piece.type == _KINDS.BYTE for piece in self._proto.pieces)
        self._processor = spm.SentencePieceProcessor(model_proto=content)

    def normalized(self, lines: Sequence[str]) -> list[str]:
        return self._processor.normalize(list(lines))

    def grown(
        self, pieces: Sequence[str], scores: np.ndarray | None, fillers: Iterable[str]
    ) -> bytes:
        proto = model_proto.ModelProto()
        proto.CopyFrom(self._proto)
        for filler in fillers:
            proto.pieces.add(piece=filler, type=_KINDS.CONTROL)
        if scores is None:  # merges follow all others
            scores = min(self.scores.values()) - 1.0 - np.arange(len(pieces))
        for piece, score in zip(pieces, scores.tolist(), strict=True):
            proto.pieces.add(piece=piece, score=score, type=_KINDS.NORMAL)
        proto.trainer_spec.vocab_size = len(proto.pieces)
        return proto.SerializeToString()

    def parts(self, pieces: Sequence[str]) -> list[list[int]]:
        processor = model_proto.plain_processor(self._proto)
        unknown = processor.unk_id()
        return [[i for i in ids if i != unknown] for ids in processor.encode(list(pieces))]

    def _segmented(self, lines: Iterable[str], characters: Sequence[str]) -> Iterator[_Line]:
        model = self.grown(characters, None, ())
        processor = spm.SentencePieceProcessor(model_proto=model)
        pieces = [processor.id_to_piece(i) for i in range(len(processor))]
        for batch in vocabulary.batches(lines):
            for ids in processor.encode(batch):
                yield ((pieces[i], 0) for i in ids)


class JsonFile(Growing):
    """A tokenizer.json; added tokens enter its model's vocabulary, where they match no text.

    `tokenizers` numbers an added token that the vocabulary lacks by the vocabulary's size, so it
    would move behind new pieces.
    """

    def __init__(self, content: bytes):
        self._value = json.loads(content)
        model = self._value["model"]
        if model.get("type") not in ("Unigram", "BPE") or any(map(model.get, _MATCHED_WHOLE)):
            raise ValueError(
                f"the model is of type {model.get('type')!r}, or marks words; {_REMEDY}"
            )
        added = {one["content"]: one["id"] for one in self._value.get("added_tokens") or ()}
        self._added = {i: content for content, i in added.items()}
        unknown = model.get("unk_token")
        if model["type"] == "Unigram":
            self.kind, scores = UNIGRAM, dict(model["vocab"])
            own = {piece: i for i, (piece, _) in enumerate(model["vocab"])}
            if model.get("unk_id") is not None:
                unknown = model["vocab"][model["unk_id"]][0]
        else:
            self.kind, own, scores = BPE, model["vocab"], dict.fromkeys(model["vocab"], 0.0)
        self.ids = {**own, **added}
        self.falls_back = bool(model.get("byte_fallback"))
        self._bytes = {piece for piece in own if self.falls_back and BYTE.fullmatch(piece)}
        unused = added.keys() | self._bytes | {unknown}
        self.scores = {piece: score for piece, score in scores.items() if piece not in unused}
        self.is_bytes = '"ByteLevel"' in json.dumps(
            [self._value.get("pre_tokenizer"), self._value.get("normalizer")]
        )
        self._tokenizer = _built(self._value)

    def normalized(self, lines: Sequence[str]) -> list[str]:
        normalizer, splitter = self._tokenizer.normalizer, self._tokenizer.pre_tokenizer
        if normalizer is not None:
            lines = [normalizer.normalize_str(line) for line in lines]
        if splitter is not None:
            lines = ["".join(w for w, _ in splitter.pre_tokenize_str(line)) for line in lines]
        return list(lines)

    def spelled(self, piece: str) -> str:
        return token_bytes(piece).decode(errors="replace") if self.is_bytes else piece

    def grown(
        self, pieces: Sequence[str], scores: np.ndarray | None, fillers: Iterable[str] = ()
    ) -> bytes:
        return json.dumps(self._grown(pieces, scores), ensure_ascii=False, indent=2).encode()

    def _grown(self, pieces: Sequence[str], scores: np.ndarray | None) -> dict[str, Any]:
        model = dict(self._value["model"])
        used = set(self.ids.values())
        names = {i: self._added.get(i) or f"<unused_{i}>" for i in range(self.next_id)}
        numbers = range(self.next_id, self.next_id + len(pieces))
        if self.kind == UNIGRAM:
            assert scores is not None
            lowest, size = min(self.scores.values()), len(model["vocab"])
            behind = [[names[i], lowest] for i in range(size, self.next_id)]
            new = [[piece, score] for piece, score in zip(pieces, scores.tolist(), strict=True)]
            model["vocab"] = [*model["vocab"], *behind, *new]
        else:
            absent = {names[i]: i for i in names if i in self._added or i not in used}
            model["vocab"] = {**model["vocab"], **absent, **dict(zip(pieces, numbers, strict=True))}
            model["merges"] = self._merges(model["merges"], pieces)
        return {**self._value, "model": model}

    def _merges(self, old: Sequence[Any], pieces: Sequence[str]) -> list[Any]:
        """Return the merges, with those of new pieces at the end, in SentencePiece's order.

        SentencePiece merges any two pieces that make an old one. So a pair with a new piece joins
        the merges of the old piece.
        """
        added = set(pieces)
        known = self.scores.keys() | added
        in_text = bool(old) and isinstance(old[0], str)

        def pairs(piece: str, *, is_new: bool) -> Iterator[Any]:
            for i in range(1, len(piece)):
                pair = piece[:i], piece[i:]
                if known.issuperset(pair) and (is_new or not added.isdisjoint(pair)):
                    yield " ".join(pair) if in_text else list(pair)

        found = list(old)
        if not self.is_bytes:
            spelled = (merge.replace(" ", "") if in_text else "".join(merge) for merge in old)
            last = {piece: i for i, piece in enumerate(spelled)}
            found = []
            by_place = {i: list(pairs(piece, is_new=False)) for piece, i in last.items()}
            for i, merge in enumerate(old):
                found += [merge, *by_place.get(i, ())]
        for piece in pieces:
            found += pairs(piece, is_new=True)
        return found

    def parts(self, pieces: Sequence[str]) -> list[list[int]]:
        others = ("normalizer", "pre_tokenizer", "post_processor", "added_tokens")
        tokenizer = _built({**self._value, **dict.fromkeys(others), "added_tokens": []})
        found = tokenizer.encode_batch(list(pieces), add_special_tokens=False)
        used = {self.ids[piece] for piece in self.scores.keys() | self._bytes}
        return [[i for i in one.ids if i in used] for one in found]

    def _segmented(self, lines: Iterable[str], characters: Sequence[str]) -> Iterator[_Line]:
        tokenizer = _built(self._grown(characters, None))
        pieces = {i: piece for piece, i in tokenizer.get_vocab().items()}
        for batch in vocabulary.batches(lines):
            for one in tokenizer.encode_batch(batch, add_special_tokens=False):
                words = (-1 if word is None else word for word in one.word_ids)
                yield zip((pieces[i] for i in one.ids), words, strict=True)


def _built(value: Mapping[str, Any]) -> Any:
    return tokenizer_of(json.dumps(value).encode())
