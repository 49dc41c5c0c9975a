"""Checkpoints: damage, full disks, retention, digests, and means of parameters."""

import atexit
import contextlib
import dataclasses
import functools
import pathlib
import resource
import shutil
import tempfile
import time
import types
from collections.abc import Iterator
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from xlm.common import interruption
from xlm.training import checkpoint, digests, faults, hosts
from xlm.training.averaging import mean_params, ties
from xlm.training.checkpoint import (
    Checkpoints,
    DamagedError,
    SaveError,
    restore_latest,
    restore_latest_params,
    restore_mean_params,
)
from xlm.training.faults import OtherStateError
from xlm.training.state import TrainState
from xlm.training.step import TrainFunctions


def state_of(step: int) -> TrainState:
    rng = np.random.default_rng(step)
    table, moment = (jnp.asarray(rng.normal(size=(300, 8)), jnp.float32) for _ in range(2))
    return TrainState(
        step=jnp.int32(step),
        params={"table": table},
        opt_state={"moment": moment},
        key_data=jnp.asarray(rng.integers(0, 2**32, 2), jnp.uint32),
        aux_state={},
    )


def abstract_of(state: TrainState) -> TrainState:
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state
    )


ABSTRACT = abstract_of(state_of(0))


def abstract_after(steps_taken: int) -> TrainState:
    del steps_taken
    return ABSTRACT


def digest(state) -> int:
    return digests.inspect({"params": state}).digest


def functions_of_run() -> TrainFunctions:
    """Functions whose pending updates add one to the table."""

    def apply(state: TrainState) -> TrainState:
        return dataclasses.replace(state, params={"table": state.params["table"] + 1})

    fields = dataclasses.fields(TrainFunctions)
    given = dict.fromkeys(x.name for x in fields if x.default is dataclasses.MISSING)
    given |= {"apply_pending_updates": apply, "abstract_state": ABSTRACT}
    return TrainFunctions(**given)


def damage(folder: pathlib.Path, how: str) -> None:
    largest = max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    data, metadata = largest.read_bytes(), folder / "state" / "_METADATA"
    middle = len(data) // 2
    match how:
        case "truncated":
            largest.write_bytes(data[:middle])
        case "a bit":
            largest.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])
        case "no file of the table":
            largest.unlink()
        case "garbled metadata":
            metadata.write_bytes(metadata.read_bytes()[:50])
        case "no metadata":
            (folder / "_CHECKPOINT_METADATA").unlink()
        case "empty":
            shutil.rmtree(folder)
            folder.mkdir()


@functools.cache
def saved(steps: tuple[int, ...]) -> pathlib.Path:
    """Folder of good checkpoints of these steps; do not write to it."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    path = pathlib.Path(folder.name) / "checks"
    with Checkpoints(path, keep=10) as checkpoints:
        for step in steps:
            checkpoints.save(step, state_of(step))
    return path


class TestCase(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory())) / "checks"

    def start_with(self, *steps: int) -> None:
        """Copy checkpoints of these steps, since saving is slow."""
        shutil.copytree(saved(steps), self.folder)

    def save(self, *steps: int, keep: int = 10, **kwargs) -> None:
        with Checkpoints(self.folder, keep, **kwargs) as checkpoints:
            for step in steps:
                checkpoints.save(step, state_of(step))

    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    def assert_is(self, found, step: int):
        self.assertEqual(found[0], step)
        jax.tree.map(np.testing.assert_array_equal, found[1], state_of(step))


# Orbax drops the reads that were under way when one failed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
class DamageTest(TestCase):
    @parameterized.parameters(
        "truncated", "a bit", "no file of the table", "garbled metadata", "no metadata", "empty"
    )
    def test_the_one_before_is_used_and_the_damaged_one_set_aside(self, how):
        self.start_with(1, 2, 3)
        damage(self.folder / "3", how)
        with Checkpoints(self.folder, 10) as checkpoints:
            with self.assertLogs(level="WARNING") as logs:
                self.assert_is(checkpoints.restore_latest(abstract_after), 2)
            self.assertRegex("\n".join(logs.output), "checks/3 is damaged: .* step 2 instead")
            self.assertEqual(self.names(), ["1", "2", "3.damaged"])
            checkpoints.save(3, state_of(3))  # the run repeats the step
        with Checkpoints(self.folder, 10) as checkpoints:
            self.assert_is(checkpoints.restore_latest(abstract_after), 3)
        self.assertEqual(self.names(), ["1", "2", "3", "3.damaged"])

    def test_several_are_passed_over_also_of_one_step(self):
        self.start_with(1, 2, 3)
        for _ in range(2):
            damage(self.folder / "3", "truncated")
            damage(self.folder / "2", "no metadata")
            with Checkpoints(self.folder, 10) as checkpoints:
                self.assert_is(checkpoints.restore_latest(abstract_after), 1)
                self.assertEqual(checkpoints.steps(), [1])
            self.save(2, 3)
        damaged = ["2.damaged", "2.damaged-2", "3.damaged", "3.damaged-2"]
        self.assertEqual(self.names(), sorted(["1", "2", "3", *damaged]))

    def test_a_reader_sets_nothing_aside(self):
        self.start_with(1, 2)
        damage(self.folder / "2", "truncated")
        (self.folder / "3.orbax-checkpoint-tmp").mkdir()  # a run is saving
        before = self.names()
        with self.assertLogs(level="WARNING"):
            self.assert_is(restore_latest(self.folder, abstract_after), 1)
        self.assertEqual(self.names(), before)

    def test_where_all_are_damaged_each_is_named_and_left(self):
        self.start_with(1, 2)
        damage(self.folder / "1", "truncated")
        damage(self.folder / "2", "a bit")
        error = r"(?s)none of .*checks can be restored:\n  2: .*digest.*\n  1: .*read"
        with Checkpoints(self.folder, 10) as checkpoints:  # noqa: SIM117
            with self.assertRaisesRegex(DamagedError, error):
                checkpoints.restore_latest(abstract_after)
        self.assertEqual(self.names(), ["1", "2"])

    def test_a_state_of_another_kind_is_no_damage_to_set_aside(self):
        self.start_with(1, 2)
        sharding = ABSTRACT.step.sharding
        wider = jax.ShapeDtypeStruct((300, 9), jnp.float32, sharding=sharding)
        more = jax.ShapeDtypeStruct((), jnp.float32, sharding=sharding)
        for other in (
            dataclasses.replace(ABSTRACT, params={"table": wider}),
            dataclasses.replace(ABSTRACT, aux_state={"index": more}),
        ):
            error = "checks/2 is of other code or settings: .* is .*, and float32 .* in this"
            with self.assertRaisesRegex(OtherStateError, error):
                restore_latest(self.folder, {2: other, 1: other}.__getitem__)
            with Checkpoints(self.folder, 10) as checkpoints, self.assertRaises(OtherStateError):
                checkpoints.restore_latest({2: other, 1: other}.__getitem__)
        self.assertEqual(self.names(), ["1", "2"])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OldState:
    """State with the names of checkpoints from before the rename to `aux_state`."""

    step: jax.Array
    params: dict
    opt_state: dict
    key_data: jax.Array
    extra: dict


class OldNameTest(TestCase):
    def test_a_checkpoint_with_the_old_name_of_the_auxiliary_state_is_restored(self):
        new = dataclasses.replace(state_of(3), aux_state={"index": jnp.arange(6).reshape(2, 3)})
        with Checkpoints(self.folder, 10) as checkpoints:
            checkpoints.save(3, OldState(*vars(new).values()))
        functions = dataclasses.replace(functions_of_run(), abstract_state=abstract_of(new))
        step, found = restore_latest(self.folder, {3: functions.abstract_state}.__getitem__)
        self.assertEqual(step, 3)
        jax.tree.map(np.testing.assert_array_equal, found, new)
        _, params = restore_latest_params(self.folder, functions)
        np.testing.assert_array_equal(params["table"], new.params["table"])


class ParamsTest(TestCase):
    def assert_latest_are(self, step: int, change: float = 0, functions=None) -> None:
        functions = functions or functions_of_run()
        found, params = restore_latest_params(self.folder, functions)
        self.assertEqual(found, step)
        np.testing.assert_array_equal(params["table"], state_of(step).params["table"] + change)

    # Orbax drops the reads that were under way when one failed.
    @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
    def test_nothing_else_is_read_where_they_are_up_to_date(self):
        self.start_with(1, 2)
        # This state could not be restored as a whole.
        functions = dataclasses.replace(
            functions_of_run(), abstract_state=dataclasses.replace(ABSTRACT, opt_state={})
        )
        self.assert_latest_are(2, functions=functions)
        for path in (self.folder / "2").rglob("*"):
            if path.is_file() and path.stat().st_size > 4000:
                path.write_bytes(path.read_bytes()[:100])
        with self.assertLogs(level="WARNING"):
            self.assert_latest_are(1)

    def test_pending_updates_are_applied(self):
        with Checkpoints(self.folder, 10) as checkpoints:
            checkpoints.save(1, state_of(1))
            checkpoints.save(2, state_of(2), is_up_to_date=False)
        self.assert_latest_are(2, change=1)
        _, params = restore_mean_params(self.folder, functions_of_run(), 2)
        one, two = (state_of(step).params["table"] for step in (1, 2))
        np.testing.assert_allclose(params["table"], (one + (two + 1)) / 2, rtol=1e-6)

    def test_all_hosts_load_the_same_item(self):
        self.start_with(1)
        # The first host cannot read whether updates are pending.
        with mock.patch.object(hosts, "as_on_first", return_value=[False]) as agreed:
            self.assert_latest_are(1, change=1)
        agreed.assert_called_once_with([True])


class MeanTest(TestCase):
    def assert_mean_of(self, steps: list[int], **kwargs):
        found, params = restore_mean_params(self.folder, functions_of_run(), len(steps), **kwargs)
        self.assertEqual(found, steps)
        tables = [np.asarray(state_of(step).params["table"], np.float64) for step in steps]
        np.testing.assert_allclose(params["table"], np.mean(tables, axis=0), atol=1e-6)
        self.assertEqual(params["table"].dtype, jnp.float32)

    def test_the_mean_of_the_latest(self):
        self.start_with(1, 2, 5, 9)
        self.assert_mean_of([9])
        self.assert_mean_of([2, 5, 9])

    def test_the_latest_multiples_stay_whatever_is_between(self):
        self.save(2, 4, 5, 6, 8, 9, keep=1, keep_every=2, max_multiples=3)
        self.assertEqual(self.names(), ["4", "6", "8", "9"])
        self.assert_mean_of([6, 8], every=2)

    def test_too_few_or_damaged(self):
        self.start_with(1, 2, 3)
        message = "holds 3 checkpoints, too few .* 4; .* train.averaged_checkpoints at least 4"
        with self.assertRaisesRegex(ValueError, message):
            restore_mean_params(self.folder, functions_of_run(), 4)
        damage(self.folder / "2", "a bit")
        with self.assertRaisesRegex(DamagedError, "checks/2 is damaged: .*digest"):
            restore_mean_params(self.folder, functions_of_run(), 2)
        self.assertEqual(self.names(), ["1", "2", "3"])


class KeepTest(TestCase):
    @parameterized.parameters((0, ["6", "7"]), (2, ["2", "4", "6", "7"]), (3, ["3", "6", "7"]))
    def test_the_latest_and_multiples_stay(self, keep_every, expected):
        self.save(*range(1, 8), keep=2, keep_every=keep_every)
        self.assertEqual(self.names(), expected)

    def test_what_a_killed_run_was_writing_goes(self):
        self.start_with(1)
        (self.folder / "2.orbax-checkpoint-tmp").mkdir()
        self.save(3)
        self.assertEqual(self.names(), ["1", "3"])


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Limit files to 4 KiB, less than a table."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


class FullDiskTest(TestCase):
    MESSAGE = (
        r"step 2 in .*checks could not be written \(File too large\); that of step 1 is the last "
        "good one.*train.keep_checkpoints"
    )

    def setUp(self):
        super().setUp()
        self.start_with(1)

    def assert_all_is_well(self):
        self.assert_is(restore_latest(self.folder, abstract_after), 1)
        self.save(2)  # there is room again
        self.assert_is(restore_latest(self.folder, abstract_after), 2)
        self.assertEqual(self.names(), ["1", "2"])

    def test_a_save_that_fails_is_told_before_the_next(self):
        with Checkpoints(self.folder, keep=1) as checkpoints:
            with full_disk(), self.assertRaisesRegex(SaveError, self.MESSAGE) as raised:
                checkpoints.save(2, state_of(2))
                for _ in range(500):
                    checkpoints.check()
                    time.sleep(0.02)
            self.assertRegex(str(raised.exception.__cause__), "File too large")
            checkpoints.check()  # logged once
        self.assert_all_is_well()

    def test_the_last_save_and_one_that_another_follows(self):
        for steps in ((2,), (2, 3)):
            with full_disk(), self.assertRaisesRegex(SaveError, self.MESSAGE):
                self.save(*steps, keep=1)
        self.assert_all_is_well()

    def test_an_error_on_its_way_out_is_not_hidden(self):
        with (
            full_disk(),
            self.assertRaisesRegex(FloatingPointError, "the loss"),
            Checkpoints(self.folder, keep=1) as checkpoints,
        ):
            checkpoints.save(2, state_of(2))
            raise FloatingPointError("the loss")
        self.assert_all_is_well()


class DigestTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        # Use the program for large states.
        self.enter_context(mock.patch.object(digests, "_MOST_WORDS_ON_HOST", 0))

    def test_equals_a_loop_over_words(self):
        """If it fails, checkpoints of earlier versions are unreadable."""
        rng = np.random.default_rng(0)
        one, two = rng.normal(size=(2, 3, 2)).astype(np.float32), rng.integers(0, 99, (3, 2))
        two = two.astype(np.int32)

        def mixed(x: int) -> int:
            x = (x ^ (x >> 16)) * 0x7FEB352D % 2**32
            x = (x ^ (x >> 15)) * 0x846CA68B % 2**32
            return x ^ (x >> 16)

        total = 0
        for number, array in enumerate((one, two)):
            for index, word in enumerate(array.view(np.uint32).ravel().tolist()):
                total += mixed(word ^ mixed((number * 0x9E3779B9 + index) % 2**32))
        found = digest({"a": jnp.asarray(one), "b": jnp.asarray(two)})
        self.assertEqual(found, total % 2**32)

    def test_types_and_what_is_not_a_number(self):
        for dtype in (bool, jnp.int8, jnp.bfloat16, jnp.uint32):
            zeros, other = np.zeros((2, 5), dtype)
            other[3] = 1
            self.assertNotEqual(*(digest({"x": jnp.asarray(one)}) for one in (zeros, other)))
        nan, other = ({"x": jnp.asarray(one, jnp.float32)} for one in ((np.nan, 1), (1, np.nan)))
        self.assertEqual(digest(nan), digest(nan))
        self.assertNotEqual(digest(nan), digest(other))


class UnraisableTest(parameterized.TestCase):
    @parameterized.parameters(("Event loop is closed", 0), ("another", 1))
    def test_only_late_threads_of_failed_reads_are_silent(self, message, count):
        found = types.SimpleNamespace(exc_value=RuntimeError(message))
        with mock.patch.object(checkpoint, "_show_unraisable") as show:
            checkpoint._unraisablehook(found)
        self.assertEqual(show.call_count, count)

    def test_an_interrupted_read_is_no_damage(self):
        damaged = pathlib.Path(__file__), ValueError("DATA_LOSS")
        self.assertIsInstance(faults.fault_of(*damaged), DamagedError)
        with mock.patch.object(interruption, "_received", 2), self.assertRaises(KeyboardInterrupt):
            faults.fault_of(*damaged)


SHARDING = NamedSharding(jax.make_mesh((4,), ("fsdp",), devices=jax.devices()[:4]), P("fsdp"))


def tree(seed: int):
    whole = np.random.default_rng(seed).normal(size=(8, 4)).astype(np.float32)
    return {"a": jax.device_put(whole, SHARDING), "b": [jnp.asarray(whole[0], jnp.bfloat16)]}


class AveragingTest(parameterized.TestCase):
    @parameterized.parameters(1, 5)
    def test_leaf_by_leaf(self, count):
        trees = [tree(seed) for seed in range(count)]
        found = mean_params(iter(trees))
        expected = np.mean([one["a"] for one in trees], axis=0)
        np.testing.assert_allclose(found["a"], expected, atol=1e-6)
        self.assertEqual(found["b"][0].dtype, jnp.bfloat16)
        self.assertTrue(found["a"].sharding.is_equivalent_to(SHARDING, 2), found["a"].sharding)
        # The averaged trees still exist.
        jax.tree.map(np.testing.assert_array_equal, trees[0], tree(0))


class TiesTest(parameterized.TestCase):
    @parameterized.parameters(0.0, 0.2, 0.5, 1.0)
    def test_parameter_by_parameter(self, density):
        rng = np.random.default_rng(0)
        base, *branches = (
            {"a": rng.normal(size=(5, 4)).astype("f"), "b": rng.normal(size=10).astype("f")}
            for _ in range(4)
        )
        flat = [np.concatenate([one["a"].ravel(), one["b"]]) for one in (base, *branches)]
        differences = [one - flat[0] for one in flat[1:]]
        for one in differences:
            kept = round(density * 30)
            one[np.argsort(-np.abs(one))[kept:]] = 0
        expected = flat[0].copy()
        for i in range(30):
            values = [one[i] for one in differences]
            agreeing = [x for x in values if x * sum(values) > 0]
            expected[i] += np.mean(agreeing) if agreeing else 0
        found = ties(base, iter(branches), density)
        found = np.concatenate([found["a"].ravel(), found["b"]])
        np.testing.assert_allclose(found, expected, atol=1e-6)
