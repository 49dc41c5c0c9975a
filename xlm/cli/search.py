"""Search vectors of xlm encode for the nearest ones of queries, exactly.

    xlm search --workdir=RUN --vectors=vectors.npy --texts=FILE,FILE --queries=FILE --k=10

RUN encodes --queries, a query a line; or these are vectors, *.npy. --texts are the encoded files,
so that hits show their lines. Each query gives a JSON object with its hits, best first: line,
cosine and text. --output writes them to a file.
"""

import json
import pathlib
from collections.abc import Iterator

from absl import flags

from xlm.common import outputs, places
from xlm.evaluation import search
from xlm.experiment import encoding
from xlm.training import compilation

_WORKDIR = flags.DEFINE_string("workdir", None, "The run or model that encodes the queries.")
_VECTORS = flags.DEFINE_string("vectors", None, "The file of xlm encode to search.")
_QUERIES = flags.DEFINE_string("queries", None, "A text file, a query a line; or vectors, *.npy.")
_TEXTS = flags.DEFINE_list("texts", [], "The --input of xlm encode, for the texts of hits.")
_K = flags.DEFINE_integer("k", 10, "Hits of each query.", lower_bound=1)
_OUTPUT = outputs.define_flags("The file to write, JSON lines; the console by default.")

OPTIONS = {"required": ("vectors", "queries")}


def main(_) -> None:
    compilation.use_cache()
    paths = [places.fetched(one) for one in (_VECTORS.value, _QUERIES.value, *_TEXTS.value)]
    if _OUTPUT.value is None:
        print(*_hits(*paths), sep="\n")
        return
    with outputs.file(_OUTPUT.value, paths) as aside, open(aside, "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in _hits(*paths))


def _hits(place: pathlib.Path, asked: pathlib.Path, *shown: pathlib.Path) -> Iterator[str]:
    vectors, texts = encoding.read_vectors(place), encoding.read_lines(shown)
    if texts and len(texts) != len(vectors):
        raise ValueError(
            f"--texts has {len(texts)} lines, but {place} {len(vectors)} vectors; name the encoded "
            "files, in their order"
        )
    if asked.suffix == ".npy":
        questions, queries = [], encoding.read_vectors(asked)
    elif _WORKDIR.value is None:
        raise ValueError(f"--queries={asked} is a text file; give the --workdir that encodes it")
    else:
        encoder = encoding.TextEncoder(places.fetched(_WORKDIR.value), vectors.shape[1])
        questions = encoding.read_lines([asked])
        queries = encoder(questions, "query")
    if queries.shape[1] != vectors.shape[1]:
        raise ValueError(
            f"{asked} has {queries.shape[1]} dimensions, {place} {vectors.shape[1]}; encode both by"
            " the same --workdir and --dimension"
        )
    found = zip(*search.top_k(queries, vectors, _K.value), strict=True)
    for number, (cosines, rows) in enumerate(found):
        hits = [
            {"line": row + 1, "score": round(x, 6)}
            for x, row in zip(cosines.tolist(), rows.tolist(), strict=True)
        ]
        for hit in hits if texts else ():
            hit["text"] = texts[hit["line"] - 1]
        query = {"query": questions[number]} if questions else {}
        yield json.dumps({"id": str(number + 1), **query, "hits": hits}, ensure_ascii=False)
