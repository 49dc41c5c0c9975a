"""A vocabulary from Python: `vocap.build`, without files, configs or commands."""

import os
import pathlib
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

import sentencepiece as spm

from vocap import choosing
from vocap.building import BuiltVocabulary
from vocap.settings import BYTE_BPE, VocabularySettings
from xlm.common import artifacts


class Vocabulary:
    """A built vocabulary, with its serialised SentencePiece `model`.

    `sizes` are the pieces allocated to each language, if the method allocates. `curves` has each
    language's vocabulary sizes, and the ALP at each in nats a sentence (Eq. 1). `candidates` are
    those that method "auto" compared, the chosen one first. `tradeoff` has the tokens of a "union"
    at other sizes and parities.
    """

    def __init__(
        self, built: BuiltVocabulary, candidates: tuple[choosing.Candidate, ...] = ()
    ) -> None:
        self.model = built.model
        self.candidates, self.tradeoff = candidates, built.tradeoff
        allocation = built.choice.allocation
        self.sizes = dict(allocation.sizes) if allocation else {}
        self.curves = {
            language: (tuple(one.vocabularies.curve.sizes), tuple(one.vocabularies.curve.alp))
            for language, one in built.languages.items()
        }
        self._open(built.model)

    def _open(self, model: bytes) -> None:
        self._processor = spm.SentencePieceProcessor(model_proto=model)

    def __len__(self) -> int:
        """Number of pieces, special tokens included."""
        return self._processor.get_piece_size()

    @property
    def pieces(self) -> list[str]:
        return [self._processor.id_to_piece(i) for i in range(len(self))]

    def encode(self, text: str) -> list[int]:
        """Ids of a text, without special tokens."""
        return self._processor.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        return self._processor.decode(list(ids))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `model` to a file, such as spm.model or tokenizer.json."""
        artifacts.write_bytes(pathlib.Path(path), self.model)

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write a folder that `transformers.AutoTokenizer.from_pretrained` reads."""
        from xlm.interop import huggingface  # imports this package

        huggingface.export_tokenizer(self.model, pathlib.Path(folder))


class ByteVocabulary(Vocabulary):
    """A built byte-level BPE; `model` is the text of a tokenizer.json of `tokenizers`.

    Decoding restores every text, also the literal text of a special token.
    """

    def _open(self, model: bytes) -> None:
        import tokenizers

        self._tokenizer = tokenizers.Tokenizer.from_str(model.decode())
        self._tokenizer.encode_special_tokens = True  # as text

    def __len__(self) -> int:
        return self._tokenizer.get_vocab_size()

    @property
    def pieces(self) -> list[str]:
        """Tokens by id, their bytes in `byte_tokens.CHARACTERS`."""
        ids = self._tokenizer.get_vocab()
        return sorted(ids, key=ids.__getitem__)

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids

    def decode(self, ids: Iterable[int]) -> str:
        return self._tokenizer.decode(list(ids))

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        from xlm.interop import byte_level

        byte_level.write_pretrained(self.model, pathlib.Path(folder))

    def save_tiktoken(self, path: str | os.PathLike[str]) -> None:
        """Write the ranks to a file, such as my.tiktoken, and the rest to my.tiktoken.json.

        more = json.load(open("my.tiktoken.json"))
        lines = map(str.split, open("my.tiktoken"))
        ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
        encoding = tiktoken.Encoding("my", mergeable_ranks=ranks, **more)
        encoding.encode_ordinary("the cat")
        """
        from xlm.interop import byte_level

        byte_level.write_tiktoken(self.model, pathlib.Path(path))

    def save_gguf(self, path: str | os.PathLike[str]) -> None:
        """Write a GGUF file with only the tokenizer, for llama.cpp; needs `gguf`."""
        from xlm.interop import byte_level

        byte_level.write_gguf(self.model, pathlib.Path(path))


def build(
    texts: Mapping[str, Iterable[str]],
    size: int,
    *,
    heldout: Mapping[str, Iterable[str]] | None = None,
    parallel: Mapping[str, Iterable[str]] | None = None,
    cache: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> Vocabulary:
    """Build a vocabulary of `size` pieces, special tokens included, from sentences by language.

        texts = {"en": ["the cat sees", ...], "sw": ["paka anaona", ...]}
        vocabulary = vocap.build(texts, size=8000)
        vocabulary.encode("the cat")

    `heldout` scores the methods of `compare`. `parallel` has translations in all languages, for
    `method="union"` or "byte_bpe" with a `parity`. "byte_bpe" returns a `ByteVocabulary`. `cache`
    is a folder for intermediate results; none by default. `settings` are other fields of
    `VocabularySettings`, such as `method`, `alpha` or `sizes`, which follow the text by default.
    `num_workers` above 1 needs a program under `if __name__ == "__main__"`.

    Raise ValueError if a setting is out of its limits, a language has no text, or the texts are too
    small for so many pieces.
    """
    settings.setdefault("num_workers", 1)
    settings.setdefault("sizes", ())
    chosen = VocabularySettings(target_size=size, **settings)
    train, aside, same = map(_listed, (texts, heldout, parallel))
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(cache or scratch)
        found = choosing.build(train, aside, chosen, folder, parallel=same)
    kind = ByteVocabulary if found.built.choice.kind == BYTE_BPE else Vocabulary
    return kind(found.built, found.candidates)


def extend(
    tokenizer: str | os.PathLike[str],
    texts: Mapping[str, Iterable[str]],
    pieces: int,
    output: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | None = None,
    heldout: Mapping[str, Iterable[str]] | None = None,
    old_texts: Mapping[str, Iterable[str]] | None = None,
    alpha: float = 0.0,
    character_coverage: float = 0.9995,
) -> Any:
    """Write a tokenizer with `pieces` more, for the languages of `texts`, to a new folder.

        grown = vocap.extend("llama", {"ka": sentences}, 4000, "grown", heldout={"ka": others})
        print(grown.report)

    `tokenizer` is a SentencePiece model, a tokenizer.json or a folder with them. Old ids stay.
    `model` is the folder of its model, whose tables grow as well. `alpha` is the exponent of the
    languages' amounts of text in their shares, 0 for equal ones. Return the new `pieces`, their
    `first_id`, and a `report` on `heldout` and on `old_texts`.

    Raise ValueError as `xlm.interop.extended.extend`, or if the output exists and is not empty.
    """
    from xlm.common import outputs
    from xlm.interop import extended  # imports this package

    listed = map(_listed, (texts, heldout, old_texts))
    inputs = [tokenizer, *([model] if model else [])]
    with outputs.folder(os.fspath(output), inputs, overwrite=False) as aside:
        return extended.extend(
            pathlib.Path(tokenizer), aside, pieces, extended.Texts(*listed), alpha=alpha,
            character_coverage=character_coverage, model=pathlib.Path(model) if model else None,
        )  # fmt: skip


def _listed(texts: Mapping[str, Iterable[str]] | None) -> dict[str, list[str]]:
    return {language: list(text) for language, text in (texts or {}).items()}
