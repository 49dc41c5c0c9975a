"""Rules for parallel text: each planted defect is found and dropped, and nothing else."""

import collections
import json
import random
from unittest import mock

import numpy as np
from absl.testing import parameterized

from input_pipeline import packed_dataset, preparation, sources
from input_pipeline.corpus import load_corpus
from input_pipeline.inspection import pairs
from input_pipeline.sources import PAIR_RULES, CorpusSpec
from input_pipeline.tokenization import PackedDatasetSettings
from tests import commands
from tests.folders import FolderTest
from tests.input_pipeline import preparing
from tests.input_pipeline.inspection_test import made_up
from xlm.common.processes import Workers

COUNT = 601
ALPHABETS = ("abcdefghijklm", "nopqrstuvwxyz", "абвгдежзиклмн")


def translations(columns: int, seed: int = 0) -> list[tuple[str, ...]]:
    """Rows of distinct sentences, translated word by word between made-up languages."""
    words = [sorted({w for s in made_up(9, 900, alphabet=a) for w in s.split()}) for a in ALPHABETS]
    rng, rows = random.Random(seed), []
    for number in range(COUNT):
        chosen = [rng.randrange(300) for _ in range(rng.randint(5, 30))]
        end = rng.choice(".?")
        ending = f" {number}{end}" if number % 3 else end
        rows.append(tuple(" ".join(w[i] for i in chosen) + ending for w in words[:columns]))
    return rows


def planted(rows: list[tuple[str, ...]], kind: str) -> tuple[list[tuple[str, ...]], set[int]]:
    """Damage some rows in the second cell; return all rows, and the numbers of those damaged."""
    rows, places = list(rows), list(range(7, COUNT, 50))
    for n, i in enumerate(places):
        one, two, *rest = rows[i]
        changed = {
            "length": two[: len(two) // 6],
            "copies": f"«{one.upper()}»",
            "near_copies": one.replace("a", "k", 1) + "!",
            "language": rows[i - 3][0],
            "hubs": "nnopqr stuvwx",
            "numbers": f"{two[:-1]} {2 if n % 2 else '٢'}11",
        }
        rows[i] = (f"{one} 98" if kind == "numbers" else one, changed.get(kind, two), *rest)
    if kind == "duplicates":
        rows += [rows[i] for i in places]
        places = list(range(COUNT, COUNT + len(places)))
    return rows, set(places)


def distance(one: str, two: str) -> int:
    row = list(range(len(two) + 1))
    for i, a in enumerate(one, 1):
        last, row = row, [i]
        for j, b in enumerate(two, 1):
            row.append(min(last[j - 1] + (a != b), row[-1] + 1, last[j] + 1))
    return row[-1]


class PairsTest(FolderTest, parameterized.TestCase):
    def write_rows(self, rows, name: str = "aa-bb.tsv") -> None:
        header = "id\taa\tbb\tcc\n" if len(rows[0]) == 3 else ""
        lines = ["\t".join((f"i{n}", *row) if header else row) for n, row in enumerate(rows)]
        self.write(name, (header + "\n".join(lines) + "\n").encode())

    def kept(self, *rules: str, name: str = "aa-bb.tsv") -> list[tuple[str, ...]]:
        spec = CorpusSpec(root=str(self.folder), parallel=(name,), clean_pairs=rules)
        (source,) = sources.find_parallel(spec)
        self.taken = source.taken()
        return list(filter(None, source.rows()))

    def test_clean_rows_stay(self):
        rows = translations(2)
        self.write_rows(rows)
        self.assertEqual(self.kept(*PAIR_RULES), rows)
        self.assertEqual(self.taken, {})

    @parameterized.parameters(*PAIR_RULES)
    def test_a_rule_takes_what_was_planted(self, kind):
        rows, bad = planted(translations(2), kind)
        self.write_rows(rows)
        expected = [row for i, row in enumerate(rows) if i not in bad]
        self.assertEqual(self.kept(kind), expected)
        self.assertEqual(self.taken["bb"][kind]["lines"], len(bad))
        self.assertEqual(self.kept(*PAIR_RULES), expected)
        # In another order the same rows stay, and of equal ones the first.
        shuffled = random.Random(1).sample(rows, len(rows))
        self.write_rows(shuffled)
        self.assertEqual(collections.Counter(self.kept(kind)), collections.Counter(expected))

    @parameterized.parameters(*set(PAIR_RULES) - {"duplicates"})
    def test_of_three_columns_the_bad_cell_goes(self, kind):
        rows, bad = planted(translations(3), kind)
        rows[11], rows[13] = (rows[11][0], "", rows[11][2]), ("", rows[13][1], "")
        self.write_rows(rows, "set.tsv")
        expected = [
            (one, "" if i in bad else two, three) for i, (one, two, three) in enumerate(rows)
        ]
        del expected[13]  # one cell is no pair
        self.assertEqual(self.kept(kind, name="set.tsv"), expected)

    @parameterized.parameters("copies", "numbers", "hubs")
    def test_a_source_may_have_several_tables(self, kind):
        rows, bad = planted(translations(2), kind)
        self.write_rows(rows)
        expected = self.kept(kind)
        shown = self.taken["bb"][kind]["examples"][:5]
        self.assertEqual(shown, [" ||| ".join(s[:120] for s in rows[i]) for i in sorted(bad)[:5]])
        self.write_rows(rows)  # another state of the file
        with mock.patch.object(pairs, "_ROWS", 64), mock.patch.object(pairs, "_MOST_CELLS", 512):
            several = self.kept(kind)
        # Tables of 256 rows have fewer than ten of a hub each.
        self.assertEqual(several, rows if kind == "hubs" else expected)
        self.assertEqual(self.taken.get("bb", {}).get(kind, {}).get("examples", shown)[:5], shown)

    def test_what_inspection_counts_is_what_the_key_takes(self):
        rows = translations(2)
        for kind in PAIR_RULES:
            more, bad = planted(translations(2, seed=len(kind)), kind)
            rows += [more[i] for i in sorted(bad)] + more[:40]
        self.write_rows(rows)
        commands.execute("inspect_text", str(self.folder), f"--output={self.folder / 'out'}")
        record = json.loads((self.folder / "out" / "inspection.json").read_text())["pairs"][0]
        self.assertEqual((record["rows"], record["pairs"]), (len(rows), len(rows)))
        for kind in PAIR_RULES:
            self.assertLen(self.kept(kind), len(rows) - record["counts"][kind], kind)
        self.assertLen(self.kept(*PAIR_RULES), len(rows) - record["taken_pairs"])
        page = (self.folder / "out" / "report.html").read_text()
        for one in record["findings"]:
            self.assertIn(one["title"], page)

    def test_a_run_out_of_step_is_found_and_reported(self):
        rows = translations(2)
        ones, twos = map(list, zip(*rows, strict=True))
        twos[200:300] = twos[201:301]
        self.write_rows(list(zip(ones, twos, strict=True)))
        done = commands.execute("inspect_text", str(self.folder), f"--output={self.folder / 'out'}")
        self.assertRegex(
            done.stdout, r"aa-bb aa-bb: runs of rows out of step: (80|100|120), .*again \(0 pairs, "
        )

    def test_near_copies_are_those_of_the_edit_distance(self):
        rng, rows = random.Random(0), []
        for _ in range(400):
            one = rng.choices("abcd", k=rng.randint(12, 44))
            two = list(one)
            for _ in range(rng.randint(0, 20)):
                place = rng.randrange(len(two))
                two[place : place + rng.randint(0, 1)] = rng.choices("abcd", k=rng.randint(0, 1))
            rows.append(("".join(one), "".join(two) or "a"))
        one, two = map(pairs.column_of, zip(*rows, strict=True))
        found = np.zeros(len(rows), bool)
        spans = [(c.codes, c.of("start"), c.of("end")) for c in (one, two)]
        lower = pairs.ch.tables().lower
        pairs._near_copies(*spans[0], *spans[1], lower, np.arange(len(rows)), found)
        expected = [distance(a, b) <= int(0.2 * max(len(a), len(b))) for a, b in rows]
        self.assertEqual(found.tolist(), expected)
        self.assertBetween(sum(expected), 50, 350)

    def test_numbers_differ_if_each_side_has_a_digit_too_many(self):
        cells = [
            ("1,000 or 5", "5 or 1.000"), ("May 2011", "2011-05"), ("१२", "12"), ("12", "13"),
            ("7", "seven"), ("10/5/2020", "5.10.2020"), ("35", "5"), ("3 of 44", "44"),
        ]  # fmt: skip
        one, two = map(pairs.column_of, zip(*cells, strict=True))
        found = pairs._disagree(one.numbers, two.numbers)
        self.assertEqual(np.flatnonzero(found).tolist(), [3])

    def test_a_dataset_is_that_of_the_cleaned_file(self):
        settings = PackedDatasetSettings(length=64, parallel_length=32, num_workers=2)
        rows, bad = planted(translations(2), "language")
        clean = [row for i, row in enumerate(rows) if i not in bad]
        files = []
        for name, given, rules in (("dirty", rows, ("language",)), ("clean", clean, ())):
            self.write_rows(given, f"{name}/aa-bb.tsv")
            spec = CorpusSpec(
                root=str(self.folder / name), text=(), parallel=("*.tsv",), clean_pairs=rules,
                heldout_fraction=0.1,
            )  # fmt: skip
            digest = packed_dataset.tokenizer_hash(preparing.MODEL)
            job = preparation.Job(self.folder / f"{name}-out", spec, settings, digest)
            found = preparation.find(job)
            with Workers(2, "") as workers:
                preparation.run(job, found, preparing.MODEL, workers)
            preparation.finish(job, found)
            files.append({p.name: p.read_bytes() for p in job.folder.glob("*.npy")})
            files[-1]["text"] = load_corpus(spec).digest()
        self.assertEqual(*files)
        taken = json.loads((self.folder / "dirty-out" / "clean_pairs.json").read_text())
        self.assertEqual(taken["aa-bb"]["bb"]["language"]["lines"], len(bad))
        self.assertFalse((self.folder / "clean-out" / "clean_pairs.json").exists())

    def test_unknown_rules_are_named(self):
        with self.assertRaisesRegex(ValueError, "corpus.clean_pairs .*'lenght' must be one of .*"):
            CorpusSpec(clean_pairs=("lenght",))
