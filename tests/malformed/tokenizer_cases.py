"""Tokenizers, and the tables of amounts and sizes that a build may be given."""

import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from sentencepiece import sentencepiece_model_pb2 as model_pb2

from tests import tiny_tasks
from tests.malformed import templates
from tests.malformed.harness import Break, Case


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

    def to_words(proto: Any) -> None:
        proto.trainer_spec.model_type = model_pb2.TrainerSpec.WORD

    for what, content in (
        ("an empty", b""),
        ("a cut", tiny_tasks.tokenizer()[:99]),
        ("one without <mask>", without("<mask>")),
    ):
        yield Case(
            "tokenizers", what, "prepare_data", "text", templates.config(),
            _write("vocab/spm.model", content), (r"vocab/spm\.model",), _restored,
        )  # fmt: skip
    export = ("--model=DIR/work/vocab/spm.model", "--output=DIR/hf")
    cut = _write("vocab/spm.model", tiny_tasks.tokenizer()[:99])
    yield Case("tokenizers", "exporting one", "export_tokenizer", "text", export, cut, ("spm.mod",))
    flags = templates.config(vocab__tokenizer="DIR/work/given.model")
    words = _write("given.model", model(to_words))
    says = (r"vocab\.tokenizer: \S*given", "WORD.*UNIGRAM")
    yield Case("tokenizers", "taking one of words", "build_vocab", "text", flags, words, says)
    sizes = '{"target_size": 5, "beta": 0.7, "sizes": {"en": 100, "sw": 100}}'
    for what, key, table in (
        ("text among numbers", "amounts", '{"en": 1.0, "sw": "two"}'),
        ("other languages", "amounts", '{"de": 1.0}'),
        ("another T", "allocation", sizes),
    ):
        flags = templates.config(**{f"vocab__{key}": "DIR/work/given.json"})
        yield Case(
            "tokenizers", f"{key}, {what}", "build_vocab", "text", flags,
            _write("given.json", table), (key[:6], "given.json|en"),
        )  # fmt: skip


CASES = [*_tokenizers()]
