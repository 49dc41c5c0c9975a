"""Settings of a vocabulary and of its trainer. Nothing here needs numba."""

import dataclasses
from collections.abc import Mapping

from xlm.common import schema

METHODS = ("vocap", "proportional", "uniform", "joint", "clustered", "bpe", "union", "byte_bpe")
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
class TrainerSettings:
    """Settings of the training of a language's vocabularies.

    Attributes:
      trainer: "nested", one training for all sizes (`vocap.nested`), or "sentencepiece", the
        reference, with one training per size.
      sizes: wanted numbers of pieces, ascending, the unknown piece not counted.
      character_coverage: share of the characters that must be pieces of their own.
      max_piece_length: longest piece, in characters; in "byte_bpe" four bytes stand for each.
      max_seeds: number of substrings that training starts from.
      alp_probabilities: p_uni of Eq. 1: "corpus" for the pieces' shares in the best segmentation of
        the text, as the authors' scripts have it, or "model" for the trainer's scores.
    """

    trainer: str = schema.key("nested", choices=TRAINERS)
    sizes: tuple[int, ...] = schema.key(tuple(range(1000, 50_001, 1000)))
    character_coverage: float = schema.key(0.9995, above=0, at_most=1)
    max_piece_length: int = schema.key(16, at_least=1, at_most=MAX_PIECE_LENGTH)
    max_seeds: int = schema.key(1_000_000, at_least=1)
    alp_probabilities: str = schema.key("corpus", choices=ALP_PROBABILITIES)

    def __post_init__(self):
        schema.check(self, "vocab")
        if not self.sizes or list(self.sizes) != sorted(set(self.sizes)) or self.sizes[0] < 1:
            raise ValueError(f"vocab.sizes must be positive and ascending, got {self.sizes}")
        if self.trainer == "sentencepiece" and self.character_coverage < _LEAST_COVERAGE:
            raise ValueError(
                f"vocab.character_coverage is {self.character_coverage}; SentencePiece takes "
                f"{_LEAST_COVERAGE} or more, vocab.trainer = nested any"
            )


@dataclasses.dataclass(frozen=True)
class VocabularySettings(TrainerSettings):
    """Settings of a vocabulary build, with sizes of single languages; the `vocab` section.

    Attributes:
      method: method of choosing pieces, one of `METHODS`.
      compare: other methods that the report compares it with.
      target_size: T of Algorithm 1, pieces of the merged model, special tokens included.
      amounts: n_i of Eq. 3 per language in any unit; if empty, the bytes of the text.
      alpha: exponent of the language probabilities (Eq. 3); 1 takes `amounts` as probabilities.
      beta: exponent of the probabilities in the objective (Eq. 2).
      initial_sizes: sizes that languages begin at under the method "vocap", instead of their
        smallest; see `allocation.allocate`.
      num_clusters: clusters of the method "clustered".
      parity: of the methods "union" and "byte_bpe", from 0, shares q^beta, to 1, equal tokens for
        the same content in all languages as far as text allows; see `union.fair_shares`.
      max_characters: limit on the text of one training, of a single language or of several
        together: the most frequent runs of each language are kept, up to this many characters in
        all; 0 for no limit. Training takes about 80 bytes of memory per character.
      em_iterations: EM iterations that score the merged pieces.
      num_workers: languages built in parallel.
      seed: of the sentence sampling with which the trainer "sentencepiece" mixes languages.
    """

    method: str = schema.key("vocap", choices=METHODS)
    compare: tuple[str, ...] = schema.key((), choices=METHODS, effect="records")
    target_size: int = schema.key(250_000, at_least=1)
    amounts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    alpha: float = schema.key(0.7, at_least=0)
    beta: float = schema.key(0.7, at_least=0)
    initial_sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    num_clusters: int = schema.key(4, at_least=1)
    parity: float = schema.key(0.0, at_least=0, at_most=1)
    max_characters: int = schema.key(100_000_000, at_least=0)
    em_iterations: int = schema.key(5, at_least=0)
    num_workers: int = schema.key(2, at_least=1, effect="records")
    seed: int = schema.key(0)

    def __post_init__(self):
        super().__post_init__()
        if self.initial_sizes and self.method != "vocap":
            raise ValueError(
                f"vocab.allocation gives sizes to begin at, and vocab.method is {self.method!r}; "
                "only 'vocap' can begin at sizes: set vocab.method=vocap, or vocab.allocation=''"
            )
        if self.parity and not {"union", "byte_bpe"} & {self.method, *self.compare}:
            raise ValueError(
                f"vocab.parity is {self.parity}, but vocab.method is {self.method!r}; set "
                "vocab.method=union or byte_bpe, or vocab.parity=0"
            )
        if self.budget < 1:
            raise ValueError(
                f"vocab.target_size is {self.target_size}, must be above the "
                f"{len(SPECIALS)} special tokens"
            )

    @property
    def training(self) -> TrainerSettings:
        """Settings that a training depends on."""
        fields = dataclasses.fields(TrainerSettings)
        return TrainerSettings(**{f.name: getattr(self, f.name) for f in fields})

    @property
    def budget(self) -> int:
        """Number of pieces, special tokens not counted."""
        return self.target_size - len(SPECIALS)
