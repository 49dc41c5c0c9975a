"""Pairs of translations: which, how long, in what order."""

import collections
import dataclasses
import itertools
import pathlib
import tempfile
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
from absl.testing import parameterized

from input_pipeline import bitext
from input_pipeline.array_files import ArrayFile
from input_pipeline.bitext import BitextSettings, pair_streams, token_counts
from input_pipeline.order import NO_BLOCKS, BlockSettings
from input_pipeline.packed_dataset import PackedDataset, TokenizedSentences
from input_pipeline.stream import MixedStream, TrainingStream
from tests.factories import SPECIAL_IDS as SPECIAL
from xlm.models.segments import packed_segments

LANGUAGES = ("aa", "bb", "cc")
SETTINGS = BitextSettings(buckets=(8, 16, 24), positions="continue", alpha=1.0, tokens=48)
SETS = {"news": (LANGUAGES, 30), "bible": (LANGUAGES[:2], 20)}
COLUMNS = [(name, language) for name, (found, _) in SETS.items() for language in found]
SHARES = {("aa", "bb"): 0.2, ("aa", "cc"): 0.7, ("bb", "cc"): 0.1}


def together(batches: int, **changes) -> BitextSettings:
    """Settings of batches that hold the examples of several; the order does not depend on it."""
    return dataclasses.replace(SETTINGS, tokens=batches * SETTINGS.tokens, **changes)


def token(name: str, language: str, sentence: int) -> int:
    """Every token of a sentence, which tells what it is of."""
    return 1000 * (1 + list(SETS).index(name)) + 100 * LANGUAGES.index(language) + sentence


def length_of(language: str, sentence: int) -> int:
    """Tokens of a sentence: from 1 to 12, and 0 for some that are missing."""
    if sentence % 7 == 3 and language == "bb":
        return 0
    return 1 + (5 * sentence + LANGUAGES.index(language)) % 12


def write_store(folder: pathlib.Path) -> PackedDataset:
    for name, (languages, count) in SETS.items():
        for language in languages:
            lengths = [length_of(language, i) for i in range(count)]
            ids = np.repeat([token(name, language, i) for i in range(count)], lengths)
            np.save(folder / f"{name}.{language}.bitext.npy", ids.astype(np.uint16))
            np.save(folder / f"{name}.{language}.ends.npy", np.cumsum(lengths))
    rows = np.random.default_rng(0).integers(5, 1000, (50, 16), np.uint16)
    np.save(folder / "aa.train.npy", rows)
    bitexts = {name: languages for name, (languages, _) in SETS.items()}
    return PackedDataset(folder, 3000, 16, "", SPECIAL, {"aa": {}}, {}, bitexts)


Example = tuple[str, tuple[str, str], int, tuple[int, int]]


def read(rows: np.ndarray) -> list[Example]:
    """Set, languages in order, sentence and lengths of each of [N, L] rows; checks their form."""
    is_eos = rows == SPECIAL.eos
    np.testing.assert_array_equal(is_eos.sum(axis=1), 3)
    places = np.arange(rows.shape[1])
    end, begin, last = (column[:, None] for column in np.nonzero(is_eos)[1].reshape(-1, 3).T)
    first, second = rows[:, [1]], np.take_along_axis(rows, begin + 1, axis=1)
    text = np.where(places < end, first, second)
    is_end = (places == end) | (places == begin) | (places == last)
    expected = np.where(is_end, SPECIAL.eos, np.where(places < last, text, SPECIAL.pad))
    expected[:, 0] = SPECIAL.bos
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(begin, end + 1)
    np.testing.assert_array_equal(first % 100, second % 100)
    np.testing.assert_array_equal(first // 1000, second // 1000)
    return [
        (list(SETS)[one // 1000 - 1], (LANGUAGES[one // 100 % 10], LANGUAGES[two // 100 % 10]),
         one % 100, (to - 1, until - to - 2))
        for one, two, to, until in np.hstack((first, second, end, last)).tolist()
    ]  # fmt: skip


class _StoreTest(parameterized.TestCase):
    store: PackedDataset

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.store = write_store(pathlib.Path(folder))


class PairStreamTest(_StoreTest):
    def pairs(self) -> set:
        return {
            (name, pair, i)
            for name, (languages, count) in SETS.items()
            for pair in itertools.combinations(languages, 2)
            for i in range(count)
            if all(length_of(language, i) for language in pair)
        }

    def test_an_epoch_has_every_pair_once_in_its_shortest_bucket(self):
        streams, _ = pair_streams(self.store, together(400), seed=0)
        self.assertLen(streams, 3)
        found = []
        for stream, length in zip(streams, SETTINGS.buckets, strict=True):
            per_pair = collections.Counter()
            # Language pairs have shares of a cycle, so they finish their epochs at other times.
            rows = stream.batch(0)["tokens"]
            self.assertEqual(rows.shape[1], length)
            for name, languages, sentence, lengths in read(rows):
                shorter = [x for x in SETTINGS.buckets if x >= sum(lengths) + 4]
                self.assertEqual(shorter[0], length)
                key = (name, tuple(sorted(languages)))
                per_pair[(*key, sentence)] += 1
            found += per_pair
            for name, pair in {key[:2] for key in per_pair}:
                counts = [n for key, n in per_pair.items() if key[:2] == (name, pair)]
                self.assertLessEqual(max(counts) - min(counts), 1)
        self.assertCountEqual(found, self.pairs())

    @parameterized.parameters(1, 2)
    def test_by_blocks_an_epoch_has_every_pair_once_and_threads_change_nothing(self, lanes: int):
        blocks = BlockSettings(block_bytes=200, window_blocks=1, lanes=lanes)
        settings = BitextSettings((16, 32), "continue", 1.0, 128, blocks=blocks)
        plain, _ = pair_streams(self.store, settings, seed=0)
        orders, _ = pair_streams(self.store, dataclasses.replace(settings, blocks=NO_BLOCKS), 0)
        with ThreadPoolExecutor(2) as pool:
            threaded, _ = pair_streams(self.store, settings, seed=0, pool=pool)
            found = set()
            for one, other, by_pairs in zip(plain, threaded, orders, strict=True):
                visits = collections.Counter()
                for step in range(120):
                    batch = one.batch(step)
                    if step % 3:
                        other.request(step)
                    for name, array in other.batch(step).items():
                        np.testing.assert_array_equal(array, batch[name])
                    examples = read(batch["tokens"])
                    described = [(f"{name} {'-'.join(pair)}", i) for name, pair, i, _ in examples]
                    self.assertEqual(one.describe_batch(step), described)
                    visits.update((name, tuple(sorted(pair)), i) for name, pair, i, _ in examples)
                for name, pair in {key[:2] for key in visits}:
                    counts = [n for key, n in visits.items() if key[:2] == (name, pair)]
                    if lanes == 1:  # several draw a pair equally often in whole cycles only
                        self.assertLessEqual(max(counts) - min(counts), 1)
                found |= set(visits)
                self.assertNotEqual(one.describe_batch(0), by_pairs.describe_batch(0))
        self.assertEqual(found, self.pairs())

    def test_order_of_languages_is_a_coin(self):
        """Of probability 1/2 (Section 4 of XY-LENT), thrown for each example and not for a pair."""
        streams, _ = pair_streams(self.store, together(2000), seed=0)
        orders, of_sentences = collections.Counter(), collections.Counter()
        for name, sentence in streams[1].describe_batch(0):
            order = tuple(name.split()[1].split("-"))
            orders[order] += 1
            of_sentences[name, sentence] += 1
        for pair in itertools.combinations(LANGUAGES, 2):
            total = orders[pair] + orders[pair[::-1]]
            self.assertLess(abs(orders[pair] - total / 2), 4 * np.sqrt(total / 4), pair)
        for (name, sentence), count in of_sentences.items():
            set_name, _, order = name.partition(" ")
            other = f"{set_name} {'-'.join(order.split('-')[::-1])}"
            total = count + of_sentences[other, sentence]
            self.assertLess(abs(count - total / 2), 4 * np.sqrt(total / 4), (name, sentence))

    @parameterized.parameters((1.0, None), (0.3, None), (0.3, SHARES))
    def test_sets_and_language_pairs_have_their_share(self, alpha, shares):
        """Within a language pair of given share its sets are drawn by their sizes."""
        given = shares and {pair: 3 * share for pair, share in shares.items()}
        streams, of_steps = pair_streams(self.store, together(100, alpha=alpha), 0, given)
        self.assertAlmostEqual(of_steps.sum(), 1)
        mixed, found = MixedStream(streams, of_steps, seed=1), collections.Counter()
        for number, stream in enumerate(streams):
            steps = mixed.steps_before(3000, number)
            rows = [stream.batch(batch)["tokens"] for batch in range(-(-steps // 100))]
            examples = read(np.concatenate(rows)[: steps * stream.batch_size // 100])
            found.update((name, tuple(sorted(pair))) for name, pair, *_ in examples)
        sizes = collections.Counter((name, pair) for name, pair, _ in self.pairs())
        total = sum(n**alpha for n in sizes.values())
        for (name, pair), n in sizes.items():
            of_sets = sum(size for (_, other), size in sizes.items() if other == pair)
            expected = shares[pair] * n / of_sets if shares else n**alpha / total
            self.assertAlmostEqual(found[name, pair] / found.total(), expected, delta=0.02)

    def test_a_language_pair_without_share_is_never_drawn(self):
        shares = {**SHARES, ("bb", "cc"): 0.0}
        # A cycle of the order, which gives one example to whatever is in it.
        cycle = dataclasses.replace(SETTINGS, buckets=(24,), tokens=24 << 16)
        (stream,), _ = pair_streams(self.store, cycle, 0, shares)
        drawn = {name.split()[1] for name, _ in stream.describe_batch(0)}
        self.assertEqual(drawn, {"aa-bb", "bb-aa", "aa-cc", "cc-aa"})
        only = dict.fromkeys(SHARES, 0.0) | {("bb", "cc"): 1.0}
        for stream in pair_streams(self.store, SETTINGS, 0, only)[0]:
            np.testing.assert_array_equal(stream.batch(0)["pair"], 2)

    def test_a_batch_says_the_language_pair_of_each_example(self):
        self.assertEqual(bitext.language_pairs(self.store), list(SHARES))
        self.assertEqual(bitext.pair_names(self.store), ["aa-bb", "aa-cc", "bb-cc"])
        sizes = collections.Counter((pair, name) for name, pair, _ in self.pairs())
        expected = {one: sorted(n for key, n in sizes.items() if key[0] == one) for one in SHARES}
        self.assertEqual({p: sorted(n) for p, n in bitext.pair_sizes(self.store).items()}, expected)
        flips = set()
        for shares in (None, SHARES):
            for stream in pair_streams(self.store, SETTINGS, 0, shares)[0]:
                for step in range(20):
                    batch = stream.batch(step)
                    self.assertEqual(batch["pair"].dtype, stream.types["pair"])
                    examples = read(batch["tokens"])
                    for (_, languages, *_), number in zip(examples, batch["pair"], strict=True):
                        self.assertEqual(list(SHARES)[number], tuple(sorted(languages)))
                        flips.add((number, languages[0] < languages[1]))
        self.assertLen(flips, 6)

    @parameterized.parameters(
        ({("aa", "bb"): 1.0}, r"\[\('aa', 'cc'\), \('bb', 'cc'\)\] are not both in"),
        ({**SHARES, ("aa", "dd"): 0.1}, r"\[\('aa', 'dd'\)\] are not both in"),
        ({**SHARES, ("aa", "bb"): -0.1}, r"finite and at least 0: \{\('aa', 'bb'\): -0.1\}"),
        ({**SHARES, ("aa", "bb"): float("nan")}, "finite and at least 0: .*nan"),
        (dict.fromkeys(SHARES, 0.0), "are all 0; one pair at least"),
    )
    def test_shares_that_cannot_be(self, shares, message):
        for use in (lambda: pair_streams(self.store, SETTINGS, 0, shares),
                    lambda: token_counts(self.store, 1.0, shares)):  # fmt: skip
            with self.assertRaisesRegex(ValueError, message):
                use()

    @parameterized.parameters((1.0, None), (0.0, None), (1.0, SHARES))
    def test_tokens_are_counted_as_the_streams_bring_them(self, alpha, of_languages):
        # Buckets that cut no sentence.
        settings = together(2000, alpha=alpha, buckets=(8, 16, 32))
        streams, shares = pair_streams(self.store, settings, 0, of_languages)
        found = np.zeros(self.store.vocab_size)
        for stream, share in zip(streams, shares, strict=True):
            tokens = stream.batch(0)["tokens"].reshape(-1)
            found += share * np.bincount(tokens, minlength=self.store.vocab_size)
        found[list(SPECIAL.special_ids())] = 0
        expected = token_counts(self.store, alpha, of_languages)
        total = sum(len(self.store.bitext(*one).ids) for one in COLUMNS)
        self.assertAlmostEqual(expected.sum(), total)
        np.testing.assert_allclose(found / found.sum(), expected / total, atol=1e-3)
        self.assertGreater(expected.max() / total, 0.015)

    @parameterized.parameters(1, 7, 100)
    def test_tokens_are_counted_range_by_range(self, at_once):
        shares = {pair: share / 3 for pair, share in SHARES.items()}
        expected = token_counts(self.store, 0.3, shares)
        longest = max(int(self.store.bitext(*one).lengths.max()) for one in COLUMNS)
        read = mock.Mock(side_effect=ArrayFile.__getitem__)
        self.enterContext(mock.patch.object(ArrayFile, "__getitem__", lambda *args: read(*args)))
        self.enterContext(mock.patch.object(bitext, "_TOKENS_AT_ONCE", at_once))
        np.testing.assert_array_equal(token_counts(self.store, 0.3, shares), expected)
        sizes = [call.args[1].stop - call.args[1].start for call in read.call_args_list]
        self.assertEqual(sum(sizes), sum(len(self.store.bitext(*one).ids) for one in COLUMNS))
        self.assertLessEqual(max(sizes), max(at_once, longest))

    def test_an_id_beyond_the_vocabulary_ends_the_run(self):
        for pool in (None, ThreadPoolExecutor(1)):
            store = dataclasses.replace(self.store, vocab_size=1000)
            settings = BitextSettings((24,), "continue", 1.0, 24 * 99)
            stream = pair_streams(store, settings, seed=0, pool=pool)[0][0]
            with self.assertRaisesRegex(ValueError, r"bitext.npy: entry .* is not below 1000"):
                stream.batch(0)

    def test_positions(self):
        for positions in ("continue", "restart"):
            settings = BitextSettings((24,), positions, 1.0, 48)
            batch = pair_streams(self.store, settings, seed=0)[0][0].batch(0)
            arrays = (batch[name] for name in ("tokens", "segments", "positions"))
            for tokens, segments, found in zip(*arrays, strict=True):
                np.testing.assert_array_equal(segments, tokens != SPECIAL.pad)
                start = np.flatnonzero(tokens == SPECIAL.eos)[1]
                second = np.arange(24) - (start if positions == "restart" else 0)
                np.testing.assert_array_equal(found[:start], np.arange(start))
                np.testing.assert_array_equal(found[start:], second[start:])

    def test_sentences_in_segments_of_their_own_are_as_alone(self):
        together, separate = (
            pair_streams(self.store, dataclasses.replace(SETTINGS, separate_segments=two), 0)[0]
            for two in (False, True)
        )
        for one, other in zip(together, separate, strict=True):
            self.assertEqual((one.kind(2), other.kind(2)), (bitext.PAIRS, bitext.SEPARATE_PAIRS))
            self.assertEqual(one.describe_batch(2), other.describe_batch(2))
            batch, joined = other.batch(2), one.batch(2)["tokens"]
            self.assertEqual(list(batch), list(one.batch(2)))
            segments, positions = packed_segments(
                batch["tokens"], bos=SPECIAL.bos, pad=SPECIAL.pad, across_documents=False
            )
            np.testing.assert_array_equal(batch["segments"], segments)
            is_text = batch["segments"] > 0
            np.testing.assert_array_equal(batch["positions"][is_text], positions[is_text])
            np.testing.assert_array_equal(batch["segments"].max(axis=1), 2)
            ends = np.where(batch["segments"] == 2, batch["tokens"], SPECIAL.pad)
            is_begin = (batch["tokens"] == SPECIAL.bos) & (ends == SPECIAL.bos)
            np.testing.assert_array_equal(np.where(is_begin, SPECIAL.eos, batch["tokens"]), joined)

    def test_parts_make_the_batch_and_seeds_another_order(self):
        settings = BitextSettings((8, 16, 24), "continue", 1.0, 96)
        for stream in pair_streams(self.store, settings, seed=0)[0]:
            whole = stream.batch(5)
            parts = [stream.batch(5, part, 2) for part in range(2)]
            for name, array in whole.items():
                self.assertEqual(array.dtype, np.int32)
                np.testing.assert_array_equal(np.concatenate([p[name] for p in parts]), array)
        with self.assertRaisesRegex(ValueError, "batch of 4 rows does not divide into 3"):
            stream.batch(0, 0, 3)
        other = pair_streams(self.store, SETTINGS, seed=1)[0][0]
        first = pair_streams(self.store, SETTINGS, seed=0)[0][0]
        self.assertTrue((other.batch(0)["tokens"] != first.batch(0)["tokens"]).any())

    def test_further_streams_read_nothing_again(self):
        # No other test has read from it.
        store = write_store(pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())))
        first = pair_streams(store, SETTINGS, seed=0)[0]
        with mock.patch.object(TokenizedSentences, "lengths", mock.PropertyMock()) as read:
            more = [pair_streams(store, SETTINGS, seed)[0] for seed in range(5)]
        read.assert_not_called()
        for one, other in zip(first, more[0], strict=True):
            np.testing.assert_array_equal(one.batch(3)["tokens"], other.batch(3)["tokens"])

    @parameterized.parameters(
        ((), "continue", "must ascend"), ((16, 8), "continue", "must ascend"),
        ((4, 8), "continue", "must ascend from 8"),
        ((16, 20), "continue", "of 48 tokens .* is no whole number of pairs of 20"),
        ((8,), "reset", "pair_positions is 'reset', must be in"),
    )  # fmt: skip
    def test_settings_that_cannot_be(self, buckets, positions, message):
        with self.assertRaisesRegex(ValueError, message):
            BitextSettings(buckets, positions, 1.0, 48)


class MixedStreamTest(_StoreTest):
    def test_every_stream_goes_on_in_its_order_and_has_its_share(self):
        rows = TrainingStream(self.store, {"aa": 1.0}, batch_size=3, seed=0)
        streams = [rows, *pair_streams(self.store, SETTINGS, seed=0)[0]]
        numbers, shares = np.zeros(4, int), np.array([0.5, 0.25, 0.125, 0.125])
        mixed = MixedStream(streams, shares, seed=0)
        for step in range(1000):
            after = [mixed.steps_before(step + 1, i) for i in range(4)]
            (i,) = np.flatnonzero(after - numbers)
            stream, number = streams[i], int(numbers[i])
            found, expected = mixed.batch(step), stream.batch(number)
            self.assertCountEqual(found, expected)
            for name, array in expected.items():
                np.testing.assert_array_equal(found[name], array)
            self.assertEqual(mixed.kind(step), stream.kind(number))
            self.assertEqual(mixed.describe_batch(step), stream.describe_batch(number))
            numbers[i] += 1
        np.testing.assert_allclose(numbers / 1000, shares, atol=0.04)


class JoinPairTest(parameterized.TestCase):
    @parameterized.parameters(
        (3, 4, 3, 4), (9, 8, 8, 8), (3, 20, 3, 13), (20, 3, 13, 3), (20, 20, 8, 8)
    )
    def test_what_is_too_long_is_cut(self, one, two, kept_one, kept_two):
        first, second = np.arange(100, 100 + one), np.arange(200, 200 + two)
        row, start = bitext.join_pair(first, second, 20, SPECIAL)
        expected = [0, *first[:kept_one], 2, 2, *second[:kept_two], 2]
        np.testing.assert_array_equal(row, expected)
        self.assertEqual(start, kept_one + 2)
