"""Rules that normalise and cut text before training. Nothing here needs numba.

SentencePiece's rules keep its names. The default is its trainer's: nmt_nfkc, white space collapsed,
and pieces that never cross a change of Unicode script.
"""

import dataclasses
import functools
import hashlib
import pathlib
import sys
import unicodedata
from collections.abc import Iterable

import sentencepiece as spm
from google.protobuf.message import Message

from vocap import model_proto
from xlm.common import artifacts, schema
from xlm.interop import charsmap

NORMALIZERS = ("nmt_nfkc", "nfkc", "nfc", "identity")
WHITESPACE = ("collapse", "keep")
REQUIRED = ("ascii", "digits", "currency")
SPACE = "\u2581"  # SentencePiece's visible space; prefix of a run that follows a space
# Pieces of kept white space, for code and paragraphs; text of single lines has none to learn.
WHITESPACE_PIECES = (
    *(SPACE * length for length in range(2, 17)),
    *("\n" * length for length in range(1, 5)),
    *("\t" * length for length in range(1, 5)),
    "\r\n", "\r",
)  # fmt: skip
_CODE_POINTS = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextRules:
    """Normalisation and cutting of text; keys of the `vocab` section.

    Attributes:
      normalizer: "nmt_nfkc" as in XLM-R; "nfkc", which keeps joiners and controls; "nfc";
        "identity"; or a file of SentencePiece's rules, each code points, a tab, code points.
      whitespace: "collapse" makes one blank of any white space; "keep" keeps it, with pieces for
        several blanks, tabs and line feeds.
      split_digits: make each digit a piece of its own.
      pattern: regular expression (Oniguruma); no piece crosses the ends of its matches. "" cuts at
        changes of the Unicode script.
      user_defined_symbols: texts that are always one piece.
    """

    normalizer: str = schema.key("nmt_nfkc")
    whitespace: str = schema.key("collapse", choices=WHITESPACE)
    split_digits: bool = schema.key(False)
    pattern: str = schema.key("")
    user_defined_symbols: tuple[str, ...] = schema.key(())

    def __post_init__(self) -> None:
        schema.check(self, "vocab")
        if self.normalizer not in NORMALIZERS and not pathlib.Path(self.normalizer).is_file():
            raise ValueError(
                f"vocab.normalizer is {self.normalizer!r}, must be one of "
                f"{', '.join(NORMALIZERS)}, or a file of rules"
            )
        if self.keeps_whitespace and self.normalizer == "nmt_nfkc":
            raise ValueError(
                "vocab.whitespace is 'keep', but vocab.normalizer 'nmt_nfkc' turns tabs and line "
                "feeds into blanks; set vocab.normalizer to nfkc, nfc or identity"
            )
        if self.split_digits and self.pattern:
            raise ValueError(
                "vocab.split_digits is True, but vocab.pattern cuts text; "
                r"cut digits by \p{N} in the pattern, and set vocab.split_digits=False"
            )
        repeated = len(set(self.user_defined_symbols)) < len(self.user_defined_symbols)
        if repeated or "" in self.user_defined_symbols:
            raise ValueError(
                f"vocab.user_defined_symbols is {self.user_defined_symbols}, must be distinct "
                "texts, none of them empty"
            )

    @property
    def keeps_whitespace(self) -> bool:
        return self.whitespace == "keep"

    @property
    def files(self) -> tuple[str, ...]:
        """Files of rules."""
        return () if self.normalizer in NORMALIZERS else (self.normalizer,)

    @property
    def rules(self) -> "TextRules":
        """Only these rules, without the settings of a subclass."""
        fields = dataclasses.fields(TextRules)
        return TextRules(**{field.name: getattr(self, field.name) for field in fields})

    @property
    def name(self) -> str:
        """Name of the rules: tables counted under one name can be added up."""
        own = dataclasses.asdict(self.rules)
        if own == dataclasses.asdict(TextRules()):
            return self.normalizer
        if self.normalizer in NORMALIZERS:
            return f"{self.normalizer}-{artifacts.fingerprint(own)}"
        own["normalizer"] = hashlib.sha256(pathlib.Path(self.normalizer).read_bytes()).hexdigest()
        return f"user_defined-{artifacts.fingerprint(own)}"

    def write_spec(self, spec: Message) -> None:
        """Set the normaliser of a SentencePiece model, which puts a visible space before a text."""
        spec.name = self.normalizer if self.normalizer in NORMALIZERS else "user_defined"
        spec.precompiled_charsmap = _character_map(self.normalizer)
        if self.keeps_whitespace:
            spec.remove_extra_whitespaces = False

    def processor(self) -> spm.SentencePieceNormalizer:
        """Return the normaliser of text, the same as in models; spaces are visible."""
        proto = model_proto.ModelProto()
        self.write_spec(proto.normalizer_spec)
        return spm.SentencePieceNormalizer(model_proto=proto.SerializeToString())


@functools.lru_cache(maxsize=8)
def _character_map(normalizer: str) -> bytes:
    """Compile the character map of a normaliser; SentencePiece has none for NFC."""
    if normalizer == "identity":
        return b""
    if normalizer == "nfc":
        return charsmap.compiled(_compositions())
    if normalizer in NORMALIZERS:
        return charsmap.of(rule_name=normalizer)
    return charsmap.of(rule_tsv=normalizer)


def _compositions() -> dict[str, str]:
    """Return the rules of NFC: each character's decompositions, whole and with a part composed.

    Like SentencePiece's rules of NFKC they apply from left to right, longest first, and do not sort
    marks: a mark between a letter and a mark that composes with it prevents the composition.
    """
    rules = {}
    for character in _CODE_POINTS:
        composed, apart = (unicodedata.normalize(form, character) for form in ("NFC", "NFD"))
        if composed != character:
            rules[character] = composed
        elif apart != character:
            for cut in range(1, len(apart)):
                first = unicodedata.normalize("NFC", apart[:cut])
                rules[first + apart[cut:]] = character
    return rules


def required_characters(used: Iterable[str], required: Iterable[str], rules: TextRules) -> set[str]:
    """Return characters that a vocabulary needs even if text lacks them.

    Args:
      used: characters of a language's text.
      required: "ascii", its visible characters; "digits", all ten of each decimal system with a
        used one; "currency", all currency signs; or files, for all their characters.
    """
    found: set[str] = set()
    for name in required:
        if name == "ascii":
            found.update(map(chr, range(0x21, 0x7F)))
        elif name == "digits":
            zeros = {ord(one) - unicodedata.digit(one) for one in used if one.isdecimal()}
            found.update(chr(zero + i) for zero in zeros for i in range(10))
        elif name == "currency":
            found.update(one for one in _CODE_POINTS if unicodedata.category(one) == "Sc")
        else:
            found.update("".join(artifacts.existing(name).read_text(encoding="utf-8").split()))
    normalize = rules.processor().normalize
    return {one for one in found if normalize(one) == SPACE + one}
