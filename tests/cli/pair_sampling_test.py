"""The report on the sampling of language pairs, of a table of counts and of packed rows."""

import contextlib
import dataclasses
import io
import json
from unittest import mock

import numpy as np
from absl.testing import parameterized

from configs import quickstart
from input_pipeline.packed_dataset import PackedDataset
from input_pipeline.pair_sampling import METHODS, PairSamplingSettings, sample_pairs
from tests import commands, golden
from tests.cli.stores import write_dataset
from tests.factories import write_rows
from tests.folders import FolderTest
from xlm.evaluation import pair_sampling_report
from xlm.experiment import streams

pair_sampling = commands.load("pair_sampling")

# The pair of German and English is two sets.
ROWS = ("de\ten\t400", "en\tde\t40", "de\tfr\t90", "fr\ten\t250", "en\tsw\t20", "sw\tfr\t10")
SIZES = {"de-en": 440, "de-fr": 90, "en-fr": 250, "en-sw": 20, "fr-sw": 10}


class PairSamplingToolTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.table, self.out = self.folder / "pairs.tsv", self.folder / "out"
        self.table.write_text("\n".join(ROWS) + "\n", encoding="utf-8")

    def report(self, *args: str, **changes) -> str:
        """Run the program in this process, with changes to `data`; return what it prints."""
        config, printed = quickstart.get_config("runlocal"), io.StringIO()
        config.corpus.languages = ()
        config.data.update(changes)
        with (
            commands.parsed("pair_sampling", *args) as rest,
            contextlib.redirect_stdout(printed),
            # Reading the flag's file warns of a function that goes with Python 3.12.
            mock.patch.object(pair_sampling, "_CONFIG", mock.Mock(value=config)),
        ):
            pair_sampling.main(rest)
        return printed.getvalue()

    def test_a_table_of_counts(self):
        printed = self.report(
            f"--counts={self.table}", f"--output={self.out}", "--examples=1620",
            pair_sampling="m2m", pair_temperature=1.2,
        )  # fmt: skip
        names = ["density.svg", "report.html", "report.json", "report.md", "shares.svg"]
        self.assertEqual(sorted(path.name for path in self.out.iterdir()), names)
        self.assertIn((self.out / "report.md").read_text(encoding="utf-8"), printed)
        found = json.loads((self.out / "report.json").read_text(encoding="utf-8"))
        self.assertCountEqual(found, METHODS)
        for method, one in found.items():
            self.assertCountEqual(one["pairs"], SIZES)
            self.assertAlmostEqual(sum(pair["share"] for pair in one["pairs"].values()), 1)
            for name, pair in one["pairs"].items():
                self.assertAlmostEqual(pair["epochs"], 1620 * pair["share"] / SIZES[name])
            self.assertTrue(one["converged"], method)
            if method != "soft":
                self.assertLess(max(map(abs, one["residuals"].values())), 1e-9)
            if method == "proportional":
                self.assertAlmostEqual(min(p["epochs"] for p in one["pairs"].values()), 2.0)
        # By set: the halves of German and English weigh more than the whole.
        alpha = found["alpha"]["pairs"]
        ratio = (400**0.5 + 40**0.5) / 250**0.5
        self.assertAlmostEqual(alpha["de-en"]["share"] / alpha["en-fr"]["share"], ratio)

    @parameterized.parameters(
        ("pair_sampling", "\n".join(ROWS), "m2m", 1.2),
        # The hub has the half that all others leave it, and each of them less than it was to.
        ("pair_sampling_missed", "am\ten\t40\nen\tsw\t50\nen\tyo\t30", "alpha", 4.0),
    )
    def test_the_report(self, name, counts, method, temperature):
        self.table.write_text(counts + "\n", encoding="utf-8")
        sizes = pair_sampling.read_counts(self.table)
        settings = PairSamplingSettings(method, pair_temperature=temperature)
        samplings = [
            sample_pairs(sizes, dataclasses.replace(settings, pair_sampling=one)) for one in METHODS
        ]
        examples = dict.fromkeys(METHODS, 50.0)  # of a pair, between 1 and 1.5
        golden.check_report(
            self, __file__, name,
            lambda folder: pair_sampling_report.write_report(
                folder, samplings, examples, settings
            ),
        )  # fmt: skip

    def test_the_examples_of_a_table_are_one_a_row(self):
        config = quickstart.get_config("runlocal")
        self.report(f"--counts={self.table}", f"--output={self.out}", pair_share=0.5)
        examples = 0.5 * config.train.num_steps * config.train.batch_size
        self.assertIn(f" {examples:,.0f} |", (self.out / "report.md").read_text(encoding="utf-8"))

    def write_rows(self) -> PackedDataset:
        """A working directory whose languages' sentences have lengths of their own."""
        (self.folder / "rows").mkdir()
        statistics = write_rows(self.folder / "rows", ("en",), 128)
        sides = {lang: [[7] * n] * 20 for lang, n in (("de", 5), ("en", 9), ("sw", 30))}
        sides["sw"] = sides["sw"][:8] + [[]] * 12  # sentences that are missing
        return write_dataset(self.folder, b"model", 600, 128, statistics, {"set": sides})

    def test_the_examples_of_rows_are_those_that_the_stream_draws(self):
        dataset = self.write_rows()
        changes = {"pair_share": 0.25, "contrast_share": 0.25}
        self.report(f"--workdir={self.folder}", **changes)
        found = json.loads((self.folder / "pair_sampling" / "report.json").read_text("utf-8"))
        config = quickstart.get_config("runlocal")
        config.data.update(changes)
        settings = streams.bitext_settings(config, is_separate=False)
        for method in ("alpha", "uniform"):
            pairs = {"de-en": 20, "de-sw": 8, "en-sw": 8}
            self.assertEqual(list(found[method]["pairs"]), list(pairs))
            shares = {tuple(k.split("-")): p["share"] for k, p in found[method]["pairs"].items()}
            stream, counts = streams.pair_stream(dataset, settings, 0, shares), np.zeros(3)
            for step in range(500):
                batch = stream.batch(step)
                counts += np.bincount(batch["pair"], batch["segments"].max(axis=1), minlength=3)
            counts *= config.train.num_steps / 2 / 500  # half of the run's steps are on pairs
            self.assertAlmostEqual(found[method]["examples"] / counts.sum(), 1, delta=0.02)
            epochs = counts / list(pairs.values())
            expected = [pair["epochs"] for pair in found[method]["pairs"].values()]
            np.testing.assert_allclose(epochs, expected, rtol=0.06)

    @parameterized.parameters(
        ("aa\tbb\t3\naa\tbb\n", "pairs.tsv, line 2: 'aa.*bb' must be two different languages"),
        ("lang1\tlang2\tn\n", "pairs.tsv, line 1: .* remove headers and other columns"),
        ("English\tsw\t3\n", "line 1: 'English.* must be two .* languages, such as en and"),
        ("aa\taa\t3\n", "line 1: .* two different languages"),
        ("aa\tbb\t0\n", "line 1: .* 1 or more"), ("aa\tbb\t1.5\n", "line 1: .* 1 or more"),
        ("", "the file is empty"),
    )  # fmt: skip
    def test_tables_that_cannot_be_read(self, text, message):
        self.table.write_text(text, encoding="utf-8")
        with self.assertRaisesRegex(ValueError, message):
            self.report(f"--counts={self.table}", f"--output={self.out}", "--examples=9")
        self.assertFalse(self.out.exists())

    def test_languages_that_the_run_lacks_are_left_out(self):
        self.assertEqual(pair_sampling.read_counts(self.table)["de", "en"], [400, 40])
        with self.assertLogs(level="INFO") as logs:
            sizes = pair_sampling.read_counts(self.table, ("de", "en", "xx", "sw"))
        self.assertEqual(sizes, {("de", "en"): [400, 40], ("en", "sw"): [20]})
        self.assertRegex(logs.output[0], "pairs.tsv: left out languages .*lacks: fr$")
        with self.assertNoLogs(level="INFO"):
            pair_sampling.read_counts(self.table, ("de", "en", "fr", "sw"))
        with self.assertRaisesRegex(
            ValueError, "pairs.tsv: no pair .*corpus.languages, xx, yy; .* de, en, fr, sw: add them"
        ):
            pair_sampling.read_counts(self.table, ("xx", "yy"))

    @parameterized.parameters(
        ((), {}, "give either --workdir, with rows, or --counts"),
        (("--workdir=DIR", "--counts=TABLE"), {}, "give either --workdir, with rows, or --counts"),
        (("--counts=TABLE",), {}, "--counts needs --output"),
        (("--counts=TABLE", "--output=DIR/out"), {}, "data.pair_share and .* 0, .* --examples"),
        (("--workdir=DIR",), {}, "holds no finished packed dataset; run prepare_data.py"),
        (("--counts=TABLE", "--output=DIR/out", "--examples=9"),
         {"pair_pivot": "xx", "pair_sampling": "pivot"}, "pair_pivot is 'xx', .* de, en, fr, sw"),
    )  # fmt: skip
    def test_refusals(self, args, changes, message):
        args = [a.replace("DIR", str(self.folder)).replace("TABLE", str(self.table)) for a in args]
        with self.assertRaisesRegex(ValueError, message):
            self.report(*args, **changes)
        self.assertFalse(self.out.exists())

    def test_a_pivot_that_the_run_does_not_need_is_left_out(self):
        with self.assertLogs(level="WARNING") as logs:
            self.report(
                f"--counts={self.table}", f"--output={self.out}", "--examples=9", pair_pivot="xx"
            )
        self.assertIn("no pairs with data.pair_pivot xx", logs.output[0])
        found = json.loads((self.out / "report.json").read_text(encoding="utf-8"))
        self.assertCountEqual(found, set(METHODS) - {"pivot"})
