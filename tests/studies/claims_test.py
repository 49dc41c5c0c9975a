"""The claims book: its page, its commands, what is run of it."""

import contextlib
import functools
import importlib
import io
import json
import os
import pathlib
import re
import shlex
import signal
import sys
import tempfile
import threading
import time
from unittest import mock

from absl import flags
from absl.testing import absltest, parameterized

from common import artifacts
from configs import grids
from studies import claims
from training.signals import EXIT_STOPPED

BOOK = claims.read()
ALL = {one.number: one for one in claims.claims(BOOK)}


def flags_of(command: str) -> tuple[str, dict[str, str]]:
    """The module of a command, and its flags."""
    words = shlex.split(command)
    assert words[0] == "python", command
    module, rest = (words[2], words[3:]) if words[1] == "-m" else (words[1][:-3], words[2:])
    assert all(re.match(r"--[\w.]+=", word) for word in rest), command
    return module, dict(word[2:].split("=", 1) for word in rest)


class BookTest(parameterized.TestCase):
    def test_the_page_is_made_of_it(self):
        page = claims.PAGE.read_text(encoding="utf-8")
        self.assertEqual(page, claims.page(BOOK), "run python -m studies.claims write")

    def test_claims_are_numbered_in_order(self):
        self.assertEqual(list(ALL), [f"C{n}" for n in range(1, len(ALL) + 1)])
        self.assertGreaterEqual(len(ALL), 40)
        self.assertLen(BOOK["papers"], 4)

    def test_what_can_be_told_has_evidence(self):
        for one in ALL.values():
            if one.verdict != "cannot tell":
                self.assertTrue(one.here, one.number)
            if one.hours is None:
                self.assertRegex(one.remark, "^: ", one.number)  # why not

    @parameterized.parameters(*sorted({c for one in ALL.values() for c in one.commands}))
    def test_a_command_exists_and_knows_its_flags(self, command):
        module, given = flags_of(command)
        source = claims.ROOT / f"{module.replace('.', '/')}.py"
        self.assertTrue(source.exists(), command)
        text = source.read_text(encoding="utf-8")
        if "runs.define_flags(" in text:
            text += (claims.ROOT / "studies" / "runs.py").read_text(encoding="utf-8")
        known = set(re.findall(r"DEFINE_\w+\(\s*\"(\w+)\"", text))
        self.assertLessEqual({key for key in given if not key.startswith("config.")}, known)
        if "config" not in given:
            return
        file, _, argument = given["config"].partition(":")
        config = importlib.import_module(file[:-3].replace("/", ".")).get_config(argument)
        for key in given:
            if key.startswith("config."):
                _, *sections, name = key.split(".")
                self.assertIn(name, functools.reduce(getattr, sections, config), key)
        if "grid" in given:
            grid = grids.choose(given["config"], given["grid"])
            self.assertLessEqual(set(filter(None, given.get("runs", "").split(","))), {*grid.runs})

    def test_notes_follow_commands(self):
        for one in ALL.values():
            self.assertRegex(one.command_note, "^($|; |, | and )", one.number)

    def test_a_claim_that_cannot_be_is_named(self):
        names = ("claim", "place", "paper", "here", "remark", "command_note")
        fields = {**dict.fromkeys(names, "a"), "hours": 1}
        with self.assertRaisesRegex(ValueError, "C1: the verdict is 'maybe', must be one of"):
            claims.Claim(number="C1", verdict="maybe", commands=("python a.py",), **fields)
        with self.assertRaisesRegex(ValueError, "C1: needs commands"):
            claims.Claim(number="C1", verdict="holds", commands=(), **fields)
        book = json.loads(claims.BOOK.read_text(encoding="utf-8"))
        section = book["papers"][0]["sections"][0]
        section["claims"].append(section["claims"][0])
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "claims.json"
            path.write_text(json.dumps(book))
            with self.assertRaisesRegex(ValueError, "more than one claim C1;"):
                claims.read(path)


class ConclusionsTest(absltest.TestCase):
    """docs/conclusions.md, written by hand, says of each claim what its verdict is."""

    def setUp(self):
        super().setUp()
        text = (claims.ROOT / "docs" / "conclusions.md").read_text(encoding="utf-8")
        self.named: dict[str, set[str]] = {}
        for part in re.split("^## ", text, flags=re.MULTILINE)[1:]:
            title, _, body = part.partition("\n")
            self.named[title] = {
                f"C{number}"
                for first, last in re.findall(r"\bC(\d+)(?:\s+to\s+C(\d+))?", body)
                for number in range(int(first), int(last or first) + 1)
            }

    def test_every_claim_is_named(self):
        self.assertEqual(set().union(*self.named.values()), set(ALL))

    def test_claims_stand_where_their_verdict_belongs(self):
        survives, fails, open_ = (
            self.named[title] for title in ("Survives", "Does not", "Three seeds do not tell")
        )
        of = {
            verdict: {number for number, one in ALL.items() if one.verdict == verdict}
            for verdict in claims.VERDICTS
        }
        self.assertEmpty((survives | open_) & of["does not"] - fails)
        self.assertEmpty(open_ & of["holds"] - survives)
        self.assertEmpty(fails & of["holds"] - survives)


class RunTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.workdir = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))

    def test_commands_are_shared_and_the_cheapest_come_first(self):
        todo = claims.plans([ALL["C19"], ALL["C50"], ALL["C20"]], {})
        self.assertEqual([plan.numbers for plan in todo], [("C50",), ("C19", "C20")])
        left = claims.plans([ALL["C19"], ALL["C50"]], {ALL["C50"].commands[0]: {}})
        self.assertEqual([plan.numbers for plan in left], [("C19",)])
        with self.assertRaisesRegex(ValueError, "C5 needs a larger machine; at full size it is"):
            claims.plans([ALL["C5"]], {})

    def test_those_that_fit_are_taken(self):
        plans = [claims.Plan((str(hours),), ("x",), hours) for hours in (1, 2, 2)]
        self.assertEqual(claims.fitting(plans, 3.5), plans[:2])
        self.assertEqual(claims.fitting(plans, 0.5), [])

    def test_folders_take_their_places(self):
        command = "python a.py --config=configs/x.py:small,DATA --data=DATA --out=DIR/b --x=MY_DATA"
        self.assertEqual(
            claims.resolved(command, "/data", pathlib.Path("/work")),
            [sys.executable, "a.py", "--config=configs/x.py:small,/data", "--data=/data",
             "--out=/work/b", "--x=MY_DATA"],
        )  # fmt: skip

    def run_plan(self, *commands: str) -> str:
        plan, said = claims.Plan(("C1",), commands, 1e-3), io.StringIO()
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(said):
            claims.run([plan], "/data", self.workdir)
        return said.getvalue()

    def test_what_was_done_is_not_done_again(self):
        done = f'python -c \'open("{self.workdir}/seen", "a").write("x")\''
        broken = "python -c 'raise SystemExit(\"broken\")'"
        for _ in range(2):
            with self.assertRaisesRegex(ValueError, "failed: .*; the same command of this one"):
                self.run_plan(done, broken)
        self.assertEqual((self.workdir / "seen").read_text(), "x")
        self.assertEqual(list(claims.read_done(self.workdir / "claims.json")), [done])
        self.assertIn("broken", (self.workdir / "log.txt").read_text())

    def test_a_stop_ends_it_and_the_rest_is_done_when_it_goes_on(self):
        first = "python -c 'print(1)'"
        marker = self.workdir / "marker"
        second = (
            f'python -c \'import os; print("x\\nreport: /r"); '
            f'os.path.exists("{marker}") or os._exit({EXIT_STOPPED})\''
        )
        with self.assertRaises(SystemExit) as caught:
            self.run_plan(first, second)
        self.assertEqual(caught.exception.code, EXIT_STOPPED)
        self.assertEqual(list(claims.read_done(self.workdir / "claims.json")), [first])
        marker.touch()
        self.assertRegex(self.run_plan(first, second), r"C1, done in \d+ s: report: /r\n")
        self.assertCountEqual(claims.read_done(self.workdir / "claims.json"), [first, second])

    def asked_to_stop(self, command: str) -> dict:
        """Run a command with {marker}, ask for a stop when it is there; return what is done."""
        marker = self.workdir / "marker"

        def send() -> None:
            while not marker.exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGTERM)

        threading.Thread(target=send, daemon=True).start()
        with self.assertRaises(SystemExit) as caught:
            self.run_plan(command)
        self.assertEqual(caught.exception.code, EXIT_STOPPED)
        return claims.read_done(self.workdir / "claims.json")

    def test_asked_to_stop_with_a_command_that_has_no_state_to_save(self):
        path = self.workdir / "marker"
        command = (
            f'python -c \'import os, time; open("{path}", "a").write("x"); '
            f'os.path.getsize("{path}") == 1 and time.sleep(60)\''
        )
        self.assertEmpty(self.asked_to_stop(command))
        self.assertIn("C1, done in", self.run_plan(command))

    def test_asked_to_stop_with_a_command_that_ends_well(self):
        command = (
            "python -c 'import os, signal, time; "
            "signal.signal(signal.SIGTERM, lambda *_: os._exit(0)); "
            f'open("{self.workdir}/marker", "w"); time.sleep(60)\''
        )
        self.assertEqual(list(self.asked_to_stop(command)), [command])

    def test_where_the_report_of_a_claim_is_is_told_again(self):
        first, last = ALL["C3"].commands
        done = {last: {"seconds": 7, "end": "report: /r"}, first: {"seconds": 600, "end": "built"}}
        artifacts.write_json(self.workdir / "claims.json", done)
        place = ("--data=/d", f"--workdir={self.workdir}")
        self.assertEqual(self.main("run", "C3", *place), "C3, done in 607 s: report: /r\n")

    def test_what_was_done_with_other_data_is_not_done(self):
        command = f'python -c \'open("{self.workdir}/seen", "a").write("x")\' --data=DATA'
        plan = [claims.Plan(("C1",), (command, command.replace("DATA", "none")), 1e-3)]
        state, seen = self.workdir / "claims.json", []
        (self.workdir / "a").mkdir()
        (self.workdir / "link").symlink_to("a")
        for name in ("link", "a", "b", "b"):
            with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(None):
                claims.run(plan, str(self.workdir / name), self.workdir)
            seen.append(len((self.workdir / "seen").read_text()))
        self.assertEqual(seen, [2, 2, 3, 3])
        self.assertLen(claims.read_done(state), 2)
        self.assertLen(claims.read_done(state, str(self.workdir / "b")), 2)
        # What reads no data is done whichever they are.
        self.assertEqual(list(claims.read_done(state, "/other")), [plan[0].commands[1]])

    def test_a_claim_that_was_told_with_other_data_is_asked_for_again(self):
        def done(**origin: str) -> None:
            of = {one: {"seconds": 7, "end": "/r", **origin} for one in ALL["C50"].commands}
            artifacts.write_json(self.workdir / "claims.json", of)

        place = (f"--workdir={self.workdir}", "--dry_run")
        done(data="/corpus/A")
        self.assertIn("C50, done", self.main("run", "C50", "--data=/corpus/A", *place))
        self.assertRegex(self.main("run", "C50", "--data=/corpus/B", *place), r"^C50, [\d.]+ h: ")
        listed = {
            data: re.search("^C50 .*", self.main("list", *place, *data), re.MULTILINE)[0]
            for data in ((), ("--data=/corpus/A",), ("--data=/corpus/B",))
        }
        self.assertEqual(["  done " in one for one in listed.values()], [True, True, False])
        done()  # of before they were recorded
        self.assertIn("C50, done", self.main("run", "C50", "--data=/corpus/B", *place))

    def main(self, *arguments: str) -> str:
        values = flags.FlagValues()
        flags.DEFINE_string("data", None, "", flag_values=values)
        flags.DEFINE_string("workdir", None, "", flag_values=values)
        flags.DEFINE_float("hours", 0.0, "", flag_values=values)
        flags.DEFINE_bool("dry_run", False, "", flag_values=values)
        rest = values(["claims", *arguments])
        printed = io.StringIO()
        with mock.patch.object(flags, "FLAGS", values), contextlib.redirect_stdout(printed):
            claims.main(rest)
        return printed.getvalue()

    def test_list_and_dry_run(self):
        self.assertLen(self.main("list").splitlines(), len(ALL))
        place = ("--data=/d", f"--workdir={self.workdir}", "--dry_run")
        printed = self.main("run", "C43", *place)
        self.assertIn("C43, 0.1 h: python build_vocab.py --config=configs/xy_lent.py", printed)
        self.assertRegex(self.main("run", "--hours=1", *place), r"^\d+ of \d+ groups of claims fit")
        self.assertEmpty(list(self.workdir.iterdir()))

    def test_what_is_wrong_is_told(self):
        place = ("--data=/d", f"--workdir={self.workdir}")
        for arguments, message in (
            ((), "nothing is asked for, must be one of"),
            (("run", "C1"), "run needs --data"),
            (("run", "C999", *place), "there is no claim C999; there are C1 to C"),
            (("run", *place), "the numbers of claims, or --hours, and not both"),
            (("run", "C1", "--hours=2", *place), "or --hours, and not both"),
        ):
            with self.assertRaisesRegex(ValueError, message):
                self.main(*arguments)


if __name__ == "__main__":
    absltest.main()
