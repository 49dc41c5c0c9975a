"""Vectors of texts by a run of configs/finetune/embeddings.py, or by a pre-trained encoder."""

import collections
import dataclasses
import itertools
import pathlib
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from absl import logging

from input_pipeline import array_files
from input_pipeline.tasks import files
from input_pipeline.tasks.embeddings import EmbeddingExample, read_examples
from input_pipeline.tasks.examples import BadRow
from input_pipeline.tasks.tasks import TASKS
from xlm.common import artifacts, declarations, outputs, places
from xlm.evaluation import search
from xlm.evaluation.tasks import TaskData
from xlm.experiment import fine_tuning as builders
from xlm.experiment import objectives, prediction, schema, task_data, task_schema, tuned_export
from xlm.experiment.pretrained import Pretrained, read_pretrained
from xlm.experiment.run_folder import BEST, TEACHER
from xlm.experiment.task_settings import TaskSettings, Tokenizer, task_settings
from xlm.interop.params_file import read_params
from xlm.training import hosts
from xlm.training.sharding import replicated

PRECISIONS, ROLES = ("float32", "float16", "int8"), ("query", "passage")
# Lines of a part: enough for batches of similar lengths, few enough to lose little.
CHUNK = 4096
# Nearest passages among which to look for wrong ones.
_CANDIDATES = 100
_TASK = next(name for name, task in TASKS.items() if task.is_embedding)


class TextEncoder:
    """Texts -> vectors of length 1, with the pooling and the prefixes of a run.

    `folder` is a finished run of embeddings, a working directory of train.py or a model's folder.
    The last two give the mean of the last states. Vectors keep their first `dimension` numbers, 0
    for all. `objective` is that of `run_config`. Raises ValueError if the folder is none of these,
    is damaged, or has fewer.
    """

    def __init__(self, folder: pathlib.Path, dimension: int = 0, objective: str = ""):
        if tuned_export.is_fine_tuned(folder) and not (folder / "config.json").exists():
            config = prediction.run_config(folder)
            if not task_settings(config).task.is_embedding:
                raise ValueError(
                    f"{folder} is a run of {config.task.name}, which has no vectors; name one of "
                    "configs/finetune/embeddings.py, or an encoder"
                )
            params, notes = read_params(folder / BEST)
            self._tokenizer = prediction.read_tokenizer(folder, notes.tokenizer)
            encoder = builders.encoder_of_notes(notes.encoder)
        else:
            found = read_pretrained(str(folder), objective=objective)
            encoder, self._tokenizer = found.settings, Tokenizer(found.tokenizer)
            params = {"encoder": {k: v for k, v in found.params.items() if k != "head"}}
            config = schema.default_config(task_schema.FINE_TUNING)
            config.task.update(name=_TASK, text_pooling="mean", max_length=encoder.max_length)
        if not 0 <= dimension <= encoder.hidden_size:
            raise ValueError(
                f"--dimension is {dimension}, must be at most {encoder.hidden_size}, or 0 for all"
            )
        with declarations.of_file(folder):
            with_head = builders.with_head(config, encoder)
            params = objectives.checked_params(with_head, params)
        self._dimension, self._options = dimension or encoder.hidden_size, task_settings(config)
        pad, mesh = self._tokenizer.special.pad, builders.mesh()
        self._predictor = builders.predictor(config, with_head, pad, mesh)
        self._params = jax.device_put(params, replicated(mesh))
        digests = Pretrained(encoder, params, b"").digests()
        self._identity = [self._dimension, config.task.to_dict(), digests["parameters"]]

    def __call__(self, texts: Sequence[str], role: str = "passage") -> np.ndarray:
        """Return [N, D] float32 vectors, zeros for empty texts; `role` chooses the prefix."""
        options = self._options
        if role == "passage":  # an example's only text is in the place of a query
            options = dataclasses.replace(options, query_prefix=options.passage_prefix)
        examples = [EmbeddingExample(str(number), (text,)) for number, text in enumerate(texts, 1)]
        data = task_data.featured(options, self._tokenizer, "", examples)
        found = np.stack(self._predictor(self._params, data.features))[:, 0, : self._dimension]
        found = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
        found[[not text.strip() for text in texts]] = 0  # a prefix alone would have a vector
        return found

    def encode_lines(
        self, lines: Sequence[str], aside: pathlib.Path, role: str, precision: str
    ) -> Iterator[int]:
        """Write the vectors of lines as an array [N, D]; yield the number of lines after each part.

        The same call resumes with the parts that it finds beside the output.
        """
        key = artifacts.fingerprint(self._identity, role, precision, lines)
        parts = [outputs.parts(aside, key) / f"{i}.npy" for i in range(0, len(lines), CHUNK)]
        for number, part in enumerate(parts):
            some = lines[number * CHUNK : (number + 1) * CHUNK]
            if not part.exists():
                array_files.save(part, compressed(self(some, role), precision))
            yield number * CHUNK + len(some)
        whole = np.lib.format.open_memmap(aside, "w+", precision, (len(lines), self._dimension))
        for number, part in enumerate(parts):
            whole[number * CHUNK : (number + 1) * CHUNK] = np.load(part, allow_pickle=False)
        whole.flush()


def compressed(vectors: np.ndarray, precision: str) -> np.ndarray:
    """Return vectors [N, D] in a precision of `PRECISIONS`.

    In int8 the largest number of a row is 127. The row divided by its length is the vector again.
    """
    if precision != "int8":
        return vectors.astype(precision)
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    return np.rint(vectors * (127 / np.maximum(largest, 1e-12))).astype(np.int8)


def read_lines(paths: Sequence[pathlib.Path]) -> list[str]:
    """Read the lines of text files, in order, empty ones too; ValueError if one is no text file."""
    if missing := [path for path in paths if not path.is_file()]:
        raise ValueError(f"{missing[0]}: no such file; correct the name")
    return [line for path in paths for _, line in files.numbered_lines(path)]


def read_vectors(path: pathlib.Path) -> np.ndarray:
    """Map a file of vectors [N, D]; ValueError if it is none."""
    remedy = "name a file of xlm encode"
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: no array of vectors ({error}); {remedy}") from None
    if found.ndim != 2 or found.dtype.name not in PRECISIONS:
        raise ValueError(f"{path}: no vectors, but {found.dtype} of {found.shape}; {remedy}")
    return found


def read_pairs(
    path: pathlib.Path, columns: Sequence[str]
) -> list[tuple[str | None, tuple[str, str]]]:
    """Read (language, (query, passage)) of a file; see `embeddings.read_examples`.

    Raises ValueError for the first row at fault, and if there are not two columns.
    """
    if len(columns) != 2:
        raise ValueError(f"--columns has {len(columns)} names, must be those of query and passage")
    task = TaskSettings(_TASK, text_column=columns[0], pair_column=columns[1]).task
    found = []
    for language, one in read_examples(path, task):
        if isinstance(one, BadRow):
            raise ValueError(one.error)
        found.append((language, one.texts))
    return found


def mined_negatives(
    encoder: TextEncoder, pairs: Sequence[tuple[str, str]], number: int, at_most: float
) -> Iterator[list[str]]:
    """Yield for each pair of query and passage the `number` nearest passages that are wrong.

    Wrong are those of other queries, but neither the query's own text nor those nearer than
    `at_most` times the cosine of the pair ("TopK-PercPos" of arXiv 2407.15831). If fewer of the
    nearest 100 are left, random passages follow, which the log counts. Raises ValueError if there
    are too few passages.
    """
    texts = {text: row for row, text in enumerate(dict.fromkeys(two for _, two in pairs))}
    own = collections.defaultdict[str, set[int]](set)
    for query, passage in pairs:
        own[query] |= {texts[passage], texts.get(query, texts[passage])}
    if (most := max(map(len, own.values()), default=0)) + number > len(texts):
        raise ValueError(
            f"--negatives={number} needs {most + number} different passages, and there are "
            f"{len(texts)}; give a larger file, or fewer"
        )
    passages, queries = list(texts), list(own)
    vectors, asked = encoder(passages), encoder(queries, "query")
    found = search.top_k(asked, vectors, max(_CANDIDATES, 2 * number))
    nearest = dict(zip(queries, zip(asked, *found, strict=True), strict=True))
    rng, filled = np.random.default_rng(0), 0
    for query, passage in pairs:
        vector, cosines, rows = nearest[query]
        cosine = float(vector @ vectors[texts[passage]])
        is_far = cosines <= cosine - (1 - at_most) * abs(cosine)
        hard = [row for row in rows[is_far].tolist() if row not in own[query]][:number]
        others = (int(rng.integers(len(texts))) for _ in itertools.count())
        filled += len(hard) < number
        while len(hard) < number:
            if (row := next(others)) not in own[query] and row not in hard:
                hard.append(row)
        yield [passages[row] for row in hard]
    if filled:
        logging.warning("%s of %s queries have fewer than %d wrong passages below --at_most; "
                        "random ones follow", f"{filled:,}", f"{len(pairs):,}", number)  # fmt: skip


def taught(
    options: TaskSettings, data: Sequence[TaskData], width: int, folder: pathlib.Path
) -> list[TaskData]:
    """Return training data whose features have the vectors of `task.teacher`, in `width` numbers.

    The first start writes them to a file of the run's folder, which later ones read. Those of a
    wider teacher are projected to their principal components, which keep the cosines best; those
    of a narrower one get zeros.
    """
    path = folder / TEACHER
    if not hosts.as_on_first([path.exists()])[0]:  # all hosts encode together
        logging.info("encoding the training queries by %s", options.teacher)
        teacher = TextEncoder(places.fetched(options.teacher))
        vectors = teacher([example.texts[0] for one in data for example in one.examples], "query")
        if vectors.shape[1] > width:
            kept = np.linalg.eigh(vectors.T @ vectors)[1][:, : -width - 1 : -1]
            vectors = vectors @ kept
        vectors = np.pad(vectors, ((0, 0), (0, max(width - vectors.shape[1], 0))))
        if hosts.is_first():
            array_files.save(path, vectors)
    hosts.wait_for_all("the teacher's vectors are written")
    rows = iter(read_vectors(path))
    return [
        TaskData(
            one.language, one.examples,
            [dataclasses.replace(feature, teacher=next(rows)) for feature in one.features],
        )
        for one in data
    ]  # fmt: skip
