"""`xlm inspect` from text to page: what was planted is found, clean text is silent."""

import gzip
import html
import json
import lzma
import random
import re
from unittest import mock

from input_pipeline.inspection import files
from tests import commands
from tests.folders import FolderTest
from tests.input_pipeline.inspection_test import made_up
from tests.input_pipeline.reading import killed_after
from xlm.interop import normalizer_json

ALPHABETS = {
    "en": "abcdefghijklm",
    "sw": "nopqrstuvwxyz",
    "ru": "абвгдежзиклмн",
    "zh": "中文字里有的人天",
}
HOSTILE = "<script>alert('x')</script><img src=x onerror=alert(1)> &lt; \"' </li></ul>"


class InspectTextTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.command = commands.load("inspect_text")
        self.lines = {
            one: made_up(seed, 1200, alphabet=alphabet)
            for seed, (one, alphabet) in enumerate(ALPHABETS.items())
        }
        self.lines["zh"] = [line.replace(" ", "") for line in self.lines["zh"]]

    def write_text(self) -> None:
        for language, lines in self.lines.items():
            documents = ["\n".join(lines[i : i + 20]) for i in range(0, len(lines), 20)]
            data = "\n\n".join(documents).encode("utf-8", "surrogateescape")
            self.write(f"text/{language}.txt", data)

    def inspect(self, *flags: str, output: str = "out", status: int = 0):
        arguments = (str(self.folder / "text"), f"--output={self.folder / output}", *flags)
        done = commands.execute("inspect_text", *arguments)
        self.assertEqual(done.returncode, status, done.stderr)
        return done

    def findings(self, output: str = "out", *, notes: bool = False) -> dict[str, dict]:
        found = json.loads((self.folder / output / "inspection.json").read_text())["languages"]
        return {
            one["language"]: {f["kind"]: f for f in one["findings"] if notes or not f["is_note"]}
            for one in found
        }

    def test_clean_text_is_silent(self):
        self.write_text()
        done = self.inspect("--fail_on=0")
        self.assertStartsWith(done.stdout, "nothing found\n")
        self.assertEqual(set(map(len, self.findings(notes=True).values())), {0})

    def test_planted_dirt_is_found_in_its_amount_and_nothing_else(self):
        rng, lines = random.Random(0), self.lines
        clean = {one: sum(len(s.encode()) + 1 for s in some) for one, some in lines.items()}
        cookie, banner = "this site uses cookies to improve", "всегда одна и та же строка"
        for i in range(0, 1200, 20):
            lines["en"][i] = cookie
        for i in range(200, 800, 20):
            lines["ru"][i : i + 2] = [banner, f"{lines['ru'][i]} http://a.example/{i}"]
            lines["sw"][i] = made_up(0, 900, alphabet=ALPHABETS["en"])[i]
            lines["zh"][i] = lines["zh"][i] + "\udcff\udcfe"
        for i in range(5, 300, 10):
            lines["zh"][i] = " ".join(rng.choices(lines["ru"][:200], k=2))
            lines["en"][i] = f"<b>{lines['en'][i]}</b>"
            lines["sw"][i] = lines["sw"][i] + (" DÃ©jÃ  vu\x07" if i % 20 < 10 else " Ð¿Ñ€\x07")
        lines["ru"][700] = " ".join(lines["ru"][:200])
        self.write_text()
        done = self.inspect()
        found = self.findings()
        self.assertEqual(
            {one: set(kinds) for one, kinds in found.items()},
            {
                "en": {"boilerplate", "html"},
                "ru": {"boilerplate", "urls", "long_lines"},
                "sw": {"other_language", "mojibake", "control"},
                "zh": {"bad_utf8", "other_script", "other_language"},
            },
        )
        self.assertEqual(found["en"]["boilerplate"]["taken_bytes"], 59 * (len(cookie) + 1))
        self.assertEqual(found["en"]["boilerplate"]["examples"], [f"60 times: {cookie}"])
        self.assertEqual(found["en"]["html"]["taken_bytes"], 30 * 7)
        self.assertEqual(found["sw"]["control"]["taken_bytes"], 30)
        self.assertEqual(
            (found["zh"]["bad_utf8"]["number"], found["sw"]["mojibake"]["number"]), (30, 30)
        )
        # clean.bad_lines takes the lines, not only their bytes.
        bad = [lines["zh"][i].encode("utf-8", "surrogateescape") for i in range(200, 800, 20)]
        self.assertEqual(found["zh"]["bad_utf8"]["taken_bytes"], sum(map(len, bad)) + 30)
        self.assertEqual(found["sw"]["other_language"]["other"], "en")
        self.assertBetween(found["sw"]["other_language"]["number"], 27, 31)
        self.assertEqual(found["zh"]["other_script"]["number"], 30)
        self.assertLess(clean["sw"] * found["sw"]["other_language"]["share"], clean["sw"] * 0.05)
        worst = max((f["share"], one) for one, kinds in found.items() for f in kinds.values())
        # What stops a build comes first, though it is little.
        first, second, *_ = done.stdout.splitlines()
        self.assertStartsWith(first, "zh: bytes that are not UTF-8, which stop a build: 30")
        self.assertStartsWith(second, f"{worst[1]}: ")
        self.inspect("--fail_on=0.9", output="lenient")
        self.inspect("--fail_on=0.01", output="strict", status=1)

    def test_copies_and_near_copies_of_documents_are_told_from_each_other(self):
        lines = self.lines["en"]
        lines += [*lines[40:80], *(line.replace("a", "A", 1) + " x" for line in lines[100:120])]
        self.write_text()
        self.inspect()
        found = self.findings()["en"]
        self.assertEqual(set(found), {"copies", "near_copies", "repeated_lines"})
        self.assertEqual((found["copies"]["number"], found["near_copies"]["number"]), (2, 1))
        self.assertEqual(found["copies"]["examples"], [lines[40], lines[60]])
        self.inspect("--nonear_copies", output="out2")
        self.assertEqual(set(self.findings("out2")["en"]), {"copies", "repeated_lines"})

    def test_workers_kinds_of_files_and_resumption_do_not_matter(self):
        self.lines["en"][7:9] = [self.lines["sw"][0], "<br>"]
        self.write_text()
        data = (self.folder / "text/en.txt").read_bytes()
        half = data.index(b"\n\n", len(data) // 2) + 2
        (self.folder / "text/en.txt").unlink()
        self.write("text/en-00000-of-00002.txt.gz", gzip.compress(data[:half]))
        documents = data[half:].decode().split("\n\n")
        records = "\n".join(json.dumps({"text": one}) for one in documents)
        self.write("text/en-00001-of-00002.jsonl.xz", lzma.compress(records.encode()))
        with self.assertRaises(RuntimeError), mock.patch.object(
            files, "inspect_to", side_effect=killed_after(2, files.inspect_to, RuntimeError)
        ):  # fmt: skip
            self.inspect()
        self.assertFalse((self.folder / "out").exists())
        left = killed_after(3, files.inspect_to, RuntimeError)
        with mock.patch.object(files, "inspect_to", left):
            self.inspect()
        self.inspect("--num_workers=3", output="three")
        self.inspect("--num_workers=1", output="one")
        for name in ("inspection.json", "report.html"):
            same = {(self.folder / one / name).read_bytes() for one in ("out", "one", "three")}
            self.assertLen(same, 1)
        found = json.loads((self.folder / "out/inspection.json").read_text())["languages"]
        self.assertEqual([one["lines"] for one in found], [1200] * 4)
        self.assertEqual([one["documents"] for one in found], [60] * 4)

    def test_text_and_names_are_no_markup_of_the_page(self):
        for i in range(100, 200):
            self.lines["en"][i] = f"{HOSTILE} {self.lines['en'][i]}"
        self.write_text()
        self.inspect()
        page = (self.folder / "out/report.html").read_text()
        self.assertIn(HOSTILE, html.unescape(page))
        # The script of every report, and nothing of the text.
        self.assertLen(re.findall("<script|<img", page), 1)
        self.assertNotRegex(page, r"https?://")

    def test_odd_files_are_named_and_none_ends_the_inspection(self):
        self.write_text()
        self.write("text/aa.txt", "")
        self.write("text/bb.txt", "one line")
        self.write("text/cc.txt", bytes(random.Random(0).choices(range(256), k=50_000)))
        self.write("text/dd.txt.gz", gzip.compress(b"text\n" * 10_000)[:60])
        self.write("text/ee.jsonl", '{"text": "good"}\nnot json\n{"text": 1}\n')
        self.write("text/ff.txt", "\ufeffmark\r\nand\r\nreturns\r\n")
        self.write("text/gg.txt", "\n \n\n")
        self.inspect()
        found = self.findings(notes=True)
        self.assertEqual(
            (set(found["aa"]), set(found["bb"]), set(found["gg"])), ({"empty"}, set(), {"empty"})
        )
        self.assertContainsSubset({"bad_utf8", "control"}, found["cc"])
        self.assertIn("fault", found["dd"])
        self.assertRegex(found["ee"]["fault"]["examples"][0], "ee.jsonl: 2 lines are not JSON")
        self.assertContainsSubset({"crlf", "mark"}, found["ff"])
        self.assertEmpty(found["en"])

    def test_unknown_characters_have_names(self):
        self.write_text()
        vocab = {"<unk>": 0, **{c: i + 1 for i, c in enumerate("abcdefghijklmnopqrstuvwxyz ")}}
        model = {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}
        split = normalizer_json.split({"Regex": "."}, "Isolated")
        tokenizer = {"version": "1.0", "added_tokens": [], "pre_tokenizer": split, "model": model}
        path = self.write("tokenizer.json", json.dumps(tokenizer))
        self.inspect(f"--tokenizer={path}")
        found = self.findings()
        self.assertEmpty(found["en"])
        self.assertGreater(found["ru"]["unknown_tokens"]["share"], 0.5)
        self.assertRegex(
            found["ru"]["unknown_tokens"]["examples"][0], r"U\+04.. CYRILLIC SMALL LETTER"
        )

    def test_errors_name_what_is_wrong(self):
        done = commands.execute("inspect_text", f"--output={self.folder / 'out'}")
        self.assertEqual(done.returncode, 2)
        self.assertIn("name one folder of text", done.stderr)
        (self.folder / "text").mkdir()
        self.assertIn("no text found", self.inspect(status=2).stderr)
        self.write("text/en.txt", "text")
        self.assertIn("is or holds an input", self.inspect(output="text", status=2).stderr)
