"""Cost of loading and encoding with large merged models, by number of pieces.

    python -m benchmarks.merged_model --config=configs/vocabulary.py:DATA \\
        --models=runs/vocab100k/vocab/spm.model,runs/vocab500k/vocab/spm.model

Encodes held-out sentences of all languages, with the models interleaved, and reports medians; so
it does with the Hugging Face export of each model.
"""

import functools
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable

import sentencepiece as spm
from absl import flags
from ml_collections import config_flags

from input_pipeline.corpus import load_corpus
from xlm.common import entry_point
from xlm.experiment import data as builders
from xlm.interop import huggingface

_CONFIG = config_flags.DEFINE_config_file("config", None, "Says where the text is.")
_MODELS = flags.DEFINE_list("models", None, "SentencePiece models.")
_SENTENCES = flags.DEFINE_integer("sentences", 500, "Of each language, at most.")
_REPETITIONS = flags.DEFINE_integer("repetitions", 5, "Of the timings.")


def seconds(function: Callable, *arguments) -> float:
    begin = time.process_time()
    function(*arguments)
    return time.process_time() - begin


def main(_) -> None:
    corpus = load_corpus(builders.corpus_spec(_CONFIG.value))
    text = [
        s for lang in corpus.heldout for s in corpus.sentences(lang, "heldout")[: _SENTENCES.value]
    ]
    print(f"{len(text)} held-out sentences, {sum(len(s) for s in text) / 1e6:.2f}M characters\n")
    loads: dict[str, Callable[[], object]] = {}
    encodes: dict[str, Callable[[], object]] = {}
    sizes: dict[str, tuple[int, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for path in _MODELS.value:
            model = pathlib.Path(path).read_bytes()
            processor = spm.SentencePieceProcessor(model_proto=model)
            name = f"{processor.get_piece_size()} SentencePiece"
            loads[name] = functools.partial(spm.SentencePieceProcessor, model_proto=model)
            encodes[name] = functools.partial(processor.encode, text, num_threads=1)
            sizes[name] = (sum(map(len, processor.encode(text))), len(model) / 1e6)
            _add_huggingface(model, pathlib.Path(folder), text, loads, encodes, sizes)
        load_times, encode_times = _interleaved(loads), _interleaved(encodes)
    first = next(iter(encode_times))
    print(
        "| pieces, library | file, MB | load, CPU s | encode, sentences / CPU s "
        "| time to encode, of the first | tokens a sentence |\n|---|" + "---:|" * 5
    )
    for name, (tokens, megabytes) in sizes.items():
        print(
            f"| {name} | {megabytes:.1f} | {load_times[name]:.2f} "
            f"| {len(text) / encode_times[name]:.0f} "
            f"| {encode_times[name] / encode_times[first]:.2f} | {tokens / len(text):.2f} |"
        )


def _add_huggingface(model, folder, text, loads, encodes, sizes) -> None:
    import tokenizers

    name = f"{spm.SentencePieceProcessor(model_proto=model).get_piece_size()} tokenizers"
    target = folder / name
    huggingface.export_tokenizer(model, target)
    path = str(target / "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(path)
    loads[name] = functools.partial(tokenizers.Tokenizer.from_file, path)

    def encode() -> list:
        return [tokenizer.encode(sentence, add_special_tokens=False) for sentence in text]

    encodes[name] = encode
    size = (target / "tokenizer.json").stat().st_size / 1e6
    sizes[name] = (sum(len(encoding.ids) for encoding in encode()), size)


def _interleaved(functions: dict[str, Callable]) -> dict[str, float]:
    """Median CPU seconds of each function, interleaved."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(_REPETITIONS.value):
        for name, function in functions.items():
            times[name].append(seconds(function))
    return {name: statistics.median(values) for name, values in times.items()}


if __name__ == "__main__":
    entry_point.run(main, required=("config", "models"))
