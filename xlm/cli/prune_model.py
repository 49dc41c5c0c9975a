"""Prune a model's vocabulary to the pieces that given texts use, for deployment.

    xlm prune --model=FOLDER --texts=en.txt --texts=sw.txt.gz --output=FOLDER

FOLDER is the output of xlm export or xlm import. The given texts keep their segmentation, and their
pieces keep their embeddings. Other text is segmented into the remaining pieces. A fine-tuned model
loses its head. docs/prune_merge.md has more.
"""

import itertools

from absl import flags

from input_pipeline import text_files
from xlm.common import artifacts, outputs, places, tables
from xlm.interop import cards, model_folder, vocabulary

_MODEL = flags.DEFINE_string("model", None, "The folder of the model.")
_TEXTS = flags.DEFINE_multi_string(
    "texts", None, "A .txt or .jsonl file of text to keep pieces for, also compressed; repeatable."
)
_OUTPUT = flags.DEFINE_string("output", None, "The folder to write, absent or empty.")

OPTIONS = {"required": ("model", "texts", "output")}


def main(_) -> None:
    folder, output = places.fetched(_MODEL.value), _OUTPUT.value
    with outputs.folder(output, overwrite=False) as aside:
        sizes, params = model_folder.read_model(folder)
        tokenizer = model_folder.read_tokenizer(folder)
        table, bias = model_folder.table_of(params)
        vocabulary.check_sizes(folder, len(vocabulary.vocabulary(tokenizer).pieces), len(table))

        texts = map(text_files.read_sentences, map(artifacts.existing, _TEXTS.value))
        tokenizer, kept = vocabulary.prune(tokenizer, itertools.chain.from_iterable(texts))
        params = model_folder.with_table(params, table[kept], bias[kept])
        name = folder.resolve().name
        card = cards.of_model(
            sizes, tokenizer, has_head="head" in params, base=name,
            origin=f"{tables.escaped(name)} with {len(kept):,} of its {len(table):,} pieces, those "
            "that some texts need. Other text is cut into these.",
        )  # fmt: skip
        model_folder.write_model(aside, params, sizes, tokenizer, card=card)
    if "head" not in params:
        print(
            f"{folder} has no masked-LM head: {output} is an encoder, without the head of any "
            "task, for finetune.py"
        )
    print(f"{len(kept)} of {len(table)} pieces")
