"""Tests of the contents of a prepared dataset: the text of `load_corpus`."""

import itertools
import json
import pathlib
from collections.abc import Sequence
from unittest import mock

import numpy as np
from absl.testing import parameterized

from input_pipeline import (
    manifest,
    packed_dataset,
    pair_rows,
    preparation,
    sources,
    text_files,
    tokenization,
)
from input_pipeline.corpus import load_corpus
from input_pipeline.packed_dataset import PackedDataset
from tests.input_pipeline import reading
from tests.input_pipeline.preparing import (
    PROCESSOR,
    SHARDED,
    SHARED,
    SHARED_TEXT,
    PreparationTest,
    backwards,
    contents,
    documents,
    prepare,
    txt,
)


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
        store = prepare(job)
        corpus = load_corpus(job.spec)
        self.assertEqual(PackedDataset.open(job.folder).statistics, store.statistics)
        if not changes and not more:  # more/en.jsonl repeats the documents of en.txt
            self.assertEqual(store.duplicates["en"]["blocks"], 40)
        for split, part in (("train", corpus.train), ("heldout", corpus.heldout)):
            for language, found in part.items():
                tokens = encoded(found)
                expected = reading.pack_rows(tokens, 64, store.special, np.dtype("u2"))
                np.testing.assert_array_equal(store.rows(language, split), expected)
                flat = np.concatenate(tokens)
                statistics = {
                    "rows": len(expected),
                    "tokens": len(flat),
                    "unknown": int((flat == PROCESSOR.unk_id()).sum()),
                    "characters": len("".join(s + "\n" for one in found for s in one)),
                }
                self.assertEqual(store.statistics[language][split], statistics)
                if split == "train":
                    counts = np.bincount(flat, minlength=store.vocab_size)
                    np.testing.assert_array_equal(store.token_counts(language), counts)
        for name, text in zip(store.parallel, corpus.parallel, strict=True):
            self.assertEqual(store.parallel[name], text.languages)
            for column, language in enumerate(text.languages):
                cells = encoded([[row[column]] for row in text.rows])
                rows = packed_dataset.pad_sentences(cells, 32, store.special, np.dtype("u2"))
                np.testing.assert_array_equal(store.parallel_rows(name, language), rows)
        for name, text in zip(store.bitexts, corpus.bitexts, strict=True):
            for column, language in enumerate(text.languages):
                bitext = store.bitext(name, language)
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

        def rows_of(store: PackedDataset) -> tuple[list, list]:
            """Rows of texts that are trained on, by their sentences, and held out."""
            trained, pair = [], ("en", "sw")
            rows = pair_rows.PairRows(store, "all", pair)
            special = store.special.special_ids()
            for _, ids in itertools.groupby(rows.read(0, len(rows)).flat, lambda x: x in special):
                trained.append(PROCESSOR.decode([*map(int, ids)]))
            trained = [*filter(None, trained)]
            trained = [*map(list, zip(trained[::2], trained[1::2], strict=True))]
            held = zip(*(store.parallel_rows("all", one)[:].tolist() for one in pair), strict=True)
            return sorted(trained), [[*map(PROCESSOR.decode, row)] for row in held]

        changes = {"heldout_by": heldout_by, "languages": ("en", "sw", "de")}
        one = rows_of(prepare(self.job("one", **changes)))
        with mock.patch.object(sources, "_PART_BYTES", 2000):
            job = self.job("many", **changes)
            store, corpus = prepare(job), load_corpus(job.spec)
            self.assertLen(preparation.find(job).tasks, 4 + 1 + 1)
            again = prepare(self.job("again", **changes), backwards)
            self.assertEqual(contents(again.folder), contents(store.folder))
        self.assertEqual(store.verify(), len(manifest.read(store.folder, ())))
        self.assertLen(store.pairs["all"], 4)
        trained, held = rows_of(store)
        self.assertEqual(sorted(trained + held), sorted(one[0] + one[1]))
        of_corpus = [row for text in corpus.parallel if text.name == "all" for row in text.rows]
        self.assertEqual(held, [list(row[:2]) for row in of_corpus])
        for language, found in corpus.train.items():
            expected = sum(map(len, encoded(found)))
            self.assertEqual(store.statistics[language]["train"]["tokens"], expected)

    def test_rows_held_out_are_bounded_in_number(self):
        self.write("all.en-sw.tsv", "".join(f"a {i}\tb {i}\n" for i in range(400)))
        for most, rows in ((0, 80), (40, 40), (59, 40), (7, 20)):
            store = prepare(self.job(str(most), parallel_heldout_most=most))
            self.assertLen(store.parallel_rows("all.en-sw", "en"), rows)
            self.assertEqual(store.pairs["all.en-sw"][0][0][2], 400 - rows)

    def test_text_that_was_seen_is_told_unless_unknown(self):
        line = "this page uses cookies and if you go on reading you consent to all of them."
        for name, added in (("de", line), ("fr", line.replace("e", "é"))):
            found = [[f"{hash((i, j))} {i}" for j in range(3)] + [added] for i in range(60)]
            self.write(f"{name}.txt", txt(found))
        with self.assert_told(
            "de: [0-9]+% of the held-out runs of 40 tokens .*, such as 'go on reading"
        ):
            store = prepare(self.job(languages=("de", "fr"), parallel=(), parallel_eval=()))
        self.assertGreater(store.overlap["de"]["share"], 0.1)
        self.assertEqual(store.overlap["fr"]["share"], 0)
        self.assertEqual(PackedDataset.open(store.folder).overlap, store.overlap)

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
        store = prepare(self.job(parallel=("**/*.tsv",), parallel_eval=("third/*.tsv",)))
        self.assertEqual(list(store.parallel), ["en-sw", "en-sw-2", "en-sw-3"])
        self.assertEqual(list(store.bitexts), ["en-sw", "en-sw-2"])
        self.assertLen(store.parallel_rows("en-sw-3", "sw"), 5)

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
