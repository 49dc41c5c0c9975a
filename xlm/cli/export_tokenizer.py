"""Export a vocabulary as a Hugging Face tokenizer, and check that both tokenize text alike.

    xlm export-tokenizer --model=WORKDIR/vocab/spm.model --output=FOLDER \\
        --check=heldout.txt

`transformers.AutoTokenizer.from_pretrained(FOLDER)` reads the result. --check counts the lines of a
text on which the ids are those of SentencePiece.
"""

import pathlib

from absl import flags, logging

from input_pipeline import text_files
from xlm.common import artifacts, declarations, outputs
from xlm.interop import huggingface

_MODEL = flags.DEFINE_string("model", None, "The SentencePiece model of build_vocab.py.")
_OUTPUT = outputs.define_flags("The folder to write, one without a model.")
_CHECK = flags.DEFINE_multi_string(
    "check", [], "A text file, also compressed, to compare the ids on; repeatable."
)

OPTIONS = {"required": ("model", "output")}


def main(_) -> None:
    model = artifacts.existing(_MODEL.value).read_bytes()
    folder, texts = pathlib.Path(_OUTPUT.value), [*map(artifacts.existing, _CHECK.value)]
    if (folder / "config.json").exists():  # whose tokenizer it would replace
        raise ValueError(
            f"{folder} holds a model, by its config.json; its tokenizer is there already: choose "
            "another --output"
        )

    differences: list[huggingface.Difference] = []
    with outputs.folder(_OUTPUT.value, [_MODEL.value, *texts]) as aside:
        with declarations.of_file(_MODEL.value):
            huggingface.export_tokenizer(model, aside)
        for path in texts:
            lines = list(text_files.read_sentences(path))
            found = huggingface.compare(model, aside, lines)
            print(f"{path}: {len(lines) - len(found)} of {len(lines)} lines agree")
            differences += found
    logging.info("wrote %s", folder)
    print(huggingface.describe(differences))
