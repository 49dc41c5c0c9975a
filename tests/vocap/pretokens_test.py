"""Tests of counting script runs, against a loop over characters."""

import collections
import random
from unittest import mock

from absl.testing import parameterized
from fontTools import unicodedata

from tests.vocap.texts import CORPUS, assert_same
from vocap import pretokens
from vocap.text_rules import TextRules

# Characters that begin, continue or end runs in all the ways there are.
LETTERS = (
    "aB7.,-(é\u0301"  # Latin, common, an inherited mark
    "\u043a\u03b1\u0915\u094d\u0937\u0651\u0627\u0e02\uac00"  # others, with marks
    "\u6f22\u3072\u30ab\u30fc\u3005\u3001\u309a"  # Japanese
    "\U0001f469\u200d\U0001f52c\ufe0f\U00020000\U00010348"  # beyond 16 bits, joined
    "\u0378\ue000\x85\x00\uff21\ufb01\u2581 \t\u3000"  # unassigned, odd, normalised away, spaces
)
SENTENCES = (
    "a b  a", " b\tc", "", "   ", "\uff21\uff42 \u0915\u093f", "\ufb01n.", "a,b (a) a,b",
    "\u30ab\u30fc\u30c9\u3068\u6f22\u5b57\u30fc a\u30fc", "a \u0301b \u0301\u043a",
    "1990s: 3.5\u20ac",
)  # fmt: skip


def script_of(character: str) -> str:
    """The script of a character as SentencePiece sees it, Zinh for inherited ones."""
    script = unicodedata.script(character)
    if character == "\u30fc" or script in ("Hira", "Kana"):
        return "Hani"
    return "Zyyy" if script == "Zzzz" else script


def runs_of(normalized: str) -> list[str]:
    found: list[str] = []
    script = None
    for character in normalized:
        if character == pretokens.SPACE:
            found.append(character)
            script = None
            continue
        of_this = script_of(character)
        if of_this == "Zinh":
            of_this = script
        if script is not None and of_this != script:
            found.append("")
        found[-1] += character
        script = of_this
    return found


def counted(sentences) -> tuple[dict[str, tuple[int, int]], int]:
    """Count and follow of each run, and the number of sentences."""
    counts: collections.Counter[str] = collections.Counter()
    follow = collections.defaultdict(set)
    num_sentences = 0
    normalize = TextRules().processor().normalize
    for sentence in sentences:
        if not (normalized := normalize(sentence)):
            continue
        num_sentences += 1
        found = runs_of(normalized)
        assert "".join(found) == normalized
        for run, behind in zip(found, [*found[1:], ""], strict=True):
            counts[run] += 1
            follow[run].add(behind.encode()[0] if behind else 0)
    merged = {run: bytes_.pop() if len(bytes_) == 1 else 256 for run, bytes_ in follow.items()}
    return {run: (counts[run], merged[run]) for run in counts}, num_sentences


def as_dict(table: pretokens.PretokenTable) -> dict[str, tuple[int, int]]:
    values = zip(table.counts.tolist(), table.follow.tolist(), strict=True)
    return dict(zip(table.runs(), values, strict=True))


def random_sentences(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(LETTERS, k=rng.randrange(12))) for _ in range(count)]


class RunsTest(parameterized.TestCase):
    def assert_as_the_loop(self, sentences):
        table = pretokens.count_pretokens(sentences)
        expected, num_sentences = counted(sentences)
        self.assertEqual(as_dict(table), expected)
        self.assertEqual(table.num_sentences, num_sentences)
        self.assertEqual(table.runs(), sorted(expected))

    def test_chosen_and_random_sentences(self):
        self.assert_as_the_loop(SENTENCES)
        for sentence in SENTENCES:
            self.assert_as_the_loop([sentence])
        self.assert_as_the_loop(random_sentences(0, 4000))

    def test_the_embedded_corpus(self):
        for path in sorted(CORPUS.glob("*.txt")):
            with self.subTest(path.name):
                self.assert_as_the_loop(path.read_text(encoding="utf-8").split("\n"))

    def test_no_text(self):
        for sentences in ([], [""], [" ", "\u200b"]):
            table = pretokens.count_pretokens(sentences)
            self.assertEqual((table.runs(), table.num_sentences, table.num_bytes), ([], 0, 0))
            self.assertLen(table.text, 0)

    @parameterized.product(at_once=(1, 7, 20_000), pending=(0, 10, 2_000_000))
    def test_how_text_arrives_does_not_matter(self, at_once, pending):
        sentences = random_sentences(6, 300)
        counter = pretokens.PretokenCounter()
        with (
            mock.patch.object(pretokens, "_SENTENCES_AT_ONCE", at_once),
            mock.patch.object(pretokens, "_MAX_PENDING_WORDS", pending),
        ):
            counter.add(sentences[:100])
            counter.add(iter(sentences[100:]))
        assert_same(counter.table(), pretokens.count_pretokens(sentences))

    def test_a_counter_can_be_asked_between(self):
        counter = pretokens.PretokenCounter()
        self.assertEqual(counter.packed(), {})
        counter.add(["a b"])
        for _ in range(2):
            assert_same(counter.table(), pretokens.count_pretokens(["a b"]))
        self.assertLen(counter, 2)
        counter.add(["b c", " "])
        assert_same(counter.table(), pretokens.count_pretokens(["a b", "b c"]))

    def test_bytes_are_those_of_the_normalised_text(self):
        sentences = [*SENTENCES, *random_sentences(8, 300)]
        normalized = TextRules().processor().normalize(sentences)
        self.assertEqual(
            pretokens.count_pretokens(sentences).num_bytes,
            sum(len(text.replace(pretokens.SPACE, " ").encode()) for text in normalized),
        )


class MixtureTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        texts = {"a": ["a b a"], "b": ["a c", "dd dd, dd"], "c": ["\u6f22 a"] * 9}
        self.tables = {
            language: pretokens.count_pretokens(text) for language, text in texts.items()
        }

    @parameterized.parameters("abc", "ab", "c")
    def test_shares_of_bytes_are_the_probabilities(self, languages):
        probabilities = {"a": 0.2, "b": 0.7, "c": 0.1}
        chosen = {language: self.tables[language] for language in languages}
        mixture = pretokens.mixture(chosen, probabilities)
        total = sum(table.num_bytes for table in chosen.values())
        self.assertAlmostEqual(mixture.num_bytes, total)
        self.assertEqual(mixture.num_sentences, sum(t.num_sentences for t in chosen.values()))
        expected = collections.Counter()
        for language, table in chosen.items():
            share = probabilities[language] / sum(probabilities[lang] for lang in languages)
            for run, (count, _) in as_dict(table).items():
                expected[run] += count * share * total / table.num_bytes
        found = collections.Counter()
        for run, count in zip(mixture.runs(), mixture.counts.tolist(), strict=True):
            found[run] += count
        self.assertEqual(set(found), set(expected))
        for run, count in expected.items():
            self.assertAlmostEqual(found[run], count)
        follow = [value for table in chosen.values() for value in table.follow.tolist()]
        self.assertEqual(mixture.follow.tolist(), follow)


class MostFrequentTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.table = pretokens.count_pretokens(random_sentences(9, 1000))
        self.num_characters = len(self.table.text.characters)

    def test_what_is_left_out_is_rarer_and_as_little_as_can_be(self):
        everything = as_dict(self.table)
        last: set[str] = set()
        for limit in (0, self.num_characters, self.num_characters + 1):
            self.assertIs(pretokens.most_frequent(self.table, limit), self.table)
        for limit in (1, 2, 30, 500, self.num_characters // 2, self.num_characters - 1):
            kept = pretokens.most_frequent(self.table, limit)
            found = as_dict(kept)
            self.assertEqual(kept.runs(), sorted(found))
            self.assertContainsSubset(found.items(), everything.items())
            self.assertContainsSubset(last, set(found))
            last = set(found)
            dropped = {run: value for run, value in everything.items() if run not in found}
            highest = max(count for count, _ in dropped.values())
            self.assertGreaterEqual(min((c for c, _ in found.values()), default=highest), highest)
            size = sum(map(len, found))
            self.assertLessEqual(size, limit)
            # The next one did not fit; it is one of the most frequent left out.
            lengths = [len(run) for run, (count, _) in dropped.items() if count == highest]
            self.assertGreater(size + max(lengths), limit)
            share = kept.num_bytes / self.table.num_bytes
            self.assertAlmostEqual(kept.num_sentences, share * self.table.num_sentences, delta=1)

    def test_which_of_equals_stay_does_not_depend_on_their_order(self):
        words = [f"w{chr(0x61 + i % 26)}{chr(0x61 + i // 26)}" for i in range(26 * 26)]
        kept = set(pretokens.most_frequent(pretokens.count_pretokens(words), 4 * 338).runs())
        self.assertLen(kept, 338)
        first_half = {"\u2581" + word for word in sorted(words)[:338]}
        self.assertAlmostEqual(len(kept & first_half), 169, delta=50)
        more = set(
            pretokens.most_frequent(pretokens.count_pretokens([*words, "zzz zzz"]), 4 * 339).runs()
        )
        self.assertContainsSubset(kept, more)
