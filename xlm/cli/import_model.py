"""Convert a model to another vocabulary, for train.py to continue.

    xlm import --model=FOLDER --vocabulary=WORKDIR/vocab/spm.model --output=FOLDER

FOLDER comes from xlm export, or has the weights and the tokenizer of an XLM-R, RoBERTa, CamemBERT,
BERT or ModernBERT (mmBERT too) of transformers. The output is an XLM-R or a ModernBERT. Without a
masked-LM head tied to the embeddings it is an encoder for finetune.py. It keeps a task's head with
its labels. Pieces of both vocabularies keep their embeddings; new ones start with the mean of their
old pieces. Without --vocabulary the model keeps its pieces and added tokens, in this project's
order. Its SentencePiece model is then FOLDER's sentencepiece.bpe.model, or rebuilt from its
tokenizer.json. --check=TEXT lists the lines of a text that the tokenizer.json segments differently.
docs/import.md has more.
"""

import pathlib

from absl import flags

from input_pipeline import text_files
from xlm.common import artifacts, declarations, outputs, places, tables
from xlm.interop import cards, huggingface, model_folder, tokenizer_json, vocabulary

_MODEL = flags.DEFINE_string("model", None, "The folder of the model.")
_VOCABULARY = flags.DEFINE_string("vocabulary", None, "The SentencePiece model of build_vocab.py.")
_OUTPUT = flags.DEFINE_string("output", None, "The folder to write, absent or empty.")
_CHECK = flags.DEFINE_string("check", None, "Text to compare the kept tokenizer on, line by line.")

OPTIONS = {"required": ("model", "output")}


def main(_) -> None:
    folder, output = places.fetched(_MODEL.value), _OUTPUT.value
    if _CHECK.value and _VOCABULARY.value:
        raise ValueError(
            "--check compares the model's own tokenizer, which --vocabulary replaces; leave one out"
        )
    with outputs.folder(output, overwrite=False) as aside:
        _import(folder, aside)


def _import(folder: pathlib.Path, aside: pathlib.Path) -> None:
    """Write the model of a folder with another vocabulary, and print the origins of its pieces."""
    old = vocabulary.read_vocabulary(folder)
    if _VOCABULARY.value is None:
        tokenizer = vocabulary.sentencepiece_model(folder)
        vocabulary.check_kept(folder, old, tokenizer)
        tokenizer, dropped = vocabulary.with_added(tokenizer, old)
        if _CHECK.value:
            _check(tokenizer, old, folder, pathlib.Path(_CHECK.value))
    else:
        dropped = []
        tokenizer = artifacts.existing(_VOCABULARY.value).read_bytes()
    with declarations.of_file(_VOCABULARY.value or folder):
        new = vocabulary.vocabulary(tokenizer)
    sizes, params = model_folder.read_model(folder)
    swapped = vocabulary.swap(old, new, *model_folder.table_of(params))
    params = model_folder.with_table(params, swapped.table, swapped.bias)
    task_head = model_folder.read_task_head(folder)
    name = folder.resolve().name
    origin = f"Converted from {tables.escaped(name)}" + (
        f" with another vocabulary: {swapped.copied:,} pieces keep their embeddings."
        if _VOCABULARY.value
        else "."
    )
    card = cards.of_model(
        sizes, tokenizer, has_head="head" in params, origin=origin, base=name, task_head=task_head
    )
    model_folder.write_model(aside, params, sizes, tokenizer, task_head=task_head, card=card)
    if dropped:
        print(
            f"{len(dropped)} added tokens, such as {dropped[0]!r}, are left out: no exported "
            "tokenizer can match them in a text"
        )
    if task_head:
        labels = ", ".join(task_head.labels) or "none"
        print(f"{_OUTPUT.value} keeps the head of {folder} for {task_head.kind}; labels: {labels}")
    elif "head" not in params:
        print(
            f"{folder} has no masked-LM head: {_OUTPUT.value} is an encoder, for finetune.py; "
            "train.py cannot start from it"
        )
    print(
        f"{len(new.pieces)} pieces: {swapped.copied} copied, {swapped.segmented} from their parts, "
        f"{swapped.unknown} from the mean of all"
    )


def _check(
    tokenizer: bytes, old: vocabulary.ModelVocabulary, folder: pathlib.Path, path: pathlib.Path
) -> None:
    """Print how many lines of a text the folder's tokenizer.json segments as `tokenizer` does."""
    if not (folder / tokenizer_json.NAME).exists():
        raise ValueError(
            f"{folder} has no {tokenizer_json.NAME} to compare with; leave out --check, or write "
            "the tokenizer into it with save_pretrained"
        )
    lines = list(text_files.read_sentences(path))
    numbers = {piece: i for i, piece in enumerate(old.pieces)}
    ids = [numbers[piece] for piece in vocabulary.vocabulary(tokenizer).pieces]
    found = huggingface.compare(tokenizer, folder, lines, ids)
    print(f"{path}: {len(lines) - len(found)} of {len(lines)} lines agree")
    if found:
        print(huggingface.describe(found))
