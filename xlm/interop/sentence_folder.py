"""Model folders for sentence-transformers, with the vectors of `xlm.Encoder.encode`.

A vector is the mean state of a text's tokens without special ones. The library's Pooling averages
all tokens of the attention mask, so its WordWeights first gives special tokens no weight.
"""

import pathlib
from collections.abc import Mapping

from vocap.settings import BOS_ID, EOS_ID, MASK_ID, PAD_ID
from xlm.common import artifacts
from xlm.interop import model_folder

# Names that all releases of the library know.
_MODULES = {"Transformer": "", "WordWeights": "1_WordWeights", "Pooling": "2_Pooling"}


def add(
    folder: pathlib.Path, *, max_length: int = 0, reads_first: bool = False,
    prompts: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    """Add the library's files to a folder of `write_model`; ValueError if it has no tokenizer.

    A run of embeddings has `prompts` by name, and vectors of length 1. With `reads_first` a vector
    is the state of `<s>`.
    """
    if not (folder / "tokenizer.json").exists():
        raise ValueError("--format=sentence_transformers: it needs a tokenizer.json; leave it out")
    sizes, names = model_folder.read_sizes(folder), dict(_MODULES)
    if reads_first:
        del names["WordWeights"]
    if prompts is not None:
        names["Normalize"] = "3_Normalize"
    files = {
        "modules.json": [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
            for i, (name, path) in enumerate(names.items())
        ],
        "sentence_bert_config.json": {"max_seq_length": max_length or sizes["max_length"]},
        "config_sentence_transformers.json": {
            "similarity_fn_name": "cosine", "prompts": prompts or {}
        },
        # Ids in place of words, since WordWeights folds the case of missing words.
        "1_WordWeights/config.json": {
            "vocab": [str(i) for i in range(sizes["vocab_size"])], "unknown_word_weight": 1.0,
            "word_weights": {str(i): 0.0 for i in (BOS_ID, PAD_ID, EOS_ID, MASK_ID)},
        },
        "2_Pooling/config.json": {
            "word_embedding_dimension": sizes["hidden_size"],
            "pooling_mode_mean_tokens": not reads_first, "pooling_mode_cls_token": reads_first,
        },
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        artifacts.write_json(folder / name, content)
