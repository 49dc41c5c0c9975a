"""What a build says of dirty text: once, with numbers, and without a change of its results."""

import lzma
import random
from unittest import mock

from absl.testing import parameterized

from input_pipeline import corpus, sources, text_files
from input_pipeline.inspection import brief, files
from input_pipeline.tasks.examples import TextExample
from input_pipeline.tasks.features import text_features
from tests import commands, folders, tiny_tasks
from tests.input_pipeline.inspection_test import block_of, made_up
from tests.malformed import templates
from xlm.common import artifacts
from xlm.evaluation.tasks import TaskData
from xlm.experiment import task_data
from xlm.experiment.task_settings import Tokenizer

# Burmese of Unicode, and the same words in Zawgyi's order and letters.
UNICODE = (
    "မြန်မာနိုင်ငံသည် အရှေ့တောင်အာရှ",
    "ကျွန်တော်တို့ သွားကြမည်။ နေကောင်းလား",
    "ဗုဒ္ဓ၊ သတ္တဝါ၊ ပစ္စည်း",
    "ၵႂၢမ်းတႆး ပေႃးၸိူဝ်ႉ",
)
ZAWGYI = ("ျမန္မာႏိုင္ငံသည္ အေရွ႕ေတာင္အာရွ", "ကၽြန္ေတာ္တို႔ သြားၾကမည္။ ေနေကာင္းလား")


class ZawgyiTest(parameterized.TestCase):
    def kinds(self, lines: list[str]) -> files.Kind:
        report = files.FileReport(0)
        files._count_kinds(report, block_of("\n".join(lines)), script=1)
        return report.kinds.get("zawgyi", files.Kind())

    def test_its_lines_are_found_and_those_of_unicode_are_not(self):
        self.assertEqual(self.kinds([*UNICODE, "no Burmese", "ខ្មែរ"]).lines, 0)
        found = self.kinds([UNICODE[0], ZAWGYI[0], UNICODE[1], ZAWGYI[1]])
        self.assertEqual(found.lines, 2)
        self.assertEqual(found.examples, list(ZAWGYI))
        self.assertEqual(found.taken, found.bytes)  # the remedy is of the whole line

    def test_one_slip_in_a_line_is_none_and_two_lines_are_not_one(self):
        slips = ["သည် ေကာင်း", "ခရီး ေသည်"]
        self.assertEqual(self.kinds(slips).lines, 0)
        self.assertEqual(self.kinds([" ".join(slips)]).lines, 1)


class BriefTest(folders.FolderTest):
    def setUp(self):
        super().setUp()
        self.lines = {
            "en": made_up(0, 1500, alphabet="abcdefghijklm"),
            "ru": made_up(1, 1500, alphabet="абвгдежзиклмн"),
            "sw": made_up(2, 1500, alphabet="nopqrstuvwxyz"),
        }

    def warnings(self) -> list[str]:
        for language, lines in self.lines.items():
            documents = ["\n".join(lines[i : i + 20]) for i in range(0, len(lines), 20)]
            self.write(f"{language}.txt", "\n\n".join(documents))
        return brief.warnings(sources.find_text(sources.CorpusSpec(root=str(self.folder))))

    def test_clean_text_is_silent(self):
        self.assertEqual(self.warnings(), [])

    def test_each_fault_is_a_line_with_its_numbers(self):
        cookie = "this site uses cookies to improve itself"
        self.lines["en"][::20] = [cookie] * 75
        self.lines["sw"][10:1500:25] = self.lines["en"][1:1500:25]
        self.lines["zu"] = made_up(0, 3000, alphabet="abcdefghijklm")[1500:]
        self.lines["ru"][700] = " ".join(made_up(1, 6000, alphabet="абвгдежзиклмн")[1500:])
        found = self.warnings()
        for one, expected in zip(
            found,
            (
                "en English: text as like another as one language, zu Zulu: 100.0% of a sample",
                "en English: lines found in many documents: 4.0% .*, 74 lines, such as '75 times",
                "ru Russian: one line of [0-9,]+ bytes is 7[0-9]% of its text; break it",
                r"sw Swahili: lines more like another language, \w+ \w+: [34]\.\d% of .* 4\d lines",
                "zu Zulu: text as like another as one language, en English",
            ),
            strict=True,
        ):
            self.assertRegex(one, f"^{expected}")

    def test_a_long_line_is_found_beyond_the_sample(self):
        self.lines["ru"][700] = " ".join(made_up(1, 6000, alphabet="абвгдежзиклмн"))
        with mock.patch.object(files, "_SAMPLE_BYTES", 1 << 16):
            self.assertRegex(
                "\n".join(self.warnings()), "^ru Russian: one line of [0-9,]+ bytes is"
            )


class EmptyTest(folders.FolderTest):
    @parameterized.parameters(
        ("xh.txt", b""), ("xh.txt", b"\xef\xbb\xbf"), ("xh.txt", b" \n\t\r\n" * 50_000),
        ("xh.txt.xz", lzma.compress(b"\n")),
        ("en-1.txt", b""), ("xh-00000-of-00001.txt", b""),
    )  # fmt: skip
    def test_an_empty_file_is_named_and_left_out(self, name, data):
        text = "\n\n".join(f"line {i} of the text" for i in range(60))
        self.write("en.txt", text)
        spec = sources.CorpusSpec(root=str(self.folder), heldout_fraction=0.1)
        expected = corpus.load_corpus(spec).digest()
        self.write(name.replace("en-1", "en_GB"), data)
        with self.assert_told(rf"{self.folder}\S*: the file holds no text and is left out"):
            found = corpus.load_corpus(spec)
        self.assertEqual(list(found.train), ["en"])
        self.assertEqual(found.digest(), expected)
        self.assertLen(sources.find_text(spec, with_empty=True), 2)
        wanted = sources.CorpusSpec(root=str(self.folder), languages=("en", "xh", "en_GB"))
        with self.assertRaisesRegex(
            ValueError, r"have no such text; .*; these files are empty: \S+: fill"
        ):
            corpus.load_corpus(wanted)

    def test_other_faults_are_those_of_reading(self):
        self.assertTrue(text_files.has_text(self.write("en.txt", b"\xff\n")))
        self.assertTrue(text_files.has_text(self.write("de.txt.xz", b"no archive")))


class UnknownTest(parameterized.TestCase):
    def test_examples_of_tasks_are_counted_with_all_their_texts(self):
        tokenizer = Tokenizer(tiny_tasks.tokenizer())
        known = TextExample("0", "the cat runs .", "the dog sleeps .", None)
        odd = TextExample("1", "the cat runs .", "ქ ა", None)
        for examples, told in (([known] * 99, False), ([known] * 3 + [odd], True)):
            features = text_features(examples, tokenizer.processor, tokenizer.special, 64)
            data = TaskData("ka", examples, features)
            with mock.patch.object(task_data.logging, "warning") as warned:
                task_data.warn_of_unknown("the input", data, tokenizer)
            self.assertEqual(warned.called, told)
        line = warned.call_args.args[1]
        self.assertRegex(
            line, r"^the input: \d+\.\d% of \d+ tokens are unknown .* U\+10E5 GEORGIAN"
        )


class StagesTest(folders.FolderTest):
    """The stages of a small run, of text with a language that the tokenizer does not know."""

    def run_stage(self, *flags: str, **changes: str) -> str:
        arguments = [one.replace("DIR", str(self.folder)) for one in templates.config(**changes)]
        with self.assertLogs("absl", "INFO") as logged:
            done = commands.execute("prepare_data", *arguments, *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        return "\n".join(logged.output)

    def test_a_record_is_made_once_and_changes_no_rows(self):
        templates.text(self.folder)
        georgian = [chr(0x10D0 + i) for i in range(30)]
        lines = (" ".join(random.Random(i).choices(georgian, k=12)) for i in range(200))
        self.write("text/sw.txt", "\n\n".join(lines))
        self.write("text/en.jsonl", "")
        log = self.run_stage()
        record = artifacts.read_object(self.folder / "work/text.json")
        expected = r"[\d,]+ tokens are unknown to the tokenizer, such as . U\+10\w\w GEORGIAN"
        self.assertRegex(record["unknown"][0], rf"^sw Swahili: \d+\.\d% of {expected} LETTER \w+, ")
        self.assertRegex(record["warnings"][0], r"^en English: \S+en\.jsonl has no text$")
        for line in (*record["warnings"][1:], *record["unknown"]):
            self.assertEqual(log.count(line), 1)
        rows = (self.folder / "work/rows/inputs.json").read_bytes()
        for path in (self.folder / "work/rows").iterdir():
            path.unlink()
        (self.folder / "work/text.json").unlink()
        self.run_stage(corpus__inspect="False")
        self.assertEqual((self.folder / "work/rows/inputs.json").read_bytes(), rows)
        again = artifacts.read_object(self.folder / "work/text.json")
        self.assertEqual(again, {"unknown": record["unknown"]})
