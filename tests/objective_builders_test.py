"""Objectives and streams of a config: what fits together, and what is made of it."""

import dataclasses
import weakref
from unittest import mock

import jax
import numpy as np
from absl.testing import parameterized
from ml_collections import ConfigDict

from input_pipeline.bitext import PAIRS, SEPARATE_PAIRS
from input_pipeline.packed_dataset import PackedDataset
from input_pipeline.stream import PACKED
from knn_sampling.noise import cumulative_thresholds
from tests.builders_test import objective_of, runlocal, write_dataset
from tests.factories import SPECIAL_IDS, with_pair_rows
from tests.folders import FolderTest
from tests.training import program_test
from xlm.common import artifacts
from xlm.common.schema import settings as settings_of
from xlm.experiment import (
    data,
    evaluation,
    evaluators,
    masked_lm,
    memory,
    objectives,
    output_layers,
    robust,
    streams,
)
from xlm.experiment import model as builders
from xlm.objectives.contrastive import SentenceContrast
from xlm.objectives.masked_lm import MaskedLM
from xlm.objectives.mixture import Term
from xlm.objectives.objective import Objective
from xlm.training.settings import MeshSettings
from xlm.training.sharding import make_mesh


class FitTest(parameterized.TestCase):
    def assert_refused(self, config: ConfigDict, message: str):
        with self.assertRaisesRegex(ValueError, message):
            objective_of(config)

    @parameterized.parameters((0, 4, 80, 1), (2, 2, 40, 1), (1, 1, 20, 1), (0, 2, 40, 2))
    def test_all_targets_of_a_group_must_fit_the_candidates(
        self, group_size, sequences, targets, num_parts
    ):
        config = runlocal(
            mask__rate=0.15, train__accumulation_steps=num_parts,
            output_layer__group_size=group_size, output_layer__capacity=targets,
        )  # fmt: skip
        objective_of(config)
        config.output_layer.capacity = targets - 1
        self.assert_refused(
            config,
            f"output_layer.capacity is {targets - 1}, .* {sequences} sequences .* {targets} .* "
            "lower output_layer.group_size or train.batch_size",
        )
        for kind in ("full", "blockwise", "target_sampling", "nce", "neg"):  # have no capacity
            config.output_layer.kind = kind
            objective_of(config)

    @parameterized.parameters(
        ("masked_lm", {"data__pair_share": 0.5}, "bfloat16"),
        ("masked_lm", {"data__pair_share": 0.5, "data__contrast_share": 0.2}, "bfloat16"),
        ("replaced_token", {}, "float32"),  # whose discriminator adds two tables
    )
    def test_the_type_that_tables_are_used_in(self, name, overrides, expected):
        objective = objective_of(runlocal(objective=name, model__dtype="bfloat16", **overrides))
        self.assertEqual(objective.used_dtype, expected)

    def test_all_targets_of_a_batch_of_pairs_must_fit_the_candidates(self):
        config = runlocal(
            mask__rate=0.15, mask__pair_rate=0.2, data__pair_share=0.5, output_layer__group_size=0,
            output_layer__capacity=104,
        )  # fmt: skip
        objective_of(config)
        config.output_layer.capacity = 103
        self.assert_refused(
            config, "output_layer.capacity is 103, .* 4 sequences of 128 tokens can have 104 .*"
        )
        config.output_layer.group_size = 2
        objective_of(config)

    def test_all_tokens_and_targets_of_a_batch_of_pairs_must_fit_the_rows(self):
        config = runlocal(
            mask__rate=0.15, mask__pair_rate=0.2, train__batch_size=2, data__pair_share=0.5,
            output_layer__row_capacity=2 * 128 + 2 * 26,
        )  # fmt: skip
        objective_of(config)
        config.output_layer.row_capacity -= 1
        self.assert_refused(
            config, "row_capacity is 307, must be at least 308: the 256 input tokens and 52 targets"
        )
        config.data.pair_share = 0.0  # sequences need 2 x (128 + 20)
        objective_of(config)
        config.data.pair_share = 0.5
        config.output_layer.kind = "full"  # reads all rows
        objective_of(config)

    def test_a_capacity_of_the_whole_vocabulary_is_enough(self):
        config = runlocal(train__batch_size=4000, output_layer__capacity=600)
        objective = objective_of(config)
        # 104,000 targets of 600 classes, in a table of 640 rows.
        found = objective.describe_table_reads(4000, 128)
        self.assertIn("1 x 640 candidates", found)
        config.output_layer.capacity = 599
        self.assert_refused(config, "output_layer.capacity is 599, ")

    def test_a_refresh_that_costs_more_than_it_saves_is_warned_of(self):
        # 600 tokens; 4 rows of 128, of which 20 are masked.
        keys = {"mask.rate": 0.15, "output_layer.refresh_every": 7}

        def start(**changes) -> None:
            config = runlocal(**{**keys, **changes})
            dataset = write_dataset(length=config.store.length)
            builders.log_choices(config, objective_of(config), dataset)

        with self.assertLogs(level="WARNING") as logs:
            start()
        self.assertRegex(
            logs.output[0], "refresh_every is 7: .* 600 tokens .* 560 targets.* set it to 75 "
        )
        with self.assertNoLogs(level="WARNING"):
            objective_of(runlocal(**keys))  # as it is read to be encoded with, or fine-tuned
            start(**{"output_layer.refresh_every": 8})
            start(**{"output_layer.kind": "full"})
            # The parts of a batch are one step.
            start(**{"train.batch_size": 8, "train.accumulation_steps": 2})

    @parameterized.parameters("knn", "target_sampling", "full")
    def test_groups_must_divide_the_batch(self, kind):
        config = runlocal(output_layer__kind=kind, output_layer__group_size=3)
        message = "output_layer.group_size is 3, must divide the batch of 4 sequences"
        self.assert_refused(config, message)

    @parameterized.parameters((4, 1, 2, 4), (2, 2, 2, 4), (8, 1, 1, 8), (-1, 4, 1, 8))
    def test_the_batch_must_fit_the_mesh(self, data, fsdp, model, multiple):
        config = runlocal()
        config.mesh.update(data=data, fsdp=fsdp, model=model)
        config.train.batch_size = multiple
        mesh = builders.mesh(config)
        self.assertEqual((mesh.size, mesh.shape["fsdp"], mesh.shape["model"]), (8, fsdp, model))
        config.train.batch_size = multiple + 2
        with self.assertRaisesRegex(
            ValueError, f"train.batch_size is {multiple + 2}, must be a multiple of {multiple}"
        ):
            builders.mesh(config)

    @parameterized.parameters("pair_share", "contrast_share")
    def test_every_batch_and_every_part_of_it_must_split_over_the_devices(self, share):
        dataset, mesh = write_dataset(), builders.mesh(runlocal())
        for changes, message in (
            ({"train.accumulation_steps": 2}, r"train.batch_size: 4 .* 8: .* each of the 2 parts"),
            ({"data.block_bytes": 256, "data.lanes": 3}, "train.batch_size: 4 .* data.lanes, 3"),
        ):
            config = runlocal()
            config.data[share] = 0.1
            streams.training_data(config, dataset, mesh)
            config.update_from_flattened_dict(changes)
            with self.assertRaisesRegex(ValueError, message):
                streams.training_data(config, dataset, mesh)

    def test_rows_must_fit_the_positions(self):
        config = runlocal(model__max_length=127)
        message = r"model.max_length is 127, but sequences have 128 tokens \(store.length\)"
        self.assert_refused(config, message)

    def test_parallel_sentences_must_fit_the_positions(self):
        config, dataset = runlocal(), write_dataset()
        one = masked_lm.masked_lm_of(objectives.objective(config, dataset))
        dataset = dataclasses.replace(dataset, parallel={"set": ("en", "sw")})
        path = dataset.folder / "set.en.parallel.npy"
        np.save(path, np.full((2, 128), 7, np.uint16))
        evaluation.retrieval(config, one, dataset, None)
        np.save(path, np.full((2, 129), 7, np.uint16))
        message = r"model.max_length is 128, but .* 129 tokens in .* \(store.parallel_length"
        with self.assertRaisesRegex(ValueError, message):
            evaluation.retrieval(config, one, dataset, None)
        with self.assertRaisesRegex(ValueError, message):
            evaluators.training_evaluators(config, one, dataset, None)

    def test_a_part_that_fits_the_candidates_is_what_evaluation_plans(self):
        config = runlocal(
            mask__rate=0.15, model__num_layers=0, train__accumulation_steps=2,
            output_layer__capacity=40,
        )  # fmt: skip
        config.mesh.update(data=1, model=1)
        mesh = make_mesh(settings_of(MeshSettings, config.mesh), jax.devices()[:1])
        objective = objective_of(config, mesh)
        functions = builders.train_functions(config, objective, mesh)
        state, _ = functions.refresh(objective.due(0), functions.init(np.int32(0)))
        _, sampled = evaluators.training_evaluators(config, objective, write_dataset(), mesh)
        found = sampled(state)
        self.assertBetween(found["sampling/candidates"], 20, 200)
        self.assertBetween(found["sampling/sampled_loss"], 1, found["sampling/exact_loss"])


def tokens_term(term: Term) -> MaskedLM:
    """The masked LM that a term is or has."""
    is_contrast = isinstance(term.objective, SentenceContrast)
    return term.objective.masked_lm if is_contrast else term.objective


class PairSamplingTest(parameterized.TestCase):
    def dataset_and_config(self, **changes) -> tuple[PackedDataset, ConfigDict]:
        """Pairs of English with three languages, each language with a token of its own."""
        dataset = write_dataset()
        sizes = {"am": 40, "sw": 8, "yo": 2}
        for number, (name, size) in enumerate(sizes.items()):
            for language, token in (("en", 10), (name, 11 + number)):
                path = dataset.folder / f"{name}.{language}.bitext.npy"
                np.save(path, np.full(3 * size, token, np.uint16))
                np.save(dataset.folder / f"{name}.{language}.ends.npy", 3 * np.arange(1, size + 1))
        bitexts = {name: ("en", name) for name in sizes}
        config = runlocal(data__pair_share=0.4, data__loader="threads")
        config.data.update(changes)
        return with_pair_rows(dataclasses.replace(dataset, bitexts=bitexts)), config

    @parameterized.parameters("proportional", "uniform", "pivot", "m2m", "sinkhorn")
    def test_targets_and_stream_follow_the_sampling(self, method):
        dataset, config = self.dataset_and_config(pair_sampling=method, pair_temperature=1.0)
        weights = [1, 1, 1] if method == "uniform" else [40, 8, 2]
        shares = np.array(weights) / sum(weights)
        objective = objectives.objective(config, dataset)
        expected = np.ones(640)
        # Half of the tokens are English; 300 tokens of bitext.
        expected[10:14] += 300 * np.array([0.5, *shares / 2])
        expected[[*SPECIAL_IDS.special_ids(), *range(600, 640)]] = 0
        statistics = objective.terms[PAIRS].objective.statistics
        np.testing.assert_allclose(statistics.probabilities, expected / expected.sum(), rtol=1e-5)

        data = streams.training_data(config, dataset, builders.mesh(config))
        found = np.zeros(3)
        for kind, batch in data.batches(range(2400)):
            if kind == PAIRS:
                found += np.bincount(batch["pair"], batch["segments"].max(axis=1), minlength=3)
        np.testing.assert_allclose(found / found.sum(), shares, atol=0.04)

    def test_lanes_that_hosts_share_are_told(self):
        dataset, config = self.dataset_and_config(block_bytes=256, lanes=2)
        mesh = builders.mesh(config)
        for num_parts, logs in ((2, self.assertNoLogs), (4, self.assertLogs)):
            with (
                mock.patch.object(streams, "host_parts", return_value=((1,), num_parts)),
                logs(level="WARNING") as logged,
            ):
                data = streams.training_data(config, dataset, mesh)
            self.assertEqual((data.parts, data.num_parts), ((1,), num_parts))
        self.assertIn("data.lanes is 2, no multiple", logged.output[0])

    @parameterized.parameters(
        ({"lanes": 3, "block_bytes": 256}, "train.batch_size: 4 must be .* of data.lanes, 3"),
        ({"lanes": 2}, "data.lanes is 2, but data.block_bytes is 0"),
        ({"pair_sampling": "pivot", "pair_pivot": "xx"}, "data.pair_pivot is 'xx'"),
    )
    def test_keys_that_cannot_be(self, changes, message):
        dataset, config = self.dataset_and_config(**changes)
        if "pair_pivot" in changes:
            with self.assertRaisesRegex(ValueError, message):
                objectives.objective(config, dataset)
        with self.assertRaisesRegex(ValueError, message):
            streams.training_data(config, dataset, builders.mesh(config))

    def test_the_certificate_is_logged_when_training_starts(self):
        endings = {
            1.0: r"DEBUG:.*data.pair_sampling sinkhorn: .* 1 iterations, .*wanted 0.4000\)$",
            9.0: r"WARNING:.* \(en, wanted 0.2...\); no distribution has these marginals: lower",
        }
        for temperature, message in endings.items():
            dataset, config = self.dataset_and_config(
                pair_sampling="sinkhorn", pair_temperature=temperature
            )
            with self.assertLogs(level="DEBUG") as logs:
                streams.training_data(config, dataset, builders.mesh(config))
            self.assertLen(logs.output, 1)
            self.assertRegex(logs.output[0], message)
            config.update(objective="replaced_token")
            config.robust.num_phases = 1
            with self.assertLogs(level="DEBUG") as logs:
                robust.training_data(config, dataset, builders.mesh(config), dataset.folder)
            self.assertRegex(logs.output[0], message)

    def test_without_bitext_only_the_stream_refuses(self):
        """A memory estimate builds objectives without data."""
        dataset, config = self.dataset_and_config(pair_sampling="sinkhorn")
        dataset = dataclasses.replace(dataset, bitexts={}, pairs={})
        self.assertIn(PAIRS, objectives.objective(config, dataset).terms)
        with self.assertRaisesRegex(ValueError, "rows hold no bitext"):
            streams.training_data(config, dataset, builders.mesh(config))


class ObjectiveTest(parameterized.TestCase):
    @parameterized.parameters("continue", "restart")
    def test_distances_of_a_pair_in_one_segment_are_those_of_its_positions(self, positions: str):
        config = program_test.config("pairs")
        config.data.pair_positions = positions
        terms = objectives.objective(config, program_test.small_dataset()).terms
        restart = {kind: tokens_term(term).positions_restart for kind, term in terms.items()}
        expected = {PACKED: False, PAIRS: positions == "restart", SEPARATE_PAIRS: False}
        self.assertEqual(restart, expected)

    def test_the_target_probabilities_are_those_of_the_stream(self):
        objective = objective_of(runlocal(data__alpha=1.0))
        # Three quarters of the text are English; both have counts that grow with the id.
        expected = np.zeros(640)
        for share, slope in ((0.75, 1), (0.25, 2)):
            counts = np.arange(600) * slope + 1.0
            counts[[0, 1, 2, 4]] = 0
            expected[:600] += share * counts / counts.sum()
        statistics = objective.statistics
        np.testing.assert_allclose(statistics.probabilities, expected, rtol=1e-6)
        np.testing.assert_array_equal(statistics.thresholds, cumulative_thresholds(expected))
        self.assertEqual(objective.encoder.settings.vocab_size, 640)
        self.assertEqual(objective.output_layer.num_valid, 600)

    def test_the_targets_of_pairs_and_of_later_phases_have_probabilities_of_their_own(self):
        config, dataset = program_test.config("pairs"), program_test.small_dataset()
        terms = objectives.objective(config, dataset).terms
        packed, pairs = terms[PACKED].objective, terms[PAIRS].objective
        separate = terms[SEPARATE_PAIRS].objective.masked_lm
        self.assertIs(separate.statistics, pairs.statistics)

        # One set in two languages: each of its sentences is in one pair.
        ids = np.concatenate([dataset.bitext("set", one).ids for one in ("aa", "bb")])
        counts = np.bincount(ids, minlength=packed.encoder.settings.vocab_size) + 1.0
        counts[[*dataset.special.special_ids(), *range(dataset.vocab_size, len(counts))]] = 0
        expected = counts / counts.sum()
        np.testing.assert_allclose(pairs.statistics.probabilities, expected, rtol=1e-5)
        self.assertGreater(np.abs(expected - packed.statistics.probabilities).max(), 1e-3)

        # From the second step on packed sequences on, some two in five of all steps.
        ((first, later),) = packed.later_statistics
        self.assertEqual(first, 5)
        shares = masked_lm.language_shares(config, dataset, 0.0)
        expected = masked_lm.token_statistics(dataset, shares, len(counts)).probabilities
        np.testing.assert_array_equal(later.probabilities, expected)

    def test_statistics_are_those_of_all_counts_at_once(self):
        dataset, rng = write_dataset(vocab_size=200), np.random.default_rng(0)
        shares = dict(zip("abcdefghijk", rng.dirichlet(np.ones(11)), strict=True))
        shares["a"] = shares["c"] = 0.3
        counts = {name: rng.integers(0, 4, 200) for name in shares}
        counts["c"] = counts["a"]  # ties
        rows = np.zeros((11, 256))
        special, open_at_once = list(SPECIAL_IDS.special_ids()), []
        for row, name in zip(rows, shares, strict=True):
            row[:200] = counts[name] + 1
            row[special] = 0
            row[:] = shares[name] * row / row.sum()
        mixed = rows.sum(axis=0)
        seen = np.pad(np.sum([*counts.values()], axis=0) > 0, (0, 56))
        seen[special] = False

        def token_counts(_, name: str) -> np.ndarray:
            found = counts[name].copy()
            open_at_once.append(sum(one() is not None for one in given))
            given.append(weakref.ref(found))
            return found

        given: list[weakref.ref] = []
        with mock.patch.object(PackedDataset, "token_counts", token_counts):
            found = masked_lm.token_statistics(dataset, shares, 256)
        np.testing.assert_array_equal(found.probabilities, mixed.astype(np.float32))
        np.testing.assert_array_equal(found.thresholds, cumulative_thresholds(mixed))
        expected = np.where(seen, rows.argmax(axis=0), -1)
        np.testing.assert_array_equal(found.languages, expected)
        self.assertGreater(np.sum(expected == 0), 10)
        self.assertLessEqual(max(open_at_once), 1)
        # By hand: 16 and 11 tokens counted, so a smaller text makes equal counts weigh more.
        dataset = write_dataset(vocab_size=10)
        np.save(dataset.folder / "en.counts.npy", [9, 9, 9, 9, 9, 4, 0, 1, 5, 0])
        np.save(dataset.folder / "sw.counts.npy", [9, 9, 9, 0, 9, 0, 3, 1, 4, 0])
        found = masked_lm.token_statistics(dataset, {"en": 0.5, "sw": 0.5}, vocab_size=12)
        self.assertEqual(found.languages.tolist(), [-1, -1, -1, 0, -1, 0, 1, 1, 1, -1, -1, -1])

    @parameterized.parameters(
        (0.0, 0.0, (PACKED,)), (0.2, 0.0, (PACKED, PAIRS)), (0.0, 0.2, (PACKED, SEPARATE_PAIRS)),
        (0.2, 0.2, (PACKED, PAIRS, SEPARATE_PAIRS)),
    )  # fmt: skip
    def test_terms_are_those_that_the_stream_has_batches_for(self, pairs, contrast, kinds):
        config = runlocal(data__pair_share=pairs, data__contrast_share=contrast)
        objective = objective_of(config)
        one = masked_lm.masked_lm_of(objective)
        self.assertIs(type(one), MaskedLM)
        self.assertEqual(one.languages, ("en", "sw"))
        if len(kinds) == 1:
            self.assertIs(objective, one)
            return
        self.assertEqual(tuple(objective.terms), kinds)
        # What only counts for the metrics of packed rows is not asked of pairs.
        for kind in kinds[1:]:
            self.assertEmpty(tokens_term(objective.terms[kind]).languages)

    def test_the_last_phase_begins_with_the_steps_that_are_exact(self):
        for kind, fraction, expected in (("knn", 0.25, 15), ("nce", 0.0, 20), ("full", 0.25, None)):
            config = runlocal(train__num_steps=20, output_layer__kind=kind)
            config.output_layer.full_softmax_fraction = fraction
            self.assertEqual(objective_of(config).full_softmax_from, expected)

    def test_objectives_without_masked_lm_are_told(self):
        objective = Objective()
        self.assertFalse(masked_lm.has_masked_lm(objective))
        with self.assertRaisesRegex(ValueError, "Objective has no masked LM on packed sequences"):
            masked_lm.masked_lm_of(objective)

    def test_parameters_of_one_side_or_of_another_shape_differ(self):
        there = {"both": (2,), "wide": (2, 3), "theirs": (4,)}
        here = {"both": (2,), "wide": (2, 5), "ours": (4,)}
        self.assertEqual(objectives.differing(there, here), ["ours", "theirs", "wide"])
        self.assertEmpty(objectives.differing(here, dict(here)))
        self.assertEqual(objectives.shapes({"a": {"b": np.zeros((2, 3))}}), {"a.b": (2, 3)})


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
