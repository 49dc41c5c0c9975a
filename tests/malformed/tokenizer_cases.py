"""Tokenizers, and the tables of amounts and sizes that a build may be given."""

import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from sentencepiece import sentencepiece_model_pb2 as model_pb2

from tests import tiny_tasks
from tests.malformed import templates
from tests.malformed.harness import Break, Case

_UNIGRAM = b'{"model": {"type": "Unigram", "vocab": [["a", -1.0]]}, '


def _write(name: str, content: bytes | str) -> Break:
    """Write a file of the working directory."""
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / "work" / name).write_bytes(data)


def _restored(folder: pathlib.Path) -> None:
    shutil.copy(templates.template("text") / "work/vocab/spm.model", folder / "work/vocab")


def _tokenizers() -> Iterator[Case]:
    def model(change: Callable[[Any], Any]) -> bytes:
        proto = model_pb2.ModelProto.FromString(tiny_tasks.tokenizer())
        change(proto)
        return proto.SerializeToString()

    def without(piece: str) -> bytes:
        def change(proto: Any) -> None:
            kept = [one for one in proto.pieces if one.piece != piece]
            del proto.pieces[:]
            proto.pieces.extend(kept)

        return model(change)

    def twice(proto: Any) -> None:
        proto.pieces.append(proto.pieces[-1])

    def to_words(proto: Any) -> None:
        proto.trainer_spec.model_type = model_pb2.TrainerSpec.WORD

    whole = tiny_tasks.tokenizer()
    contents: tuple[tuple[str, bytes], ...] = (
        ("empty", b""),
        ("cut", whole[: len(whole) // 2]),
        ("text", b"the cat runs\n" * 9),
        ("JSON", b'{"model": {"type": "BPE"}}'),
        ("zeros", b"\0" * 999),
        ("without <mask>", without("<mask>")),
        ("without <pad>", without("<pad>")),
        ("without <s>", without("<s>")),
        ("without </s>", without("</s>")),
        ("without <unk>", without("<unk>")),
        ("a piece twice", model(twice)),
    )
    for what, content in contents:
        repairs = _restored if what in ("empty", "cut", "without <mask>") else None
        yield Case(
            "tokenizers",
            f"{what} spm.model",
            "prepare_data",
            "text",
            templates.config(),
            _write("vocab/spm.model", content),
            (r"vocab/spm\.model",),
            repairs,
        )
        if what.startswith("without"):
            continue
        flags = ("--model=DIR/work/vocab/spm.model", "--output=DIR/hf")
        yield Case(
            "tokenizers",
            f"exporting {what}",
            "export_tokenizer",
            "text",
            flags,
            _write("vocab/spm.model", content),
            ("spm.model",),
        )
    given: tuple[tuple[str, str, bytes, tuple[str, ...]], ...] = (
        ("of words", "given.model", model(to_words), ("WORD", "UNIGRAM")),
        ("empty", "given.model", b"", ("not a SentencePiece model",)),
        ("cut", "given.model", whole[:99], ("not a SentencePiece model",)),
        ("of WordPiece", "given.json", b'{"model": {"type": "WordPiece"}}', ("WordPiece",)),
        ("cut JSON", "given.json", b'{"model": ', ("not JSON",)),
        ("a JSON list", "given.json", b"[]", ("must be an object",)),
        ("without vocabulary", "given.json", b'{"model": {"type": "Unigram"}}', ("vocab",)),
        (
            "pieces without scores",
            "given.json",
            b'{"model": {"type": "Unigram", "vocab": ["a", "b"]}}',
            ("vocab",),
        ),
        (
            "bytes to fall back to",
            "given.json",
            b'{"model": {"type": "Unigram", "byte_fallback": true, "vocab": []}}',
            ("bytes",),
        ),
        (
            "an unknown normaliser",
            "given.json",
            _UNIGRAM + b'"normalizer": {"type": "Lowercase"}, '
            b'"pre_tokenizer": {"type": "Metaspace"}}',
            ("Lowercase",),
        ),
        (
            "a charsmap that is none",
            "given.json",
            _UNIGRAM + b'"normalizer": {"type": "Precompiled", '
            b'"precompiled_charsmap": "!!"}, "pre_tokenizer": {"type": "Metaspace"}}',
            ("given.json",),
        ),
        (
            "a step without type",
            "given.json",
            _UNIGRAM + b'"normalizer": {}, "pre_tokenizer": {"type": "Metaspace"}}',
            ("given.json",),
        ),
    )
    for what, name, content, says in given:
        flags = templates.config(vocab__tokenizer=f"DIR/work/{name}")
        yield Case(
            "tokenizers",
            f"taking one {what}",
            "build_vocab",
            "text",
            flags,
            _write(name, content),
            (r"vocab\.tokenizer: \S*given", *says),
        )
    amounts = '{"en": 1.0, "sw": "two"}'
    for what, key, content in (
        ("text", "amounts", "much"),
        ("a list", "amounts", "[1, 2]"),
        ("text among numbers", "amounts", amounts),
        ("nothing", "amounts", "{}"),
        ("cut", "amounts", '{"en": 1.0'),
        ("other languages", "amounts", '{"de": 1.0}'),
        ("negative", "amounts", '{"en": -1.0, "sw": 2.0}'),
        ("text", "allocation", "much"),
        ("no sizes", "allocation", '{"target_size": 600, "beta": 0.7}'),
        (
            "another T",
            "allocation",
            '{"target_size": 5, "beta": 0.7, "sizes": {"en": 100, "sw": 100}}',
        ),
        (
            "a fraction",
            "allocation",
            '{"target_size": 600, "beta": 0.7, "sizes": {"en": 100.5, "sw": 100}}',
        ),
        ("a list of sizes", "allocation", '{"target_size": 600, "beta": 0.7, "sizes": [100]}'),
    ):
        flags = templates.config(**{f"vocab__{key}": "DIR/work/given.json"})
        yield Case(
            "tokenizers",
            f"{key}, {what}",
            "build_vocab",
            "text",
            flags,
            _write("given.json", content),
            (key[:6], "given.json|en"),
        )


CASES = [*_tokenizers()]
