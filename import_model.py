"""Puts an XLM-R on another vocabulary, ready for train.py to continue and transformers to load.

    python import_model.py --model=FOLDER --vocabulary=WORKDIR/vocab/spm.model --output=FOLDER

FOLDER is what `XLMRobertaForMaskedLM.save_pretrained` and the tokenizer's wrote. Pieces of both
vocabularies keep their embeddings, new ones begin at the mean of their old parts. Without
--vocabulary the model keeps its pieces, in this project's order; that needs a
sentencepiece.bpe.model beside it. docs/interop.md has more.
"""

import pathlib

from absl import flags

import entry_point
from interop import vocabulary, xlm_roberta

_MODEL = flags.DEFINE_string("model", None, "The folder of the model.")
_VOCABULARY = flags.DEFINE_string("vocabulary", None, "The SentencePiece model of build_vocab.py.")
_OUTPUT = flags.DEFINE_string("output", None, "The folder to write, absent or empty.")


def main(_) -> None:
    folder, output = pathlib.Path(_MODEL.value), pathlib.Path(_OUTPUT.value)
    old = vocabulary.read_vocabulary(folder)
    if _VOCABULARY.value is None:
        tokenizer = vocabulary.sentencepiece_model(folder)
    else:
        tokenizer = _read(pathlib.Path(_VOCABULARY.value))
    new = vocabulary.vocabulary(tokenizer)
    sizes, params = xlm_roberta.read_model(folder)
    xlm_roberta.check_writable(output, sizes)
    swapped = vocabulary.swap(old, new, *xlm_roberta.table_of(params))
    params = xlm_roberta.with_table(params, swapped.table, swapped.bias)
    xlm_roberta.write_model(output, params, sizes, tokenizer)
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
