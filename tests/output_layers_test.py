"""The output layer "auto": chosen once, recorded, and kept on other devices."""

from unittest import mock

from tests.folders import FolderTest
from tests.training import program_test
from xlm.common import artifacts
from xlm.experiment import data, memory, objectives, output_layers


class AutoTest(FolderTest):
    def setUp(self):
        super().setUp()
        self.config = program_test.config("plain")
        self.config.output_layer.update(kind="auto", log_q_correction=False)
        self.config.store.length = program_test.L
        self.folders = data.Folders(self.folder)

    def resolved(self, fastest: str):
        cheapest = mock.patch.object(output_layers.costs, "cheapest", return_value=fastest)
        with cheapest, self.assertLogs(level="INFO") as logs:
            found = output_layers.resolved(self.config, program_test.small_dataset(), self.folders)
        return found.output_layer, "\n".join(logs.output)

    def test_the_fastest_with_its_reasons(self):
        layer, line = self.resolved("target_sampling")
        self.assertEqual((layer.kind, layer.log_q_correction), ("target_sampling", True))
        self.assertRegex(line, '"auto" is target_sampling: .* full .*, blockwise .*, knn .*, targ')
        layer, _ = self.resolved("full")
        self.assertEqual((layer.kind, layer.log_q_correction), ("full", False))
        self.assertEqual(self.config.output_layer.kind, "auto")

    def test_a_run_keeps_what_its_record_has(self):
        artifacts.write_json(self.folders.rows / "settings.json", {})
        chosen = self.config.copy_and_resolve_references()
        chosen.output_layer.kind = "knn"  # without log Q
        data.open_train_stage(chosen, self.folders).claim()
        with mock.patch.object(output_layers.costs, "cheapest", return_value="full"):
            again = output_layers.resolved(self.config, program_test.small_dataset(), self.folders)
        self.assertEqual(again.output_layer, chosen.output_layer)
        data.open_train_stage(again, self.folders)  # which refuses another one

    def test_nothing_is_built_before_the_choice(self):
        with self.assertRaisesRegex(ValueError, "'auto', but make_output_layer has no layer"):
            objectives.objective(self.config, program_test.small_dataset())

    def test_memory_is_that_of_the_layer_chosen_for_gpus(self):
        found = {}
        for kind in ("blockwise", "target_sampling"):
            with mock.patch.object(output_layers.costs, "cheapest", return_value=kind):
                found[kind] = memory.estimate(self.config, 1).bytes()
            self.config.output_layer.kind = kind
            self.assertEqual(found[kind], memory.estimate(self.config, 1).bytes())
            self.config.output_layer.kind = "auto"
