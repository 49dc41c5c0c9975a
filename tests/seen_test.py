"""How much a run sees: counts against those of its batches, and lengths in epochs and tokens."""

import itertools
import pathlib
import tempfile

import numpy as np
from absl.testing import parameterized

from input_pipeline.bitext import count_pairs, pair_stream
from input_pipeline.order import NO_BLOCKS, BlockSettings
from input_pipeline.packed_dataset import PackedDataset
from input_pipeline.pair_rows import PairRows
from input_pipeline.stream import MixedStream, PhasedStream, Seen, Stream, TrainingStream
from tests.factories import SPECIAL_IDS
from tests.folders import FolderTest
from tests.input_pipeline import bitext_test
from tests.input_pipeline.reading import training_dataset
from xlm.experiment import schema, seen, streams

ROWS = {"en": 300, "sw": 20, "de": 100}
SHARES = {"en": 6.0, "sw": 1.0, "de": 3.0}
BLOCKS = BlockSettings(block_bytes=320, window_blocks=2, lanes=4)


def counted(stream: Stream, steps: int) -> Seen:
    """Count the sequences of the batches themselves."""
    batches = map(stream.describe_batch, range(steps))
    return Seen(name for name, _ in itertools.chain.from_iterable(batches))


class CountsTest(FolderTest):
    def texts(self, seed: int = 0, batch_size: int = 512, blocks=NO_BLOCKS) -> TrainingStream:
        dataset = training_dataset(self.folder, ROWS)
        return TrainingStream(dataset, SHARES, batch_size, seed, blocks)

    @parameterized.product(blocks=(NO_BLOCKS, BLOCKS), steps=(0, 1, 130, 300))
    def test_sequences_are_those_of_the_batches(self, blocks, steps):
        stream = self.texts(blocks=blocks)  # the last number of steps goes beyond a cycle
        self.assertEqual(+stream.seen(steps), counted(stream, steps))

    @parameterized.parameters(0, 3, 4, 5, 17, 40)
    def test_so_are_those_of_phases_and_mixtures_with_pairs(self, steps):
        phases = PhasedStream({4: self.texts(1, 8), 0: self.texts(2, 8)})
        self.assertEqual(+phases.seen(steps), counted(phases, steps))
        folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        dataset = bitext_test.write_dataset(folder)
        pairs = pair_stream(dataset, bitext_test.SETTINGS, 3, bitext_test.SHARES)
        rows = [PairRows(dataset, *key) for key in count_pairs(dataset)]
        for in_turns in (False, True):
            mixed = MixedStream([phases, pairs], np.array([1, 2]), 5, in_turns)
            found = mixed.seen(steps)
            drawn = [name for step in range(steps) for name, _ in mixed.describe_batch(step)]
            expected = Seen(name for name in drawn if " " not in name)
            for one in rows:  # of each of which a row counts as the mean of its pairs
                count = drawn.count(f"{one.name} {'-'.join(one.pair)}")
                expected[one.pair] += round(count * one.num_pairs / len(one))
            self.assertEqual(+found, +expected)
        if steps == 40:
            self.assertLen([one for one in found if isinstance(one, tuple)], 3)


class LengthTest(FolderTest):
    """Rows of different fill: 14 tokens in each of German, 7 of English, 3 of Swahili."""

    FILL = {"de": 14, "en": 7, "sw": 3}

    def setUp(self):
        super().setUp()
        statistics = {}
        for language, fill in self.FILL.items():
            count = ROWS[language]
            rows = np.full((count, 16), SPECIAL_IDS.pad, np.uint16)
            rows[:, : fill + 2] = SPECIAL_IDS.eos
            rows[:, 1 : fill + 1] = 9
            np.save(self.folder / f"{language}.train.npy", rows)
            train = {"rows": count, "tokens": count * fill, "unknown": 0, "characters": 1}
            statistics[language] = {"train": train, "heldout": train}
        self.dataset = PackedDataset(self.folder, 1000, 16, "", SPECIAL_IDS, statistics, {})

    def test_a_later_phase_begins_with_other_sequences_than_the_first(self):
        config = self.config(num_steps=8)
        config.data.alpha_phases = ((4, config.data.alpha),)
        stream = streams.training_stream(config, self.dataset)
        first, later = (map(stream.describe_batch, range(start, start + 4)) for start in (0, 4))
        self.assertNotEqual(list(first), list(later))

    def config(self, **train):
        config = schema.default_config()
        config.train.update(batch_size=8, **{"num_steps": 0, **train})
        return config

    def rows(self, config, steps: int):
        found = streams.training_stream(config, self.dataset).seen(steps)
        return seen.rows_of(config, self.dataset, found)

    @parameterized.parameters(0, 1, 7, 100)
    def test_tokens_epochs_and_shares_are_those_of_the_batches(self, steps):
        config = self.config(num_steps=steps or 1)
        stream, tokens, rows = streams.training_stream(config, self.dataset), Seen(), Seen()
        for batch in map(stream.batch, range(steps)):
            for language, row in zip(batch["language"], batch["tokens"], strict=True):
                tokens[stream.languages[language]] += int((row == 9).sum())
                rows[stream.languages[language]] += 1
        for row in self.rows(config, steps):
            language = row["language"].split()[0]
            self.assertAlmostEqual(row["tokens seen"], tokens[language])
            self.assertAlmostEqual(row["epochs"], rows[language] / ROWS[language])
            self.assertAlmostEqual(row["share seen"], tokens[language] / max(tokens.total(), 1))
            self.assertEqual(row["tokens"], ROWS[language] * self.FILL[language])
        self.assertAlmostEqual(sum(row["share wanted"] for row in self.rows(config, steps)), 1)

    @parameterized.parameters(("num_epochs", 0.3), ("num_epochs", 5.0), ("num_tokens", 12_345))
    def test_steps_are_the_fewest_that_see_so_much(self, key, wanted):
        config = self.config(**{key: wanted})
        found = seen.with_steps(config, self.dataset).train

        def amount(steps: int) -> float:
            rows = self.rows(config, steps)
            if key == "num_tokens":
                return sum(row["tokens seen"] for row in rows)
            of_text = sum(ROWS.values())
            return sum(row["epochs"] * ROWS[row["language"].split()[0]] for row in rows) / of_text

        self.assertGreaterEqual(amount(found.num_steps), wanted)
        self.assertLess(amount(found.num_steps - 1), wanted)
        self.assertEqual((found.num_epochs, found.num_tokens), (0, 0))
        self.assertEqual((config.train.num_steps, config.train[key]), (0, wanted))  # as it was

    @parameterized.parameters(
        ({}, "are 0, 0.0, 0; set one of them above 0"),
        ({"num_steps": 5, "num_epochs": 1.0}, "are 5, 1.0, 0; set one"),
        ({"num_epochs": 1.0, "num_tokens": 9}, "are 0, 1.0, 9; set one"),
    )
    def test_one_length_must_be_given(self, train, message):
        with self.assertRaisesRegex(ValueError, f"train.num_steps, .* {message}"):
            seen.with_steps(self.config(**train), self.dataset)

    def test_text_seen_more_than_sixteen_times_is_told(self):
        config, told = self.config(num_steps=1), []
        parts = seen.section(
            config, self.dataset, 1000, lambda form, line: told.append(form % line)
        )
        epochs = {row["language"]: row["epochs"] for row in self.rows(config, 1000)}
        expected = [one for one, number in epochs.items() if number > 16]
        self.assertEqual([one.split(" is seen")[0] for one in told], expected)
        self.assertEqual(expected, ["de German", "sw Swahili"])
        self.assertIn(told[1], parts[2])
        self.assertIn("| sw Swahili | 60 |", parts[1])
