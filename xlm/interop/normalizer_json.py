"""SentencePiece's normalisation and words as steps of a tokenizer.json.

`Precompiled`, which reads SentencePiece's character map, works grapheme by grapheme up to
`tokenizers` 0.23: it replaces a whole grapheme by the shortest rule that its beginning matches
(huggingface/tokenizers issues 2116 and 2334). So Unicode's NFC or NFKC composes characters here.
Stop characters block it if SentencePiece would not compose (`_stops`). `Precompiled` does the rest,
one character at a time. A map that composes nothing needs stops only behind its characters, and a
`Replace` for each other rule of several characters.

The pre-tokenizer removes a blank and puts the visible space on the following letter, so offsets
begin on letters. It splits only between words that no piece crosses.
"""

import base64
import functools
import itertools
import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import sentencepiece as spm
from google.protobuf.message import Message

from vocap import model_proto
from xlm.interop import charsmap

SPACE = "\u2581"
# `tokenizers` splits words at these characters: Unicode's White_Space except the blank.
WHITE_SPACE = frozenset(
    "\t\n\v\f\r\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000"
).union(map(chr, range(0x2000, 0x200B)))  # fmt: skip
# Control characters for stops. A map that does not delete them needs stops of two, and marks those
# of the text by `_OWN`.
_STOP, _OWN, _DONE = _MARKS = "\x01\x02\x03"
BYTE = re.compile("<0x[0-9A-F]{2}>")
_KINDS = model_proto.ModelProto.SentencePiece
_FORMS: tuple[Any, ...] = ("NFC", "NFKC")
_MAX_STEPS = 64  # of rules for several characters, and of user-defined pieces
# Stand-ins for user-defined pieces during normalisation: a noncharacter, which also marks those of
# the text, and another character without a rule.
_STAND_INS = ["\ufdd0" + chr(code) for code in range(0xE000, 0xE000 + _MAX_STEPS)]
_ITSELF = ("\ufdd0", "\ufdd0\ufdd1")
_SYLLABLES = frozenset(map(chr, range(0xAC00, 0xD7A4)))  # of Hangul
_FINALS = frozenset(map(chr, range(0x11A8, 0x11C3)))  # final consonants of syllables
_CODE_POINTS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]


def fault(spec: Message, symbols: Collection[str] = ()) -> str:
    """Return why no steps normalise as `spec` does, with user-defined `symbols`; "" if some do."""
    if not (spec.add_dummy_prefix and spec.escape_whitespaces):
        return "treats white space in another way"
    if of_map := _fault_of_map(spec.precompiled_charsmap):
        return of_map
    if len(_changed(spec, symbols)) == len(_STAND_INS):
        return f"has at least {_MAX_STEPS} user-defined pieces that its normaliser might change"
    return ""


@functools.lru_cache(maxsize=8)
def _fault_of_map(compiled: bytes) -> str:
    rules = read_rules(compiled)
    marked = {key for key, value in rules.items() if not set(_MARKS).isdisjoint(key + value)}
    if marked and not (marked == set(_MARKS) and _deletes_marks(rules)):
        return "has rules for the controls U+0001 to U+0003, but does not delete all three"
    several = [key for key in rules if len(key) > 1]
    if not several or _form(compiled):
        return ""
    if len(several) > _MAX_STEPS:
        return (
            f"has {len(several)} rules for several characters that are neither NFC's nor NFKC's, "
            f"must have at most {_MAX_STEPS}"
        )
    again = [key for key in several if any(other in rules[key] for other in rules)]
    if again:
        return f"replaces {again[0]!r} by {rules[again[0]]!r}, which its rules replace too"
    return ""


def of_model(proto: Message) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return normaliser and pre-tokenizer of a SentencePiece model without a `fault`."""
    spec, user_defined = proto.normalizer_spec, symbols(proto)
    texts = [*of_type(proto, _KINDS.NORMAL), *user_defined]
    is_bpe = proto.trainer_spec.model_type == model_proto.TrainerSpec.BPE
    # No merge makes a special token, but with ignored merges a whole word may be one.
    literals = of_type(proto, _KINDS.CONTROL, _KINDS.UNKNOWN, _KINDS.BYTE)
    return _normalizer(spec, texts, user_defined), _pre_tokenizer(
        spec,
        texts,
        literals=() if is_bpe and not user_defined else literals,
        isolated=user_defined if is_bpe else (),
    )


def symbol_score(symbol: str) -> float:
    """Return SentencePiece's score of a user-defined piece, which beats pieces below zero.

    It is a tenth for each byte but one. A single byte has -0.0, unlike any normal piece.
    """
    return float(np.float32(0.1 * (len(symbol.encode()) - 1))) or -0.0


def symbols(proto: Message) -> list[str]:
    return of_type(proto, _KINDS.USER_DEFINED)


def of_type(proto: Message, *types: int) -> list[str]:
    return [piece.piece for piece in proto.pieces if piece.type in types]


def _normalizer(
    spec: Message, pieces: Collection[str], symbols: Collection[str]
) -> dict[str, Any] | None:
    changed = _changed(spec, symbols)
    swaps = [_ITSELF, *changed.items()] if changed else []
    steps = [
        *(_replace({"String": symbol}, one) for symbol, one in swaps),
        *_by_map(spec.precompiled_charsmap),
        *(_replace({"String": one}, symbol) for symbol, one in reversed(swaps)),
    ]
    if not spec.remove_extra_whitespaces:
        # Metaspace adds no space to a present one.
        steps.append(_replace({"Regex": rf"\A[ {SPACE}]"}, SPACE * 2))
    else:
        if read_rules(spec.precompiled_charsmap).get(SPACE) != " ":
            steps += [
                _replace({"Regex": f"(?<![ {SPACE}])[ {SPACE}]+\\z"}, ""),
                _replace({"Regex": f"(?<![^ ]){SPACE}"}, SPACE * 2),
            ]
        if _crosses_words(pieces, collapsed=True):
            steps += [
                _replace({"Regex": r"\A +|(?<! ) +\z"}, ""),
                _replace({"Regex": " {2,}"}, " "),
            ]
    return typed("Sequence", normalizers=steps) if steps else None


def _pre_tokenizer(
    spec: Message, pieces: Collection[str], literals: Iterable[str], isolated: Collection[str]
) -> dict[str, Any]:
    """Return the pre-tokenizer, which puts visible spaces and splits words.

    `literals` are tokens that no text becomes in SentencePiece, but might in the lattice of
    `tokenizers`, so it cuts them in two. `isolated` are separate words.
    """
    collapsed = spec.remove_extra_whitespaces
    words = not _crosses_words(pieces, collapsed)
    steps = []
    if words and collapsed:
        steps.append(_blanks(spec, pieces))
    elif words:
        between_letters = rf"(?<![\s{SPACE}]) (?=[^\s{SPACE}])"
        steps.append(split({"Regex": between_letters}, "Removed"))
    options = {"prepend_scheme": "always", "split": words and collapsed}
    steps.append(typed("Metaspace", replacement=SPACE, **options))
    if isolated:
        longest = sorted(isolated, key=lambda text: (-len(text), text))
        steps.append(split({"Regex": "|".join(map(_escaped, longest))}, "Isolated"))
    if words and not collapsed:
        steps.append(split({"Regex": f"{SPACE}+"}, "MergedWithNext"))
    if apart := _apart(pieces):
        steps.append(split({"Regex": f"{any_of(apart)}+"}, "Isolated"))
    if pattern := _cuts(pieces, literals):
        steps.append(split({"Regex": pattern}, "MergedWithPrevious"))
    return typed("Sequence", pretokenizers=steps)


def _cuts(pieces: Collection[str], literals: Iterable[str]) -> str:
    """Return a pattern of beginnings of literals, up to a place that no piece or unknown spans."""
    known, joined = frozenset(pieces), "\n".join(pieces)
    patterns = set()
    for literal in literals:
        is_byte = BYTE.fullmatch(literal)
        pairs = enumerate(zip(literal, literal[1:3] if is_byte else literal[1:], strict=False), 1)
        safe = (i for i, pair in pairs if "".join(pair) not in joined and known.intersection(pair))
        cut = next(safe, 1)
        rest = _escaped(literal[cut:3]) + "[0-9A-F]{2}>" if is_byte else _escaped(literal[cut:])
        patterns.add(f"{_escaped(literal[:cut])}(?={rest})")
    return "|".join(sorted(patterns))


def typed(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields}


def added_token(number: int, content: str, *, special: bool = True) -> dict[str, Any]:
    options = dict.fromkeys(("normalized", "single_word", "lstrip", "rstrip"), False)
    return {"id": number, "content": content, "special": special, **options}


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return typed("Replace", pattern=pattern, content=content)


def split(pattern: dict[str, str], behavior: str) -> dict[str, Any]:
    return typed("Split", pattern=pattern, behavior=behavior, invert=False)


def _blanks(spec: Message, pieces: Collection[str]) -> dict[str, Any]:
    """Return a split at blanks: XLM-R's, unless normalised text keeps other white space."""
    rules = read_rules(spec.precompiled_charsmap)
    left = frozenset().union(WHITE_SPACE - rules.keys(), *rules.values(), *pieces)
    if WHITE_SPACE & left:
        return split({"String": " "}, "Removed")
    return typed("WhitespaceSplit")


def _crosses_words(pieces: Collection[str], collapsed: bool) -> bool:
    """Return whether a piece, or an unknown, can cross from one word into the next."""
    behind = (piece[1:] if collapsed else piece.lstrip(SPACE) for piece in pieces)
    return SPACE not in pieces or any(SPACE in rest for rest in behind)


def _apart(pieces: Collection[str]) -> frozenset[str]:
    """Return white space characters that are pieces, and in no piece with other characters."""
    mixed = [frozenset(piece) for piece in pieces if not WHITE_SPACE.isdisjoint(piece)]
    apart = WHITE_SPACE.intersection(pieces)
    while crossing := [piece for piece in mixed if piece & apart and not piece <= apart]:
        apart -= frozenset().union(*crossing)
    return apart


@functools.lru_cache(maxsize=8)
def read_rules(compiled: bytes) -> Mapping[str, str]:
    return charsmap.read_charsmap(compiled) if compiled else {}


@functools.lru_cache(maxsize=8)
def _form(compiled: bytes) -> Any:
    """Return Unicode's form that composes like a map, or "" for neither.

    Rules may differ for characters that are newer than this Python's Unicode.
    """
    rules = read_rules(compiled)
    singles = {key for key in rules if len(key) == 1}
    if len(singles) == len(rules) or not all(map(singles.isdisjoint, rules.values())):
        return ""
    for form in _FORMS:
        composed = {key: unicodedata.normalize(form, key) for key in rules}
        wrong = (
            key
            for key, value in rules.items()
            if composed[key] != value and (len(key) > 1 or composed[key] != key)
        )
        are_young = all(any(unicodedata.category(c) == "Cn" for c in key) for key in wrong)
        if are_young and len(_kept(compiled, form)) <= _deletes_marks(rules):
            return form
    return ""


def _deletes_marks(rules: Mapping[str, str]) -> bool:
    return all(rules.get(mark) == "" for mark in _MARKS)


@functools.lru_cache(maxsize=8)
def _kept(compiled: bytes, form: Any) -> str:
    """Return the characters that a form changes and a map keeps, as nmt_nfkc one tilde."""
    rules, same = read_rules(compiled), unicodedata.is_normalized
    return "".join(c for c in _CODE_POINTS if not same(form, c) and c not in rules)


def _changed(spec: Message, symbols: Collection[str]) -> dict[str, str]:
    """Map the user-defined symbols that normalisation may change to stand-ins, longest first.

    SentencePiece never changes them.
    """
    if not symbols:
        return {}
    several = [key for key in read_rules(spec.precompiled_charsmap) if len(key) > 1]
    joins_next = {character for key in several for character in key[:-1]}
    joins_previous = {character for key in several for character in key[1:]}
    proto = model_proto.ModelProto()
    proto.normalizer_spec.CopyFrom(spec)
    normalize = spm.SentencePieceNormalizer(model_proto=proto.SerializeToString()).normalize
    changed = [
        symbol
        for symbol in sorted(symbols, key=lambda text: (-len(text), text))
        if symbol[-1] in joins_next
        or symbol[0] in joins_previous
        or normalize(f"a{symbol}b") != f"{SPACE}a{symbol}b".replace(" ", SPACE)
    ]
    return dict(zip(changed, _STAND_INS, strict=False))


def _by_map(compiled: bytes) -> list[dict[str, Any]]:
    """Return the steps with the replacements of a character map."""
    rules = read_rules(compiled)
    if not rules:
        return []
    form = _form(compiled)
    leading = {key for key, value in rules.items() if len(key) == 1 and not value}
    steps = []
    if leading:  # `Precompiled` would delete them without moving later offsets
        steps.append(_replace({"Regex": rf"\A{any_of(leading)}+"}, ""))
    encoded = base64.b64encode(compiled).decode("ascii")
    precompiled = typed("Precompiled", precompiled_charsmap=encoded)
    if form and _deletes_marks(rules):
        # The map deletes stops. One of them stands in for the kept character, so the text must
        # have none.
        kept, stops = _kept(compiled, form), _stops(compiled)
        spared = [_replace({"String": kept}, _OWN), typed(form), _replace({"String": _OWN}, kept)]
        stops = f"{_escape(_OWN)}|{stops}" if kept else stops
        composing = spared if kept else [typed(form)]
        return [*steps, _replace({"Regex": stops}, _STOP), *composing, precompiled]
    steps.append(_replace({"String": _STOP}, _STOP + _OWN))
    composing = [_replace({"Regex": _stops(compiled)}, _STOP * 2), typed(form)] if form else []
    return [
        *steps,
        *(composing or _one_by_one(rules)),
        precompiled,
        _replace({"Regex": f"{_STOP}[{_STOP}{_DONE}]"}, ""),
        _replace({"String": _STOP + _OWN}, _STOP),
    ]


def _one_by_one(rules: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return steps after which `Precompiled` finds each character by itself.

    They apply rules for several characters, and put a stop behind every match. Like SentencePiece
    they match from left to right, the longest first.
    """
    singles = [key for key in rules if len(key) == 1]
    several = sorted((key for key in rules if len(key) > 1), key=lambda key: (-len(key), key))
    stop, done = _STOP * 2, _STOP + _DONE
    if not several:
        return [_replace({"Regex": rf"(?<={any_of(singles)})(?!\z)"}, stop)]
    keys = "|".join([*map(_escaped, several), *([any_of(singles)] if singles else [])])
    return [
        _replace({"Regex": rf"(?:{keys})\K"}, stop),
        *(_replace({"String": key + stop}, done + rules[key] + done) for key in several),
    ]


@functools.lru_cache(maxsize=8)  # slow, and a program may export many models with one map
def _stops(compiled: bytes) -> str:
    r"""Return an Oniguruma pattern of positions where `_form`, unlike SentencePiece, might compose.

    SentencePiece scans from left to right and replaces the longest key of its map. The form gives
    the same replacement for a key, but also sorts the marks after a letter and composes across
    them. The pattern has an empty match before each mark that does not continue a key. A match at
    the beginning of a text would give wrong offsets in `tokenizers`, so it has none.
    """
    rules = read_rules(compiled)
    single = {key: value for key, value in rules.items() if len(key) == 1}
    before = _beginnings(rules)
    for character, value in single.items():
        if value[:1] in before:  # the form would compose its replacement
            before.setdefault(character, {})
    joining = defaultdict(set)  # lookbehinds that exclude a stop -> their characters
    for character, beginnings in before.items():
        lookbehinds = (
            f"(?<!{any_of(firsts)}{_escaped(middle)})"
            for middle, firsts in sorted(beginnings.items())
        )
        joining["".join(lookbehinds)].add(character)
    any_joining = any_of(before)
    branches = "|".join(
        f"(?={any_of(characters)}){lookbehinds}" for lookbehinds, characters in joining.items()
    )
    # Other marks do not compose, but the form sorts them, and `Precompiled` treats a mark after a
    # replaced character as part of it.
    other = rf"(?<=[\p{{M}}{any_of(single)}])(?=\p{{M}})(?!{any_joining})"
    # In Hangul both compose letters from left to right, but only the form composes a syllable with
    # a final.
    has_rules = min(_SYLLABLES) + min(_FINALS) in rules
    syllables = set() if has_rules else set(_SYLLABLES)
    syllables.update(key for key, value in single.items() if value[-1:] in _SYLLABLES)
    finals = _FINALS.union(key for key, value in single.items() if value[:1] in _FINALS)
    hangul = f"|(?<={any_of(syllables)})(?={any_of(finals)})" if syllables else ""
    # Most characters are none of these, so the pattern begins with this test.
    relevant = any_of({*before, *finals}).removeprefix("[")
    return rf"(?=[\p{{M}}{relevant})(?!\A)(?:(?={any_joining})(?:{branches})|{other}{hangul})"


def _beginnings(rules: Mapping[str, str]) -> dict[str, dict[str, set[str]]]:
    """Map each key character y and string m to the x of keys that begin with x m y, not Hangul."""
    before: dict[str, dict[str, set[str]]] = {}
    for key, value in rules.items():
        if value not in _SYLLABLES:
            for i in range(1, len(key)):
                before.setdefault(key[i], {}).setdefault(key[1:i], set()).add(key[0])
    return before


def any_of(characters: Iterable[str]) -> str:
    """Return a regular-expression character class, with ranges of adjacent characters."""
    codes = sorted(map(ord, characters))
    ranges = []
    for _, group in itertools.groupby(enumerate(codes), lambda pair: pair[1] - pair[0]):
        run = [chr(code) for _, code in group]
        ranges.append(_escape(run[0]) + (f"-{_escape(run[-1])}" if len(run) > 1 else ""))
    return f"[{''.join(ranges)}]"


def _escaped(text: Sequence[str]) -> str:
    return "".join(map(_escape, text))


def _escape(character: str) -> str:
    return f"\\x{{{ord(character):X}}}"
