"""Retrieval on vectors with known neighbours, and on sentences with gaps."""

import dataclasses
import functools
import pathlib
from unittest import mock

import jax
import numpy as np

from input_pipeline.packed_dataset import PackedDataset, pad_sentences
from tests import factories, folders
from tests.factories import SPECIAL_IDS as SPECIAL
from xlm.evaluation import retrieval
from xlm.evaluation.retrieval import Retrieval, RetrievalResult, nearest_accuracy

VOCAB, L = 32, 20
OBJECTIVE = factories.masked_lm(
    factories.output_layer_settings(kind="full"),
    factories.encoder_settings(max_length=L, dropout_rate=0.0),
    num_valid=VOCAB,
)


@functools.cache
def encoder_of(layer: int):
    """Compiled vectors of a batch, which depend on no setting of an evaluator but the layer."""
    dataset = PackedDataset(pathlib.Path(), VOCAB, L, "", SPECIAL, {}, {})
    settings = {"pivot": "en", "batch_size": 8, "max_sentences": 0}
    return Retrieval(OBJECTIVE, dataset, layer=layer, **settings)._encode


def evaluator(dataset: PackedDataset, *, layer: int = 0, **changes) -> Retrieval:
    settings = {"pivot": "en", "batch_size": 8, "max_sentences": 0, **changes}
    found = Retrieval(OBJECTIVE, dataset, layer=layer, **settings)
    found._encode = encoder_of(layer)  # otherwise each would compile its own
    return found


@functools.cache
def params():
    return factories.random_params(OBJECTIVE, 0.5)


def sentences(seed: int, count: int = 12) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(5, VOCAB, rng.integers(1, 9)) for _ in range(count)]


class RetrievalTest(folders.FolderTest):
    def run_on(
        self, columns: dict[str, list[np.ndarray]], length: int = L, name: str = "core", **kwargs
    ) -> dict[str, RetrievalResult]:
        """Run retrieval on a parallel set of these sentences."""
        for language, column in columns.items():
            rows = pad_sentences(column, length, SPECIAL, np.dtype(np.uint16))
            np.save(self.folder / f"{name}.{language}.parallel.npy", rows)
        dataset = PackedDataset(self.folder, VOCAB, L, "", SPECIAL, {}, {name: tuple(columns)})
        return evaluator(dataset, **kwargs).run(params())[name]

    def vectors(
        self, column: list[np.ndarray], length: int, batch_size: int, layer: int = 0
    ) -> np.ndarray:
        dataset = PackedDataset(self.folder, VOCAB, L, "", SPECIAL, {}, {})
        rows = pad_sentences(column, length, SPECIAL, np.dtype(np.int32))
        return evaluator(dataset, layer=layer, batch_size=batch_size)._vectors(params(), rows)

    def test_translations_that_are_the_same_are_found(self):
        same, none = sentences(0), np.array([], int)
        one = [np.array([9]), *[none] * 11]  # a language with one pair is left out
        results = self.run_on({"en": same, "sw": same, "ka": one, "de": sentences(1)})
        self.assertEqual(results["sw"], RetrievalResult(1.0, 1.0, 1 / 12, 12))
        self.assertLess(results["de"].forward, 1)
        self.assertEqual(list(results), ["sw", "de"])
        columns = {"de": sentences(0), "sw": sentences(1)}  # the first is the pivot
        found = self.run_on(columns)
        self.assertEqual(found, self.run_on(columns, pivot="de"))
        self.assertEqual(list(found), ["sw"])

    def test_forward_is_from_the_language_to_the_pivot(self):
        columns = {"sw": sentences(1, count=40), "en": sentences(0, count=40)}
        vectors = {lang: self.vectors(column, L, 12) for lang, column in columns.items()}
        result = self.run_on(columns)["sw"]
        self.assertNotEqual(result.forward, result.backward)
        self.assertEqual(result.forward, nearest_accuracy(vectors["sw"], vectors["en"]))
        self.assertEqual(result.backward, nearest_accuracy(vectors["en"], vectors["sw"]))

    def test_missing_translations_are_left_out(self):
        english, swahili = sentences(0), sentences(1)
        none = np.array([], int)
        gaps = {2, 7}, {7, 9}
        with_gaps, without = {}, {}
        for language, column, own in zip(("en", "sw"), (english, swahili), gaps, strict=True):
            with_gaps[language] = [none if i in own else s for i, s in enumerate(column)]
            without[language] = [s for i, s in enumerate(column) if i not in gaps[0] | gaps[1]]
        expected = self.run_on(without, name="without")["sw"]
        self.assertEqual(expected.sentences, 9)
        self.assertEqual(self.run_on(with_gaps)["sw"], expected)

    def test_padding_and_batches_do_not_matter(self):
        columns = {"en": sentences(0), "sw": sentences(1)}
        expected = self.vectors(columns["en"], L, 12, layer=1)
        for length, batch_size in ((11, 12), (L, 5)):
            found = self.vectors(columns["en"], length, batch_size, layer=1)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        result = self.run_on(columns)
        self.assertEqual(self.run_on(columns, length=11, batch_size=5), result)

    def test_a_vector_is_the_mean_over_the_text(self):
        column = sentences(0, count=3)
        rows = pad_sentences(column, L, SPECIAL, np.dtype(np.int32))
        options = {"deterministic": True, "num_layers": 1, "method": "encode"}
        encode = jax.jit(functools.partial(OBJECTIVE.encoder.apply, **options))
        positions = np.tile(np.arange(L, dtype=np.int32), (3, 1))
        segments = (rows != SPECIAL.pad).astype(np.int32)
        states = encode({"params": params()}, rows, segments, positions)
        found = self.vectors(column, L, 3, layer=1)
        for vector, sentence, state in zip(found, column, states, strict=True):
            expected = np.mean(state[1 : 1 + len(sentence)], axis=0)
            np.testing.assert_allclose(vector, expected, rtol=1e-4, atol=1e-5)

    def test_fewer_sentences_are_spread_over_the_set(self):
        columns = {"en": sentences(0), "sw": sentences(1)}
        some = {lang: [column[i] for i in (0, 2, 4, 7, 9)] for lang, column in columns.items()}
        expected = self.run_on(some, name="some")
        with mock.patch.object(retrieval, "nearest_accuracy", wraps=nearest_accuracy) as found:
            self.assertEqual(self.run_on(columns, max_sentences=5), expected)
        self.assertEqual(dataclasses.astuple(expected["sw"])[2:], (0.2, 5))
        vectors = self.vectors(some["sw"], L, 8)
        np.testing.assert_array_equal(found.call_args_list[0].args[0], vectors)
