"""The cost model of "auto": against compiled steps, and conditions of its choice."""

import dataclasses
import json
import pathlib

import numpy as np
from absl.testing import parameterized

from knn_sampling import costs
from knn_sampling.settings import OutputLayerSettings

COMPILED = pathlib.Path(__file__).parents[2] / "benchmarks" / "compiled.json"
# VoCap's step of 256 sequences on 8 H100, whose encoder has 9.4 TFLOP a device.
STEP = costs.Step(
    backend="gpu", num_devices=8, table_shards=1, sequences=256, tokens=256 * 512,
    targets=256 * 77, parts=1, vocab_size=500_096, embedding_size=768, encoder_flops=8 * 9.4e12,
    by_rows=True, shards_optimizer=False,
)  # fmt: skip
LAYER = OutputLayerSettings(group_size=32, row_capacity=327_680)


def estimated(layer: OutputLayerSettings = LAYER, **changes) -> dict[str, float]:
    return costs.estimates(STEP._replace(**changes), layer)


class CostsTest(parameterized.TestCase):
    @parameterized.parameters(
        ("full", False, "knn", False), ("full", False, "full", True), ("knn", False, "knn", True)
    )
    def test_compiled_steps_differ_by_about_as_much(self, *two):
        records = json.loads(COMPILED.read_text())

        def milliseconds(kind: str, shards: bool) -> tuple[float, float]:
            key = "" if shards else " mesh.shard_optimizer_over_data=False"
            preset = f"vocap_500k_{kind}{key} model.attention=blockwise"
            compiled = records[f"{preset} h100:8 packed"]["ms"]
            return 1e3 * estimated(shards_optimizer=shards)[kind], compiled

        found, compiled = np.subtract(milliseconds(*two[:2]), milliseconds(*two[2:]))
        self.assertAlmostEqual(found, compiled, delta=3)

    def test_a_sampled_layer_is_for_large_vocabularies_and_small_encoders(self):
        self.assertEqual(costs.cheapest(estimated()), "target_sampling")
        self.assertEqual(costs.cheapest(estimated(vocab_size=60_032)), "full")
        self.assertEqual(costs.cheapest(estimated(encoder_flops=1e15)), "full")
        # Fewer classes than negatives, and a rarely refreshed index.
        few = dataclasses.replace(LAYER, k=5)
        self.assertEqual(costs.cheapest(estimated(few)), "knn")
        often = dataclasses.replace(few, refresh_every=1)
        self.assertEqual(costs.cheapest(estimated(often)), "target_sampling")

    def test_an_exact_layer_is_kept_unless_much_is_saved(self):
        found = {"full": 1.09, "knn": 1.0, "target_sampling": 1.05, "blockwise": 1.2}
        self.assertEqual(costs.cheapest(found), "full")
        self.assertEqual(costs.cheapest({**found, "full": 1.11}), "knn")

    def test_logits_that_do_not_fit_are_no_choice(self):
        self.assertNotIn("full", estimated(sequences=2048, targets=2048 * 77))
        self.assertIn("full", estimated(sequences=2048, targets=2048 * 77, parts=8))

    def test_what_devices_share_they_do_once(self):
        for kind, alone in estimated(num_devices=1).items():
            self.assertGreater(estimated()[kind], alone / 8)  # they send the gradients
        # Reading and sending 1.5 GB takes milliseconds.
        split, whole = (estimated(table_shards=shards)["full"] for shards in (8, 1))
        self.assertGreater(whole - split, 10e-3)

    def test_parts_touch_all_rows(self):
        whole = dataclasses.replace(LAYER, row_capacity=10**6)
        self.assertEqual(estimated(parts=2), estimated(whole, parts=2))
        fewer, all_rows = (estimated(one, by_rows=False)["knn"] for one in (LAYER, whole))
        self.assertLess(fewer, all_rows)
