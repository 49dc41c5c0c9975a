"""Add to pairs of texts the wrong passages that are hardest to tell from the right ones.

    xlm mine --workdir=RUN --input=train.en.tsv --output=hard/train.en.jsonl --negatives=2

RUN encodes queries and passages as in xlm encode. A query gets the nearest passages of the file
that are not its own, as columns negative_1 and so on for task.negative_columns. Those above
--at_most times the cosine of its own passage are left out, since they may be right as well.
--columns names the columns of query and passage.
"""

import json

from absl import flags, logging

from xlm.common import outputs, places
from xlm.experiment import encoding
from xlm.training import compilation

_WORKDIR = flags.DEFINE_string("workdir", None, "The run or the model's folder.")
_INPUT = flags.DEFINE_string("input", None, "A file of pairs, as for embeddings.py.")
_OUTPUT = outputs.define_flags("The file to write, JSON lines.")
_COLUMNS = flags.DEFINE_list("columns", ["query", "passage"], "Columns of query and passage.")
_NEGATIVES = flags.DEFINE_integer("negatives", 1, "Wrong passages of a query.", lower_bound=1)
_AT_MOST = flags.DEFINE_float(
    "at_most", 0.95, "Largest share of the own passage's cosine.", lower_bound=0, upper_bound=1
)

OPTIONS = {"required": ("workdir", "input", "output")}


def main(_) -> None:
    compilation.use_cache()
    path = places.fetched(_INPUT.value)
    with outputs.file(_OUTPUT.value, [path]) as aside:
        pairs = encoding.read_pairs(path, _COLUMNS.value)
        encoder = encoding.TextEncoder(places.fetched(_WORKDIR.value))
        texts = [pair for _, pair in pairs]
        found = encoding.mined_negatives(encoder, texts, _NEGATIVES.value, _AT_MOST.value)
        with open(aside, "w", encoding="utf-8") as file:
            for (language, pair), wrong in zip(pairs, found, strict=True):
                row = {"language": language} if language else {}
                row |= zip(_COLUMNS.value, pair, strict=True)
                row |= {f"negative_{i}": text for i, text in enumerate(wrong, 1)}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    names = tuple(f"negative_{i + 1}" for i in range(_NEGATIVES.value))
    logging.info('wrote %s rows; train with --config.task.negative_columns="%s"',
                 f"{len(pairs):,}", names)  # fmt: skip
