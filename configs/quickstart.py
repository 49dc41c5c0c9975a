"""The main job on the embedded corpus: a vocabulary, a small encoder, a report.

    bash scripts/quickstart.sh

or, stage by stage:

    for stage in build_vocab prepare_data train evaluate; do
      python $stage.py --config=configs/quickstart.py --workdir=runs/quickstart
    done

`configs/quickstart.py:/path/to/text` takes a folder of your own text. It leaves out bad lines and
more than ten copies of a line, and cuts very long ones (docs/cleaning.md). A folder without pairs
of translations (`*.tsv`) trains without the contrast of sentences.
`configs/quickstart.py:runlocal` is a miniature.

Hardware: 2 CPU cores, 4 GB, some 5 minutes. Expect an exact held-out loss of 4.57 to 4.62 nats a
token, 1.2 below the unigram distribution's 5.79. Expect it to find 18 to 21 % of translations
(`core`, chance 2 %) and 26 to 31 % (`everyday`, chance 0.8 %). Three seeds,
research/reports/results.md.
"""

import pathlib

from ml_collections import ConfigDict

from configs import small
from xlm.common import packages, places


def get_config(arg: str = "") -> ConfigDict:
    if arg == "runlocal":
        return small.runlocal()
    config = small.get_config()
    config.corpus.root = arg or str(packages.embedded("corpus"))
    config.corpus.parallel = ("*.tsv*",)
    config.corpus.heldout_fraction = 0.1
    if arg:  # safe for unseen text; the embedded corpus keeps the split of its reports
        config.clean.update(bad_lines=0.01, long_lines=True, repeated_lines=10)
        config.corpus.heldout_by = "document"

    config.vocab.update(
        method="union", alpha=0.3, beta=1.0, byte_fallback=True, sizes=(), target_size=8000,
        compare=("vocap", "proportional", "uniform", "joint", "bpe"),
    )  # fmt: skip

    # Your own text may have no pairs of translations.
    has_pairs = not arg or places.is_url(arg) or any(pathlib.Path(arg).glob("*.tsv*"))
    config.data.contrast_share = 0.5 if has_pairs else 0.0
    config.output_layer.update(k=10, capacity=1024, refresh_every=50)
    config.train.update(num_steps=1200, batch_size=16, evaluate_every=300, checkpoint_every=300)
    return config
