"""Estimates of steps, time, epochs and money, against streams, compiled steps and formulas."""

import dataclasses
import itertools
import json
from unittest import mock

import jax
import numpy as np
from absl.testing import parameterized

from tests import commands, factories
from tests.folders import FolderTest
from tests.input_pipeline.reading import training_dataset
from tests.memory_test import config_of
from xlm.experiment import costs, data, schema, seen, streams
from xlm.experiment import model as builders
from xlm.objectives.objective import Batch

ROWS = {"en": 3000, "sw": 200, "de": 1000}
RECORDS = commands.ROOT / "research" / "records" / "scaling.jsonl"
CHIP = costs.CHIPS["h100"]


class SecondsTest(parameterized.TestCase):
    @parameterized.parameters((1, 5), (25, 1), (70, 1))
    def test_slow_steps_are_few_and_the_first_is_told(self, seconds, expected):
        arrays = {"tokens": np.zeros((2, 4)), "language": np.zeros(2)}
        batch, told = Batch(arrays, "packed"), []
        ticks = itertools.count(0, seconds)
        found = costs.seconds(
            lambda state, batch: (state, None), mock.Mock(), batch, 9, lambda: next(ticks), 5,
            told.append,
        )  # fmt: skip
        self.assertEqual((found, told), ([seconds] * expected, [seconds]))


class SeenTest(FolderTest):
    @parameterized.parameters(
        {"train__num_steps": 32_768}, {"train__num_epochs": 31.2}, {"train__num_tokens": 2**21}
    )
    def test_steps_and_epochs_are_those_of_the_stream(self, **keys):
        dataset = training_dataset(self.folder, ROWS)
        config = config_of(**{"train__num_steps": 0, "data__alpha": 0.3, **keys})
        config.store.length = dataset.length
        tokens = {one: count * dataset.length for one, count in ROWS.items()}
        statistics = {  # every token of a row is one of text
            one: {"train": {"rows": ROWS[one], "tokens": count}} for one, count in tokens.items()
        }
        dataset = dataclasses.replace(dataset, statistics=statistics)
        steps, epochs = costs.seen(config, tokens)
        there = seen.with_steps(config, dataset)
        self.assertAlmostEqual(steps, there.train.num_steps, delta=2)
        found = streams.training_stream(config, dataset).seen(there.train.num_steps)
        for one, count in ROWS.items():
            self.assertAlmostEqual(epochs[one], found[one] / count, delta=0.01 * epochs[one])

    def test_files_count_and_epochs_need_them(self):
        for name, size in (("en.txt", 40_000), ("en-00000-of-00001.txt", 0), ("sw.txt", 9000)):
            if size:
                (self.folder / name).write_text("word\n" * (size // 5))
        self.write("ka.txt", "a\n")
        config = config_of(corpus__root=str(self.folder), corpus__parallel=())
        config.corpus.max_train_bytes_of = {"en": 30_000}
        self.assertEqual(data.text_tokens(config), {"en": 7500, "sw": 2250, "ka": 1})
        config.train.update(num_steps=0, num_epochs=1.0)
        with self.assertRaisesRegex(ValueError, "num_epochs is 1.0, and there is no text"):
            costs.seen(config, {})


class TimesTest(parameterized.TestCase):
    def test_flops_follow_the_batch_and_not_the_devices(self):
        of = {
            (size, number): costs.sizes(
                config_of(train__batch_size=size, optimizer__kind="adamw"), number
            )[0]
            for size, number in ((8, 1), (16, 1), (16, 8))
        }
        self.assertAlmostEqual(2 * of[8, 1] / of[16, 1], 1)
        self.assertAlmostEqual(of[16, 8] / of[16, 1], 1)

    def test_a_roofline(self):
        config = config_of(model__dtype="bfloat16", model__hidden_size=512)
        endless = CHIP._replace(hbm_rate=float("inf"))
        self.assertAlmostEqual(costs.roofline(config, endless, 1e15)[0], 1e15 / (0.7 * 989e12))
        # Half the width, or twice the bytes of a value: twice the traffic.
        slow = CHIP._replace(flops=float("inf"))
        for keys in ({"model__hidden_size": 256}, {"model__dtype": "float32"}):
            other = config_of(**{"model__dtype": "bfloat16", "model__hidden_size": 512, **keys})
            twice = costs.roofline(other, slow, 1e15)[1] / costs.roofline(config, slow, 1e15)[1]
            self.assertAlmostEqual(twice, 2)

    def test_the_law_falls_and_ends(self):
        most = costs.LAW_TO
        bits = [costs.expected_loss(1e5, k * most) for k in (0.1, 0.5, 1, 3)]
        self.assertEqual(bits, sorted(bits, reverse=True))
        self.assertIsNone(costs.expected_loss(1e5, 3.1 * most))
        self.assertIsNone(costs.expected_loss(most, most))  # a token a parameter

    def test_the_law_gives_what_was_measured(self):
        rows = [json.loads(line) for line in RECORDS.read_text().splitlines()]
        metric = "runs/w128_3200", "losses/bits_per_character"
        bits = [one["value"] for one in rows if (one["run"], one["metric"]) == metric]
        found = costs.expected_loss(260e3, 3200 * 32 * 64)
        self.assertAlmostEqual(sum(bits) / len(bits), found, delta=costs.LAW_ERROR / 2)


class ReportTest(FolderTest):
    def rows(self, printed: str, table: int) -> list[dict[str, str]]:
        """Rows of a table of a report, by column."""
        lines = printed.split("\n\n")[table].splitlines()
        cells = [[cell.strip() for cell in one[1:-1].split("|")] for one in lines]
        return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]

    def test_phases_add_up_and_so_do_prices(self):
        (self.folder / "en.txt").write_text("word\n" * 20_000)
        config = config_of(corpus__root=str(self.folder), corpus__languages=("en",))
        configs = {"first": schema.checked(config)}
        configs["second"] = schema.checked(config_of(**{"train__num_steps": 30}))
        printed = costs.report(configs, 2, "h100", 3.0, "")
        *phases, last = self.rows(printed, 0)
        self.assertEqual([one["steps"] for one in (*phases, last)], ["2", "30", "32"])
        for column in ("PFLOP", "hours, least", "hours, most"):
            values = [float(one[column]) for one in phases]
            self.assertAlmostEqual(sum(values) / float(last[column]), 1, places=2)
        for one, end in itertools.product((*phases, last), ("least", "most")):
            ratio = float(one[f"price, {end}"]) / float(one[f"hours, {end}"])
            self.assertAlmostEqual(ratio / 6, 1, places=2)
        self.assertIn("of the peak of h100's data sheet", printed)
        self.assertRegex(printed, "Epochs: from the sizes of the files")

    def test_here_runs_the_step(self):
        self.enter_context(mock.patch.object(builders, "mesh", factories.one_device))
        config = schema.checked(config_of(train__batch_size=8 * jax.device_count()))
        printed = costs.report({"": config}, jax.device_count(), "here", 0.0, "")
        (row,) = self.rows(printed, 0)
        self.assertBetween(float(row["hours, least"]), 1e-9, float(row["hours, most"]))
        self.assertIn("on this machine", printed)
