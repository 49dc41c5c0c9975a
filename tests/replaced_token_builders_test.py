"""Replaced-token detection of a config: terms, settings, and what does not fit."""

import dataclasses
import json
from unittest import mock

import jax
import numpy as np
from absl.testing import parameterized
from ml_collections import ConfigDict

from configs import xy_lent
from input_pipeline.bitext import PAIRS
from input_pipeline.packed_dataset import PackedDataset
from input_pipeline.stream import PACKED
from tests import folders
from tests.training import program_test
from xlm.evaluation.replaced_token import ReplacedTokenDetection
from xlm.experiment import evaluators, masked_lm, model, objectives, pretrained, robust, streams
from xlm.experiment.masked_lm import encoder_of, has_masked_lm, masked_lm_of
from xlm.experiment.memory import activation_sizes, estimate
from xlm.experiment.robust import robust_settings
from xlm.objectives.mixture import Mixture
from xlm.objectives.objective import Batch
from xlm.objectives.replaced_token import GENERATOR, ReplacedToken


def config(**changes) -> ConfigDict:
    found = xy_lent.get_config("runlocal")
    found.store.length = program_test.L
    found.model.max_length = program_test.L
    found.data.kinds = "random"
    found.mesh.update(data=4, model=2)
    found.update_from_flattened_dict(changes)
    return found


def objective_of(**changes) -> Mixture | ReplacedToken:
    return objectives.objective(config(**changes), program_test.small_dataset())


class ObjectiveTest(parameterized.TestCase):
    def test_terms(self):
        objective = objective_of(**{"model.dropout_rate": 0.2, "model.attention_dropout_rate": 0.3})
        self.assertEqual(tuple(objective.terms), (PACKED, PAIRS))
        packed, pairs = (term.objective for term in objective.terms.values())
        self.assertEqual([term.name for term in objective.terms.values()], ["mrtd", "trtd"])
        self.assertEqual((packed.name, pairs.name), ("mrtd", "trtd"))
        for term in (packed, pairs):
            self.assertEqual(term.generator.scope, GENERATOR)
            self.assertEqual(term.num_pairs, 0)
            generator, discriminator = term.generator.encoder.settings, term.encoder.settings
            self.assertEqual((generator.num_layers, discriminator.num_layers), (1, 2))
            self.assertEqual((generator.dropout_rate, generator.attention_dropout_rate), (0, 0))
            rates = discriminator.dropout_rate, discriminator.attention_dropout_rate
            self.assertEqual(rates, (0.2, 0.3))
            self.assertEqual(
                dataclasses.replace(
                    generator, num_layers=2, dropout_rate=0.2, attention_dropout_rate=0.3,
                ),
                discriminator,
            )  # fmt: skip

    @parameterized.parameters((0.5, (16, 1, 32)), (0.25, (8, 1, 16)), (1.0, (32, 2, 64)))
    def test_a_narrow_generator_shares_the_discriminators_embeddings(self, width, expected):
        changes = {"replaced_token.generator_width": width, "data.pair_share": 0.0}
        one = objective_of(**changes, **{"model.embedding_size": 32})
        found, own = one.generator.encoder.settings, one.encoder.settings
        self.assertEqual((found.hidden_size, found.num_heads, found.mlp_size), expected)
        self.assertEqual((own.hidden_size, own.num_heads, own.mlp_size), (32, 2, 64))
        shapes = objectives.parameter_shapes(one)
        table = shapes["generator.embeddings.table"]
        self.assertEqual(table, shapes["discriminator.embeddings.table"])
        self.assertEqual(table[1], 32)
        project = shapes.get("generator.embeddings.project.kernel", (32, 32))
        self.assertEqual(project, (32, expected[0]))
        self.assertEqual(shapes["generator.head.dense.kernel"], project[::-1])

    @parameterized.parameters(
        ({"replaced_token.generator_width": 0.77}, "0.77, which makes .* of width 25 with 2 heads"),
        ({"replaced_token.corrective_weight": 2.0, "output_layer.kind": "nce"},
         'weight is 2.0, but output_layer.kind "nce" has no probabilities .*; choose "knn"'),
    )  # fmt: skip
    def test_generators_and_corrections_that_cannot_be(self, changes, message):
        with self.assertRaisesRegex(ValueError, message):
            objective_of(**changes)

    def test_the_estimate_knows_the_width_and_the_correction(self):
        def activations(**changes) -> int:
            found = config(**{"data.pair_share": 0.0, "output_layer.kind": "full", **changes})
            found.mesh.update(data=1, model=1)
            return estimate(found, 1).bytes()["activations"]

        key, plain = "replaced_token.generator_width", activations()
        narrow = activations(**{key: 0.5})
        sizes = (
            activation_sizes(one.encoder.settings, 8, program_test.L, 0)
            for one in (objective_of(**{"data.pair_share": 0.0, key: width}).generator
                        for width in (1.0, 0.5))
        )  # fmt: skip
        # The layer in work is the discriminator's, the wider one.
        wide, small = (one.bytes() - one.work_bytes() for one in sizes)
        self.assertEqual(plain - narrow, wide - small)
        slots = config().mask.rate * program_test.L
        logits = 8 * int(-(-slots // 1)) * config().vocab.target_size
        corrected = activations(**{"replaced_token.corrective_weight": 1.0})
        self.assertEqual(corrected - plain, 4 * logits)

    def test_joint_steps_have_one_objective_of_both_tasks(self):
        joint, apart = (
            objective_of(**{
                "data.kinds": kinds, "output_layer.kind": "nce", "mask.pair_rate": 0.3,
                "data.pair_weight": 0.25, **ROBUST,
            }) for kinds in ("joint", "random")
        )  # fmt: skip
        self.assertIs(encoder_of(joint), joint)
        self.assertEqual((joint.num_pairs, joint.pair_rate), (1, 0.25))
        self.assertEqual(joint.generator.pair_weight, 0.25)
        self.assertEqual([one.weight for one in apart.terms.values()], [1, 0.25])
        text, pairs = (
            one.objective.generator.statistics.probabilities for one in apart.terms.values()
        )
        expected = (0.2 * text + 0.3 * pairs) / 0.5  # of as many rows, by the rate of masks
        found = joint.generator.statistics.probabilities
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        with self.assertRaisesRegex(ValueError, 'data.kinds is "joint" and data.contrast_share 0'):
            objective_of(
                objective="masked_lm", **{"data.kinds": "joint", "data.contrast_share": 0.1}
            )
        settings = config(**{"data.kinds": "joint", "data.pair_share": 0.25})
        with self.assertRaisesRegex(ValueError, "rows of each task: 6 must be a multiple of 4"):
            streams.check_batches(settings, program_test.small_dataset(), model.mesh(settings))

    @parameterized.parameters("full", "blockwise")
    def test_an_exact_generator_reads_no_counts_that_it_does_not_use(self, kind):
        changes = {"output_layer.kind": kind, "data.alpha_phases": ((2, 0.3),)}
        with (
            mock.patch.object(masked_lm, "token_counts", side_effect=AssertionError("bitext")),
            mock.patch.object(
                PackedDataset, "token_counts", autospec=True, side_effect=PackedDataset.token_counts
            ) as read,
        ):
            objective = objective_of(**changes)
            # For the bias, of the first phase.
            self.assertEqual([call.args[1] for call in read.call_args_list], ["aa", "bb"])
            plain = objective_of(**changes, **{"output_layer.frequency_bias": False})
            self.assertLen(read.call_args_list, 2)
        for one in (objective, plain):
            for term in one.terms.values():
                generator = term.objective.generator
                self.assertEmpty(generator.later_statistics)
                tokens = jax.ShapeDtypeStruct((4, program_test.L), np.int32)
                arrays = dict.fromkeys(("tokens", "segments", "positions"), tokens)
                language = jax.ShapeDtypeStruct((4,), np.int32)
                batch = Batch({**arrays, "language": language, "pair": language}, PACKED)
                key = jax.eval_shape(lambda: jax.random.key(0))
                plan, _ = jax.eval_shape(generator.plan, {}, batch, key, 0)
                self.assertIsNone(plan.sample)

    @parameterized.parameters("knn", "target_sampling", "nce", "neg")
    def test_a_sampled_generator_knows_the_tokens_of_pairs(self, kind):
        objective = objective_of(**{"output_layer.kind": kind, "output_layer.capacity": 512})
        for term in objective.terms.values():
            found = term.objective.generator.statistics.probabilities
            self.assertAlmostEqual(float(found.sum()), 1, places=5)

    def test_parts_for_evaluation_and_export(self):
        objective = objective_of()
        self.assertTrue(has_masked_lm(objective))
        packed = objective.terms[PACKED].objective
        self.assertIs(encoder_of(objective), packed)
        self.assertIs(masked_lm_of(objective), packed.generator)
        masked_lm = objective_of(objective="masked_lm")
        self.assertIs(encoder_of(masked_lm), masked_lm.terms[PACKED].objective)
        # Without pairs there is one term.
        objective = objective_of(**{"data.pair_share": 0.0})
        self.assertIsInstance(objective, ReplacedToken)
        self.assertEqual(objective.name, "mrtd")
        self.assertIs(encoder_of(objective), objective)
        with self.assertRaisesRegex(ValueError, r"data.contrast_share is 0.1, .* set it to 0"):
            objective_of(**{"data.contrast_share": 0.1})


ROBUST = {"robust.num_phases": 3, "robust.rate": 0.25}


class RobustTest(folders.FolderTest):
    def test_losses_by_pair_are_those_of_the_pairs_in_the_rows(self):
        objective = objective_of(**ROBUST)
        packed, pairs = (term.objective for term in objective.terms.values())
        self.assertEqual((packed.num_pairs, pairs.num_pairs, pairs.pair_rate), (0, 1, 0.25))

    @parameterized.parameters(
        ({"objective": "masked_lm"}, "robust.num_phases is 3, .* set robust.num_phases to 0"),
        ({"data.pair_share": 0.0}, "needs data.pair_share above 0"),
        ({"data.pair_sampling": "alpha"}, 'data.pair_sampling is "alpha", .* "proportional"'),
    )
    def test_what_it_needs(self, changes, message):
        found = config(**ROBUST, **changes)
        with self.assertRaisesRegex(ValueError, message):
            robust_settings(found)
        with self.assertRaisesRegex(ValueError, message):
            robust.training_data(
                found, program_test.small_dataset(), model.mesh(found), self.folder
            )
        self.assertEmpty(list(self.folder.iterdir()))
        robust_settings(config(**{"robust.num_phases": 0}, **changes))


class FrozenGeneratorTest(folders.FolderTest):
    def detection(self) -> ReplacedTokenDetection:
        settings = config(**{"evaluation.frozen_generator": str(self.folder)})
        objective = objectives.objective(settings, program_test.small_dataset())
        mesh = model.mesh(settings)
        return evaluators.detection(
            settings, encoder_of(objective), program_test.small_dataset(), mesh, in_training=True
        )

    def trained(self, dataset: PackedDataset) -> None:
        """Have a run in the folder, on rows."""
        (self.folder / "train").mkdir()
        (self.folder / "train" / "settings.json").write_text(json.dumps({}))
        found = model.Trained(objective_of(), {}, 3)
        self.enter_context(mock.patch.object(pretrained, "read_run", lambda *_: found))
        self.enter_context(mock.patch.object(evaluators, "open_packed_dataset", lambda _: dataset))

    def test_runs_that_cannot_be(self):
        with self.assertRaisesRegex(ValueError, "frozen_generator is .*, which is no --workdir"):
            self.detection()
        self.trained(dataclasses.replace(program_test.small_dataset(), tokenizer="other"))
        with self.assertRaisesRegex(ValueError, "whose vocabulary differs from this run's"):
            self.detection()
        found = model.Trained(objective_of(objective="masked_lm"), {}, 3)
        message = "a run without a generator: its objective is MaskedLM; name one of"
        with (
            mock.patch.object(pretrained, "read_run", lambda *_: found),
            self.assertRaisesRegex(ValueError, message),
        ):
            self.detection()
