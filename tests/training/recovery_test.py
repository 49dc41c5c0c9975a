"""Distinction of damaged checkpoints, unreadable ones, and those of another state."""

import dataclasses
import json
import pathlib
import shutil
import tempfile
from collections.abc import Callable
from unittest import mock

import jax.numpy as jnp
import pytest
from absl.testing import parameterized

from tests.training import checkpoint_test
from tests.training.checkpoint_test import abstract_after, damage, digest, state_of
from xlm.common import artifacts
from xlm.training import checkpoint, digests, faults
from xlm.training.checkpoint import Checkpoints, DamagedError, SaveError, restore_latest
from xlm.training.faults import OtherStateError, UnreadableError

# All files of a checkpoint that Orbax writes besides the arrays.
METADATA = ("_CHECKPOINT_METADATA", "state/_METADATA", "state/array_metadatas/process_0")


def write(name: str, content: bytes) -> Callable[[pathlib.Path], None]:
    return lambda folder: (folder / name).write_bytes(content) and None


def rename_an_array(folder: pathlib.Path) -> None:
    """Change a letter such that the file still parses."""
    path = folder / "state" / "_METADATA"
    path.write_text(path.read_text().replace("moment", "momenu"))


def replace_by_a_file(folder: pathlib.Path) -> None:
    shutil.rmtree(folder)
    folder.write_bytes(b"")


# Orbax drops the reads that were under way when one failed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
class FaultTest(checkpoint_test.TestCase):
    def latest(self) -> int:
        with Checkpoints(self.folder, keep=10) as checkpoints:
            step, state = checkpoints.restore_latest(abstract_after)
        self.assert_is((step, state), step)
        return step

    @parameterized.parameters(
        *(write(name, content) for name in METADATA for content in (b"", b"[]")),
        *(
            write(METADATA[0], content)
            for content in (b"{", b"\xff", b"5", b'{"custom_metadata": 5}')
        ),
        write("_CHECKPOINT_METADATA", b'{"custom_metadata": {"digest": "x"}}'),
        write("_CHECKPOINT_METADATA", b'{"item_handlers": 5, "commit_timestamp_nsecs": "x"}'),
        rename_an_array,
        replace_by_a_file,
    )
    def test_damage_is_passed_over_wherever_it_is(self, damage):
        for step in (2, 1):  # the latest one, and one that is not read
            with self.subTest(step=step):
                shutil.rmtree(self.folder, ignore_errors=True)
                self.start_with(1, 2)
                damage(self.folder / str(step))
                # Some metadata are not needed to read the state.
                self.assertIn(self.latest(), (1, 2))
                self.save(3, keep=1)
                self.assertEqual(self.latest(), 3)

    def test_what_is_no_checkpoint_is_left(self):
        self.start_with(1)
        for name in ("notes", "007", "1.old", "-1", "1e3"):
            (self.folder / name).mkdir()
        before = self.names()
        self.assertEqual(self.latest(), 1)
        self.assertEqual(self.names(), before)

    def assert_left(self, kind: type[Exception], error: str) -> None:
        before = self.names()
        with Checkpoints(self.folder, keep=10) as checkpoints, self.assertRaisesRegex(kind, error):
            checkpoints.restore_latest(abstract_after)
        self.assertEqual(self.names(), before)

    def test_what_the_system_does_not_let_us_read_is_no_damage(self):
        self.start_with(1, 2)
        (self.folder / "2/state/_METADATA").unlink()  # Orbax's error for files without permission
        fault = PermissionError(13, "Permission denied", "f")
        error = r"checks/2 cannot be read now \(Permission denied: f\).* rerun the command"
        with mock.patch.object(faults, "open", side_effect=fault, create=True):
            self.assert_left(UnreadableError, error)
        with mock.patch.object(Checkpoints, "steps", return_value=[1, 3]):
            self.assert_left(UnreadableError, "No such file or directory: .*checks/3")

    @parameterized.parameters(
        (ValueError("x [os_error_code='5'] y"), UnreadableError, r"now \(Input/output error\)"),
        (OSError(24, "Too many open files"), UnreadableError, r"now \(Too many open files\)"),
        (MemoryError("Unable to allocate 7 GiB"), MemoryError, "7 GiB"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory"), MemoryError, "RESOURCE_EXHAUSTED"),
    )
    def test_nor_is_what_may_pass(self, fault, kind, error):
        self.start_with(1, 2)
        with mock.patch.object(checkpoint.ocp, "load_checkpointables", side_effect=fault):
            self.assert_left(kind, error)

    def test_another_state_of_an_earlier_release_by_its_arrays(self):
        self.start_with(1, 2)
        path = self.folder / "2" / "_CHECKPOINT_METADATA"
        content = json.loads(path.read_text())
        del content["custom_metadata"]["structure"]
        path.write_text(json.dumps(content))
        self.assertEqual(self.latest(), 2)
        abstract = checkpoint_test.ABSTRACT
        other = dataclasses.replace(abstract, opt_state={"sum": abstract.step})
        error = r"opt_state.sum is absent, and int32 \[\] in this run"
        with self.assertRaisesRegex(OtherStateError, error):
            restore_latest(self.folder, lambda step: other)

    def test_the_worst_fault_of_any_host_is_raised_on_all(self):
        with (
            mock.patch.object(faults.jax, "process_count", return_value=2),
            mock.patch.object(faults.multihost_utils, "process_allgather", return_value=[0, 3]),
        ):
            for mine in (None, DamagedError("mine")):
                with self.assertRaisesRegex(UnreadableError, "another host cannot read it"):
                    faults.raise_worst(mine)
            with self.assertRaisesRegex(UnreadableError, "mine"):
                faults.raise_worst(UnreadableError("mine"))


class ReadBackTest(checkpoint_test.TestCase):
    @parameterized.parameters(("first_and_last", (1, 4)), ("every", (1, 2, 3, 4)))
    def test_which_saves_are_read_back(self, verify, expected):
        with mock.patch.object(Checkpoints, "restore") as restore:
            self.save(1, 2, 3, 4, verify=verify)
        self.assertEqual(tuple(one.args[0] for one in restore.mock_calls), expected)

    def test_a_save_that_reads_back_otherwise_is_an_error(self):
        error = "step 2 in .*checks reads back with other content .the state differs from"
        with self.assertRaisesRegex(SaveError, error), Checkpoints(self.folder, 2) as checkpoints:
            for step in (1, 2):
                checkpoints.save(step, state_of(step))
            checkpoints._saving.response.result()
            damage(self.folder / "2", "a bit")

    def test_without_the_memory_it_is_tried_again(self):
        failing = mock.patch.object(Checkpoints, "restore", side_effect=MemoryError("too much"))
        with failing as restore, self.assertLogs(level="WARNING") as logs:
            self.save(1, 2)
        self.assertEqual([one.args[0] for one in restore.mock_calls], [1, 2])
        self.assertRegex(logs.output[-1], "checks/2 could not be read back: too much")

    def test_a_checkpoint_is_on_the_disk_before_an_older_one_goes(self):
        calls = mock.Mock()
        with (
            mock.patch.object(artifacts, "sync_tree", calls.sync),
            mock.patch.object(shutil, "rmtree", calls.remove),
        ):
            self.save(1, 2, keep=1)
        self.assertEqual([one[0] for one in calls.mock_calls], ["sync", "sync", "remove"])


class PathTest(parameterized.TestCase):
    @parameterized.parameters(
        "run[1]", "a*b", "x?y", "a\\b", "a\nb", "a\x7fb", "a\udcffb", "gs:/b", "\u2028"
    )
    def test_paths_that_checkpoints_would_be_lost_below_are_refused(self, name):
        with self.assertRaisesRegex(ValueError, "must be without .* choose another folder"):
            Checkpoints(pathlib.Path("/tmp") / name / "checkpoints", keep=1)

    def test_other_odd_paths_hold_checkpoints(self):
        parent = self.enter_context(tempfile.TemporaryDirectory())
        for name in ("a %20 {b}#c", "~", "-a", "$HOME", "\u00fc: \"'`&;|", "5", "s3:"):
            for folder in (pathlib.Path(parent, name), pathlib.Path("/" + parent, name, "x")):
                with Checkpoints(folder, keep=1) as checkpoints:
                    checkpoints.save(1, state_of(1))
                self.assertEqual(restore_latest(folder, abstract_after)[0], 1)


class FiniteTest(checkpoint_test.TestCase):
    @parameterized.parameters(0, 2**20)
    def test_arrays_that_are_not_finite_are_named(self, most_on_host):
        state = state_of(1)
        ints = jnp.full(3, 0x7FC00000, jnp.int32)  # the bits of NaN
        for value in (jnp.nan, jnp.inf, -jnp.inf):
            bad = jnp.zeros((5, 7), jnp.bfloat16).at[4, 6].set(value)
            state.aux_state.update({"ids": ints, "sums": bad})
            with mock.patch.object(digests, "_MOST_WORDS_ON_HOST", most_on_host):
                found = digests.inspect(state)
                self.assertEqual(found.fault, "numbers that are not finite, in extra.sums")
                self.assertEqual(found.params_digest, digest(state.params))
                state.aux_state["sums"] = jnp.ones(3)
                self.assertEqual(digests.inspect(state).fault, "")

    def test_one_that_was_saved_is_named(self):
        state = state_of(2)
        state.params["table"] = state.params["table"].at[7, 7].set(jnp.nan)
        unread = mock.patch.object(Checkpoints, "_could_read_back")
        with unread, Checkpoints(self.folder, 10) as checkpoints:
            checkpoints.save(1, state_of(1))
            checkpoints.save(2, state)
        error = "checks/2 holds numbers that are not finite, in params.table; .*continue_from"
        with self.assertRaisesRegex(ValueError, error):
            restore_latest(self.folder, abstract_after)
        self.assertEqual(self.names(), ["1", "2"])
