"""Tests of cutting text into blocks, and of the choice among them, against a slow one."""

import dataclasses
import hashlib
import itertools
import random
from collections.abc import Sequence
from unittest import mock

import numpy as np
from absl.testing import absltest, parameterized

from input_pipeline import corpus, selection
from input_pipeline.exclusion import Exclusion
from input_pipeline.selection import DROPPED, HELDOUT, TRAIN
from input_pipeline.sources import CorpusSpec
from xlm.common import long_lines

SPEC = CorpusSpec(heldout_fraction=0.2)
Block = tuple[bytes, int, int]


def digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def blocks(count: int, num_texts: int, seed: int = 0) -> list[Block]:
    """Blocks of texts that repeat, of all origins."""
    draw = random.Random(seed)
    origins = (selection.TEXT,) * 8 + (selection.PARALLEL_TRAIN, selection.PARALLEL_HELDOUT)
    texts = [f"{draw.randrange(num_texts)}" for _ in range(count)]
    return [(digest(text), 10 + len(text), draw.choice(origins)) for text in texts]


def parts_of(found: list[Block], *ends: int) -> list[np.ndarray]:
    bounds = zip((0, *ends), (*ends, len(found)), strict=True)
    whole = [(*block, block[0]) for block in found]  # each is a document
    return [selection.records(whole[start:end]) for start, end in bounds]


def sides(parts: list[np.ndarray], spec: CorpusSpec = SPEC) -> list[int]:
    return np.concatenate(selection.select(parts, spec, "en").sides).tolist()


def slow(found: list[Block], spec: CorpusSpec) -> list[int]:
    """The same choice, block by block."""
    limit = int(spec.heldout_fraction * 2**64)
    split = {
        selection.TEXT: lambda text: HELDOUT if int.from_bytes(text[:8], "big") < limit else TRAIN,
        selection.PARALLEL_TRAIN: lambda text: TRAIN,
        selection.PARALLEL_HELDOUT: lambda text: HELDOUT,
    }
    result = [split[origin](text) for text, _, origin in found]
    if spec.deduplicate:
        seen: set[bytes] = set()
        for side in (HELDOUT, TRAIN):
            for i, (text, _, _) in enumerate(found):
                if result[i] == side:
                    result[i] = DROPPED if text in seen else side
                    seen.add(text)
    return result


class SelectTest(parameterized.TestCase):
    @parameterized.product(deduplicate=(True, False), num_texts=(30, 1500))
    def test_it_is_the_slow_choice_however_the_text_is_cut(self, deduplicate, num_texts):
        spec = dataclasses.replace(SPEC, deduplicate=deduplicate)
        found = blocks(300, num_texts)
        expected = slow(found, spec)
        for ends in ((), (1,), (0, 150, 150, 299)):
            for at_once in (1 << 22, 1, 70):
                parts = parts_of(found, *ends)
                with mock.patch.object(selection, "_DIGESTS_AT_ONCE", at_once):
                    self.assertEqual(sides(parts, spec), expected)

    def test_repetitions_are_counted(self):
        found = blocks(1000, 30)
        chosen = selection.select(parts_of(found, 400), SPEC, "en")
        self.assertEqual(chosen.duplicates, 1000 - len({text for text, _, _ in found}))
        dropped = np.concatenate(chosen.sides) == DROPPED
        sizes = np.array([size for _, size, _ in found])
        self.assertEqual(chosen.duplicate_bytes, sizes[dropped].sum())

    @parameterized.parameters(1e-9, 1 - 1e-9)
    def test_little_text_has_a_block_on_each_side(self, fraction):
        spec = dataclasses.replace(SPEC, heldout_fraction=fraction)
        found = [(digest(str(i)), 1, selection.TEXT) for i in range(5)]
        for parts in (parts_of(found), parts_of(found, 2, 2)):
            self.assertEqual(set(sides(parts, spec)), {TRAIN, HELDOUT})
        # The fewer are the same ones as of more text: the least, or the greatest, of all.
        few = min if fraction < 0.5 else max
        chosen = sides(parts_of(found), spec)
        index = chosen.index(HELDOUT if fraction < 0.5 else TRAIN)
        self.assertEqual(found[index][0], few(text for text, _, _ in found))
        same = [(digest("one"), 1, selection.TEXT)] * 3
        self.assertEqual(sides(parts_of(same), spec), [TRAIN, DROPPED, DROPPED])

    def test_nothing_is_held_out_of_no_share(self):
        spec = dataclasses.replace(SPEC, heldout_fraction=0.0)
        found = [(digest(str(i)), 1, selection.TEXT) for i in range(50)]
        self.assertEqual(set(sides(parts_of(found), spec)), {TRAIN})
        self.assertEqual(sides([selection.records([])], SPEC), [])

    @parameterized.parameters("text", "position")
    def test_a_limit_on_bytes_does_not_depend_on_the_cuts(self, heldout_by):
        spec = dataclasses.replace(SPEC, heldout_by=heldout_by, max_train_bytes=2000)
        found = blocks(500, 1000)
        expected = sides(parts_of(found), spec)
        self.assertEqual(sides(parts_of(found, 100, 333), spec), expected)
        sizes = np.array([size for _, size, _ in found])
        self.assertBetween(sizes[np.array(expected) == TRAIN].sum(), 1980, 2000)

    @parameterized.product(heldout_by=("text", "position"), seed=(0, 1), few=(1, 3, 40))
    def test_held_out_bytes_are_limited(self, heldout_by, seed, few):
        spec = dataclasses.replace(SPEC, heldout_by=heldout_by, seed=seed)
        sizes = [*[100] * few, 50_000, 160_000]
        found = [(digest(f"{seed} {i}"), size, selection.TEXT) for i, size in enumerate(sizes)]
        chosen = np.array(sides(parts_of(found), spec))
        self.assertEqual(sides(parts_of(found, 1, few), spec), chosen.tolist())
        self.assertEqual(set(chosen), {TRAIN, HELDOUT})
        limit = 0.4 * sum(sizes) + 4 * sorted(sizes)[(few + 1) // 2]
        self.assertLessEqual(np.array(sizes)[chosen == HELDOUT].sum(), limit)

    def test_text_that_is_also_held_out_as_parallel_text_stays_so(self):
        sizes = [*[100] * 40, 160_000]
        found = [(digest(f"{i}"), size, selection.TEXT) for i, size in enumerate(sizes)]
        large = min(found)  # by digest: held out, if it fits
        found = [(text, 160_000 if text == large[0] else 100, one) for text, _, one in found]
        index = found.index((large[0], 160_000, selection.TEXT))
        self.assertEqual(sides(parts_of(found))[index], TRAIN)
        found.append((large[0], 160_000, selection.PARALLEL_HELDOUT))
        chosen = sides(parts_of(found))
        self.assertEqual((chosen[index], chosen[-1]), (DROPPED, HELDOUT))

    def test_rows_of_parallel_text_are_limited(self):
        for salt in map(str, range(20)):
            sizes = np.array([*[100] * 40, 160_000])
            chosen = selection.heldout_numbers(41, 0.2, salt, sizes)
            self.assertBetween(len(chosen), 7, 8)
            free = selection.heldout_numbers(41, 0.2, salt)
            self.assertEqual(chosen - {40}, chosen)
            self.assertContainsSubset(free - {40}, chosen)


def long_documents(draw: random.Random, count: int, mean: int) -> list[list[str]]:
    """Documents of 1 to many sentences, sizes spread over two orders of magnitude."""
    lengths = [1 + int(draw.lognormvariate(mean, 1.2)) for _ in range(count)]
    return [[f"{i} {j} {draw.random()}" for j in range(n)] for i, n in enumerate(lengths)]


class DocumentTest(parameterized.TestCase):
    def split(
        self, documents: list[list[str]], fraction: float, ends: Sequence[int] = (), **changes
    ) -> tuple[dict[str, int], selection.Selection]:
        """Return the side of each sentence; documents before each of `ends` are a part."""
        spec = dataclasses.replace(SPEC, heldout_by="document", heldout_fraction=fraction)
        spec = dataclasses.replace(spec, block_bytes=300, **changes)
        bounds = zip((0, *ends), (*ends, None), strict=True)
        parts = [documents[start:end] for start, end in bounds]
        blocks = [list(corpus.read_blocks(marked(p), spec, Exclusion([]))) for p in parts]
        chosen = selection.select(
            [selection.records(b.record for b in part) for part in blocks], spec, "en"
        )
        sides: dict[str, int] = {}
        for part, found in zip(blocks, chosen.sides, strict=True):
            for block, side in zip(part, found, strict=True):
                sides |= {one: max(int(side), sides.get(one, 0)) for one in block.sentences}
        return sides, chosen

    @parameterized.product(seed=(0, 1, 2, 3), fraction=(0.02, 0.1, 0.5), mean=(0, 2, 4))
    def test_documents_are_whole_and_fill_their_share(self, seed, fraction, mean):
        documents = long_documents(random.Random(seed), 400, mean)
        sides, chosen = self.split(documents, fraction)
        for document in documents:
            self.assertLen({sides[sentence] for sentence in document}, 1)
        share = chosen.split.heldout_bytes / chosen.split.text_bytes
        self.assertBetween(share, 0.9 * fraction, fraction)
        size = {side: sum(len(s) + 1 for s in sides if sides[s] == side) for side in (1, 2)}
        self.assertEqual(chosen.split[:2], (size[1] + size[2], size[2]))
        self.assertEqual(chosen.split.fault(self.spec(fraction)), "")

    def spec(self, fraction: float) -> CorpusSpec:
        return dataclasses.replace(SPEC, heldout_by="document", heldout_fraction=fraction)

    @parameterized.parameters(*range(5))
    def test_it_is_the_slow_choice_however_the_text_is_cut(self, seed):
        draw = random.Random(seed)
        documents = long_documents(draw, 150, 2)
        documents.append(list(documents[7]))
        for _ in range(3):
            ends = sorted(draw.sample(range(len(documents)), 3))
            sides, chosen = self.split(documents, 0.1, ends)
            sizes = {}
            for document in documents:
                first = next(selection.cut_blocks(document, 300))
                key = selection.text_digest(first, 0)
                sizes.setdefault(key[:8], {})[tuple(document)] = sum(len(s) + 1 for s in document)
            room = 0.1 * sum(sum(one.values()) for one in sizes.values())
            for key in sorted(sizes):
                size = sum(sizes[key].values())
                expected = HELDOUT if size <= room else TRAIN
                room -= size if size <= room else 0
                for document in sizes[key]:
                    self.assertEqual({sides[s] for s in document}, {expected})
            with mock.patch.object(selection, "_DIGESTS_AT_ONCE", 20):
                few = self.split(documents, 0.1, ends)[1]
            self.assertEqual(np.concatenate(few.sides).tolist(),
                             np.concatenate(chosen.sides).tolist())  # fmt: skip

    def test_a_book_is_cut_into_runs_where_it_is_the_language(self):
        book = [f"line {i} of the book" for i in range(20_000)]
        for documents in ([book], [["one"], book], [book, ["one", "two"] * 10]):
            sides, chosen = self.split(documents, 0.05)
            share = chosen.split.heldout_bytes / chosen.split.text_bytes
            self.assertBetween(share, 0.045, 0.05)
            # One run of neighbours: no more of the book's text touches what is trained on.
            of_book = [sides[sentence] == HELDOUT for sentence in book]
            self.assertEqual(np.abs(np.diff(of_book)).sum(), 2)

    def test_a_share_that_no_document_fits_is_told(self):
        documents = [[f"{i} {j}" for j in range(15)] for i in range(10)]
        sides, chosen = self.split(documents, 0.001)
        self.assertLen([one for one in documents if sides[one[0]] == HELDOUT], 1)
        fault = chosen.split.fault(self.spec(0.001))
        self.assertRegex(
            fault, r"^10\.00% is held out for 0\.10% asked: .* smallest to add has 65 bytes$"
        )
        # Never all, and none of a single one.
        self.assertEqual(set(self.split(documents[:2], 0.9)[0].values()), {TRAIN, HELDOUT})
        self.assertEqual(set(self.split(documents[:1], 0.9)[0].values()), {TRAIN})
        self.assertEqual(set(self.split(documents, 0.0)[0].values()), {TRAIN})

    def test_a_large_line_among_small_ones_does_not_take_the_language(self):
        lines = [[f"sentence {i}"] for i in range(40)]
        large = [" ".join(f"word{i}" for i in range(150_000))]
        for seed in range(8):
            documents = [*lines, large]
            _, chosen = self.split(documents, 0.1, seed=seed)
            self.assertBetween(chosen.split.heldout_bytes / chosen.split.text_bytes, 0.09, 0.1)


def marked(documents: list[list[str]]) -> list[str]:
    return [sentence for document in documents for sentence in (*document, "")]


def document(length: int, name: str = "s") -> list[str]:
    return [f"{name}{i:04d}" for i in range(length)]  # 6 bytes each, with the line end


class CutTest(parameterized.TestCase):
    @parameterized.parameters(1, 19, 20, 21, 40, 41, 100)
    def test_without_a_size_blocks_have_twenty_sentences(self, length):
        found = list(selection.cut_blocks(marked([document(length), ["x"]]), 0))
        expected = [document(length)[i : i + 20] for i in range(0, length, 20)]
        self.assertEqual(found, [*expected, ["x"]])

    @parameterized.product(length=(1, 20, 50, 99, 1000), block_bytes=(1, 120, 121, 10_000))
    def test_with_a_size_no_block_of_a_long_document_is_short(self, length, block_bytes):
        text = document(length)
        found = list(selection.cut_blocks(marked([text, ["x"], text]), block_bytes))
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
        found = list(selection.cut_blocks([text.strip(), "", "x"], 1))
        self.assertEqual([*itertools.chain(*found)], [*pieces, "x"])
        self.assertLess(max(map(len, found)), 40)
        self.assertEqual(long_lines.cut_line(text[:8192]), [text[:8192]])

    def test_marks_may_repeat_or_lack(self):
        self.assertEqual(list(selection.cut_blocks(["", "", "a", "", "", "b"], 8)), [["a"], ["b"]])
        self.assertEqual(list(selection.cut_blocks([], 8)), [])


class HashTest(absltest.TestCase):
    def test_it_depends_on_the_seed_and_on_where_sentences_end(self):
        variants = [["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"]]
        digests = {selection.text_digest(one, seed) for one in variants for seed in (0, 1)}
        self.assertLen(digests, 8)
