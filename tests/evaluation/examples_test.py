"""Choice of example sentences, predictions against a slow softmax, and their table."""

import functools
import itertools
import math
import pathlib
import tempfile
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import absltest, parameterized

from input_pipeline.packed_dataset import PackedDataset
from tests import factories, golden
from tests.factories import SPECIAL_IDS as SPECIAL
from tests.input_pipeline.reading import pack_rows
from xlm.evaluation import examples
from xlm.evaluation.examples import Example, Examples, choose, example_cards, examples_table
from xlm.models.encoder import output_table

VOCAB, L = 30, 32
STOP, COMMA, NUMBER, BYTE, RARE = range(5, 10)
FIRST = 10  # of the maskable pieces
LETTERS = [f"{'▁' * (i % 2)}w{i}x" for i in range(FIRST, VOCAB)]
PIECES = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", ".", ",", "▁12", "<0x41>", "▁rare", *LETTERS]
ENCODER = factories.encoder_settings(max_length=L, dropout_rate=0.5)
OBJECTIVE = factories.masked_lm(encoder=ENCODER)


@functools.cache
def params():
    found = factories.random_params(OBJECTIVE, 0.5)
    found["head"]["bias"][VOCAB:] = 50  # makes padding the likeliest
    return found


def sentence(rng: np.random.Generator, length: int) -> list[int]:
    """`length` ids of all kinds of pieces; the first begins a word, and the last is a stop."""
    others = np.delete(np.arange(VOCAB), SPECIAL.special_ids())
    return [11, *rng.choice(others, length - 2), STOP]


def write_dataset(folder: pathlib.Path, documents: dict[str, list[list[int]]]) -> PackedDataset:
    """Write languages with these held-out documents."""
    counts = np.full(VOCAB, examples.MIN_COUNT)
    counts[RARE] -= 1
    for language, of_language in documents.items():
        rows = pack_rows(map(np.array, of_language), L, SPECIAL, np.dtype(np.uint16))
        np.save(folder / f"{language}.heldout.npy", rows)
        np.save(folder / f"{language}.counts.npy", counts)
    return PackedDataset(folder, VOCAB, L, "", SPECIAL, {key: {} for key in documents}, {})


class TestCase(parameterized.TestCase):
    @classmethod
    def small_dataset(cls, documents: dict[str, list[list[int]]]) -> PackedDataset:
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        return write_dataset(folder, documents)

    @classmethod
    def many(cls, num_languages: int) -> PackedDataset:
        rng = np.random.default_rng(0)
        lengths = [[rng.integers(3, 20) for _ in range(8)] for _ in range(num_languages)]
        return cls.small_dataset({f"l{i:02}": [sentence(rng, length) for length in of_language]
                          for i, of_language in enumerate(lengths)})  # fmt: skip


class ChooseTest(TestCase):
    def test_of_held_out_text_only_pieces_with_letters_that_are_frequent(self):
        dataset = self.many(3)
        positions = set()
        for seed in range(40):
            for cloze in choose(dataset, PIECES, seed):
                self.assertGreaterEqual(cloze.tokens[cloze.position], FIRST)
                positions.add(cloze.position)
                self.assertBetween(len(cloze.tokens), examples.SHORTEST, L - 2)
                rows = np.ravel(dataset.rows(cloze.language, "heldout")).astype(np.int32)
                self.assertIn(cloze.tokens.tobytes(), rows.tobytes())
                self.assertEmpty(set(cloze.tokens.tolist()) & set(SPECIAL.special_ids()))
        self.assertGreater(len(positions), 5)

    def test_a_seed_draws_for_each_language_on_its_own(self):
        dataset = self.many(6)
        first, again, other = (str(choose(dataset, PIECES, seed)) for seed in (0, 0, 1))
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)
        before = choose(dataset, PIECES, 0)
        np.save(dataset.folder / "l01.heldout.npy", dataset.rows("l01", "heldout")[:1])
        self.assertEqual(str(before[0]), str(choose(dataset, PIECES, 0)[0]))

    def test_whole_sentences_before_torn_ones(self):
        whole = [11, *range(FIRST, FIRST + 8), STOP]
        torn = [11, *range(FIRST, FIRST + 7), COMMA]
        # The middle sentence of a row. The first and last may be parts of longer ones.
        document = [*torn, STOP, *whole, *torn]
        for seed in range(10):
            (cloze,) = choose(self.small_dataset({"aa": [document]}), PIECES, seed)
            self.assertEqual(cloze.tokens.tolist(), whole)
        (cloze,) = choose(self.small_dataset({"aa": [torn]}), PIECES, 0)
        self.assertEqual(cloze.tokens.tolist(), torn)
        # Sentences are cut at the length of a row.
        (cloze,) = choose(self.small_dataset({"aa": [[FIRST] * 100]}), PIECES, 0)
        self.assertLen(cloze.tokens, L - 2)

    def test_pieces_of_bytes_are_shown_as_what_they_spell(self):
        text = "▁한<0xED><0x9D><0xB0> x<0xFF> <0x4>"
        self.assertEqual(examples._read_bytes(text), "▁한흰 x\ufffd <0x4>")

    def test_ends_of_sentences(self):
        pieces = ["▁a", "b", ".", "”", "5", "。", "▁"]
        for text, ends in (
            ("▁a b . ▁a b", [3]),
            ("▁a . ” ▁a", [3]),
            ("▁a . 5 b", []),  # no space follows
            ("a 。 b 。 b", [2, 4]),
        ):
            ids = np.array([SPECIAL.unk + 2 + [*pieces, "a"].index(p) for p in text.split()])
            every = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *pieces, "a"]
            dataset = self.small_dataset({"aa": [[11]]})
            found = examples._sentences(np.array([SPECIAL.bos, *ids, SPECIAL.eos]), dataset, every)
            self.assertEqual(np.cumsum([len(one) for one, _ in found])[:-1].tolist(), ends)

    def test_languages_without_a_sentence(self):
        documents = {
            "short": [[FIRST] * (examples.SHORTEST - 1)],
            "none": [],
            "others": [[NUMBER, BYTE, RARE, SPECIAL.unk, COMMA] * 4],
            "some": [[FIRST] * examples.SHORTEST],
        }
        dataset = self.small_dataset(documents)
        self.assertEqual([cloze.language for cloze in choose(dataset, PIECES, 0)], ["some"])
        none = Examples(OBJECTIVE, self.small_dataset({"none": []}), PIECES, seed=0)
        self.assertEqual(none.run(params()), [])


class PredictTest(TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # For tests that do not depend on the number of languages.
        cls.twelve = Examples(OBJECTIVE, cls.many(12), PIECES, seed=0)
        cls.found = cls.twelve.run(params())

    def test_equals_a_slow_softmax(self):
        dataset = self.many(2 * examples._BATCH + 1)  # the last batch is nearly empty
        chosen = Examples(OBJECTIVE, dataset, PIECES, seed=0)
        found = chosen.run(params())
        self.assertEqual([one.language for one in found], list(dataset.languages))
        predict = jax.jit(OBJECTIVE.predictions)

        @jax.jit
        def loss_of(hidden, truth):
            output = output_table(params())
            return OBJECTIVE.exact_layer.loss(hidden, truth, jnp.ones((1, 1)), *output, None)

        table, bias = (np.asarray(x, np.float64)[:VOCAB] for x in output_table(params()))
        for one, cloze in zip(found, chosen.clozes, strict=True):
            row = np.full((1, L), SPECIAL.pad, np.int32)
            row[0, : len(cloze.tokens) + 2] = [SPECIAL.bos, *cloze.tokens, SPECIAL.eos]
            at = np.array([[1 + cloze.position]])
            truth = row[0, at[0, 0]]
            row[0, at[0, 0]] = SPECIAL.mask
            hidden = predict(params(), row, at)
            exps = np.exp(np.asarray(hidden, np.float64)[0, 0] @ table.T + bias)
            order = np.argsort(-exps)
            self.assertEqual([piece for piece, _ in one.likeliest], [PIECES[i] for i in order[:5]])
            np.testing.assert_allclose(
                [one.probability, *(p for _, p in one.likeliest)],
                exps[[truth, *order[:5]]] / exps.sum(),
                rtol=1e-4,
            )
            self.assertEqual((one.truth, one.rank), (PIECES[truth], 1 + list(order).index(truth)))
            # The loss in the report's mean has the same probability.
            loss = np.asarray(loss_of(hidden, truth[None, None]))
            self.assertAlmostEqual(float(loss[0, 0]), -math.log(one.probability), places=4)

    def test_of_equals_the_first_is_likelier(self):
        blind = jax.tree.map(np.zeros_like, params())
        for one in self.twelve.run(blind):
            self.assertEqual([piece for piece, _ in one.likeliest], PIECES[:5])
            self.assertEqual(one.rank, 1 + PIECES.index(one.truth))
            self.assertAlmostEqual(one.probability, 1 / VOCAB, places=6)

    def test_the_text_has_a_gap_where_the_piece_was(self):
        for one, cloze in zip(self.found, self.twelve.clozes, strict=True):
            text = examples._read_bytes("".join(PIECES[i] for i in cloze.tokens))
            text = text.replace("▁", " ").strip()
            filled = one.text.replace("[____]", one.truth.removeprefix("▁"))
            self.assertEqual(filled, text)
            self.assertEqual(one.text.count("[____]"), 1)


class TableTest(absltest.TestCase):
    def test_text_of_any_kind_in_a_table(self):
        marks = ["|", "*a*", "<b>", "`", "_", "[a](b)", "&lt;", "$x$", "~~", "\\", "\\|"]
        # Also text from right to left, and a combining mark.
        texts = [(f"{mark} [____] {mark}", f"▁{mark}") for mark in marks]
        texts += [("قبل [____]", "▁أن"), ("a [____]", "ี"), ("a [____] b", "▁c")]
        probabilities = (1.0, 0.9996, 0.123, 0.05, 0.00012)
        found = [
            Example("en", text, truth, one, 2, [("▁d", 0.5), (truth, one)])
            for (text, truth), one in zip(texts, itertools.cycle(probabilities), strict=False)
        ]
        golden.check(self, __file__, "examples", examples_table(found) + "\n")
        parsed = ElementTree.fromstring(
            f"<p>{example_cards(found)}</p>".replace("class=truth", 'class="truth"')
            .replace(" open>", ' open="">')
        )  # fmt: skip
        cards = parsed.findall("details")
        self.assertEqual(["".join(one.find("blockquote").itertext()) for one in cards],
                         [text.replace("[____]", "____") for text, _ in texts])  # fmt: skip
        for card, (_, truth) in zip(cards, texts, strict=True):
            (shown,) = [one for one in card.iter("li") if one.get("class") == "truth"]
            self.assertIn(shown.find("bdi").text, (truth.replace("▁", "␣"), f"◌{truth}"))
        self.assertEqual([one.get("open") for one in cards], ["", *[None] * (len(cards) - 1)])
