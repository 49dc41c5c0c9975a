"""A prepared dataset holds the text of load_corpus, whoever runs its tasks, killed or resumed."""

import dataclasses
import itertools
import json
import pathlib
import time
import tracemalloc
from collections.abc import Sequence
from unittest import mock

import numpy as np
from absl import app
from absl.testing import parameterized

from input_pipeline import (
    manifest,
    overlap,
    packed_dataset,
    pair_rows,
    preparation,
    preparation_job,
    preparation_plan,
    selection,
    sources,
    text_files,
    tokenization,
)
from input_pipeline.corpus import load_corpus
from input_pipeline.packed_dataset import PackedDataset
from input_pipeline.preparation import Job
from tests import processes
from tests.input_pipeline import reading
from tests.input_pipeline.preparing import (
    MODEL,
    PROCESSOR,
    SETTINGS,
    SHARDED,
    SHARED,
    SHARED_TEXT,
    By,
    PreparationTest,
    backwards,
    contents,
    documents,
    in_order,
    prepare,
    txt,
)
from xlm.common import artifacts, entry_point
from xlm.common.processes import Workers


def encoded(found: Sequence[Sequence[str]]) -> list[np.ndarray]:
    return [
        np.array([i for sentence in one for i in PROCESSOR.encode(sentence)], np.uint32)
        for one in found
    ]


# A set in three languages, the last of which has cells in the first of its blocks alone.
_SPARSE = "id\ten\tsw\tde\n" + txt(
    [[f"{i}\tc {i} {j}\td {i} {j}\t{'' if i else f'e {j}'}" for j in range(3)] for i in range(30)]
)


# A line that is cut: a piece of it is a sentence of a test set.
_LONG = " ".join(f"word {i}." if i % 40 else "one 2 0." for i in range(3000))


class ContentsTest(PreparationTest):
    def setUp(self):
        super().setUp()
        # Some documents at a time, which the sequences do not depend on.
        self.enterContext(mock.patch.object(tokenization, "_CHARACTERS_AT_ONCE", 500))

    @parameterized.parameters(
        {}, {"heldout_by": "position", "deduplicate": False, "block_bytes": 0},
        {"heldout_by": "document"}, {"max_train_bytes": 1500},
        {"languages": ("sw", "en"), "exclude": ()},
        {"parallel_heldout_fraction": 0.0},
        {"heldout_by": "document", "more": {"two.en-sw.tsv": SHARED, "de.txt": SHARED_TEXT}},
        {"more": {"short.en-sw.tsv": "a single block\tb\n" * 5}},
        {"more": {"three.tsv": _SPARSE, "de.txt": txt(documents("und", 30))}},
        {"parallel_as_text": False, "more": {"three.tsv": _SPARSE}},
        {"more": {"de.txt": _LONG, "l.en-sw.tsv": f"a\tb\n\n{_LONG}\t{_LONG[::-1]}\n" * 9}},
    )  # fmt: skip
    def test_it_holds_the_text_of_the_corpus_in_memory(self, more=(), **changes):
        for name, text in dict(more).items():
            self.write(name, text)
        job = self.job(**changes)
        dataset = prepare(job)
        corpus = load_corpus(job.spec)
        self.assertEqual(PackedDataset.open(job.folder).statistics, dataset.statistics)
        if not changes and not more:  # more/en.jsonl repeats the documents of en.txt
            self.assertEqual(dataset.duplicates["en"]["blocks"], 40)
        for split, part in (("train", corpus.train), ("heldout", corpus.heldout)):
            for language, found in part.items():
                tokens = encoded(found)
                expected = reading.pack_rows(tokens, 64, dataset.special, np.dtype("u2"))
                np.testing.assert_array_equal(dataset.rows(language, split), expected)
                flat = np.concatenate(tokens)
                statistics = {
                    "rows": len(expected),
                    "tokens": len(flat),
                    "unknown": int((flat == PROCESSOR.unk_id()).sum()),
                    "characters": len("".join(s + "\n" for one in found for s in one)),
                }
                self.assertEqual(dataset.statistics[language][split], statistics)
                if split == "train":
                    counts = np.bincount(flat, minlength=dataset.vocab_size)
                    np.testing.assert_array_equal(dataset.token_counts(language), counts)
        for name, text in zip(dataset.parallel, corpus.parallel, strict=True):
            self.assertEqual(dataset.parallel[name], text.languages)
            for column, language in enumerate(text.languages):
                cells = encoded([[row[column]] for row in text.rows])
                rows = packed_dataset.pad_sentences(cells, 32, dataset.special, np.dtype("u2"))
                np.testing.assert_array_equal(dataset.parallel_rows(name, language), rows)
        for name, text in zip(dataset.bitexts, corpus.bitexts, strict=True):
            for column, language in enumerate(text.languages):
                bitext = dataset.bitext(name, language)
                cells = encoded([[row[column]] for row in text.rows])
                self.assertEqual(bitext.lengths.tolist(), list(map(len, cells)))
                self.assertEqual(bitext.ids[:].tolist(), np.concatenate(cells).tolist())
        left_out = json.loads((job.folder / "manifest.json").read_text()).get("left_out", {})
        repeats = "two.en-sw.tsv" in more and job.spec.heldout_by == "document"
        self.assertEqual(list(left_out), ["two.en-sw"] if repeats else [])

    @parameterized.parameters("text", "document")
    def test_parts_of_a_large_tsv_are_sources_that_make_one_set(self, heldout_by: str):
        rows = [f"{i}\ta {i}\tb {i}\tc {i}\n" for i in range(300)]
        self.write("all.tsv", "id\ten\tsw\tde\n" + "".join(rows))

        def rows_of(dataset: PackedDataset) -> tuple[list, list]:
            """Rows of texts that are trained on, by their sentences, and held out."""
            trained, pair = [], ("en", "sw")
            rows = pair_rows.PairRows(dataset, "all", pair)
            special = dataset.special.special_ids()
            for _, ids in itertools.groupby(rows.read(0, len(rows)).flat, lambda x: x in special):
                trained.append(PROCESSOR.decode([*map(int, ids)]))
            trained = [*filter(None, trained)]
            trained = [*map(list, zip(trained[::2], trained[1::2], strict=True))]
            held = zip(
                *(dataset.parallel_rows("all", one)[:].tolist() for one in pair), strict=True
            )
            return sorted(trained), [[*map(PROCESSOR.decode, row)] for row in held]

        changes = {"heldout_by": heldout_by, "languages": ("en", "sw", "de")}
        one = rows_of(prepare(self.job("one", **changes)))
        with mock.patch.object(sources, "_PART_BYTES", 2000):
            job = self.job("many", **changes)
            dataset, corpus = prepare(job), load_corpus(job.spec)
            self.assertLen(preparation.find(job).tasks, 4 + 1 + 1)
            again = prepare(self.job("again", **changes), backwards)
            self.assertEqual(contents(again.folder), contents(dataset.folder))
        self.assertEqual(dataset.verify(), len(manifest.read(dataset.folder, ())))
        self.assertLen(dataset.pairs["all"], 4)
        trained, held = rows_of(dataset)
        self.assertEqual(sorted(trained + held), sorted(one[0] + one[1]))
        of_corpus = [row for text in corpus.parallel if text.name == "all" for row in text.rows]
        self.assertEqual(held, [list(row[:2]) for row in of_corpus])
        for language, found in corpus.train.items():
            expected = sum(map(len, encoded(found)))
            self.assertEqual(dataset.statistics[language]["train"]["tokens"], expected)

    def test_rows_held_out_are_bounded_in_number(self):
        self.write("all.en-sw.tsv", "".join(f"a {i}\tb {i}\n" for i in range(400)))
        for most, rows in ((0, 80), (40, 40), (59, 40), (7, 20)):
            dataset = prepare(self.job(str(most), parallel_heldout_most=most))
            self.assertLen(dataset.parallel_rows("all.en-sw", "en"), rows)
            self.assertEqual(dataset.pairs["all.en-sw"][0][0][2], 400 - rows)

    def test_text_that_was_seen_is_told_unless_unknown(self):
        line = "this page uses cookies and if you go on reading you consent to all of them."
        for name, added in (("de", line), ("fr", line.replace("e", "é"))):
            found = [[f"{hash((i, j))} {i}" for j in range(3)] + [added] for i in range(60)]
            self.write(f"{name}.txt", txt(found))
        with self.assert_told(
            "de: training rows have [0-9]+% of the held-out runs of 40 tokens, such as 'go on"
        ):
            dataset = prepare(self.job(languages=("de", "fr"), parallel=(), parallel_eval=()))
        self.assertGreater(dataset.overlap["de"]["share"], 0.1)
        self.assertEqual(dataset.overlap["fr"]["share"], 0)
        self.assertEqual(PackedDataset.open(dataset.folder).overlap, dataset.overlap)

    def test_text_of_compressed_files_is_estimated(self):
        self.write("de.txt.gz", txt(documents("und", 30)))
        self.write("de-en.tsv.zst", "und\tand\n\n" * 5)
        found = preparation.find(self.job(parallel=("*.tsv*",)))
        text_bytes = {one.path: one.text_bytes for one in found.pieces}
        text_bytes |= {one.files[0][0]: one.text_bytes for one in found.tasks}
        sizes = {pathlib.Path(path).name: size for path, size in text_bytes.items()}
        for name, factor in (("de.txt.gz", 4), ("de-en.tsv.zst", 4), ("en-sw.tsv", 1)):
            self.assertEqual(sizes[name], factor * (self.root / name).stat().st_size)

    def test_sets_of_one_name_are_numbered(self):
        for folder in ("other", "third"):
            self.write(f"{folder}/en-sw.tsv", "x\ty\n\n" * 5)
        dataset = prepare(self.job(parallel=("**/*.tsv",), parallel_eval=("third/*.tsv",)))
        self.assertEqual(list(dataset.parallel), ["en-sw", "en-sw-2", "en-sw-3"])
        self.assertEqual(list(dataset.bitexts), ["en-sw", "en-sw-2"])
        self.assertLen(dataset.parallel_rows("en-sw-3", "sw"), 5)

    def test_shards_are_joined_to_the_bytes_of_one_file(self):
        whole, changes = documents("shard", 31), {"languages": ("de",), "parallel": ()}
        self.write("de.txt", txt(whole))
        prepare(self.job("one", **changes))
        (self.root / "de.txt").unlink()
        self.write("de-2-of-3.txt.gz", txt(whole[20:]))
        self.write("de-0-of-3.txt", txt(whole[:10]))
        self.write("de-1-of-3.jsonl.zst", "".join(map(text_files.json_line, whole[10:20])))
        prepare(self.job("three", **changes))
        one = contents(self.folder / "one")
        self.assertEqual(contents(self.folder / "three"), one)
        self.assertNotEmpty(one)

    def test_parts_hold_the_same_text_in_more_files(self):
        one, many = prepare(self.job("one")), prepare(self.job("many", SHARDED))
        self.assertEqual(set(many.shards), {"en", "sw"})
        self.assertGreater(len(many.shards["en"]["train"]), 3)
        for language, split in itertools.product(("en", "sw"), ("train", "heldout")):
            rows = many.rows(language, split)
            self.assertEqual(rows.shape, (many.statistics[language][split]["rows"], 64))
            text = [np.asarray(one.rows(language, split)), np.asarray(rows)]
            left = [x[~np.isin(x, one.special.special_ids())].tolist() for x in text]
            self.assertEqual(*left)
        for name in ("en.counts.npy", "en-sw.en.bitext.npy"):
            self.assertEqual(contents(one.folder)[name], contents(many.folder)[name])


@dataclasses.dataclass(frozen=True)
class _Task:
    number: int
    text_bytes: int = 1


def fail_or_wait(job: Job, task: _Task) -> None:
    if not task.number:
        raise ValueError("wrong")
    time.sleep(1)
    (job.work / f"{task.number}.json").touch()


class TasksTest(PreparationTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # Slow to write as text; all that is tested here is which tasks are run.
        cls.enterClassContext(mock.patch.object(preparation, "_KEPT_FROM", 0))

    def test_the_bytes_do_not_depend_on_who_runs_the_tasks(self):
        prepare(self.job("one", SHARDED))
        prepare(self.job("back", SHARDED), backwards)
        self.enterContext(mock.patch.object(preparation_plan, "_BYTES_A_PROCESS", 1))
        with Workers(2, "") as workers:
            prepare(self.job("two", SHARDED), workers)
        expected = contents(self.folder / "one")
        self.assertGreater(len(expected), 10)
        self.assertEqual(contents(self.folder / "back"), expected)
        self.assertEqual(contents(self.folder / "two"), expected)

    @parameterized.parameters("parallel text", "scan", "select", "tokenise", "count")
    def test_a_runner_that_loses_a_task_fails(self, round_):
        def losing(function, job, tasks, name) -> None:
            in_order(function, job, tasks[name == round_ :], name)

        job = self.job("lost", SHARDED)
        message = rf"{round_}: 1 of \d+ tasks have left no results in .*lost/work"
        with self.assertRaisesRegex(ValueError, message):
            prepare(job, losing)

    def test_sentences_and_files_that_a_runner_loses_are_missed(self):
        blocks_of = preparation_plan.blocks_of

        def shorter(*args):
            return itertools.islice(blocks_of(*args), 2)

        def cut_short(function, job, tasks, name) -> None:
            patched = blocks_of if name != "tokenise" else shorter
            with mock.patch.object(preparation_plan, "blocks_of", patched):
                in_order(function, job, tasks, name)

        def removing(function, job, tasks, name) -> None:
            in_order(function, job, tasks, name)
            if name == "count":
                next(job.work.glob("en.train*.npy")).unlink()

        for execute, message in (
            (
                cut_short,
                r"-of-\d+: the scan read \d+ sentences in \d+ blocks, the tokenisation \d+ in ",
            ),
            (removing, r"en\.train\S*\.npy: missing, must have"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                prepare(self.job("lost", SHARDED), execute)

    def test_a_language_of_more_parts_than_files_can_be_open(self):
        changes = {"heldout_by": "position", "max_train_bytes": 50_000}
        self.write("en.txt", txt(documents("one", 260, 30)))
        settings = dataclasses.replace(SETTINGS, shard_bytes=1024)
        only = {"text": (".",), "languages": ("en",), "parallel": (), **changes}
        dataset = prepare(self.job("whole", settings, **only))
        self.assertGreater(len(dataset.shards["en"]["train"]), 72)
        job = self.job("few", settings, **only)
        with processes.few_open_files(72), mock.patch.object(selection, "_DIGESTS_AT_ONCE", 200):
            prepare(job)
        self.assertEqual(contents(job.folder), contents(self.folder / "whole"))

    def test_a_source_of_many_languages_raises_the_limit_of_open_files(self):
        names = [f"{a}{b}" for a in "abcde" for b in "vwxyz"]
        rows = [["\t".join([f"{i}", *(f"{x} {i} {j}" for x in names)]) for j in range(2)]
                for i in range(20)]  # fmt: skip
        self.write("sets/all.tsv", "\t".join(["id", *names]) + "\n" + txt(rows))
        changes = {"text": (), "parallel": ("sets/*.tsv",), "parallel_eval": ()}
        prepare(self.job("whole", **changes))
        job = self.job("few", **changes)
        with processes.few_open_files(40):
            with self.assertRaisesRegex(OSError, "Too many open files") as caught:
                prepare(job)
            self.assertIn("ulimit -n", entry_point.describe(caught.exception))
            with mock.patch.object(app, "run"):
                entry_point.run(lambda _: None, required=())
            prepare(job)
        self.assertEqual(contents(job.folder), contents(self.folder / "whole"))

    def test_a_run_that_was_killed_goes_on_with_what_is_left(self):
        ran: list[str] = []

        def killed_after(limit: int):
            def execute(function, job, tasks, name) -> None:
                for task in tasks:
                    if len(ran) == limit:
                        raise KeyboardInterrupt
                    function(job, task)
                    ran.append(name)

            return execute

        prepare(self.job("whole", SHARDED), killed_after(-1))
        total, ran[:] = len(ran), []
        self.assertGreaterEqual(total, 20)
        job = self.job("parts", SHARDED)
        for limit in range(5, total, 5):
            with self.assertRaises(KeyboardInterrupt):
                prepare(job, killed_after(limit))
        found = preparation.find(job)
        preparation.run(job, found, MODEL, By(killed_after(-1)))
        self.assertLen(ran, total)
        # And one that was killed while files were moved.
        for path in sorted(job.work.glob("en.*.npy"))[:3]:
            path.rename(job.folder / path.name)
        prepare(job, killed_after(-1))
        self.assertLen(ran, total)
        self.assertEqual(contents(job.folder), contents(self.folder / "whole"))

    def test_only_what_depends_on_a_corrected_file_is_done_again(self):
        ran: list[str] = []

        def recorded(function, job, tasks, name) -> None:
            for task in tasks:
                function(job, task)
                ran.extend([task.id] if name == "scan" else [])

        good = (self.root / "sw.txt").read_bytes()
        (self.root / "sw.txt").write_bytes(good + b"\n\n\xff\n")
        with self.assertRaisesRegex(ValueError, "sw.txt, line 122: not UTF-8"):
            prepare(self.job(), recorded)
        self.assertEqual(ran, ["en-00000-of-00001"])
        (self.root / "sw.txt").write_bytes(good)
        prepare(self.job(), recorded)
        self.assertEqual(ran[1:], ["sw-00000-of-00001"])

    @parameterized.parameters(
        ("tested.ids", "one 2 0.\none 2 1.\none 30 0.\na 7 1.\n", "text"),
        ("en-sw.tsv", SHARED, "document"),
    )
    def test_a_test_set_that_has_changed_begins_anew(self, name, text, heldout_by):
        def killed(function, job, tasks, name) -> None:
            if name == "tokenise":
                raise KeyboardInterrupt
            in_order(function, job, tasks, name)

        self.write("de.txt", SHARED_TEXT)
        with self.assertRaises(KeyboardInterrupt):
            prepare(self.job(heldout_by=heldout_by), killed)
        (self.root / name).write_text(text)
        prepare(self.job(heldout_by=heldout_by))
        preparation_job._EXCLUSIONS.clear()
        prepare(self.job("clean", heldout_by=heldout_by))
        self.assertEqual(contents(self.folder / "rows"), contents(self.folder / "clean"))

    def test_parallel_text_counts_as_text_that_is_kept_behind_an_error(self):
        def failing(function, job, tasks, name) -> None:
            if name == "scan":
                raise ValueError
            in_order(function, job, tasks, name)

        job = self.job()
        size = preparation.find(job).text_bytes
        for limit, is_kept in ((size, True), (size + 1, False)):
            with mock.patch.object(preparation, "_KEPT_FROM", limit), self.assertRaises(ValueError):
                prepare(job, failing)
            self.assertEqual(job.work.exists(), is_kept)

    def test_notes_of_unknown_settings_are_not_used(self):
        job = self.job()
        artifacts.write_json(job.work / "scan-en-00000-of-00001.json", {"made_from": "unknown"})
        preparation.begin(job, MODEL)
        self.assertEqual({path.name for path in job.work.iterdir()}, {"job.json", "spm.model"})

    def test_a_damaged_note_is_named(self):
        job = self.job()
        preparation.run(job, preparation.find(job), MODEL, By(in_order))
        path = job.work / "select-en.json"
        artifacts.write_json(path, {**artifacts.read_json(path), "train": -1})
        message = "select-en.json: train is -1, must be a whole number.*; remove .* run the"
        with self.assertRaisesRegex(ValueError, message):
            prepare(job)

    def test_no_task_goes_on_behind_an_error(self):
        job = self.job()
        with Workers(2, "") as workers:
            with self.assertRaisesRegex(ValueError, "wrong"):
                list(workers.run(fail_or_wait, [(job, _Task(number)) for number in range(6)]))
            left = sorted(job.work.glob("*"))
        self.assertEqual(sorted(job.work.glob("*")), left)

    @parameterized.parameters(
        ("tokenise", "sw.txt", "sw.txt"), ("parallel text", "en-sw.tsv", "en-sw.tsv"),
        ("parallel text", "eval/en.txt", "eval/en.txt"), ("parallel text", "eval/de.txt", "eval"),
    )  # fmt: skip
    def test_text_that_changes_before_or_while_it_is_read(self, round_, name, named):
        def writing(function, job, tasks, of) -> None:
            if of == round_:
                with (self.root / name).open("a") as file:
                    file.write("\nmore\tmore\n")
            in_order(function, job, tasks, of)

        with self.assertRaisesRegex(ValueError, f"{named}: has changed while it was read"):
            prepare(self.job(), writing)

    def test_parallel_text_that_changes_while_it_is_read(self):
        def digest(source) -> str:
            with (self.root / "en-sw.tsv").open("a") as file:
                file.write("\nmore\tmore\n")
            return ""

        self.enterContext(mock.patch.object(preparation_plan, "source_digest", digest))
        with self.assertRaisesRegex(ValueError, "en-sw.tsv: has changed while it was read"):
            prepare(self.job())

    def test_parallel_text_that_comes_later_is_not_taken_for_another(self):
        def writing(function, job, tasks, name) -> None:
            if name == "parallel text":
                self.write("a.en-sw.tsv", "another\tset\n\n" * 30)
            in_order(function, job, tasks, name)

        prepare(self.job("clean"))
        dataset = prepare(self.job(), writing)
        self.assertEqual(list(dataset.bitexts), ["en-sw"])
        self.assertEqual(contents(self.folder / "rows"), contents(self.folder / "clean"))


class MemoryTest(PreparationTest):
    def test_it_does_not_grow_with_the_text(self):
        peaks, sizes = [], []
        self.enterContext(mock.patch.object(tokenization, "_CHARACTERS_AT_ONCE", 2000))
        self.enterContext(mock.patch.object(manifest, "_BLOCK_BYTES", 1 << 13))
        self.enterContext(mock.patch.object(overlap, "_TOKENS_AT_ONCE", 256))
        self.enterContext(mock.patch.object(overlap, "_MOST_ROWS", 4))
        text = [[f"{i} {j} " + "und noch " * 20 for j in range(10)] for i in range(60)]
        for count in (15, 60):
            self.write("de.txt", txt(text[:count]))
            sizes.append((self.root / "de.txt").stat().st_size)
            job = self.job(f"rows-{count}", languages=("de",), parallel=(), parallel_eval=())
            tracemalloc.start()
            prepare(job)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        # Records of 33 bytes a block are all that does.
        self.assertLess(peaks[1] - peaks[0], 0.05 * (sizes[1] - sizes[0]))
