"""Settings of a vocabulary and of its trainer. Nothing here needs numba."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from vocap.text_rules import REQUIRED, WHITESPACE_PIECES, TextRules
from xlm.common import schema

METHODS = ("vocap", "proportional", "uniform", "joint", "clustered", "bpe", "union", "byte_bpe")
AUTO = "auto"  # `choosing` chooses the method
LENGTH_BITS = 5  # of a piece's length, in an arc of a lattice
MAX_PIECE_LENGTH = 1 << LENGTH_BITS  # characters
# The ids of XLM-R, except that <mask> stands with the other specials and not at the end.
SPECIALS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
BOS_ID, PAD_ID, EOS_ID, UNK_ID, MASK_ID = range(len(SPECIALS))
# Kinds of models: segmentation by probability, by merges, or by merges of bytes.
UNIGRAM, BPE, BYTE_BPE = "unigram", "bpe", "byte_bpe"
TRAINERS = ("nested", "sentencepiece")
ALP_PROBABILITIES = ("corpus", "model")
_LEAST_COVERAGE = 0.98  # minimum that SentencePiece's trainer accepts


@dataclasses.dataclass(frozen=True)
class TrainerSettings(TextRules):
    """Settings of the training of a language's vocabularies.

    Attributes:
      trainer: "nested", one training for all sizes (`vocap.nested`), or "sentencepiece", the
        reference, with one training per size.
      sizes: wanted numbers of pieces, ascending, without the unknown piece; () for sizes that
        follow the text, from its number of characters to the largest that it can fill.
      character_coverage: share of the characters that must be pieces of their own.
      required_chars: characters that are pieces of their own even if a language's text lacks them:
        "ascii"; "digits", all of a decimal system if one is used; "currency"; or files.
      max_piece_length: longest piece, in characters, which "byte_bpe" takes as four bytes each.
      max_seeds: number of substrings that training starts from.
      alp_probabilities: p_uni of Eq. 1: "corpus" for the pieces' shares in the best segmentation of
        the text, as in the authors' scripts, or "model" for the trainer's scores.
    """

    trainer: str = schema.key("nested", choices=TRAINERS)
    sizes: tuple[int, ...] = schema.key(tuple(range(1000, 50_001, 1000)))
    limit: int = 1 << 16
    character_coverage: float = schema.key(0.9995, above=0, at_most=1)
    required_chars: tuple[str, ...] = schema.key(())
    max_piece_length: int = schema.key(16, at_least=1, at_most=MAX_PIECE_LENGTH)
    max_seeds: int = schema.key(1_000_000, at_least=1)
    alp_probabilities: str = schema.key("corpus", choices=ALP_PROBABILITIES)

    def __post_init__(self):
        super().__post_init__()
        for name in self.required_chars:
            if name not in REQUIRED and not pathlib.Path(name).is_file():
                raise ValueError(
                    f"vocab.required_chars has {name!r}, must be {' or '.join(REQUIRED)}, or a file"
                )
        if self.trainer == "sentencepiece" and self.text_identity:
            raise ValueError(
                "vocab.trainer is 'sentencepiece', the reference, which takes only the default "
                "vocab.normalizer, whitespace, split_digits, pattern, user_defined_symbols and "
                "required_chars; set vocab.trainer=nested"
            )
        if list(self.sizes) != sorted(set(self.sizes)) or min(self.sizes, default=1) < 1:
            raise ValueError(f"vocab.sizes must be positive and ascending, got {self.sizes}")
        if not self.sizes and self.trainer == "sentencepiece":
            raise ValueError(
                "vocab.sizes is (), but vocab.trainer 'sentencepiece' trains sizes one by one; "
                "give sizes, or set vocab.trainer=nested"
            )
        if self.trainer == "sentencepiece" and self.character_coverage < _LEAST_COVERAGE:
            raise ValueError(
                f"vocab.character_coverage is {self.character_coverage}; SentencePiece takes "
                f"{_LEAST_COVERAGE} or more, vocab.trainer = nested any"
            )

    @property
    def files(self) -> tuple[str, ...]:
        return (*super().files, *(name for name in self.required_chars if name not in REQUIRED))

    @property
    def text_identity(self) -> list[str]:
        """Rules of counted text that are not the default; files by their contents."""
        if self.rules == TextRules() and not self.required_chars:
            return []
        texts = (pathlib.Path(path).read_text(encoding="utf-8") for path in self.files)
        return [self.rules.name, *self.required_chars, *texts]

    @property
    def training(self) -> "TrainerSettings":
        """Settings that a training depends on."""
        fields = dataclasses.fields(TrainerSettings)
        return TrainerSettings(**{field.name: getattr(self, field.name) for field in fields})

    @property
    def training_identity(self) -> dict[str, Any]:
        """Settings that a training of counted text depends on, besides `text_identity`."""
        of_text = {"required_chars", *(field.name for field in dataclasses.fields(TextRules))}
        own = dataclasses.asdict(self.training)
        if self.sizes:  # they replace the limit
            del own["limit"]
        return {key: value for key, value in own.items() if key not in of_text}


@dataclasses.dataclass(frozen=True)
class VocabularySettings(TrainerSettings):
    """Settings of a vocabulary build, with sizes of single languages; the `vocab` section.

    Attributes:
      method: method that chooses pieces, one of `METHODS`, or "auto", which tries union at several
        parities and vocap, and takes the fewest tokens within `max_ratio`.
      max_ratio: for the method "auto", most tokens of any language over its tokens under "uniform".
      compare: other methods for the report to compare with.
      target_size: T of Algorithm 1, pieces of the merged model with special tokens.
      amounts: n_i of Eq. 3 per language in any unit; if empty, the bytes of the text.
      alpha: exponent of the language probabilities (Eq. 3); 1 takes `amounts` as probabilities.
      beta: exponent of the probabilities in the objective (Eq. 2).
      initial_sizes: sizes at which languages begin under the method "vocap", instead of their
        smallest; see `allocation.allocate`.
      num_clusters: clusters of the method "clustered".
      parity: for the methods "union" and "byte_bpe", from 0, shares q^beta, to 1, equal tokens for
        the same content in all languages as far as text allows; see `union.fairest_shares`.
      explore: for the method "union", let report.html explore other sizes and parities, at the cost
        of some 15 more trainings.
      byte_fallback: spell characters without a piece by 256 pieces for bytes.
      control_symbols: pieces that no text becomes, such as those of a chat; ids from 5 on.
      reserved: number of further control pieces, <reserved_0> and so on, for later use.
      max_characters: most characters of one training, of a single language or of several together;
        it keeps the most frequent runs of each language. 0 for no limit. Training takes about 80
        bytes of memory per character.
      em_iterations: EM iterations that score the merged pieces.
      num_workers: languages built in parallel.
      seed: seed of the sentences that the trainer "sentencepiece" samples to mix languages.
    """

    method: str = schema.key("vocap", choices=(*METHODS, AUTO))
    max_ratio: float = schema.key(1.1, above=0)
    compare: tuple[str, ...] = schema.key((), choices=METHODS, effect="records")
    target_size: int = schema.key(250_000, at_least=1)
    amounts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    alpha: float = schema.key(0.7, at_least=0)
    beta: float = schema.key(0.7, at_least=0)
    initial_sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    num_clusters: int = schema.key(4, at_least=1)
    parity: float = schema.key(0.0, at_least=0, at_most=1)
    explore: bool = schema.key(True, effect="records")
    byte_fallback: bool = schema.key(False)
    control_symbols: tuple[str, ...] = schema.key(())
    reserved: int = schema.key(0, at_least=0)
    max_characters: int = schema.key(100_000_000, at_least=0)
    em_iterations: int = schema.key(5, at_least=0)
    num_workers: int = schema.key(2, at_least=1, effect="records")
    seed: int = schema.key(0)

    def __post_init__(self):
        super().__post_init__()
        if self.initial_sizes and self.method != "vocap":
            raise ValueError(
                f"vocab.allocation gives initial sizes, but vocab.method is {self.method!r}; only "
                "'vocap' takes them: set vocab.method=vocap, or vocab.allocation=''"
            )
        if self.parity and not {"union", "byte_bpe", AUTO} & {self.method, *self.compare}:
            raise ValueError(
                f"vocab.parity is {self.parity}, but vocab.method is {self.method!r}; set "
                "vocab.method=union or byte_bpe, or vocab.parity=0"
            )
        if self.budget < 1:
            raise ValueError(
                f"vocab.target_size is {self.target_size}, must be above the "
                f"{self.target_size - self.budget} special tokens and other fixed pieces"
            )
        if len(set(self.fixed)) < len(self.fixed) or "" in self.fixed:
            raise ValueError(
                f"vocab.control_symbols is {self.control_symbols} and vocab.user_defined_symbols "
                f"{self.user_defined_symbols}; must be distinct, not empty, and none of "
                f"{' '.join(SPECIALS)}"
            )
        spaced = [one for one in self.user_defined_symbols if " " in one]
        if spaced and self.method != "byte_bpe":
            raise ValueError(
                f"vocab.user_defined_symbols has {spaced}: SentencePiece finds no symbol with a "
                "blank in a text; write it as 'New_York', or set vocab.method=byte_bpe"
            )

    @property
    def fixed(self) -> tuple[str, ...]:
        """Pieces that are not learned, in the order of their ids, from 0."""
        return (
            *SPECIALS, *self.controls, *self.user_defined_symbols, *self.byte_pieces,
            *self.whitespace_pieces,
        )  # fmt: skip

    @property
    def controls(self) -> tuple[str, ...]:
        return (*self.control_symbols, *(f"<reserved_{i}>" for i in range(self.reserved)))

    @property
    def byte_pieces(self) -> tuple[str, ...]:
        """Pieces that spell bytes; "byte_bpe" has them as tokens."""
        if not self.byte_fallback or self.method == "byte_bpe":
            return ()
        return tuple(f"<0x{byte:02X}>" for byte in range(256))

    @property
    def whitespace_pieces(self) -> tuple[str, ...]:
        return WHITESPACE_PIECES if self.keeps_whitespace and self.method != "byte_bpe" else ()

    @property
    def budget(self) -> int:
        """Number of learned pieces."""
        return self.target_size - len(self.fixed)
