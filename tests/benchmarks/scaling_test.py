"""Description of compiled steps: what is held and sent, what bounds it, and going on."""

import dataclasses
from unittest import mock

import jax
from absl.testing import absltest, parameterized

from tests import commands
from xlm.experiment import memory

scaling = commands.load("benchmarks.scaling")
STEP = scaling.Step("base", 4096, "full", "cpu:8")


def small(step):
    """The paper's step at a size that compiles in seconds."""
    config = scaling.config_of(step)
    config.store.length = 16
    config.model.update(
        embedding_size=16, hidden_size=16, mlp_size=32, num_heads=2, num_layers=2, max_length=16
    )
    config.train.batch_size = 16
    config.output_layer.group_size = 2
    return config


class MeasuredTest(parameterized.TestCase):
    def test_a_device_holds_the_state_and_sends_the_gradient(self):
        config = small(STEP)
        found = scaling.measured(config, scaling.devices_of("cpu:8"), 0.0)
        expected = memory.estimate(config, 8).bytes()
        state = sum(expected[part] for part in ("parameters", "optimizer", "extra state"))
        # Besides tokens and languages of two sequences, the step and the random key.
        self.assertBetween(found["arguments"] - state, 2 * 17 * 4, 2 * 17 * 4 + 64)
        self.assertGreater(found["needed"], found["arguments"] + found["temporaries"])
        sent = {kind: size for kind, (_, _, size) in found["collectives"].items()}
        once = 2 * expected["gradients"] * 7 / 8
        # The table's gradient has two parts, as inputs and as classes, which this compiler does not
        # add up before.
        table = 2 * 4 * 16 * 4096 * 7 / 8
        self.assertBetween(sent.pop("all-reduce"), once, 1.02 * (once + table))
        self.assertLess(sum(sent.values()), 0.05 * once)
        self.assertEqual((found["mesh"], found["devices"]), ("8 x 1 x 1", 8))

    @parameterized.parameters(
        "RESOURCE_EXHAUSTED: Ran out of memory. Used 12.50G of 1.00G hbm. Exceeded",
        "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
        "temporaries (12.50G) exceeds available HBM (1.00G).",
    )
    def test_memory_of_a_refused_step_is_read_off_the_error(self, message: str):
        with mock.patch.object(
            jax.stages.Lowered, "compile", side_effect=jax.errors.JaxRuntimeError(message)
        ):
            found = scaling.measured(small(STEP), jax.devices(), 0.0)
        self.assertEqual(found["needed"], 12.5 * 2**30)
        self.assertNotIn("collectives", found)
        table = scaling.table_of({STEP: found}, scaling.CHIPS["v5p"])
        self.assertRegex(table, r"\| 8 x 1 x 1 \|  \|  \| 13.4 \|  \| .* \| memory \|$")


class TableTest(absltest.TestCase):
    def test_what_bounds_a_step(self):
        step = dataclasses.replace(STEP, devices="v5p:2x2x4")
        found = {
            "flops": 16 * 459e12 * 1e-3, "devices": 16, "mesh": "16 x 1 x 1", "arguments": 2765e6,
            "temporaries": 0, "needed": 2765e6, "collectives": {"all-reduce": [1, 3, 1.2e9]},
        }  # fmt: skip
        # Two links along the long axis, one along each of the others.
        seconds = scaling.bounds(step, found, scaling.CHIPS["v5p"])
        for name, expected in (("compute", 1e-3), ("HBM", 2e-3), ("links", 3e-3)):
            self.assertAlmostEqual(seconds[name], expected)
        self.assertIn("all-reduce 3, 1,200", scaling.table_of({step: found}, scaling.CHIPS["v5p"]))
        seconds = scaling.bounds(step, found, scaling.CHIPS["H200"])
        self.assertAlmostEqual(seconds["links"], 1.2e9 / 450e9)
