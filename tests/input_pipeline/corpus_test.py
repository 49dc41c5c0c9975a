"""Tests of joining folders of text into a corpus and holding some of it out."""

from absl.testing import parameterized

from input_pipeline import sources
from input_pipeline.corpus import Corpus, load_corpus
from input_pipeline.sources import CorpusSpec
from tests.input_pipeline.preparing import txt
from tests.input_pipeline.reading import PackedFolderTest


def _documents(language: str, num_documents: int, num_sentences: int = 3) -> list[list[str]]:
    """Documents in which no sentence occurs twice."""
    return [[f"{language} {i} {j}" for j in range(num_sentences)] for i in range(num_documents)]


def _tsv(languages: list[str], num_documents: int, tag: str = "") -> str:
    """The same documents in several languages, side by side."""
    columns = [_documents(tag + language, num_documents) for language in languages]
    documents = [
        ["\t".join(["id", *row]) for row in zip(*document, strict=True)]
        for document in zip(*columns, strict=True)
    ]
    return "\t".join(["id", *languages]) + "\n" + txt(documents)


def _sentences(documents: list[list[str]]) -> list[str]:
    return [sentence for document in documents for sentence in document]


class _CorpusTest(PackedFolderTest):
    def write_documents(self, *names: str, count: int = 5) -> None:
        """Write files of documents, "text/de" for German below text/."""
        for name in names:
            self.write(f"{name}.txt", txt(_documents(name.rpartition("/")[2], count)))

    def spec(self, **changes) -> CorpusSpec:
        settings = {"text": (), "heldout_fraction": 0.2, "heldout_by": "position",
                    "deduplicate": False, "block_bytes": 0}  # fmt: skip
        return CorpusSpec(**{"root": str(self.folder), **settings, **changes})

    def load(self, **changes) -> Corpus:
        return load_corpus(self.spec(**changes))


class TextTest(_CorpusTest):
    def test_folders_are_joined_per_language_in_the_order_of_the_config(self):
        self.write("a/en.txt", txt(_documents("x", 2)))
        self.write("b/en.txt.gz", txt(_documents("y", 2)))
        self.write("b/eng.jsonl", '{"text": "z"}\n')
        self.write("b/de.txt", txt(_documents("de", 2)))
        loaded = self.load(text=("b", "a"), language_codes={"eng": "en"}, heldout_fraction=0)
        expected = [*_documents("y", 2), ["z"], *_documents("x", 2)]
        self.assertEqual(loaded.train, {"de": _documents("de", 2), "en": expected})
        self.assertEqual(loaded.heldout, {"de": [], "en": []})
        self.assertEqual(loaded.sentences("en"), _sentences(expected))

    def test_what_is_tested_on_is_trained_on_nowhere(self):
        self.write("de.txt", "Guten Tag.\nEin Haus.\n\nNur das!\n\nEin Baum.\n")
        self.write("de-en.tsv", "Ein Hund.\tA dog.\nEine Katze.\tA cat.\nEin Ei.\tAn egg.\n")
        self.write("tests/tatoeba.tsv", "Ein Haus\tA house\n-\ta  CAT!\n")
        self.write("tests/more.txt", "nur das\n")
        settings = {"text": (".",), "parallel": ("*.tsv",), "heldout_fraction": 0}
        settings["parallel_heldout_fraction"] = 0
        loaded = self.load(**settings, exclude=("tests/*",))
        german = ["Guten Tag.", "Ein Baum.", "Ein Hund.", "Ein Ei."]
        self.assertEqual(loaded.sentences("de"), german)
        self.assertEqual(loaded.sentences("en"), ["A dog.", "An egg."])
        self.assertEqual(loaded.bitexts[0].rows, (("Ein Hund.", "A dog."), ("Ein Ei.", "An egg.")))
        self.assertNotEqual(loaded.digest(), self.load(**settings).digest())
        with self.assertRaisesRegex(ValueError, "corpus.exclude: .*tests/none.txt does not exist"):
            self.load(**settings, exclude=("tests/none.txt",))
        with self.assertLogs(level="WARNING") as logs:
            self.load(**settings, exclude=("tests/*", "test/*.tsv"))
        self.assertLen(logs.output, 1)
        expected = "corpus.exclude: no file below .* matches test/..tsv, so"
        self.assertRegex(logs.output[0], expected)

    @parameterized.parameters(
        (2, 1, 0.3), (2, 21, 0.99), (3, 20, 0.01), (3, 1, 0.99), (10, 100, 0.3), (57, 21, 0.3),
        (57, 100, 0.01),
    )  # fmt: skip
    def test_train_and_heldout_are_disjoint_and_everything(
        self, num_documents, num_sentences, fraction
    ):
        documents = _documents("en", num_documents, num_sentences)
        self.write("en.txt", txt(documents))
        loaded = self.load(text=(".",), heldout_fraction=fraction)
        train, heldout = _sentences(loaded.train["en"]), _sentences(loaded.heldout["en"])
        self.assertCountEqual(train + heldout, _sentences(documents))
        num_blocks = len(loaded.train["en"]) + len(loaded.heldout["en"])
        self.assertEqual(
            len(loaded.heldout["en"]), min(max(round(fraction * num_blocks), 1), num_blocks - 1)
        )
        # Blocks are whole documents, or runs of consecutive sentences of one.
        text = "\n".join(map(str, documents))
        for block in loaded.train["en"] + loaded.heldout["en"]:
            self.assertLessEqual(len(block), 20)
            self.assertIn(str(block)[1:-1], text)

    def test_a_long_line_is_cut_and_counted_by_language(self):
        line = "Ein Satz. " * 2000
        for name in ("a", "b"):
            self.write(f"{name}/de.txt", txt(_documents("de", 3)) + line + name)
        with self.assertLogs(level="WARNING") as logs:
            loaded = self.load(text=("a", "b"))
        self.assertLen(logs.output, 1)
        self.assertRegex(logs.output[0], "de: lines of more than 8192 characters, cut .*: 2$")
        cut = loaded.sentences("de") + loaded.sentences("de", "heldout")
        self.assertEqual(" ".join(cut).count("Ein Satz."), 2 * 2000)

    def test_split_by_seed_and_digest_of_text_and_split(self):
        self.write_documents("en", "de", count=50)
        first, other = self.load(text=(".",)), self.load(text=(".",), seed=1)
        self.assertEqual(first, self.load(text=(".",)))
        alone = self.load(text=(".",), languages=("en",))
        self.assertEqual(first.heldout["en"], alone.heldout["en"])
        self.assertNotEqual(first.heldout["en"], other.heldout["en"])
        en, de = ([one[3:] for one in _sentences(first.heldout[x])] for x in ("en", "de"))
        self.assertNotEqual(en, de)
        (self.folder / "en.txt").unlink()
        self.write("en.txt.gz", txt(_documents("en", 50)))
        self.assertEqual(first.digest(), self.load(text=(".",)).digest())
        self.write("en.txt.gz", txt(_documents("en", 50)).replace("en 7 1", "en 7 one"))
        changed = self.load(text=(".",)).digest()
        a, b, c = _documents("en", 3)
        splits = (([a, b], [c]), ([a], [b, c]), ([a, b, c], []))
        digests = {Corpus({"en": train}, {"en": held}, ()).digest() for train, held in splits}
        self.assertLen(digests | {first.digest(), other.digest(), changed}, 6)

    @parameterized.parameters(40, 1000)
    def test_max_train_bytes_keeps_some_documents_in_their_old_order(self, limit):
        self.write("en.txt", txt(_documents("ü", 100)))
        everything, capped = self.load(text=(".",)), self.load(text=(".",), max_train_bytes=limit)
        size = sum(len(f"{sentence}\n".encode()) for sentence in capped.sentences("en"))
        largest = max(len(txt([d]).encode()) for d in everything.train["en"])
        self.assertBetween(size, limit - largest, limit)
        rest = iter(everything.train["en"])
        self.assertTrue(all(document in rest for document in capped.train["en"]))
        self.assertNotEqual(capped.train["en"], everything.train["en"][: len(capped.train["en"])])
        self.assertEqual(capped.heldout, everything.heldout)
        self.assertLen(self.load(text=(".",), max_train_bytes=1).train["en"], 1)

    def test_single_languages_can_have_a_limit_of_their_own(self):
        self.write_documents("de", "en", "sw", count=50)
        loaded = self.load(text=(".",), max_train_bytes=100, max_train_bytes_of={"en": 0, "sw": 1})
        everything, capped = self.load(text=(".",)), self.load(text=(".",), max_train_bytes=100)
        self.assertEqual(loaded.train["de"], capped.train["de"])
        self.assertEqual(loaded.train["en"], everything.train["en"])
        self.assertLen(loaded.train["sw"], 1)
        self.assertEqual(loaded.heldout, everything.heldout)
        codes, english = {"eng": "en"}, {"text": (".",), "languages": ("en",)}
        for limits, changes, message in (
            ({"en": -1}, {}, "_train_bytes_of.en is -1, must be a"),
            ({"en": "10"}, {}, "_train_bytes_of.en is '10', must be a"),
            ({"sv": 1, "en": 1}, {"text": (".",)}, r"limits for \['sv'\], which have"),
            ({"eng": 1}, {**english, "language_codes": codes}, r"limits for \['eng'\], which have"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                self.load(max_train_bytes_of=limits, **changes)
        self.load(max_train_bytes_of={"sv": 1, "en": 1}, language_codes=codes, **english)

    def test_files_that_are_no_text_of_a_language_are_skipped(self):
        self.write_documents("en")
        alone = self.load(text=(".",))
        for name in ("train.docs.txt", "README.md", "en.ids.xz", "core.tsv", ".en.txt", "de/x.txt",
                     "sw.csv", "sw.json"):  # fmt: skip
            self.write(name, "not of this corpus\n\nnor this\n")
        with self.assertLogs(level="WARNING") as logs:
            self.assertEqual(self.load(text=(".",)), alone)
        self.assertLen(logs.output, 3)
        self.assertRegex(logs.output[0], "sw.csv: skipped, it is not .txt or .jsonl")
        self.assertRegex(logs.output[1], "sw.json: skipped, it is not .txt or .jsonl")
        self.assertRegex(logs.output[2], "train.docs.txt: skipped, 'train.docs' is not a language")


class ParallelTest(_CorpusTest):
    def test_the_same_blocks_are_held_out_in_every_language(self):
        self.write("core.tsv", _tsv(["en", "de", "sw"], 20))
        loaded = self.load(parallel=("core.tsv",))
        (parallel,) = loaded.parallel
        self.assertEqual(parallel.languages, ("en", "de", "sw"))
        self.assertLen(parallel.rows, 12)  # 4 of 20 documents of 3 rows
        for column, language in enumerate(parallel.languages):
            heldout = _sentences(loaded.heldout[language])
            self.assertEqual(heldout, [row[column] for row in parallel.rows])
            self.assertEqual(
                [one[3:] for one in heldout], [one[3:] for one in _sentences(loaded.heldout["en"])]
            )
            everything = _sentences(_documents(language, 20))
            self.assertCountEqual(loaded.sentences(language) + heldout, everything)
        (bitext,) = loaded.bitexts  # what is not held out, to train on as pairs
        self.assertEqual((bitext.name, bitext.languages), (parallel.name, parallel.languages))
        self.assertLen(bitext.rows, 60 - 12)
        self.assertEmpty(set(bitext.rows) & set(parallel.rows))

    def test_blocks_that_are_excluded_whole_are_as_if_they_were_not_there(self):
        blocks = _tsv(["en", "de"], 20).split("\n\n")
        header, blocks[0] = blocks[0].split("\n", 1)
        for name, kept in (("some", range(20)), ("rest", range(0, 20, 3))):
            self.write(f"{name}/core.tsv", header + "\n" + "\n\n".join(blocks[i] for i in kept))
        excluded = (doc for i, doc in enumerate(_documents("en", 20)) if i % 3)
        self.write("test.txt", txt(list(excluded)))
        found = self.load(parallel=("some/core.tsv",), exclude=("test.txt",))
        expected = self.load(parallel=("rest/core.tsv",))
        self.assertEqual(found.parallel, expected.parallel)
        self.assertLen(found.parallel[0].rows, 3)
        self.assertEqual(found.train, expected.train)

    def test_missing_translations_stay_out_of_the_text_of_a_language(self):
        self.write("en-de.tsv", "a\tA\nb\t\n\nc\tC\n\n\td\n")
        loaded = self.load(parallel=("en-de.tsv",), parallel_heldout_fraction=0, heldout_fraction=0)
        self.assertEqual(loaded.train, {"de": [["A"], ["C"], ["d"]], "en": [["a", "b"], ["c"]]})

    @parameterized.product(as_text=(True, False), deduplicate=(True, False))
    def test_held_out_pairs_are_trained_on_nowhere(self, as_text, deduplicate):
        # Blocks of 20 rows, some of which are documents of the text, too.
        pairs = [[f"pair {i} {j}\tPaar {i} {j}" for j in range(20)] for i in range(40)]
        self.write("en-de.tsv", txt(pairs))
        of_text = [[pair.split("\t")[0] for pair in block] for block in pairs[::2]]
        self.write("en.txt", txt([*of_text, *_documents("en", 40)]))
        settings = {"parallel_as_text": as_text, "deduplicate": deduplicate}
        loaded = self.load(text=(".",), parallel=("*.tsv",), heldout_by="text", **settings)
        heldout = {row[0] for row in loaded.parallel[0].rows}
        self.assertLen(heldout, 8 * 20)
        self.assertNoCommonElements(heldout, {row[0] for row in loaded.bitexts[0].rows})
        self.assertEqual(list(loaded.train), ["de", "en"] if as_text else ["en"])
        if deduplicate:
            self.assertNoCommonElements(heldout, loaded.sentences("en"))
        if not as_text:
            self.assertContainsSubset(
                loaded.sentences("en"), _sentences([*of_text, *_documents("en", 40)])
            )

    @parameterized.parameters("document", "text")
    def test_held_out_translations_are_in_no_other_source(self, heldout_by):
        english = [f"The same long English sentence of number {i}." for i in range(400)]
        for code, order in (("de", 1), ("fr", -1)):
            rows = (f"{one}\t{code} {one}\nYes, of course.\tx\n" for one in english[::order])
            self.write(f"en-{code}.tsv", "".join(rows))
        shouted = [[one.upper().replace(" ", "  ") for one in english[i : i + 3]]
                   for i in range(0, 400, 3)]  # fmt: skip
        self.write("en.txt", txt([*shouted, *_documents("other", 30)]))
        loaded = self.load(text=(".",), parallel=("*.tsv",), heldout_by=heldout_by)
        heldout = {row[0] for one in loaded.parallel for row in one.rows} & {*english}
        trained = {row[0] for one in loaded.bitexts for row in one.rows}
        trained |= {" ".join(one.split()).capitalize() for one in loaded.sentences("en")}
        trained = {one.lower() for one in trained}
        leaked = {one for one in heldout if one.lower() in trained}
        self.assertEqual(bool(leaked), heldout_by == "text")
        self.assertIn("yes, of course.", trained)  # too short to tell anything
        of_text = {" ".join(one.split()).lower() for one in loaded.sentences("en", "heldout")}
        pairs = {cell.lower() for one in loaded.bitexts for row in one.rows for cell in row}
        self.assertEqual(bool(of_text & pairs - {"yes, of course."}), heldout_by == "text")

    @parameterized.parameters("parallel", "parallel_eval")
    def test_a_folder_of_line_aligned_files_equals_a_tsv_file(self, key):
        self.write_documents("text/en", "text/de")
        self.write("aligned/test/de.txt", "A\n\nC\n" * 20)
        self.write("aligned/test/eng.txt.gz", "a\nb\nc\n" * 20)
        self.write("aligned/test/sw.txt", "one line only, but of a language not in use\n")
        self.write("aligned/test/en.jsonl", '{"text": "a kind of file without lines"}\n')
        self.write("aligned.tsv", "id\tde\ten\n" + "1\tA\ta\n2\t\tb\n3\tC\tc\n" * 20)
        languages = {"languages": ("de", "en"), "language_codes": {"eng": "en"}}
        folder = self.load(text=("text",), **{key: ("aligned/test",)}, **languages)
        tsv = self.load(text=("text",), **{key: ("aligned.tsv",)}, **languages)
        self.assertEqual(folder, tsv)
        self.assertEqual(folder.parallel[0].name, "aligned")
        self.assertContainsSubset(folder.parallel[0].rows, [("A", "a"), ("", "b"), ("C", "c")])

    def test_a_folder_with_ids_equals_a_tsv_file_of_the_joined_lines(self):
        self.write_documents("text/en", "text/de")
        self.write("verses/de.txt", "A\nB\n\nunnumbered\nagain\nD\n")
        self.write("verses/de.ids", "1\n2\n\n?3\n1\n4\n")
        self.write("verses/en.txt", "d\nc\nown number\na\n")
        self.write("verses/en.ids.gz", "4\n3\n?3\n1\n")
        rows = ["A\ta", "B\t", "unnumbered\t", "again\t", "D\td", "\tc", "\town number"]
        lines = [f"{number}\t{row}" for number, row in enumerate(rows)]
        self.write("verses.tsv", "\n".join(["id\tde\ten", *lines, ""]))
        options = {"text": ("text",), "languages": ("de", "en")}
        joined = self.load(parallel_eval=("verses",), **options)
        self.assertEqual(joined, self.load(parallel_eval=("verses.tsv",), **options))

    def test_parallel_eval_is_never_trained_on(self):
        self.write_documents("text/en", "text/de")
        self.write("eval/sets.tsv", _tsv(["en", "de", "fr"], 30, tag="eval "))
        for language in ("en", "de"):
            self.write(f"folder/{language}.txt", f"eval {language} of folder\n")
        without = self.load(text=("text",))
        loaded = self.load(text=("text",), parallel_eval=("eval/*.tsv", "folder"))
        self.assertEqual((loaded.train, loaded.heldout), (without.train, without.heldout))
        self.assertNotEqual(loaded.digest(), without.digest())
        sizes = [(one.name, len(one.rows)) for one in loaded.parallel]
        self.assertEqual(sizes, [("sets", 90), ("folder", 1)])

    def test_each_source_is_read_once_and_for_evaluation_only_if_so_named(self):
        for name in ("en-de", "en-sw", "eval/en-de"):
            self.write(f"{name}.tsv", f"{name}\tx\n")
        spec = self.spec(
            parallel=("*.tsv", "./en-de.tsv", "**/*.tsv"), parallel_eval=("en-sw.tsv", "eval/*")
        )
        found = [(one.key, *one.files) for one in sources.find_parallel(spec)]
        evaluated = [self.folder / "en-sw.tsv", self.folder / "eval/en-de.tsv"]
        expected = [("parallel", self.folder / "en-de.tsv")]
        expected += [("parallel_eval", path) for path in evaluated]
        self.assertEqual(found, expected)
        self.assertEqual(sources.find_evaluated_only(spec), evaluated)


class FaultsTest(_CorpusTest):
    def assert_fault(self, words: str, **changes):
        with self.subTest(words), self.assertRaisesRegex(ValueError, words):
            self.load(**changes)

    def test_folders_and_files_without_text(self):
        self.write_documents("en", "dev/en", "dev/de")
        self.write("notes/notes.md", "x")
        self.write("text/en.txt.lz4", "x")
        self.write("short/sw.txt", "one sentence\n")
        self.write("unequal/en.txt", "a\nb\n")
        self.write("unequal/sw.txt", "c\n")
        self.write("shard/en.txt", "a\n")
        self.write("shard/sw-00000-of-00002.txt", "b\n")
        both = "dev is named in corpus.text and in corpus.parallel"
        for words, changes in (
            ("corpus.root: .*nowhere is not a folder", {"root": str(self.folder / "nowhere")}),
            ("corpus.text: .*nowhere is not a folder", {"text": ("nowhere",)}),
            ("corpus.text has .* twice", {"text": (".", "../" + self.folder.name)}),
            ("corpus.parallel: .*x.tsv does not exist", {"parallel": ("x.tsv",)}),
            ("corpus.parallel_eval: .*x does not exist", {"parallel_eval": ("x",), "text": (".",)}),
            (f"{both}_eval.*; remove it", {"text": (".", "dev"), "parallel_eval": ("d*",)}),
            (f"{both}, .*; remove it", {"text": (".", "dev"), "parallel": ("d*",)}),
            (r"no text found in \['notes'\].*<lang>.txt", {"text": ("notes",)}),
            (r"no text found in \['.'\]", {"text": ("",), "root": str(self.folder / "notes")}),
            ("en.txt.lz4: unknown compression", {"text": ("text",)}),
            ("language 'sw' has too little text", {"text": ("short",)}),
            ("sw.txt: 1 lines, .*has 2", {"parallel": ("unequal",)}),
            ("sw-00000-of-00002.txt: is a shard", {"parallel": ("shard",)}),
            ("corpus.language_codes", {"text": (".",), "language_codes": {"sw": "../x"}}),
        ):
            self.assert_fault(words, **changes)
        self.assertEqual(self.load(text=(".",), parallel_eval=("no*.tsv",)).parallel, ())

    @parameterized.parameters(
        (("en-00000-of-00002.txt",), "text/en.*1 of the shards .*of-00002 are missing, 00001"),
        (("en-0-of-1.txt", "en-1-of-1.txt"), "text/en.*from 00000 to 00000"),
        (("en-0-of-1.txt", "en-0-of-1.jsonl"), "text/en.*there once"),
    )
    def test_shards_that_are_not_there_once(self, names, words):
        for name in names:
            self.write(f"text/{name}", '{"text": "a"}\n' if "jsonl" in name else "a\n")
        self.assert_fault(words, text=("text",))

    def test_wanted_languages_that_are_missing(self):
        self.write_documents("eng", "de")
        words = r"corpus.languages asks for \['en'\].*en.txt, or corpus.language_codes"
        for languages in (("en", "de"), ("en",)):
            self.assert_fault(words, text=(".",), languages=languages)
        loaded = self.load(text=(".",), languages=("en",), language_codes={"eng": "en"})
        self.assertEqual(list(loaded.train), ["en"])

    def test_a_language_of_parallel_text_alone(self):
        self.write_documents("de", "verses/fr", "verses/sw")
        spec = {"text": (".",), "parallel": ("verses",)}
        words = "verses has it as parallel text.*name a folder of corpus.parallel in corpus.text"
        self.assert_fault(words, **spec, languages=("de", "sw"))
        loaded = self.load(**spec | {"text": (".", "verses")}, languages=("de", "sw"))
        self.assertEqual(sorted(loaded.train), ["de", "sw"])
        with self.assertRaises(ValueError) as caught:
            self.load(**spec, languages=("de", "xx"))
        self.assertNotIn("verses has it", str(caught.exception))

    def test_ids_that_do_not_fit_their_text(self):
        for name in ("de.txt", "en.txt"):
            self.write(f"verses/{name}", "a\nb\n")
        self.write("verses/de.ids", "1\n2\n3\n")
        self.assert_fault("en.txt has no ids, .* remove all of them", parallel_eval=("verses",))
        self.write("verses/en.ids", "1\n2\n")
        words = "de.ids: 3 lines, but de.txt has 2; a text and its ids must be equally long"
        self.assert_fault(words, parallel_eval=("verses",))
        self.write("core.tsv", _tsv(["en", "de", "eng"], 5))
        words = r"core.tsv: several columns for \['en'\].*corpus.language_codes"
        self.assert_fault(words, parallel=("core.tsv",), language_codes={"eng": "en"})
