"""Pairs of translations: which, in which rows, in what order."""

import collections
import dataclasses
import itertools
import pathlib
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import numpy as np
from absl.testing import parameterized

from input_pipeline import bitext, pair_rows
from input_pipeline.array_files import shard_names
from input_pipeline.bitext import BitextSettings, pair_stream, token_counts
from input_pipeline.order import BlockSettings
from input_pipeline.packed_dataset import PackedDataset
from input_pipeline.stream import MixedStream, TrainingStream
from tests.factories import SPECIAL_IDS as SPECIAL
from xlm.models.segments import packed_segments

LANGUAGES = ("aa", "bb", "cc")
L = 40
SETTINGS = BitextSettings(positions="continue", alpha=1.0, batch_size=4)
SETS = {"news": (LANGUAGES, 90), "bible": (LANGUAGES[:2], 60)}
SHARES = {("aa", "bb"): 0.2, ("aa", "cc"): 0.7, ("bb", "cc"): 0.1}


def of_batch(size: int, **changes) -> BitextSettings:
    return dataclasses.replace(SETTINGS, batch_size=size, **changes)


def token(name: str, language: str, sentence: int) -> int:
    """Every token of a sentence, which tells what it is of."""
    return 1000 * (1 + list(SETS).index(name)) + 100 * LANGUAGES.index(language) + sentence


def length_of(language: str, sentence: int) -> int:
    """Tokens of a sentence: from 1 to 12, some too long for a row, and 0 for missing ones."""
    if sentence % 7 == 3 and language == "bb":
        return 0
    if sentence % 30 == 20:
        return {"aa": 15, "bb": 45, "cc": 30}[language]
    return 1 + (5 * sentence + LANGUAGES.index(language)) % 12


def write_dataset(folder: pathlib.Path, parts: int = 1) -> PackedDataset:
    """Sets of `parts` files, each of consecutive sentences."""
    pairs = {}
    for name, (languages, count) in SETS.items():
        bounds, pairs[name] = [count * i // parts for i in range(parts + 1)], []
        for part, numbers in enumerate(itertools.starmap(range, itertools.pairwise(bounds))):
            for language in languages:
                lengths = [length_of(language, i) for i in numbers]
                ids = np.repeat([token(name, language, i) for i in numbers], lengths)
                arrays = {"bitext": ids.astype(np.uint16), "ends": np.cumsum(lengths)}
                for kind, array in arrays.items():
                    file = shard_names(f"{name}.{language}", kind, parts)[part]
                    np.save(folder / file, array)
            counts = pair_rows.write_rows(folder, languages, L, name, part, parts)
            pairs[name].append(counts)
    rows = np.random.default_rng(0).integers(5, 1000, (50, L), np.uint16)
    np.save(folder / "aa.train.npy", rows)
    bitexts = {name: languages for name, (languages, _) in SETS.items()}
    return PackedDataset(folder, 3000, L, "", SPECIAL, {"aa": {}}, {}, bitexts, pairs)


Pair = tuple[str, tuple[str, str], int]  # set, languages in order, sentence


def read(batch: Mapping[str, np.ndarray], restart: bool = False) -> list[list[Pair]]:
    """Pairs of the rows of a batch; compares the rows with slowly made ones."""
    found = []
    for tokens, segments, positions in zip(
        *(batch[name].tolist() for name in ("tokens", "segments", "positions")), strict=True
    ):
        row, rest = [], [*zip(tokens, segments, positions, strict=True)]
        while rest and rest[0][0] != SPECIAL.pad:
            texts = [one for one, segment, _ in rest if segment == len(row) + 1]
            first, second = texts[1], texts[-2]
            name = list(SETS)[first // 1000 - 1]
            one, two = (LANGUAGES[text // 100 % 10] for text in (first, second))
            sentence = first % 100
            joined, start = bitext.join_pair(
                *(np.full(length_of(x, sentence), token(name, x, sentence)) for x in (one, two)),
                L, SPECIAL,
            )  # fmt: skip
            order = np.arange(len(joined))
            order -= start * (order >= start) if restart else 0
            expected = [(int(x), len(row) + 1, int(y)) for x, y in zip(joined, order, strict=True)]
            assert rest[: len(expected)] == expected, (rest, expected)
            rest = rest[len(expected) :]
            row.append((name, (one, two), sentence))
        assert rest == [(SPECIAL.pad, 0, 0)] * len(rest)
        assert row and len({(name, tuple(sorted(pair))) for name, pair, _ in row}) == 1
        found.append(row)
    return found


def flat(rows: list[list[Pair]]) -> list[Pair]:
    """Pairs of rows, with languages in the order of the alphabet."""
    return [(name, tuple(sorted(pair)), i) for row in rows for name, pair, i in row]


def all_pairs() -> set[Pair]:
    return {
        (name, pair, i)
        for name, (languages, count) in SETS.items()
        for pair in itertools.combinations(languages, 2)
        for i in range(count)
        if all(length_of(language, i) for language in pair)
    }


class _DatasetTest(parameterized.TestCase):
    dataset: PackedDataset

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.dataset = write_dataset(pathlib.Path(folder))


class PackTest(parameterized.TestCase):
    @parameterized.parameters((40, 1 << 17), (40, 400), (128, 1 << 10), (512, 1 << 17))
    def test_as_a_slow_reference(self, length: int, window_tokens: int):
        """Of what waits a row takes the next as long as they fit, then the longest that fits."""
        self.enterContext(mock.patch.object(pair_rows, "_WINDOW_TOKENS", window_tokens))
        drawn = np.random.default_rng(length).lognormal(3, 0.7, 2000).astype(int) + 6
        sizes = np.minimum(drawn, length).tolist()
        waiting, later, expected = [], list(enumerate(sizes)), []
        while waiting or later:
            number = window_tokens // length - len(waiting)
            waiting, later = waiting + later[:number], later[number:]
            row, room = [], length
            while waiting and len(row) < length // 8 and waiting[0][1] <= room:
                row.append(waiting.pop(0))
                room -= row[-1][1]
            while len(row) < length // 8 and (fits := [x for x in waiting if x[1] <= room]):
                row.append(max(fits, key=lambda one: (one[1], -one[0])))
                waiting.remove(row[-1])
                room -= row[-1][1]
            expected.append([number for number, _ in row])
        found = list(pair_rows.pack(enumerate(sizes), length))
        self.assertEqual(found, expected)
        if (length, window_tokens) == (512, 1 << 17):
            self.assertLess(1 - sum(sizes) / (len(found) * length), 0.03)


class PairStreamTest(_DatasetTest):
    @parameterized.parameters(1, 3)
    def test_an_epoch_has_every_pair_once(self, parts: int):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        dataset = write_dataset(pathlib.Path(folder), parts)
        found = collections.Counter()
        for name, (languages, _) in SETS.items():
            for pair in itertools.combinations(languages, 2):
                rows = pair_rows.PairRows(dataset, name, pair)
                tokens = rows.read(0, len(rows)).astype(np.int32)
                flips = np.zeros(len(rows), np.uint64)
                found.update(flat(read(bitext.lay_out(tokens, flips, SPECIAL, SETTINGS))))
                for first in range(len(rows)):  # whatever the ranges read
                    some = rows.read(first, min(first + 5, len(rows)))
                    np.testing.assert_array_equal(some, tokens[first : first + 5])
                self.assertEqual(rows.num_pairs, sum(key[:2] == (name, pair) for key in found))
        self.assertEqual(found, collections.Counter(all_pairs()))

    def test_neighbours_rarely_share_a_row(self):
        """So that the batch of a contrast has few sentences of one document."""
        order = pair_rows.mixed(np.arange(3000))
        np.testing.assert_array_equal(np.sort(order), np.arange(3000))
        np.testing.assert_array_equal(order // 1024, np.arange(3000) // 1024)
        self.assertLess(np.mean(np.diff(order) == 1), 0.01)
        for name in SETS:
            numbers = self.dataset.pair_files(name, 0)[0].read(0, 30).astype(int)
            self.assertLess(np.mean(np.diff(numbers) == 1), 0.2)

    @parameterized.parameters(1, 2)
    def test_blocks_and_threads_change_the_order_only(self, lanes: int):
        blocks = BlockSettings(block_bytes=400, window_blocks=1, lanes=lanes)
        plain = pair_stream(self.dataset, of_batch(4, blocks=blocks), seed=0)
        by_rows = pair_stream(self.dataset, SETTINGS, seed=0)
        with ThreadPoolExecutor(2) as pool:
            threaded = pair_stream(self.dataset, of_batch(4, blocks=blocks), seed=0, pool=pool)
            visits, of_rows = collections.Counter(), {}
            for step in range(200):
                batch = plain.batch(step)
                if step % 3:
                    threaded.request(step)
                for name, array in threaded.batch(step).items():
                    np.testing.assert_array_equal(array, batch[name])
                for stream, found in ((plain, batch), (by_rows, by_rows.batch(step))):
                    described = stream.describe_batch(step)
                    for key, row in zip(described, read(found), strict=True):
                        content = flat([row])
                        self.assertEqual(of_rows.setdefault(key, content), content)
                visits.update(plain.describe_batch(step))
        if lanes == 1:  # several draw a row equally often in whole cycles only
            for item in {name for name, _ in visits}:
                counts = [n for (name, _), n in visits.items() if name == item]
                self.assertLessEqual(max(counts) - min(counts), 1)
        self.assertEqual(set(itertools.chain.from_iterable(of_rows.values())), all_pairs())
        self.assertNotEqual(plain.describe_batch(0), by_rows.describe_batch(0))

    def test_order_of_languages_is_a_coin(self):
        """Of probability 1/2 (Section 4 of XY-LENT), thrown for each pair of each row drawn."""
        rows = read(pair_stream(self.dataset, of_batch(3000), seed=0).batch(0))
        orders, of_slots, same = collections.Counter(), collections.Counter(), 0
        for row in rows:
            flips = [pair[0] > pair[1] for _, pair, _ in row]
            orders.update((tuple(sorted(row[0][1])), flip) for flip in flips)
            of_slots.update(enumerate(flips))
            same += len(row) > 1 and flips[0] == flips[1]
        several = sum(len(row) > 1 for row in rows)
        for found in (orders, of_slots, {(0, True): same, (0, False): several - same}):
            for one in {one for one, _ in found}:
                total = found[one, True] + found[one, False]
                delta = 4 * np.sqrt(total / 4)
                self.assertLess(abs(found[one, True] - total / 2), delta, one)

    @parameterized.parameters((1.0, None), (0.3, None), (0.3, SHARES))
    def test_sets_and_language_pairs_have_their_share(self, alpha, shares):
        """Of sentence pairs. Sets of a language pair of given share are drawn by their sizes."""
        given = shares and {pair: 3 * share for pair, share in shares.items()}
        stream = pair_stream(self.dataset, of_batch(6000, alpha=alpha), 0, given)
        rows = read(stream.batch(0))
        found = collections.Counter((name, pair) for name, pair, _ in flat(rows))
        sizes = collections.Counter((name, pair) for name, pair, _ in all_pairs())
        total = sum(n**alpha for n in sizes.values())
        for (name, pair), n in sizes.items():
            of_sets = sum(size for (_, other), size in sizes.items() if other == pair)
            expected = shares[pair] * n / of_sets if shares else n**alpha / total
            self.assertAlmostEqual(found[name, pair] / found.total(), expected, delta=0.02)
        self.assertAlmostEqual(stream.pairs_per_step() / found.total(), 1, delta=0.02)
        self.assertAlmostEqual(stream.seen(1).total() / found.total(), 1, delta=0.02)

    def test_a_language_pair_without_share_is_never_drawn(self):
        # A cycle of the order, which gives one row to whatever is in it.
        stream = pair_stream(self.dataset, of_batch(1 << 16), 0, {**SHARES, ("bb", "cc"): 0.0})
        drawn = {name.split()[1] for name, _ in stream.describe_batch(0)}
        self.assertEqual(drawn, {"aa-bb", "aa-cc"})
        only = dict.fromkeys(SHARES, 0.0) | {("bb", "cc"): 1.0}
        batch = pair_stream(self.dataset, SETTINGS, 0, only).batch(0)
        np.testing.assert_array_equal(batch["pair"], 2)

    def test_a_batch_says_the_language_pair_of_each_row(self):
        self.assertEqual(bitext.language_pairs(self.dataset), list(SHARES))
        self.assertEqual(bitext.pair_names(self.dataset), ["aa-bb", "aa-cc", "bb-cc"])
        sizes = collections.Counter((pair, name) for name, pair, _ in all_pairs())
        expected = {one: sorted(n for key, n in sizes.items() if key[0] == one) for one in SHARES}
        self.assertEqual(
            {p: sorted(n) for p, n in bitext.pair_sizes(self.dataset).items()}, expected
        )
        for shares in (None, SHARES):
            stream = pair_stream(self.dataset, of_batch(50), 0, shares)
            batch = stream.batch(1)
            self.assertEqual(batch["pair"].dtype, stream.types["pair"])
            for row, number in zip(read(batch), batch["pair"], strict=True):
                self.assertEqual(list(SHARES)[number], tuple(sorted(row[0][1])))

    @parameterized.parameters((1.0, None), (0.0, None), (1.0, SHARES))
    def test_tokens_are_counted_as_the_stream_brings_them(self, alpha, of_languages):
        stream = pair_stream(self.dataset, of_batch(6000, alpha=alpha), 0, of_languages)
        tokens = stream.batch(0)["tokens"].reshape(-1)
        found = np.bincount(tokens, minlength=self.dataset.vocab_size).astype(float)
        found[list(SPECIAL.special_ids())] = 0
        expected = token_counts(self.dataset, alpha, of_languages)
        np.testing.assert_allclose(found / found.sum(), expected / expected.sum(), atol=1e-3)
        self.assertGreater(expected.max() / expected.sum(), 0.008)

    def test_tokens_of_many_rows_are_counted_in_some(self):
        expected = token_counts(self.dataset, 0.3, SHARES)
        self.enterContext(mock.patch.object(bitext, "_COUNTED_TOKENS", 5 * L))
        self.enterContext(mock.patch.object(bitext, "_RANGES", 5))
        with mock.patch.object(pair_rows.PairRows, "read", autospec=True,
                               side_effect=pair_rows.PairRows.read) as reads:  # fmt: skip
            found = token_counts(self.dataset, 0.3, SHARES)
        per_pair = collections.Counter()
        for (rows, first, stop), _ in reads.call_args_list:
            per_pair[rows.name, rows.pair] += stop - first
        self.assertEqual(set(per_pair.values()), {5})
        self.assertAlmostEqual(found.sum() / expected.sum(), 1, delta=0.1)
        groups = [expected.reshape(-1, 100).sum(axis=1), found.reshape(-1, 100).sum(axis=1)]
        np.testing.assert_allclose(*groups, atol=0.1 * expected.sum())

    def test_damaged_files(self):
        for pool in (None, ThreadPoolExecutor(1)):
            dataset = dataclasses.replace(self.dataset, vocab_size=1000)
            blocks = BlockSettings(block_bytes=400)
            stream = pair_stream(dataset, of_batch(99, blocks=blocks), seed=0, pool=pool)
            with self.assertRaisesRegex(ValueError, r"bitext.npy: entry .* is not below 1000"):
                stream.batch(0)
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        for file, change, message in (
            ("bible.pairs.npy", lambda x: x + 60, "rows 0 to 1 of bible aa-bb do not fit its sent"),
            ("bible.rows.npy", lambda x: x + 9, "rows 0 to 1 of bible aa-bb do not fit its sent"),
            ("bible.aa.ends.npy", lambda x: x[::-1], "bible.aa.ends.npy: must ascend to 40"),
        ):
            dataset = write_dataset(folder)
            np.save(folder / file, change(np.load(folder / file)))
            with self.assertRaisesRegex(ValueError, message):
                pair_rows.PairRows(dataset, "bible", LANGUAGES[:2]).entry(0)

    def test_rows_of_an_older_version_are_refused(self):
        older = dataclasses.replace(self.dataset, pairs={})
        for use in (bitext.pair_sizes, lambda dataset: pair_stream(dataset, SETTINGS, 0)):
            with self.assertRaisesRegex(ValueError, "wrote bible, without rows of pairs; .* run"):
                use(older)

    def test_positions_restart(self):
        batch = pair_stream(self.dataset, of_batch(9, positions="restart"), seed=0).batch(0)
        read(batch, restart=True)

    def test_sentences_in_segments_of_their_own_are_as_alone(self):
        one, other = (
            pair_stream(self.dataset, of_batch(20, separate_segments=two), 0)
            for two in (False, True)
        )
        self.assertEqual((one.kind(2), other.kind(2)), (bitext.PAIRS, bitext.SEPARATE_PAIRS))
        self.assertEqual(one.describe_batch(2), other.describe_batch(2))
        batch, joined = other.batch(2), one.batch(2)
        self.assertEqual(list(batch), list(joined))
        segments, positions = packed_segments(
            batch["tokens"], bos=SPECIAL.bos, pad=SPECIAL.pad, across_documents=False
        )
        np.testing.assert_array_equal(batch["segments"], segments)
        is_text = batch["segments"] > 0
        np.testing.assert_array_equal(batch["positions"][is_text], positions[is_text])
        np.testing.assert_array_equal((batch["segments"] + 1) // 2, joined["segments"])
        is_second = (batch["tokens"] == SPECIAL.bos) & (batch["segments"] % 2 == 0)
        tokens = np.where(is_second, SPECIAL.eos, batch["tokens"])
        np.testing.assert_array_equal(tokens, joined["tokens"])

    def test_parts_make_the_batch_and_seeds_another_order(self):
        stream = pair_stream(self.dataset, SETTINGS, seed=0)
        whole = stream.batch(5)
        parts = [stream.batch(5, part, 2) for part in range(2)]
        for name, array in whole.items():
            self.assertEqual(array.dtype, np.int32)
            np.testing.assert_array_equal(np.concatenate([p[name] for p in parts]), array)
        with self.assertRaisesRegex(ValueError, "batch of 4 rows does not divide into 3"):
            stream.batch(0, 0, 3)
        other = pair_stream(self.dataset, SETTINGS, seed=1)
        self.assertTrue((other.batch(5)["tokens"] != whole["tokens"]).any())

    def test_the_start_reads_no_file(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        dataset = dataclasses.replace(self.dataset, folder=pathlib.Path(folder))
        blocks = BlockSettings(block_bytes=400)
        stream = pair_stream(dataset, of_batch(4, blocks=blocks), 0, SHARES)
        self.assertEqual(stream.seen(10), pair_stream(self.dataset, SETTINGS, 0, SHARES).seen(10))


class MixedStreamTest(_DatasetTest):
    def test_every_stream_goes_on_in_its_order_and_has_its_share(self):
        rows = TrainingStream(self.dataset, {"aa": 1.0}, batch_size=3, seed=0)
        streams = [
            rows,
            pair_stream(self.dataset, SETTINGS, 0),
            pair_stream(self.dataset, SETTINGS, 1),
        ]
        numbers, shares = np.zeros(3, int), np.array([0.5, 0.25, 0.25])
        mixed = MixedStream(streams, shares, seed=0)
        for step in range(1000):
            after = [mixed.steps_before(step + 1, i) for i in range(3)]
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
