"""Export a vocabulary for other libraries, and check that both tokenize text alike.

    xlm export-tokenizer --model=WORKDIR/vocab/spm.model --output=FOLDER \\
        --check=heldout.txt

`transformers.AutoTokenizer.from_pretrained(FOLDER)` reads the result. --check counts the lines of a
text with the same ids in both. A vocabulary of vocab.method=byte_bpe also has other forms:
FOLDER/tokenizer.tiktoken with its .json, or FOLDER/tokenizer.gguf.

    xlm export-tokenizer --model=WORKDIR/vocab/tokenizer.json --output=FOLDER --format=gguf
"""

import itertools
import pathlib
from typing import Any

from absl import flags, logging

from input_pipeline import text_files
from xlm.common import artifacts, declarations, outputs
from xlm.interop import byte_level, huggingface

_MODEL = flags.DEFINE_string("model", None, "The spm.model or tokenizer.json of build_vocab.py.")
_FORMAT = flags.DEFINE_enum(
    "format", "hf", byte_level.FORMATS, "Form to write; others than hf for byte-level BPE only."
)
_OUTPUT = outputs.define_flags("The folder to write, one without a model.")
_CHECK = flags.DEFINE_multi_string(
    "check", [], "Text files, also compressed, to compare the ids on; with commas, or repeated."
)

_SHOWN = 20  # lines that differ

OPTIONS = {"required": ("model", "output")}


def main(_) -> None:
    model = artifacts.existing(_MODEL.value).read_bytes()
    named = ([one] if pathlib.Path(one).exists() else one.split(",") for one in _CHECK.value)
    texts = [*map(artifacts.existing, itertools.chain.from_iterable(named))]
    folder = pathlib.Path(_OUTPUT.value)
    if (folder / "config.json").exists():
        raise ValueError(
            f"{folder} holds a model (config.json), whose tokenizer would be replaced: choose "
            "another --output"
        )

    in_bytes = byte_level.is_byte_level(model)
    if _FORMAT.value != "hf" and not in_bytes:
        raise ValueError(
            f"--format={_FORMAT.value} cannot hold {_MODEL.value}, a SentencePiece model; build it "
            "with vocab.method=byte_bpe, or export with --format=hf"
        )
    differences: list[Any] = []
    with outputs.folder(_OUTPUT.value, [_MODEL.value, *texts]) as aside:
        with declarations.of_file(_MODEL.value):
            if in_bytes:
                byte_level.export(model, aside, _FORMAT.value)
            else:
                huggingface.export_tokenizer(model, aside)
        for path in texts:
            lines = list(text_files.read_sentences(path))
            if in_bytes:
                found: list[Any] = byte_level.differing(model, aside, _FORMAT.value, lines)
            else:
                found = huggingface.compare(model, aside, lines)
            print(f"{path}: {len(lines) - len(found)} of {len(lines)} lines agree")
            differences += found
    logging.info("wrote %s", folder)
    shown = "\n".join(differences[:_SHOWN]) if in_bytes else huggingface.describe(differences)
    print(shown)
