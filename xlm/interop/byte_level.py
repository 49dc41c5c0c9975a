"""Byte-level BPE of `vocap.byte_bpe` in the formats of other libraries, with the same ids in each.

- "hf": a folder for `transformers`. There the literal text of a special token, such as "<mask>", is
  that token, unless `split_special_tokens=True`. All formats encode other text in the same way.
- "tiktoken": ranks of the tokens, which are their ids. The first is 5, after the special tokens.
- "gguf": metadata of a tokenizer for llama.cpp, without a model.

llama.cpp's converter of folders identifies a tokenizer by a hash of its ids for a text. So it
refuses every new vocabulary until you add its hash there. A GGUF file of this module needs no
entry: it names the pattern by `byte_tokens.PATTERN_NAME`.

`tokenizers` 0.23 and tiktoken 0.14 know the same letters and marks. llama.cpp lacks some recent
ones of Unicode, and may cut them into other tokens. All decode them exactly.
"""

import base64
import json
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from vocap import byte_tokens
from vocap.settings import SPECIALS
from xlm.common import artifacts, declarations, packages
from xlm.interop import bpe_json, huggingface, segmenter, vocabulary

FORMATS = ("hf", "tiktoken", "gguf")
_FILES = {"hf": "tokenizer.json", "tiktoken": "tokenizer.tiktoken", "gguf": "tokenizer.gguf"}
_REMEDY = "give the vocab/tokenizer.json of a build with vocab.method=byte_bpe"
_NORMAL, _CONTROL = 1, 3  # llama.cpp's types of tokens
_ARCHITECTURE = "llama"  # GGUF requires one, even without a model

Encode = Callable[[Sequence[str]], list[list[int]]]


class Tokens(NamedTuple):
    """Tokens by id, specials first, and merged pairs, spelled in `byte_tokens.CHARACTERS`."""

    tokens: list[str]
    merges: list[tuple[str, str]]


def is_byte_level(model: bytes) -> bool:
    """Return whether bytes are a JSON file, and no SentencePiece model."""
    return model.lstrip()[:1] == b"{"


def read(model: bytes) -> Tokens:
    """Read a tokenizer.json of `byte_tokens.tokenizer_json`; ValueError for others."""
    ids = declarations.parse(model, bpe_json.Tokenizer, place="", remedy=_REMEDY).model.vocab
    tokens = sorted(ids, key=ids.__getitem__)
    again = json.loads(_tokenizer_json(tokens))
    if again != json.loads(model):
        raise ValueError(f"not a byte-level BPE of this project; {_REMEDY}")
    return Tokens(tokens, again["model"]["merges"])


def _tokenizer_json(tokens: Sequence[str]) -> bytes:
    own = tokens[len(SPECIALS) :]
    return byte_tokens.tokenizer_json(own, -np.arange(len(own)))


def export(model: bytes, folder: pathlib.Path, form: str) -> None:
    """Write a tokenizer.json in one of `FORMATS` to a folder; ValueError as `read`."""
    if form == "hf":
        write_pretrained(model, folder)
    else:
        write = {"tiktoken": write_tiktoken, "gguf": write_gguf}[form]
        write(model, folder / _FILES[form])


def write_pretrained(model: bytes, folder: pathlib.Path) -> None:
    """Write the files that `transformers.AutoTokenizer.from_pretrained(folder)` reads."""
    read(model)
    huggingface.write_pretrained(folder, model)


def write_tiktoken(model: bytes, path: pathlib.Path) -> None:
    """Write a line `base64 rank` per token, and beside it PATH.json with pattern and specials."""
    tokens = read(model).tokens
    ranks = (
        f"{base64.b64encode(byte_tokens.token_bytes(tokens[i])).decode()} {i}\n"
        for i in range(len(SPECIALS), len(tokens))
    )
    specials = {token: i for i, token in enumerate(SPECIALS)}
    more = {"pat_str": byte_tokens.PATTERN, "special_tokens": specials}
    artifacts.write_text(path, "".join(ranks))
    artifacts.write_json(path.with_name(f"{path.name}.json"), more)


def write_gguf(model: bytes, path: pathlib.Path) -> None:
    """Write a GGUF file of the tokenizer; ValueError without the package `gguf`."""
    with packages.needed("writing GGUF", "export"):
        import gguf
    tokens, merges = read(model)
    with artifacts.atomic_path(path) as aside:
        writer = gguf.GGUFWriter(aside, _ARCHITECTURE)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(byte_tokens.PATTERN_NAME)
        writer.add_token_list(tokens)
        normal = len(tokens) - len(SPECIALS)
        writer.add_token_types([_CONTROL] * len(SPECIALS) + [_NORMAL] * normal)
        writer.add_token_merges([" ".join(pair) for pair in merges])
        for role in ("bos", "eos", "unk", "pad", "mask"):
            getattr(writer, f"add_{role}_token_id")(huggingface.ROLES.index(f"{role}_token"))
        writer.add_add_bos_token(False)
        writer.add_add_eos_token(False)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()


def differing(model: bytes, folder: pathlib.Path, form: str, texts: Iterable[str]) -> list[str]:
    """Return the texts to which an exported tokenizer gives other ids than `model`."""
    own, exported = _by_tokenizers(model), _opened(folder, form)
    return [
        text
        for batch in vocabulary.batches(texts)
        for text, ids, theirs in zip(batch, own(batch), exported(batch), strict=True)
        if ids != theirs
    ]


def _opened(folder: pathlib.Path, form: str) -> Encode:
    path = folder / _FILES[form]
    if form == "hf":
        return _by_tokenizers(path.read_bytes())
    if form == "tiktoken":
        with packages.needed("checking ranks of tiktoken", "export"):
            import tiktoken
        lines = map(str.split, path.read_text(encoding="utf-8").splitlines())
        ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
        more: dict[str, Any] = artifacts.read_json(path.with_name(f"{path.name}.json"))
        encoding = tiktoken.Encoding(path.stem, mergeable_ranks=ranks, **more)
        return lambda texts: encoding.encode_ordinary_batch(list(texts))
    with packages.needed("checking GGUF", "export"):
        import gguf
    fields = gguf.GGUFReader(path).fields
    value = json.loads(_tokenizer_json(fields["tokenizer.ggml.tokens"].contents()))
    merges = fields["tokenizer.ggml.merges"].contents()
    value["model"]["merges"] = [merge.split(" ") for merge in merges]
    return _by_tokenizers(json.dumps(value).encode())


def _by_tokenizers(model: bytes) -> Encode:
    tokenizer = segmenter.tokenizer_of(model, "comparing tokenizers")
    tokenizer.encode_special_tokens = True  # as text
    return lambda texts: [one.ids for one in tokenizer.encode_batch(list(texts))]
