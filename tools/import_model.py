"""Convert a model to another vocabulary, for train.py to continue.

    python -m tools.import_model --model=FOLDER --vocabulary=WORKDIR/vocab/spm.model --output=FOLDER

FOLDER is the output of `save_pretrained` of `XLMRobertaForMaskedLM` and its tokenizer, or of
tools.export_model; the output has the same format. Pieces of both vocabularies keep their
embeddings, new ones are initialised with the mean of their old pieces. Without --vocabulary the
model keeps its pieces, in this project's order; models of other origin need a
sentencepiece.bpe.model in FOLDER. docs/interop.md has more.
"""

import pathlib

from absl import flags

from common import entry_point
from interop import model_folder, vocabulary

_MODEL = flags.DEFINE_string("model", None, "The folder of the model.")
_VOCABULARY = flags.DEFINE_string("vocabulary", None, "The SentencePiece model of build_vocab.py.")
_OUTPUT = flags.DEFINE_string("output", None, "The folder to write, absent or empty.")


def main(_) -> None:
    folder, output = pathlib.Path(_MODEL.value), pathlib.Path(_OUTPUT.value)
    model_folder.check_writable(output)
    old = vocabulary.read_vocabulary(folder)
    if _VOCABULARY.value is None:
        tokenizer = vocabulary.sentencepiece_model(folder)
    else:
        tokenizer = _read(pathlib.Path(_VOCABULARY.value))
    new = vocabulary.vocabulary(tokenizer)
    sizes, params = model_folder.read_model(folder)
    swapped = vocabulary.swap(old, new, *model_folder.table_of(params))
    params = model_folder.with_table(params, swapped.table, swapped.bias)
    model_folder.write_model(output, params, sizes, tokenizer)
    print(
        f"{len(new.pieces)} pieces: {swapped.copied} copied, {swapped.segmented} from their parts, "
        f"{swapped.unknown} from the mean of all"
    )


def _read(path: pathlib.Path) -> bytes:
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    return path.read_bytes()


if __name__ == "__main__":
    entry_point.run(main, required=("model", "output"))
