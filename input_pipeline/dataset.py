"""Data loading for the training loop: batches of a stream, prefetched in background threads."""

import collections
import concurrent.futures
import dataclasses
import importlib.util
import threading
from collections.abc import Iterator

import numpy as np

from input_pipeline.stream import Stream

Batch = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class StreamedData:
    """This host's part of a stream, as an input of the training loop.

    The `loader` is "tf.data", or "threads", which makes the same batches without TensorFlow.
    `parts` are ascending indices of this host's parts of each batch. Loading prefetches `prefetch`
    batches and requests the blocks of `read_ahead` more.
    """

    stream: Stream
    loader: str
    parts: tuple[int, ...] = (0,)
    num_parts: int = 1
    prefetch: int = 4
    read_ahead: int = 0

    def __post_init__(self):
        if self.loader == "tf.data" and importlib.util.find_spec("tensorflow") is None:
            raise ValueError(
                'data.loader is "tf.data": install TensorFlow, or set config.data.loader="threads"'
            )

    def batches(self, steps: range) -> Iterator[tuple[str, Batch]]:
        """Yield the kind and the arrays of every step's batch, parts concatenated, in order.

        To resume at step s, pass `range(s, ...)`.
        """
        load = _tf_data_batches if self.loader == "tf.data" else _threaded_batches
        for step, batch in zip(steps, load(_Reader(self, steps)), strict=True):
            yield self.stream.kind(step), batch

    def describe_batch(self, step: int) -> list[tuple[str, int]]:
        return self.stream.describe_batch(step)

    def step_values(self, step: int) -> dict[str, float]:
        return self.stream.step_values(step)


class _Reader:
    """Batches of steps; it requests their blocks some steps ahead."""

    def __init__(self, data: StreamedData, steps: range):
        self.data, self.steps = data, steps
        self._parts = [(part, data.num_parts) for part in data.parts]
        self._num_requested, self._lock = 0, threading.Lock()

    def batch(self, step: int) -> Batch:
        stream, ahead = self.data.stream, self.data.read_ahead
        with self._lock:  # requests each batch once, in order
            until = self.steps.index(step) + 1 + ahead if ahead else 0
            for later in self.steps[self._num_requested : until]:
                for part in self._parts:
                    stream.request(later, *part)
            self._num_requested = max(self._num_requested, min(until, len(self.steps)))
        found = [stream.batch(step, *part) for part in self._parts]
        if len(found) == 1:
            return found[0]
        return {name: np.concatenate([one[name] for one in found]) for name in found[0]}


def _tf_data_batches(reader: _Reader) -> Iterator[Batch]:
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")  # jax needs the GPU's memory

    steps, types = reader.steps, reader.data.stream.types
    failures: list[Exception] = []

    def make(step: np.int64) -> list[np.ndarray]:
        try:
            batch = reader.batch(int(step))
        except Exception as error:
            failures.append(error)
            raise
        # tf.data needs the same arrays in every batch; empty ones replace those a kind lacks.
        return [batch.get(name, np.zeros(0, kind)) for name, kind in types.items()]

    # No Python control flow needs conversion, which leaves a file in the temp folder.
    @tf.autograph.experimental.do_not_convert
    def read(step):
        kinds = [tf.as_dtype(kind) for kind in types.values()]
        arrays = tf.numpy_function(make, [step], kinds)
        return dict(zip(types, arrays, strict=True))

    dataset = tf.data.Dataset.range(steps.start, steps.stop, steps.step)
    dataset = dataset.map(read, num_parallel_calls=2, deterministic=True)
    dataset = dataset.prefetch(reader.data.prefetch)
    try:
        for batch in dataset.as_numpy_iterator():
            yield {name: array for name, array in batch.items() if array.size}
    except tf.errors.OpError:
        # The message of TensorFlow's own error is a traceback.
        if failures:
            raise failures[0] from None
        raise


def _threaded_batches(reader: _Reader) -> Iterator[Batch]:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting: collections.deque[concurrent.futures.Future] = collections.deque()
        for step in reader.steps:
            waiting.append(pool.submit(reader.batch, step))
            if len(waiting) > reader.data.prefetch:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
