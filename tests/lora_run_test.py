"""Runs of finetune.py with low-rank updates: what they keep, export and resume."""

import jax
import numpy as np
from absl.testing import parameterized

from tests import commands, folders, tiny_tasks
from tests.fine_tuning_memory_test import config_of, estimate
from xlm.experiment.pretrained import read_pretrained
from xlm.interop.params_file import read_params
from xlm.training.metrics import read_metrics
from xlm.training.signals import Stopped

LORA = {"optimizer__lora_rank": 4, "optimizer__lora_targets": ("mlp/wide",),
        "optimizer__layer_decay": 0.9, "optimizer__learning_rate": 1e-2,
        "train__epochs": 4.0}  # fmt: skip


class LoraRunTest(folders.FolderTest):
    def test_a_run_is_kept_merged_and_resumes(self):
        config = tiny_tasks.config("udpos", **LORA, task__label_smoothing=0.9)
        run, stopped, output = (self.folder / name for name in ("run", "stopped", "exported"))
        results = tiny_tasks.run(config, run)
        records = read_metrics(run / "metrics.jsonl")
        # The least loss of 17 classes, and of evaluations, which have no smoothing.
        self.assertGreater(min(one.get("train/loss", 3) for one in records), 2.77)
        self.assertLess(results["training_loss"], 2.6)
        with self.assertRaises(Stopped):
            tiny_tasks.run(config, stopped, stops_after=8)
        tiny_tasks.run(config, stopped)
        for name in ("best.safetensors", "metrics.jsonl", "results.json"):
            self.assertEqual((run / name).read_bytes(), (stopped / name).read_bytes(), name)
        params, _ = read_params(run / "best.safetensors")
        self.assertEqual(set(params), {"encoder", "task"})
        base = {k: v for k, v in read_pretrained(config.init_from).params.items() if k != "head"}
        ways = jax.tree.map(lambda one, other: one - other, params["encoder"], base)
        way = ways["layers"]["mlp"]["wide"].pop("kernel")
        self.assertEqual(np.linalg.matrix_rank(way, tol=1e-5).tolist(), [4, 4])
        self.assertEqual({float(np.abs(one).max()) for one in jax.tree.leaves(ways)}, {0.0})
        made = commands.execute("export_model", f"--workdir={run}", f"--output={output}")
        self.assertEqual(made.returncode, 0, made.stderr)
        exported = read_pretrained(str(output)).params
        of_encoder = {name: exported[name] for name in base}
        jax.tree.map(np.testing.assert_array_equal, of_encoder, params["encoder"])
        card = (output / "README.md").read_text(encoding="utf-8")
        self.assertIn("| lora | rank 4, alpha 16: mlp/wide |\n| layer_decay | 0.9 |", card)

    @parameterized.parameters(
        ({"optimizer__frozen": ("embeddings",)}, "frozen is .* the whole encoder is frozen"),
        ({"optimizer__lora_targets": ("mlp/deep",)}, "names 'mlp/deep', must be .*mlp/wide"),
        ({"optimizer__lora_targets": ()}, "lora_rank is 4, but .*targets are"),
        ({"optimizer__lora_rank": 0, "optimizer__frozen": ("layers",)}, "layer_decay is 0.9, but"),
        ({"task__label_smoothing": 0.1}, "label_smoothing is 0.1, but xquad has no"),
    )
    def test_what_cannot_be_is_refused(self, changes, error):
        with self.assertRaisesRegex(ValueError, error):
            tiny_tasks.run(tiny_tasks.config("xquad", **{**LORA, **changes}), self.folder / "run")
        self.assertFalse((self.folder / "run").exists())

    def test_moments_of_the_factors_alone_are_estimated(self):
        whole = estimate(config_of(), 1, "xlmr_base").state
        state = estimate(config_of(optimizer__lora_rank=8), 1, "xlmr_base").state
        self.assertEqual(state["parameters"] - whole["parameters"], 4 * 12 * 2 * 16 * 768)
        self.assertLess(state["gradients"], 0.01 * whole["gradients"])
