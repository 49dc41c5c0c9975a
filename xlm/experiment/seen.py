"""How much of the text a run sees: the number of its steps, and their text by language.

The stream is a pure function of seed and step, so counts need its order only, and no batches. A
sequence counts as the mean tokens of its language, without padding and special tokens.
"""

import bisect
import copy
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from input_pipeline.packed_dataset import PackedDataset
from input_pipeline.stream import Seen
from xlm.common import tables
from xlm.common.languages import label
from xlm.experiment import streams
from xlm.experiment.masked_lm import language_shares
from xlm.experiment.model import train_settings

# More repetitions add next to nothing (Muennighoff et al. 2023, "Scaling data-constrained language
# models", Section 5).
_MOST_EPOCHS = 16
_MOST_STEPS = 1 << 40
_FORMATS = {"tokens": ",", "tokens seen": ",.0f", "epochs": ".2f", "share of the text": ".1%",
            "share wanted": ".1%", "share seen": ".1%"}  # fmt: skip


def with_steps(config: ConfigDict, dataset: PackedDataset) -> ConfigDict:
    """Return a config with the `train.num_steps` that its epochs or tokens take.

    Raises ValueError if not one of the three is given, or no step has packed sequences.
    """
    train = train_settings(config)
    if train.num_steps:
        return config
    stream = streams.training_stream(config, dataset)
    weights = {one: 1.0 if train.num_epochs else _tokens(dataset, one) for one in dataset.languages}
    rows = sum(found["train"]["rows"] for found in dataset.statistics.values())

    def amount(steps: int) -> float:
        found = stream.seen(steps)
        return sum(found[one] * weight for one, weight in weights.items())

    wanted = train.num_epochs * rows or train.num_tokens
    steps = bisect.bisect_left(range(_MOST_STEPS), wanted, lo=1, key=amount)
    if steps == _MOST_STEPS:
        raise ValueError(
            "train.num_epochs and train.num_tokens count packed sequences, but data.pair_share and "
            "data.contrast_share leave no steps for them; give train.num_steps"
        )
    config = copy.deepcopy(config)
    config.train.update(num_steps=steps, num_epochs=0.0, num_tokens=0)
    return config


def _tokens(dataset: PackedDataset, language: str) -> float:
    found = dataset.statistics[language]["train"]
    return found["tokens"] / found["rows"]


def rows_of(config: ConfigDict, dataset: PackedDataset, found: Seen) -> list[dict[str, Any]]:
    """Return a row for each language: tokens, tokens seen, epochs, and shares."""
    there = {one: dataset.statistics[one]["train"] for one in dataset.languages}
    seen = {one: found[one] * _tokens(dataset, one) for one in there}
    shares, text = language_shares(config, dataset), sum(one["tokens"] for one in there.values())
    return [
        {
            "language": label(one),
            "tokens": statistics["tokens"],
            "tokens seen": seen[one],
            "epochs": found[one] / statistics["rows"],
            "share of the text": statistics["tokens"] / text,
            **({} if config.data.alpha_phases else {"share wanted": shares[one]}),
            "share seen": seen[one] / max(sum(seen.values()), 1),
        }
        for one, statistics in there.items()
    ]


def section(
    config: ConfigDict, dataset: PackedDataset, steps: int, log: Callable[..., None] | None = None
) -> list[str]:
    """Return the parts of a report on the text of `steps` steps; `log` reports repetitions."""
    found = streams.training_stream(config, dataset).seen(steps)
    rows = rows_of(config, dataset, found)
    lines = [
        f"{row['language']} is seen {row['epochs']:.0f} times: more text, fewer steps or a larger "
        "data.alpha repeats it less"
        for row in rows
        if row["epochs"] > _MOST_EPOCHS
    ]
    if log is not None:
        for line in lines:
            log("%s", line)
    pairs = Seen({one: count for one, count in found.items() if one not in dataset.languages})
    if pairs and not config.robust.num_phases:  # which choose during training
        shown = ", ".join(f"{'-'.join(one)} {count:,}" for one, count in pairs.most_common(20))
        lines.append(f"{pairs.total():,} sentence pairs of {len(pairs)} language pairs: {shown}")
    return [
        f"## How much is seen in {steps:,} steps",
        tables.markdown(rows, _FORMATS),
        "\n".join(f"- {line}" for line in lines),
    ]
