"""Continue the pre-training of an imported encoder on your own text.

    bash scripts/continue.sh MODEL TEXT WORKDIR

MODEL is a folder that `save_pretrained` wrote, of XLM-R, a relative of RoBERTa, or ModernBERT. TEXT
is a folder of `<lang>.txt` files, and WORKDIR/hf the result, in MODEL's format. The script imports
MODEL to WORKDIR/start, from which training starts, and runs the stages:

    python train.py --config=configs/continue.py:WORKDIR/start,TEXT --workdir=WORKDIR

The architecture and the tokenizer are those of MODEL. To give it other pieces, import it with
`--vocabulary` first, or extend its tokenizer (docs/existing_tokenizer.md). Training takes one
epoch, a cosine schedule, and rows of 512 tokens, or fewer if MODEL has fewer positions.

Hardware: a GPU. We continued only miniatures.
"""

import pathlib

from ml_collections import ConfigDict

from configs import small
from xlm.experiment.schema import default_config
from xlm.interop import model_folder
from xlm.interop.vocabulary import TOKENIZER


def get_config(arg: str = "") -> ConfigDict:
    """Return the config for "START,TEXT", a folder of xlm import and one of text."""
    if arg in ("", "runlocal"):  # without a model, for display and tests
        return small.runlocal()
    start, _, text = arg.partition(",")
    config = default_config()
    config.corpus.update(root=text, heldout_fraction=0.01, heldout_by="document")
    config.clean.update(bad_lines=0.01, long_lines=True, repeated_lines=10)
    config.vocab.tokenizer = str(pathlib.Path(start) / TOKENIZER)
    sizes = model_folder.read_sizes(pathlib.Path(start))
    config.model.update({key: sizes[key] for key in sizes if key in config.model})
    config.store.length = min(sizes["max_length"], 512)
    config.output_layer.kind = "blockwise"
    config.optimizer.update(
        learning_rate=1e-4, warmup_steps=100, schedule="cosine", clip_norm=1.0, max_norm_ratio=5.0
    )
    config.train.update(
        init_from=start, num_steps=0, num_epochs=1.0, batch_size=32, log_every=10,
        evaluate_every=500, checkpoint_every=500,
    )  # fmt: skip
    return config
