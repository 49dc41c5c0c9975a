"""Search by a decoder with a cache, against one that decodes each prefix again."""

import dataclasses
import functools
from unittest import mock

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from input_pipeline.tasks.features import TranslationFeature
from knn_sampling.exact_layers import FullSoftmax
from tests.models import encoder_test
from tests.models.factories import random_params
from xlm.evaluation import decoding as decoding_of_beams
from xlm.evaluation import translating
from xlm.evaluation.decoding import TokenIds, beam_search
from xlm.evaluation.settings import DecodingSettings
from xlm.evaluation.translating import Translator, search
from xlm.experiment.fine_tuning import MESH
from xlm.models.attention import Cache
from xlm.models.encoder import Encoder
from xlm.models.transformer import Context
from xlm.objectives.translation import Translation, context_mask
from xlm.training.flops import matmul_flops
from xlm.training.sharding import make_mesh

BOS, PAD, EOS, PIECES = 0, 1, 2, 36
IDS = TokenIds(eos=EOS, pad=PAD, forbidden=(BOS, PAD), num_classes=PIECES)
SYMBOLS = (37, 39)  # rows beyond the pieces
ALL = (*encoder_test.ALL, dataclasses.replace(encoder_test.GATED, embedding_size=16))
# With decoders of as many layers, for what does not depend on the encoder.
SHALLOW = tuple(dataclasses.replace(settings, num_layers=0) for settings in ALL)


def model(settings) -> Translation:
    decoder = dataclasses.replace(settings, num_layers=3, cross_attention=True)
    return Translation(Encoder(settings), Encoder(decoder), FullSoftmax(PIECES), 0.1)


@functools.cache
def params(settings):
    encoder = dict(random_params(settings))
    decoder = dict(random_params(model(settings).decoder.settings))
    del encoder["head"], decoder["embeddings"]
    return {"encoder": encoder, "decoder": decoder}


def features(lengths=(7, 3, 5, 9, 4)) -> list[TranslationFeature]:
    rng = np.random.default_rng(1)
    found = []
    for number, length in enumerate(lengths):
        tokens = np.array([BOS, *rng.integers(5, PIECES, length), EOS], np.int32)
        found.append(TranslationFeature(number, tokens, SYMBOLS[number % 2], None))
    return found


def batch_of(some) -> dict[str, np.ndarray]:
    rows = [one.arrays(12, PAD) for one in some]
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


@functools.partial(jax.jit, static_argnames=("settings", "decoding"))
def slow_search(values, batch, settings, decoding):
    """Tokens of the best hypotheses; each step decodes all tokens of each hypothesis again."""
    one = model(settings)
    beams, length = decoding.beams, decoding.max_length
    states = jnp.repeat(one.states(values, batch), beams, axis=0)
    mask = jnp.repeat(context_mask(batch), beams, axis=0)
    table, bias = one.output_table(values)
    decoder = {"params": one.decoder_params(values)}

    def step(tokens, before, index):
        before = before.at[:, index].set(tokens)
        positions = jnp.broadcast_to(jnp.arange(length), before.shape)
        hidden = one.decoder.apply(
            decoder, before, jnp.ones_like(before), positions, Context(states, mask),
            deterministic=True, method="decode",
        )  # fmt: skip
        hidden = one.decoder.apply(decoder, hidden[:, index], method="predict")
        return hidden @ table.T + bias[None], before

    empty = jnp.zeros((len(states), length), jnp.int32)
    return beam_search(step, batch["first_token"], empty, decoding, IDS).tokens[:, 0]


class SearchTest(parameterized.TestCase):
    @parameterized.product(settings=SHALLOW, beams=(1, 3))
    def test_equals_decoding_every_prefix(self, settings, beams):
        # Random models prefer repetitions. Without them, each token depends on earlier ones.
        decoding = DecodingSettings(beams=beams, max_length=8, no_repeat_ngram=1)
        batch = batch_of(features())
        one, values = model(settings), params(settings)
        found = jax.jit(lambda *args: search(one, *args, decoding, IDS).tokens[:, 0])(values, batch)
        np.testing.assert_array_equal(found, slow_search(values, batch, settings, decoding))
        self.assertGreater(len(np.unique(found)), 5)

    def test_a_cache_that_grows_equals_decoding_every_prefix(self):
        decoding = DecodingSettings(beams=3, max_length=8, no_repeat_ngram=1)
        settings, batch = SHALLOW[-1], batch_of(features())  # the bias has the length of the cache
        one, values = model(settings), params(settings)
        capacities = []

        def grown(cache, capacity):
            capacities.append(capacity)
            return cache.grown(capacity)

        with (
            mock.patch.object(decoding_of_beams, "_LEAST_CAPACITY", 2),
            mock.patch.object(translating, "Cache", mock.Mock(wraps=Cache, grown=grown)),
        ):
            found = jax.jit(lambda *args: search(one, *args, decoding, IDS).tokens[:, 0])(
                values, batch
            )
        self.assertEqual(capacities, [2, 4, 8])
        np.testing.assert_array_equal(found, slow_search(values, batch, settings, decoding))

    @parameterized.parameters(1, 3)
    def test_cost_grows_with_the_vocabulary_by_the_output_layer_alone(self, beams):
        decoding, batch = DecodingSettings(beams=beams, max_length=8), batch_of(features())

        def flops(vocab_size: int) -> float:
            one = model(dataclasses.replace(SHALLOW[0], vocab_size=vocab_size))
            values = nn.unbox(jax.eval_shape(one.init, jax.random.key(0)))
            found = jax.jit(lambda *args: search(one, *args, decoding, IDS))
            return matmul_flops(found.trace(values, batch).jaxpr)

        # One product of a state with each embedding per hypothesis; the loop counts once.
        expected = 2 * len(features()) * beams * ALL[0].embedding_size * 1000
        self.assertEqual(flops(1040) - flops(40), expected)


class TranslatorTest(parameterized.TestCase):
    def translator(self, batch_tokens: int, buckets=(8, 12), settings=ALL[0], mesh=None):
        decoding = DecodingSettings(beams=2, max_length=8)
        return Translator(
            model(settings), decoding, IDS,
            batch_tokens=batch_tokens, buckets=buckets, pad=PAD, mesh=mesh,
        )  # fmt: skip

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.on_one_device = cls().translator(24)
        cls.found = cls.on_one_device(params(ALL[0]), features())

    def test_order_batches_and_padding_change_nothing(self):
        some = features()
        decoding = DecodingSettings(beams=2, max_length=8)
        expected = slow_search(params(ALL[0]), batch_of(some), ALL[0], decoding)
        translator, found = self.on_one_device, self.found
        for row, tokens in zip(np.asarray(expected), found, strict=True):
            self.assertEqual([*tokens, EOS], row[: len(tokens) + 1].tolist())
        for order in ([4, 2, 0], [1]):
            again = translator(params(ALL[0]), [some[i] for i in order])
            self.assertEqual([x.tolist() for x in again], [found[i].tolist() for i in order])
        self.assertEqual(translator(params(ALL[0]), []), [])

    def test_devices_share_out_a_batch_and_find_the_same(self):
        some, mesh = features(), make_mesh(MESH, jax.devices()[:4])
        found = self.translator(4 * 12, mesh=mesh)(params(ALL[0]), some)
        self.assertEqual([x.tolist() for x in found], [x.tolist() for x in self.found])
        with self.assertRaisesRegex(ValueError, "batch_tokens is 47, too few for 4 rows of 12"):
            self.translator(47, mesh=mesh)

    def test_throughput_leaves_out_calls_that_compile(self):
        translator, some = self.translator(24, settings=SHALLOW[0]), features()
        shorter = [one for one in some if one.size <= 8]
        self.assertLen(shorter, 3)
        self.assertEqual(translator.throughput.rates(), {})
        counted, found = [], []
        for given in (
            shorter,
            some,
            shorter,
            some,
        ):  # the second call has batches of another length
            found.append(translator(params(SHALLOW[0]), given))
            counted.append(translator.throughput.sentences)
        self.assertEqual(counted, [0, 0, 3, 8])
        count = translator.throughput
        self.assertEqual(count.tokens, sum(len(one) + 1 for call in found[2:] for one in call))
        self.assertSameElements(count.rates(), ("sentences_per_second", "tokens_per_second"))

    def test_targets_are_prefixes_only_if_asked(self):
        some = [dataclasses.replace(one, target=np.array([7, 9, EOS], np.int32))
                for one in features()]  # fmt: skip
        found = self.on_one_device(params(ALL[0]), some)
        self.assertEqual([x.tolist() for x in found], [x.tolist() for x in self.found])
        forced = self.on_one_device.n_best(params(ALL[0]), some, has_prefixes=True)
        self.assertEqual({tuple(one.tokens[:2]) for row in forced for one in row}, {(7, 9)})
        # The prefix of the best hypothesis leads to it, with the score of the free search.
        best = self.on_one_device.n_best(params(ALL[0]), some)
        begun = [dataclasses.replace(one, target=np.append(row[0].tokens[:3], EOS))
                 for one, row in zip(some, best, strict=True)]  # fmt: skip
        again = self.on_one_device.n_best(params(ALL[0]), begun, has_prefixes=True)
        for expected, row in zip(best, again, strict=True):
            self.assertEqual(row[0].tokens.tolist(), expected[0].tokens.tolist())
            self.assertAlmostEqual(row[0].score, expected[0].score, places=5)
        too_long = [dataclasses.replace(some[0], target=np.full(9, 7, np.int32))]
        with self.assertRaisesRegex(ValueError, "prefix has 9 tokens with </s>, but .* is 8"):
            self.on_one_device.n_best(params(ALL[0]), too_long, has_prefixes=True)

    def test_scores_of_given_tokens_are_those_of_the_search(self):
        best = self.on_one_device.n_best(params(ALL[0]), features())
        given = [dataclasses.replace(one, target=np.append(row[0].tokens, EOS))
                 for one, row in zip(features(), best, strict=True)]  # fmt: skip
        scores = self.on_one_device.token_scores(params(ALL[0]), given)
        for row, one, feature in zip(best, scores, given, strict=True):
            self.assertLen(one, len(feature.target))
            self.assertAlmostEqual(float(np.mean(one)), row[0].score, places=4)

    def test_batches_are_halved_when_memory_runs_out(self):
        translator, sizes = self.translator(48), []
        run = translator._search

        def search_of_few(values, batch):
            sizes.append(len(batch["tokens"]))
            if sizes[-1] > 2:
                raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes")
            return run(values, batch)

        with mock.patch.object(translator, "_search", search_of_few), self.assertLogs() as logs:
            found = translator(params(ALL[0]), features())
        self.assertEqual([x.tolist() for x in found], [x.tolist() for x in self.found])
        self.assertGreater(max(sizes), 2)
        self.assertIn("memory ran out", logs.output[0])
        for error in (
            "RESOURCE_EXHAUSTED",
            "another fault",
        ):  # no fewer than one row; not a memory error
            with (
                mock.patch.object(translator, "_search", side_effect=RuntimeError(error)),
                self.assertRaisesRegex(RuntimeError, error),
            ):
                translator(params(ALL[0]), features())

    def test_unknown_tokens_are_left_to_sources_that_have_them(self):
        some, settings = features((3, 3)), SHALLOW[0]
        unk = 3
        some[1].tokens[2] = unk
        values = jax.tree.map(lambda x: x, params(settings))
        values["decoder"]["head"]["bias"] = jnp.zeros(40).at[unk].set(99.0)
        decoding = DecodingSettings(beams=1, max_length=4)
        ids = IDS._replace(unk=unk)
        found = Translator(model(settings), decoding, ids, batch_tokens=24, buckets=(12,), pad=PAD)
        none, copied = found(values, some)
        self.assertNotIn(unk, none)
        self.assertEqual(copied.tolist(), [unk] * 3)


class SampleTest(parameterized.TestCase):
    def samples(self, some, batch_tokens=24, **changes):
        decoding = DecodingSettings(**{"samples": 3, "max_length": 6, **changes})
        translator = Translator(
            model(SHALLOW[0]), decoding, IDS, batch_tokens=batch_tokens, buckets=(12,), pad=PAD
        )
        found = translator.n_best(params(SHALLOW[0]), some)
        return [[one.tokens.tolist() for one in row] for row in found], found

    def test_samples_depend_on_seed_and_number_and_not_on_the_batch(self):
        some = features((4, 4, 4, 4, 4))
        some = [dataclasses.replace(one, tokens=some[0].tokens, symbol=SYMBOLS[0]) for one in some]
        tokens, found = self.samples(some)
        self.assertEqual(self.samples(some[3:] + some[:2], 60)[0], tokens[3:] + tokens[:2])
        self.assertNotEqual(self.samples(some, seed=1)[0], tokens)
        self.assertLen({str(one) for row in tokens for one in row}, 15)  # from equal sources
        scores = [[one.score for one in row] for row in found]
        self.assertEqual(scores, [sorted(row, reverse=True) for row in scores])

    def test_the_most_probable_token_alone_is_greedy(self):
        greedy, _ = self.samples(features(), samples=0, beams=1)
        for changes in ({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-4}):
            found, _ = self.samples(features(), **changes)
            self.assertEqual(found, [one * 3 for one in greedy], changes)

    def test_truncation(self):
        logits = jnp.log(jnp.array([[0.1, 0.5, 0.15, 0.25]]))
        for changes, expected in (
            ({}, [0.1, 0.5, 0.15, 0.25]),
            ({"top_k": 2}, [0, 2 / 3, 0, 1 / 3]),
            ({"top_p": 0.76}, [0, 5 / 9, 1.5 / 9, 2.5 / 9]),
            ({"top_p": 0.74}, [0, 2 / 3, 0, 1 / 3]),
            ({"temperature": 0.5}, np.array([1, 25, 2.25, 6.25]) / 34.5),
        ):
            settings = DecodingSettings(samples=1, **changes)
            found = jax.nn.softmax(decoding_of_beams._truncated(logits, settings))
            np.testing.assert_allclose(found[0], expected, rtol=1e-5, err_msg=str(changes))

    def test_tokens_are_drawn_by_their_probabilities(self):
        count, classes = 1000, 4
        logits = jnp.log(jnp.array([0.1, 0.2, 0.3, 0.4]))
        ids, settings = TokenIds(3, 0, (), classes), DecodingSettings(samples=count, max_length=2)
        found = decoding_of_beams.sample(
            lambda tokens, cache, index: (jnp.tile(logits, (len(tokens), 1)), cache),
            jnp.zeros(1, jnp.int32), (), settings, ids, jax.random.split(jax.random.key(0), 1),
            None, lambda allowed, logits, index: allowed,
        )  # fmt: skip
        rates = np.bincount(np.asarray(found.tokens[0, :, 0]), minlength=classes) / count
        np.testing.assert_allclose(rates, [0.1, 0.2, 0.3, 0.4], atol=0.06)  # four deviations
        score = np.log(0.4)
        is_ended = np.asarray(found.lengths[0]) == 1
        np.testing.assert_allclose(np.asarray(found.scores[0])[is_ended], score, rtol=1e-5)
