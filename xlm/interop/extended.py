"""Extension of a tokenizer's files by pieces for further languages, and a report of its effect."""

import collections
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vocap import extension, pretokens
from vocap.allocation import language_probabilities
from vocap.settings import UNIGRAM
from xlm.common import artifacts, declarations, packages, tables
from xlm.interop import vocabulary
from xlm.interop.segmenter import Segmenter, read_segmenter
from xlm.interop.tokenizer_files import Growing, JsonFile, SentencePieceFile

_JSON = "tokenizer.json"
# SentencePiece models, of this project, XLM-R, Llama and T5.
_MODELS = ("spm.model", "sentencepiece.bpe.model", "tokenizer.model", "spiece.model")
_WITHOUT_ADDED = _MODELS[1], _MODELS[3]  # transformers adds tokens behind their pieces
_OTHERS = (
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "chat_template.jinja", "chat_template.json",
)  # fmt: skip
_NOT_BELOW = 1 + 1e-9  # ranks a character before its pairs despite rounding


class Texts(NamedTuple):
    """Sentences by language: to choose pieces, to measure, and of languages known before."""

    train: Mapping[str, Sequence[str]]
    heldout: Mapping[str, Sequence[str]] = {}
    old: Mapping[str, Sequence[str]] = {}


class Extension(NamedTuple):
    """New `pieces`, of ids from `first_id` on, and a `report` in Markdown, "" without texts."""

    pieces: list[str]
    first_id: int
    report: str


def extend(
    source: pathlib.Path, target: pathlib.Path, size: int, texts: Texts, *,
    alpha: float = 0.0, character_coverage: float = 0.9995, model: pathlib.Path | None = None,
) -> Extension:  # fmt: skip
    """Write the tokenizer `source`, a file or a folder, with `size` more pieces to a folder.

    `model` is a folder of a model with this tokenizer in safetensors. Its tables of embeddings and
    of the output layer grow: a new row is the mean of the rows of the piece's old parts.

    Args:
      alpha: exponent of the languages' amounts of text in their shares; 0 for equal shares.
      character_coverage: share of a language's characters that become pieces, if the tokenizer does
        not fall back to bytes.

    Raises ValueError if a file is no such tokenizer or model, or the text has too few pieces.
    """
    files = _files(source)
    name, main = next(iter(files.items()))
    before = read_segmenter(source / name if source.is_dir() else source)
    pieces, scores = _choose(main, texts.train, size, alpha, character_coverage)
    first = main.next_id
    grown = {one: file.grown(pieces, scores, _fillers(main, file)) for one, file in files.items()}
    if model is not None:
        with packages.needed(str(model)):
            from xlm.interop import extended_model
        extended_model.write(model, target, first, main.parts(pieces), grown)
    if source.is_dir():
        for path in filter(pathlib.Path.is_file, (source / one for one in _OTHERS)):
            artifacts.write_bytes(target / path.name, artifacts.read_bytes(path))
    for one, content in grown.items():
        artifacts.write_bytes(target / one, content)
    if _JSON in grown:
        _write_lists(target, json.loads(grown[_JSON])["model"])
    return Extension(pieces, first, _report(before, read_segmenter(target / name), texts))


def _files(source: pathlib.Path) -> dict[str, Growing]:
    """Read the tokenizer's files; further ones have the ids of the first, up to an offset."""
    if source.is_dir():
        paths = [source / one for one in (_JSON, *_MODELS) if (source / one).exists()]
    else:
        paths = [artifacts.existing(source)]
    if not paths:
        raise ValueError(
            f"{source} has none of {', '.join((_JSON, *_MODELS))}; write the tokenizer into it "
            "with save_pretrained"
        )
    if source.is_dir() and paths[0].name in _WITHOUT_ADDED:
        raise ValueError(
            f"{source} has no {_JSON}, and with only {paths[0].name} transformers would move added "
            "tokens behind the new pieces; write the tokenizer again with save_pretrained"
        )
    files: dict[str, Growing] = {}
    for path in paths:
        with declarations.of_file(path):
            read_segmenter(path)  # for its errors
            read = JsonFile if path.suffix == ".json" else SentencePieceFile
            files[path.name] = read(artifacts.read_bytes(path))
    return files


def _fillers(main: Growing, file: Growing) -> list[str]:
    """Return names of ids that only the main file uses, in front of the new pieces."""
    offsets = {main.ids.get(piece, -1) - i for piece, i in file.ids.items() if piece in file.scores}
    offset = min(offsets)
    if len(offsets) > 1 or file.next_id + offset > main.next_id or file.kind != main.kind:
        raise ValueError(
            "the tokenizer's files differ in pieces or their order, so they belong to different "
            "tokenizers; write them again with save_pretrained"
        )
    names = {i - offset: piece for piece, i in main.ids.items()}
    found = [names.get(i, f"<unused_{i}>") for i in range(file.next_id, main.next_id - offset)]
    return [f"<unused_{one}>" if one in file.ids else one for one in found]


def _choose(
    file: Growing, texts: Mapping[str, Sequence[str]], size: int, alpha: float, coverage: float
) -> tuple[list[str], np.ndarray | None]:
    if size < 1 or not texts:
        raise ValueError(f"{size} pieces for {len(texts)} languages; give at least 1 of both")
    amounts = {one: sum(len(line.encode()) for line in lines) for one, lines in texts.items()}
    shares = language_probabilities(amounts, alpha)
    if file.kind == UNIGRAM:
        counted = {
            one: pretokens.count_pretokens(
                text.replace(pretokens.SPACE, " ")
                for batch in vocabulary.batches(lines) for text in file.normalized(batch)
            )
            for one, lines in texts.items()
        }  # fmt: skip
        unused = {piece: -np.inf for piece in file.ids if piece not in file.scores}
        return extension.unigram({**file.scores, **unused}, counted, shares, size, coverage)

    words: dict[tuple[str, ...], float] = collections.defaultdict(float)
    gains: dict[str, float] = collections.defaultdict(float)
    for one, lines in texts.items():
        weight = shares[one] / amounts[one]
        missing = _missing(file, lines, coverage)
        for character, count in missing.items():
            # A single byte saves no token, but `tokenizers` merges only pieces.
            saved = max(len(character.encode()) - 1, 1) if file.falls_back else np.inf
            gains[character] += count * weight * saved * _NOT_BELOW
        for word, count in file.words(lines, list(missing)).items():
            words[word] += count * weight
    if not file.falls_back:
        extension.check_size(len(gains), size, texts)
    pieces = extension.merges(words, gains, size, file.may_be_new)
    if len(pieces) < size:
        raise ValueError(extension.too_few(len(pieces), texts))
    return pieces, None


def _missing(file: Growing, lines: Sequence[str], coverage: float) -> dict[str, int]:
    """Count the characters to add: all if bytes spell them, otherwise up to the coverage."""
    counts: collections.Counter[str] = collections.Counter()
    for batch in vocabulary.batches(lines):
        counts += file.characters(batch)
    left = np.inf if file.falls_back else coverage * counts.total()
    found = {}
    for character, count in counts.most_common():
        is_useful = extension.is_word(character) if file.falls_back else not character.isspace()
        if left > 0 and character not in file.ids and is_useful:
            found[character] = count
        left -= count
    return found


def _write_lists(folder: pathlib.Path, model: Mapping[str, Any]) -> None:
    """Rewrite vocab.json and merges.txt, the older format of byte-level BPE, if they exist."""
    if (folder / "vocab.json").exists():
        artifacts.write_text(folder / "vocab.json", json.dumps(model["vocab"], ensure_ascii=False))
    if (folder / "merges.txt").exists():
        lines = (one if isinstance(one, str) else " ".join(one) for one in model["merges"])
        artifacts.write_text(folder / "merges.txt", "\n".join(["#version: 0.2", *lines, ""]))


def _report(before: Segmenter, after: Segmenter, texts: Texts) -> str:
    """Compare tokens a sentence and unknown tokens, and count changed sentences."""
    rows: list[dict[str, Any]] = []
    for kind, found in (("new", texts.heldout), ("old", texts.old)):
        for language, lines in found.items():
            if not lines:
                continue
            row: dict[str, Any] = {"language": language, "text": kind, "sentences": len(lines)}
            encoded = []
            for time, one in (("before", before), ("after", after)):
                encoded.append(ids := [*one.each(lines)])
                total, lost = sum(map(len, ids)), -1 if one.unknown is None else one.unknown
                unknown = sum(sentence.count(lost) for sentence in ids) / max(total, 1)
                row |= {f"tokens {time}": f"{total / len(lines):.2f}"}
                row |= {f"unknown {time}": f"{unknown:.2%}"}
            row["changed"] = f"{sum(map(list.__ne__, *encoded)) / len(lines):.1%}"
            rows.append(row)
    return tables.markdown(rows, left=2)
