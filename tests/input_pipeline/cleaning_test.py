"""Cleaning of text: planted dirt is taken and nothing else, whoever does it and however often."""

import collections
import random
import shutil
from collections.abc import Callable
from typing import Any
from unittest import mock

from absl.testing import parameterized

from input_pipeline import preparation_plan
from input_pipeline.cleaning import rules, tasks
from input_pipeline.cleaning.settings import CleaningSettings
from input_pipeline.sources import CorpusSpec
from tests import commands
from tests.folders import FolderTest
from tests.input_pipeline.inspection_test import made_up
from tests.input_pipeline.reading import killed_after
from xlm.common import packages
from xlm.common.processes import Workers

ALL: dict[str, Any] = {
    "bad_lines": 0.2, "apostrophes": "straight", "digits": "ascii", "least_letters": 3,
    "boilerplate": 6, "repeated_lines": 1,
    **dict.fromkeys(("html", "urls", "odd_characters", "long_lines"), True),
    **dict.fromkeys(("other_script", "other_language", "near_copies"), True),
}  # fmt: skip
CYRILLIC = "абвгдежзиклмнопрстуф"
Documents = list[list[str]]


def documents(seed: int, **more) -> Documents:
    """60 documents of 15 lines, of which each begins with a capital letter."""
    lines = [line.capitalize() for line in made_up(seed, 900, **more)]
    return [lines[i : i + 15] for i in range(0, 900, 15)]


def joined(text: Documents) -> bytes:
    found = "\n\n".join("\n".join(one) for one in text) + "\n"
    return found.encode("utf-8", "surrogateescape")


def changed(change: Callable[[str], str]) -> Callable[[Documents, random.Random], None]:
    def plant(text: Documents, rng: random.Random) -> None:
        for one in rng.sample(text, 12):
            i = rng.randrange(len(one))
            one[i] = change(one[i])

    return plant


def added(make: Callable[[random.Random], str]) -> Callable[[Documents, random.Random], None]:
    def plant(text: Documents, rng: random.Random) -> None:
        for one in rng.sample(text, 12):
            one.insert(rng.randrange(1, len(one) + 1), make(rng))

    return plant


def copied(more: str) -> Callable[[Documents, random.Random], None]:
    def plant(text: Documents, _: random.Random) -> None:
        for i in (30, 27, 24):  # every line differs: repeated lines are another rule
            text.insert(i, [one.replace(" ", f" {more}", 1) for one in text[i - 15]])

    return plant


def repeat(text: Documents, _: random.Random) -> None:
    for one in text[20:50:3]:
        one.insert(4, text[3][5])


_RUSSIAN = made_up(7, 50, alphabet=CYRILLIC)
_OTHER = made_up(2, 50)
PLANTED = {
    "bad_lines": added(lambda rng: f"bad \udcff line {rng.random()}"),
    "nul": added(lambda rng: f"nul \0 line {rng.random()}"),
    "html": changed(lambda one: f"<p class='a'>{one[:9]}<b>{one[9:]}</b><br/>&#32;</p>"),
    "twice_html": changed(lambda one: f"&amp;lt;i&amp;gt;{one}&lt;script&gt;a=b&lt;/script&gt;"),
    "urls": changed(lambda one: f"{one} https://example.org/a?b=c www.x.org me@x.org"),
    "odd_characters": changed(lambda one: f"{one[:3]}\x07\u200b{one[3:]}\ufeff"),
    "least_letters": added(lambda rng: f"{rng.random()} ab"),
    "other_script": added(lambda rng: f"{rng.choice(_RUSSIAN)} 1 {rng.random()}"),
    "other_language": added(lambda rng: f"{rng.choice(_OTHER)} {rng.random()}"),
    "boilerplate": added(lambda _: "We use cookies on this site."),
    "repeated_lines": repeat,
    "near_copies": copied("a "),
    "copies": copied(""),
}  # fmt: skip


class CleaningTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.texts = {"en": documents(1), "sw": documents(2), "ru": documents(3, alphabet=CYRILLIC)}

    def write_text(self) -> None:
        for language, text in self.texts.items():
            self.write(f"text/{language}.txt", joined(text))

    def clean(
        self, out: str = "out", num_workers: int = 1, part_bytes: int = 1 << 20,
        text: str = "text", **settings,
    ) -> dict:  # fmt: skip
        spec = CorpusSpec(root=str(self.folder / text), text=("",))
        work, target = self.folder / f"{out}.work", self.folder / out
        with Workers(num_workers, "workers") as workers:
            return tasks.clean(
                spec, CleaningSettings(**settings), work, target, workers, part_bytes
            )

    def found(self, out: str = "out") -> dict[str, bytes]:
        """Text by language, of which parts are joined by blank lines."""
        parts = collections.defaultdict(list)
        for path in sorted((self.folder / out).glob("*.txt")):
            parts[path.name[:2]].append(path.read_bytes())
        return {language: b"\n".join(some) for language, some in parts.items()}

    def plant(self, *kinds: str) -> None:
        for kind in kinds:
            PLANTED[kind](self.texts["en"], random.Random(kind))

    @parameterized.parameters(1 << 20, 9000, 4000)
    def test_clean_text_passes_to_the_byte(self, part_bytes):
        self.write_text()
        report = self.clean(part_bytes=part_bytes, **ALL)
        self.assertEqual(self.found(), {one: joined(text) for one, text in self.texts.items()})
        self.assertEqual([one["rules"] for one in report.values()], [{}] * 3)

    @parameterized.parameters(*PLANTED)
    def test_planted_dirt_is_taken_and_nothing_else(self, kind):
        expected = {one: joined(text) for one, text in self.texts.items()}
        self.plant(kind)
        self.write_text()
        rule = {"nul": "bad_lines", "twice_html": "html", "copies": "near_copies"}.get(kind, kind)
        taken = self.clean(**{rule: ALL[rule]})
        found = self.found()
        self.assertEqual(found, expected)
        self.assertEqual([set(one["rules"]) for one in taken.values()], [{rule}, set(), set()])
        dirty = (self.folder / "text/en.txt").stat().st_size
        separators = 3 if rule == "near_copies" else 0  # blank lines of whole documents
        of_rule = taken["en"]["rules"][rule]
        self.assertEqual(of_rule["bytes"] + separators, dirty - len(expected["en"]))
        self.assertLen(of_rule["examples"], 1 if kind in ("boilerplate", "repeated_lines") else 5)

    def test_characters_are_rewritten_by_choice(self):
        self.texts = {"en": [["I don’t say ‘yes’ at 5’10 ٣٤ or ०१"]]}
        self.write_text()
        self.clean(apostrophes="straight", digits="ascii")
        self.assertEqual(self.found()["en"].decode(), "I don't say ‘yes’ at 5’10 34 or 01\n")
        self.clean("curly", apostrophes="curly", text="out")
        self.assertEqual(self.found("curly")["en"].decode(), "I don’t say ‘yes’ at 5’10 34 or 01\n")

    def test_long_lines_are_cut_and_then_compared(self):
        sentences = [f"{one}." for one in made_up(5, 300)]
        self.texts["en"][3].append(" ".join(sentences))
        self.texts["en"][9].append(" ".join(sentences))
        self.write_text()
        taken = self.clean(long_lines=True, repeated_lines=1)["en"]["rules"]
        lines = self.found()["en"].decode().split("\n")
        self.assertLess(max(map(len, lines)), 513)
        self.assertEqual(" ".join(lines).count(sentences[17]), 1)
        self.assertEqual(taken["long_lines"]["lines"], 2)

    @parameterized.parameters((1, 0), (3, 0), (0, 4), (2, 5))
    def test_copies_and_boilerplate_are_those_of_a_slow_reference(self, most, boilerplate):
        rng = random.Random(most)
        pool = [f"{one} and it is long enough" for one in made_up(8, 40)]
        text = [rng.choices(pool, [1 / (i + 1) for i in range(40)], k=rng.randint(1, 4))
                for _ in range(200)]  # fmt: skip
        self.texts = {"en": text[:120], "sw": text[120:]}
        self.write_text()
        for part_bytes in (1 << 20, 700):
            self.clean(f"out{part_bytes}", part_bytes=part_bytes, repeated_lines=most,
                       boilerplate=boilerplate)  # fmt: skip
            for language, of in self.texts.items():
                inside = collections.Counter(line for one in of for line in set(one))
                seen: collections.Counter[str] = collections.Counter()
                expected = []
                for one in of:
                    expected.append([])
                    for line in one:
                        seen[line] += 1
                        is_common = boilerplate and inside[line] >= boilerplate
                        if not is_common and (not most or seen[line] <= most):
                            expected[-1].append(line)
                found = self.found(f"out{part_bytes}")[language]
                self.assertEqual(found, joined(list(filter(None, expected))))

    def all_dirt(self) -> None:
        self.plant(*(one for one in PLANTED if one != "long_lines"))
        self.texts["en"][2].append(" ".join(made_up(5, 300)))
        self.write_text()

    @parameterized.parameters((1, 9000), (3, 9000), (1, 3000))
    def test_results_depend_on_neither_workers_nor_cuts(self, num_workers, part_bytes):
        self.all_dirt()
        whole = self.clean("whole", **ALL)
        self.enterContext(mock.patch.object(preparation_plan, "_BYTES_A_PROCESS", 0))
        self.assertIn("near_copies", whole["en"]["rules"])
        parts = self.clean("parts", num_workers, part_bytes, **ALL)
        self.assertEqual(self.found("parts"), self.found("whole"))
        self.assertGreater(len(parts["en"]["files"]), 3)
        for one in (whole, parts):
            for found in one.values():
                del found["files"]
                found["rules"].pop("bad_lines", 0)  # whose examples name bytes of a part
                for of_rule in found["rules"].values():
                    of_rule["examples"] = of_rule["examples"][:1]
        for found in (*whole.values(), *parts.values()):
            del found["kept_bytes"]  # of blank lines between parts
        self.assertEqual(parts, whole)

    def test_blocks_that_are_small_in_memory_are_the_same(self):
        self.texts["en"][:30] = [[line for one in self.texts["en"][:30] for line in one]]
        self.all_dirt()
        with mock.patch.object(rules, "_LONGEST_DOCUMENT", 5000):
            self.clean("whole", **ALL)
            self.enterContext(mock.patch.object(tasks, "_MOST_ROWS", 50))
            self.enterContext(mock.patch.object(rules, "_BLOCK", 700))
            self.clean("small", part_bytes=9000, **ALL)
        self.assertEqual(self.found("small"), self.found("whole"))

    def test_tables_of_numbers_are_no_copies_of_each_other(self):
        rng = random.Random(0)
        table = [[f"{rng.random()} {rng.random()} x" for _ in range(30)] for _ in range(8)]
        self.texts = {"en": table, "sw": self.texts["sw"]}
        self.write_text()
        taken = self.clean(near_copies=True)
        self.assertEqual(taken["en"]["rules"], {})

    def test_a_changed_file_is_cleaned_again(self):
        names = [f"text/en-{i:05d}-of-00002.txt" for i in range(2)]
        for name, text in zip(names, (documents(1), documents(4)), strict=True):
            self.write(name, joined(text))
        limited = killed_after(9, tasks.write)
        with mock.patch.object(tasks, "write", limited), self.assertRaises(KeyboardInterrupt):
            self.clean(part_bytes=9000, repeated_lines=1)
        self.write(names[1], joined(documents(1)))
        self.clean(part_bytes=9000, repeated_lines=1)
        self.assertEqual(self.found(), {"en": joined(documents(1))})

    def test_cleaned_text_has_nothing_left_to_take(self):
        self.all_dirt()
        self.clean(**ALL)
        again = self.clean("again", text="out", **ALL)
        self.assertEqual(self.found("again"), self.found())
        self.assertEqual([one["rules"] for one in again.values()], [{}] * 3)

    @parameterized.parameters("scan", "choose", "write")
    def test_a_killed_cleaning_resumes(self, name):
        self.all_dirt()
        self.clean("whole", part_bytes=9000, **ALL)
        for count in (0, 2) if name == "choose" else (0, 2, 5, 9):
            limited = killed_after(count, getattr(tasks, name))
            with mock.patch.object(tasks, name, limited), self.assertRaises(KeyboardInterrupt):
                self.clean("killed", part_bytes=9000, **ALL)
            self.assertEmpty([*self.folder.glob("killed/*.txt")])
        self.clean("killed", part_bytes=9000, **ALL)
        self.assertEqual(self.found("killed"), self.found("whole"))
        one, other = (self.folder / run / tasks.MANIFEST for run in ("whole", "killed"))
        self.assertEqual(one.read_text(), other.read_text())
        none = mock.Mock(side_effect=AssertionError("done before"), __name__=name)
        with mock.patch.object(tasks, name, none):
            self.clean("killed", part_bytes=9000, **ALL)

    def test_a_file_of_many_bad_lines_is_refused_and_an_empty_one_left_out(self):
        self.write_text()
        self.write("text/xh.txt", "")
        self.write("text/zu.txt", "\n \n")
        bad = '[1]\n{"text": "a\\ud800"}\nno\n{"a": 1}\n'
        self.write("text/de.jsonl", f'{{"text": "good one"}}\n{bad}')
        pattern = r"de.jsonl: 4 lines, 32 bytes of 57, .*clean.bad_lines=0.5 .* line 2: no text"
        with self.assertRaisesRegex(ValueError, pattern):
            self.clean(bad_lines=0.5)
        taken = self.clean(bad_lines=0.7)
        self.assertEqual(self.found()["de"], b"good one\n")
        self.assertEqual(taken["de"]["rules"]["bad_lines"]["lines"], 4)
        self.assertTrue({"xh", "zu"}.isdisjoint(taken))  # a warning names them


class RunTest(FolderTest):
    def setUp(self):
        super().setUp()
        shutil.copytree(packages.embedded("corpus"), self.folder / "text")
        self.english = self.folder / "text/en.txt"

    def run_command(self, name: str, workdir: str, *flags: str) -> str:
        root = f"--config.corpus.root={self.folder / 'text'}"
        config = ("--config=configs/quickstart.py:runlocal", root)
        done = commands.execute(name, *config, *flags, f"--workdir={self.folder / workdir}")
        return done.stderr if done.returncode else ""

    def test_a_run_reads_the_cleaned_text(self):
        stages = ("build_vocab", "prepare_data")
        self.assertEqual([self.run_command(one, "clean") for one in stages], ["", ""])
        lines = self.english.read_bytes().rstrip(b"\n").split(b"\n")
        self.english.write_bytes(b"\n".join([*lines, b"\xff no", lines[0], b""]))
        refused = self.run_command("build_vocab", "dirty")
        self.assertRegex(refused, r"not UTF-8.*clean\.bad_lines, xlm clean")
        flags = ("--config.clean.bad_lines=0.5", "--config.clean.repeated_lines=1")
        for _ in range(2):
            found = [self.run_command(one, "dirty", *flags) for one in stages]
            self.assertEqual(found, ["", ""])
        for name in ("vocab/spm.model", "rows/manifest.json"):
            one, other = (self.folder / run / name for run in ("clean", "dirty"))
            self.assertEqual(one.read_bytes(), other.read_bytes())
        refused = self.run_command("prepare_data", "dirty", *flags, "--config.clean.html=True")
        self.assertRegex(refused, r"dirty/text was made under another config:\n.*html: there False")
        with self.english.open("a") as file:
            file.write("one more line\n")
        refused = self.run_command("prepare_data", "dirty", *flags)
        self.assertRegex(refused, r"under another config:\n  files\.en\.txt: there")

    def test_the_command_cleans_text_outside_a_run(self):
        clean = self.english.read_bytes()
        self.english.write_bytes(clean + b"\xff no\n")
        flags = (f"--output={self.folder}/out", "--repeated_lines=1", "--bad_lines=0.1")
        done = commands.execute("clean_text", str(self.folder / "text"), *flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((self.folder / "out/en.txt").read_bytes(), clean)
        self.assertIn("byte 0xff", (self.folder / "out/report.html").read_text())
        self.assertEmpty([*self.folder.glob(".out*")])
        done = commands.execute("clean_text", str(self.folder / "text"), flags[0])
        self.assertRegex(done.stderr, "no rule is given; add some of --bad_lines, --html")
