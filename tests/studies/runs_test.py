import contextlib
import os
import pathlib
import shutil
import tempfile
import threading
from unittest import mock

from absl.testing import absltest

from common import artifacts
from configs import quickstart
from studies import runs
from studies.runs import Job
from training.signals import EXIT_STOPPED


class CallTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.workdir = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory())) / "one"

    def call(self, status: int, says: str = "", **options):
        @contextlib.contextmanager
        def started(command, stdout, env, **_):
            stdout.write(says)
            self.command, self.environment = command, env
            yield mock.Mock(returncode=status)

        with mock.patch.object(runs.processes, "started", started):
            runs.call(
                ["train.py", "-v"],
                ["--config=configs/real_text.py:/d"],
                {"vocab.sizes": (5,)},
                self.workdir,
                log=self.workdir / "log.txt",
                **options,
            )

    def test_command(self):
        self.call(0, "fine\n")
        self.assertEqual(
            self.command[1:],
            [
                *("train.py", "-v"),
                "--config=configs/real_text.py:/d",
                "--config.vocab.sizes=(5,)",
                f"--workdir={self.workdir}",
            ],
        )
        self.assertEqual((self.workdir / "log.txt").read_text(), "fine\n")

    def test_environment(self):
        one = "intra_op_parallelism_threads=1"
        with mock.patch.dict(os.environ, {"XLA_FLAGS": "--a=1"}):
            os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
            self.call(0, compiled=self.workdir / "compiled", one_thread=True)
            self.assertRegex(self.environment["XLA_FLAGS"], rf"--a=1 .*{one}")
            compiled = str(self.workdir / "compiled")
            self.assertEqual(self.environment["JAX_COMPILATION_CACHE_DIR"], compiled)
            self.call(0)
            self.assertEqual(self.environment["XLA_FLAGS"], "--a=1")
            # That of the caller wins.
            os.environ["JAX_COMPILATION_CACHE_DIR"] = "/mine"
            self.call(0, compiled=self.workdir / "compiled")
            self.assertEqual(self.environment["JAX_COMPILATION_CACHE_DIR"], "/mine")

    def test_failure(self):
        with self.assertRaisesRegex(ValueError, "train.py -v failed; .*log.txt ends with: error"):
            self.call(1, "first\nerror: x\n")

    def test_stop(self):
        with self.assertRaises(SystemExit) as caught:
            program = ["-c", f"raise SystemExit({EXIT_STOPPED})"]
            runs.execute(program, name="one", log=self.workdir / "log.txt")
        self.assertEqual(caught.exception.code, EXIT_STOPPED)


class ClaimTest(absltest.TestCase):
    def setUp(self):
        super().setUp()
        self.workdir = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory())) / "one"

    def claim(self, steps: int = 5, **keys):
        config = quickstart.get_config("runlocal")
        config.update_from_flattened_dict(keys)
        runs.claim(self.workdir, config, steps=steps)

    def finish(self) -> None:
        artifacts.write_json(self.workdir / "runs" / "a" / "seed0" / "record.json", {})

    def corpus(self, name: str) -> pathlib.Path:
        """A copy of the corpus of the quickstart."""
        folder = self.workdir.parent / name
        shutil.copytree(runs.ROOT / quickstart.get_config().corpus.root, folder)
        return folder

    def refused(self, message: str, *, root: pathlib.Path) -> None:
        with self.assertRaisesRegex(ValueError, message):
            self.claim(**{"corpus.root": str(root)})

    def test_results_are_of_one_setting(self):
        self.claim(4)
        self.claim()  # there are no results yet
        self.finish()
        self.claim()
        self.claim(**{"store.num_workers": 7, "train.log_every": 9})
        for steps, keys, message in (
            (4, {}, "steps: there 5, now 4"),
            (5, {"train.num_steps": 99}, "train.num_steps: there .*, now 99"),
            (5, {"store.length": 16}, "store.length: there .*, now 16"),
            (5, {"evaluation.max_sequences": 3}, "evaluation.max_sequences: there .*, now 3"),
            (5, {"evaluation.seed": 7}, "evaluation.seed: there 0, now 7"),
            (5, {"evaluation.num_folds": 2}, "evaluation.num_folds: there .*, now 2"),
            (5, {"evaluation.retrieval_layer": 0}, "evaluation.retrieval_layer: there 1, now 0"),
        ):
            with self.assertRaisesRegex(
                ValueError, f"one was made under another config:\n  {message}"
            ):
                self.claim(steps, **keys)

    def test_text_may_be_moved_but_not_be_another(self):
        one, other = self.corpus("one_corpus"), self.corpus("other_corpus")
        self.claim(**{"corpus.root": str(one)})
        self.finish()
        self.claim(**{"corpus.root": str(other)})
        english, text = other / "en.txt", (other / "en.txt").read_bytes()
        english.write_bytes(text * 2)
        self.refused(r"text.num_bytes: there \d+, now \d+\nChoose another --workdir", root=other)
        english.write_bytes(text)
        self.claim(**{"corpus.root": str(other)})
        (other / "sw.txt").write_bytes((other / "ka.txt").rename(other / "ka").read_bytes())
        shutil.copy(one / "sw.txt", other / "ka.txt")
        self.refused("text.names_and_sizes: there .*\nChoose another --workdir", root=other)
        self.claim(**{"corpus.root": str(one)})
        self.refused("corpus.root: /elsewhere is no folder", root=pathlib.Path("/elsewhere"))

    def test_a_folder_of_before_evaluation_was_compared_takes_that_of_now(self):
        self.claim()
        self.finish()
        path = self.workdir / "settings.json"
        recorded = artifacts.read_json(path)
        artifacts.write_json(
            path, {key: one for key, one in recorded.items() if key not in ("evaluation", "text")}
        )
        with self.assertRaisesRegex(ValueError, "steps: there 5, now 4"):
            self.claim(4)
        self.claim(**{"evaluation.seed": 7})
        with self.assertRaisesRegex(ValueError, "evaluation.seed: there 7, now 0"):
            self.claim()

    def test_a_folder_without_settings_takes_those_of_now(self):
        artifacts.write_json(self.workdir / "runs" / "a" / "seed0" / "results.json", {})
        self.claim(4)  # as restored by `studies.records`
        with self.assertRaisesRegex(ValueError, "steps: there 4, now 5"):
            self.claim(5)

    def test_every_study_claims_its_folder(self):
        for path in (runs.ROOT / "studies").glob("*.py"):
            text = path.read_text(encoding="utf-8")
            # Or flags of its own.
            if " runs.define_flags(" in text or ('"report_only"' in text and path.stem != "runs"):
                self.assertIn(" runs.claim(", text, path.name)


class DoEachTest(absltest.TestCase):
    def test_a_failure_stops_no_other(self):
        works = {
            "none": mock.Mock(return_value=False),
            "some": mock.Mock(return_value=True),
            "first": mock.Mock(side_effect=ValueError("first")),
            "other": mock.Mock(side_effect=ValueError("other")),
        }
        self.assertTrue(runs.do_each([works["some"], works["none"]]))
        self.assertFalse(runs.do_each([works["none"], works["none"]]))
        with self.assertRaisesRegex(ValueError, "^first; other$"):
            runs.do_each([works["first"], works["other"], works["some"]])
        self.assertEqual(works["some"].call_count, 2)

    def test_whatever_the_error(self):
        last = mock.Mock(return_value=True)
        with (
            self.assertLogs("absl", "ERROR") as logs,
            self.assertRaisesRegex(ValueError, "^KeyError: 'loss'$"),
        ):
            runs.do_each([lambda: {}["loss"], last])
        last.assert_called_once()
        self.assertIn("Traceback", "".join(logs.output))


class DoAllTest(absltest.TestCase):
    def test_so_many_at_a_time_and_a_failure_stops_no_other(self):
        together = threading.Barrier(2, timeout=60)  # passed by two at a time only
        done = []

        def work(name: str) -> bool:
            together.wait()
            done.append(name)
            if name == "b":
                raise ValueError("broken")
            return True

        jobs = [Job(name, lambda name=name: work(name)) for name in "abcd"]
        self.assertEqual(runs.do_all(jobs, workers=2, pin=False), ["broken"])
        self.assertCountEqual(done, "abcd")

    def test_an_error_of_any_kind_stops_no_other(self):
        done = []

        def lost() -> bool:
            return bool(pathlib.Path("/nowhere/file").read_text())

        jobs = [Job(name, lambda name=name: bool(done.append(name))) for name in "bc"]
        with self.assertLogs("absl", "ERROR") as logs:
            errors = runs.do_all([Job("a", lost), *jobs], workers=1, pin=False)
        message = "FileNotFoundError: /nowhere/file: No such file or directory; correct the path"
        self.assertEqual(errors, [message])
        self.assertEqual(done, ["b", "c"])
        self.assertIn("Traceback", "".join(logs.output))
        self.assertIn(f"a: {message}", "".join(logs.output))

    def test_each_worker_keeps_to_a_core(self):
        available = os.sched_getaffinity(0)
        together = threading.Barrier(2, timeout=60)
        found = []

        def work() -> bool:
            together.wait()
            found.append(os.sched_getaffinity(0))
            return True

        runs.do_all([Job("a", work), Job("b", work)], workers=2, pin=True)
        self.assertEqual([len(cores) for cores in found], [1, 1])
        self.assertLen(set.union(*found), min(2, len(available)))
        self.assertEqual(os.sched_getaffinity(0), available)


if __name__ == "__main__":
    absltest.main()
