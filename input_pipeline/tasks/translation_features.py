"""From pairs of texts to token ids of an encoder and a decoder."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import sentencepiece as spm

from input_pipeline.packed_dataset import SpecialIds
from input_pipeline.tasks.examples import TranslationExample
from input_pipeline.tasks.features import check_length, padded, token_arrays, warn_of_cuts

Unit = Literal["example", "line"]
_REMEDIES: dict[Unit, str] = {
    "example": "raise task.max_length, up to the positions of the encoder",
    "line": "split them, such as into sentences",
}


@dataclasses.dataclass(frozen=True, eq=False)
class TranslationFeature:
    """A source `<s> x </s>`, [S] int32 `tokens`, and a target `symbol y </s>` if it is known.

    `symbol` is the decoder's first input. `target` is [T] int32 `y </s>`, or None.
    """

    example: int
    tokens: np.ndarray
    symbol: int
    target: np.ndarray | None

    @property
    def size(self) -> int:
        """Tokens of the longer side."""
        return max(len(self.tokens), 0 if self.target is None else len(self.target))

    def arrays(self, length: int, pad: int) -> dict[str, np.ndarray]:
        """Return the source as other features have it, and the target, int32.

        `first_token` [] is the symbol, `target_inputs` [length] the symbol and y, and
        `target_outputs` [length] the next tokens, y and `</s>`, -1 for none.
        """
        arrays = {
            **token_arrays(self.tokens, length, pad),
            "first_token": np.array(self.symbol, np.int32),
        }
        if self.target is not None:
            inputs = np.concatenate([[self.symbol], self.target[:-1]]).astype(np.int32)
            arrays["target_inputs"] = padded(inputs, length, pad)
            arrays["target_outputs"] = padded(self.target, length, -1)
        return arrays


def language_symbols(
    languages: Sequence[str],
    vocab_size: int,
    pieces: Mapping[str, str],
    piece_id: Callable[[str], int],
    special: SpecialIds,
) -> dict[str, int]:
    """Return the ids of the symbols that a decoder's input begins with, by target language.

    `pieces` names the pieces of some languages, such as {"de": "▁<2de>"}; of specials only `</s>`,
    as other decoders begin with it. Any other language gets a row of the embedding table after
    those of the pieces, which tokenizer and softmax do not know. A later run may append to
    `languages` and keep the symbols. `piece_id` gives `<unk>` for unknown pieces.

    Raise ValueError for a piece that is unknown, special, or of two languages, or for a language
    that is no target.
    """
    if unknown := sorted(set(pieces) - set(languages)):
        raise ValueError(
            f"translation.language_pieces names {', '.join(map(repr, unknown))}, but the target "
            f"languages are {', '.join(dict.fromkeys(languages))}; correct or remove the codes"
        )
    found: dict[str, int] = {}
    rows = itertools.count(vocab_size)
    for language in dict.fromkeys(languages):
        if language not in pieces:
            found[language] = next(rows)
            continue
        symbol = piece_id(pieces[language])
        if symbol == special.unk:
            fault = "is no piece of the vocabulary; name one that is, or none"
        elif symbol in special.special_ids() and symbol != special.eos:
            fault = "is a special token; name another piece, or none"
        elif other := [one for one, row in found.items() if row == symbol]:
            fault = f"is that of {other[0]!r}, too; name another piece, or none"
        else:
            found[language] = symbol
            continue
        raise ValueError(
            f"translation.language_pieces: {pieces[language]!r} of {language!r} {fault}"
        )
    return found


def translation_features(
    examples: Sequence[TranslationExample],
    processor: spm.SentencePieceProcessor,
    special: SpecialIds,
    max_length: int,
    symbols: Mapping[str, int],
    unit: Unit = "example",
) -> list[TranslationFeature]:
    """Return a feature of each pair; sides that are too long are cut, with a warning that counts.

    `max_length` limits a source with `<s>` and `</s>`, and a target with `</s>`. `unit` says what
    ids number: examples of a run's data, or lines of a text for a finished model. Raise ValueError
    if `max_length` is too short, or a target language has no symbol.
    """
    check_length(max_length)
    wanted = {example.target_language for example in examples}
    if missing := sorted(wanted - set(symbols)):
        raise ValueError(
            f"no symbol for the target language {', '.join(missing)}; the model was made for "
            f"{', '.join(symbols)}: train on a direction into it, or correct the direction"
        )
    sources = processor.encode([one.source for one in examples], return_type="numpy")
    targets = processor.encode([one.target or "" for one in examples], return_type="numpy")
    ids = [one.id for one in examples]
    for what, texts, room in (
        ("sources", sources, max_length - 2),
        ("targets", targets, max_length - 1),
    ):
        warn_of_cuts(what, [len(one) for one in texts], room, ids, unit, _REMEDIES[unit])
    found = []
    for number, (example, x, y) in enumerate(zip(examples, sources, targets, strict=True)):
        source = np.concatenate([[special.bos], x[: max_length - 2], [special.eos]])
        target = None
        if example.target is not None:
            target = np.append(y[: max_length - 1], special.eos).astype(np.int32)
        symbol = symbols[example.target_language]
        found.append(TranslationFeature(number, source.astype(np.int32), symbol, target))
    return found
