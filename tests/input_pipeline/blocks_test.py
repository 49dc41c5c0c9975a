"""Tests of cutting text into blocks and of the hash that holds some out."""

import itertools

from absl.testing import absltest, parameterized

from input_pipeline import blocks
from xlm.common import long_lines


def marked(documents: list[list[str]]) -> list[str]:
    return [sentence for document in documents for sentence in (*document, "")]


def document(length: int, name: str = "s") -> list[str]:
    return [f"{name}{i:04d}" for i in range(length)]  # 6 bytes each, with the line end


class CutTest(parameterized.TestCase):
    @parameterized.parameters(1, 19, 20, 21, 40, 41, 100)
    def test_without_a_size_blocks_have_twenty_sentences(self, length):
        found = list(blocks.cut_blocks(marked([document(length), ["x"]]), 0))
        expected = [document(length)[i : i + 20] for i in range(0, length, 20)]
        self.assertEqual(found, [*expected, ["x"]])

    @parameterized.product(length=(1, 20, 50, 99, 1000), block_bytes=(1, 120, 121, 10_000))
    def test_with_a_size_no_block_of_a_long_document_is_short(self, length, block_bytes):
        text = document(length)
        found = list(blocks.cut_blocks(marked([text, ["x"], text]), block_bytes))
        self.assertEqual(found.count(["x"]), 1)
        first = found[: found.index(["x"])]
        self.assertEqual([*itertools.chain(*first)], text)
        self.assertEqual(found[found.index(["x"]) + 1 :], first)
        least = max(20, -(-block_bytes // 6))
        for block in first:
            self.assertGreaterEqual(len(block), min(least, length))
            self.assertLess(len(block), 2 * least)

    @parameterized.parameters(
        ("word " * 3000, 510, " "), ("Ein Satz. " * 1000, 510, " "), ("一句话。" * 2100, 512, ""),
        ("字" * 8193, 512, ""), ("a\u0301" * 4097, 512, ""),
    )  # fmt: skip
    def test_a_long_line_is_cut_where_it_can_be(self, text, longest, between):
        pieces = long_lines.cut_line(text.strip())
        self.assertEqual(between.join(pieces), text.strip())
        self.assertBetween(max(map(len, pieces)), longest - 4, longest)
        end = text.strip()[-1]
        self.assertEqual({piece[-1] for piece in pieces}, {"." if "." in text else end})
        found = list(blocks.cut_blocks([text.strip(), "", "x"], 1))
        self.assertEqual([*itertools.chain(*found)], [*pieces, "x"])
        self.assertLess(max(map(len, found)), 40)
        self.assertEqual(long_lines.cut_line(text[:8192]), [text[:8192]])

    def test_marks_may_repeat_or_lack(self):
        self.assertEqual(list(blocks.cut_blocks(["", "", "a", "", "", "b"], 8)), [["a"], ["b"]])
        self.assertEqual(list(blocks.cut_blocks([], 8)), [])


class HashTest(absltest.TestCase):
    def test_the_share_is_kept_and_grows_by_supersets(self):
        digests = [blocks.text_digest([f"text {i}"], seed=3) for i in range(4000)]
        few, many = (
            {one for one in digests if blocks.is_heldout(one, fraction)} for fraction in (0.1, 0.3)
        )
        # Five standard deviations.
        self.assertBetween(len(few), 400 - 95, 400 + 95)
        self.assertBetween(len(many), 1200 - 145, 1200 + 145)
        self.assertContainsSubset(few, many)
        self.assertFalse(any(blocks.is_heldout(one, 0.0) for one in digests))

    def test_it_depends_on_the_seed_and_on_where_sentences_end(self):
        variants = [["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"]]
        digests = {blocks.text_digest(one, seed) for one in variants for seed in (0, 1)}
        self.assertLen(digests, 8)
