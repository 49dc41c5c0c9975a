import collections
import dataclasses
import itertools
import pathlib
import re
import sys
import tempfile
import unicodedata

import sentencepiece as spm
import tokenizers
from absl.testing import parameterized
from tokenizers import pre_tokenizers

import vocap
from tests.vocap import texts
from vocap import pretokens, seeds
from vocap.settings import SPECIALS, VocabularySettings
from vocap.text_rules import SPACE, TextRules, required_characters

LINES = [line for lang in ("en", "hi", "zh") for line in texts.sentences(lang)[:120]]
ODD = [
    "", " ", "a\n\nb", "  a  b ", "\ta\r\nb\n", "می\u200cخواهم", "e\u0301\u0323", "न\u093c",
    "각\u11a8", "x\x00y", "👨‍👩‍👧", "\U0010ffff", "<s> </s> <0x0A>", "१२३ 45", "{a<b>}",
    "\u3000\u00a0\u2028z",
]  # fmt: skip
LOSSLESS = {"whitespace": "keep", "byte_fallback": True, "normalizer": "identity"}
# Words with their marks, numbers of up to three digits, anything else.
PATTERN = r" ?[\p{L}\p{M}]+|\p{N}{1,3}| ?[^\s\p{L}\p{M}\p{N}]+|\s+"


def build(method: str = "vocap", **settings) -> vocap.Vocabulary:
    languages = {"en": LINES[:120], "hi": LINES[120:240], "zh": LINES[240:]}
    return vocap.build(languages, size=1900, method=method, **settings)


class NormalizerTest(parameterized.TestCase):
    def test_nfc_is_that_of_unicode(self):
        """Where no marks have to be sorted, of all characters and of what they decompose to."""
        normalize = TextRules(normalizer="nfc", whitespace="keep").processor().normalize
        wrong = []
        for code in itertools.chain(range(1, 0xD800), range(0xE000, sys.maxunicode + 1)):
            for form in ("NFC", "NFD"):
                text = unicodedata.normalize(form, chr(code))
                if text not in (SPACE, " ") and normalize(text) != SPACE + unicodedata.normalize(
                    "NFC", text
                ):
                    wrong.append(text)
        self.assertEqual(wrong, [])

    def test_a_letter_that_is_composed_in_part(self):
        normalize = TextRules(normalizer="nfc").processor().normalize
        for text in ("u\u0308\u0304", "ü\u0304", "각", "\u1100\u1161\u11a8", "가\u11a8"):
            self.assertEqual(normalize(text), SPACE + unicodedata.normalize("NFC", text))

    @parameterized.parameters(
        ("nmt_nfkc", "▁می▁خواهم", "▁fi"), ("nfkc", "▁می\u200cخواهم", "▁fi"),
        ("nfc", "▁می\u200cخواهم", "▁ﬁ"), ("identity", "▁می\u200cخواهم", "▁ﬁ"),
    )  # fmt: skip
    def test_joiners_survive_all_but_nmt(self, normalizer, persian, ligature):
        normalize = TextRules(normalizer=normalizer).processor().normalize
        self.assertEqual([normalize("می\u200cخواهم"), normalize("ﬁ")], [persian, ligature])

    def test_a_file_of_rules(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "rules.tsv")
            path.write_text("62\t63 64\n", encoding="ascii")
            rules = TextRules(normalizer=str(path))
            self.assertEqual(rules.processor().normalize("abc"), "▁acdc")
            name = rules.name
            path.write_text("62\t63\n", encoding="ascii")
            self.assertNotEqual(TextRules(normalizer=str(path)).name, name)

    def test_only_equal_rules_have_one_name(self):
        changes = (
            {}, {"normalizer": "nfc"}, {"normalizer": "nfc", "whitespace": "keep"},
            {"split_digits": True}, {"pattern": "a"}, {"user_defined_symbols": ("a",)},
        )  # fmt: skip
        self.assertLen({TextRules(**change).name for change in changes}, len(changes))
        settings = VocabularySettings(split_digits=True, target_size=99)
        self.assertEqual(settings.rules.name, TextRules(split_digits=True).name)

    @parameterized.parameters(
        ({"normalizer": "nfx"}, "must be one of nmt_nfkc"), ({"whitespace": "keep"}, "nmt_nfkc"),
        ({"split_digits": True, "pattern": "a"}, "split_digits=False"),
        ({"user_defined_symbols": ("a", "a")}, "distinct"),
    )  # fmt: skip
    def test_contradictions(self, settings, message):
        with self.assertRaisesRegex(ValueError, message):
            TextRules(**settings)

    def test_symbols_with_blanks_are_for_tokens_of_bytes(self):
        given = {"user_defined_symbols": ("b", "New York"), "target_size": 999}
        with self.assertRaisesRegex(ValueError, r"\['New York'\]: .*New_York"):
            VocabularySettings(method="union", **given)
        self.assertIn("New York", VocabularySettings(method="byte_bpe", **given).fixed)


def counted(pattern: str, lines: list[str]) -> collections.Counter[str]:
    """The slow reference: matches of a regular expression in whole normalised lines."""
    normalize = TextRules().processor().normalize
    splitter = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    found: collections.Counter[str] = collections.Counter()
    for line in lines:
        matches = splitter.pre_tokenize_str(normalize(line).replace(SPACE, " "))
        found.update(match.replace(" ", SPACE) for match, _ in matches)
    return found


class RunsTest(parameterized.TestCase):
    def test_runs_of_a_pattern_are_its_matches(self):
        table = pretokens.count_pretokens(LINES, TextRules(pattern=PATTERN))
        self.assertEqual(
            dict(zip(table.runs(), table.counts, strict=True)), counted(PATTERN, LINES)
        )

    def test_a_pattern_begins_anew_behind_kept_white_space(self):
        rules = TextRules(normalizer="identity", whitespace="keep", pattern=PATTERN)
        found = pretokens.count_pretokens(["ab\tcd1e f\n2gh"], rules)
        self.assertEqual(set(found.runs()), {"▁ab", "cd", "1", "e", "▁f", "2", "gh"})

    def test_a_wrong_pattern(self):
        with self.assertRaisesRegex(ValueError, "vocab.pattern is '\\(', not a regular expression"):
            pretokens.count_pretokens(LINES, TextRules(pattern="("))

    def test_digits_are_runs_of_their_own(self):
        lines = ["ab12 3 c٤٥", "12", "1.2"]
        found = set(pretokens.count_pretokens(lines, TextRules(split_digits=True)).runs())
        self.assertEqual(found, {"▁ab", "1", "2", "▁", "3", "▁c", "٤", "٥", "."})

    def test_kept_white_space_and_symbols_are_in_no_run(self):
        rules = TextRules(
            normalizer="identity", whitespace="keep", user_defined_symbols=("bc", "b")
        )
        table = pretokens.count_pretokens(["a\tabcd  b\n\nx", " y "], rules)
        counts = dict(zip(table.runs(), table.counts.tolist(), strict=True))
        self.assertEqual(counts, {"▁a": 1, "a": 1, "d": 1, "x": 1, "▁y": 1, "▁": 1})
        self.assertEqual(table.num_sentences, 2)

    def test_symbols_are_matched_before_text_is_normalised(self):
        rules = TextRules(user_defined_symbols=("①",))  # which becomes 1
        found = pretokens.count_pretokens(["① 1 a①21"], rules)
        self.assertEqual(set(found.runs()), {"▁1", "▁a", "21"})

    def test_what_follows_is_that_of_the_text(self):
        """A pattern that cuts as scripts do gives the same table, with the bytes that follow."""
        lines = ["ab cd ab", "ab"]
        by_scripts = pretokens.count_pretokens(lines)
        by_pattern = pretokens.count_pretokens(lines, TextRules(pattern=" ?[a-z]+"))
        self.assertEqual(by_scripts.runs(), by_pattern.runs())
        self.assertSequenceEqual(by_scripts.follow.tolist(), by_pattern.follow.tolist())


class RequiredTest(parameterized.TestCase):
    def test_all_digits_of_a_system_in_use(self):
        found = required_characters("a1३", ("digits",), TextRules())
        self.assertEqual(found, {*"0123456789", *"०१२३४५६७८९"})
        self.assertIn("₹", required_characters("", ("currency",), TextRules()))
        self.assertLen(required_characters("", ("ascii",), TextRules()), 94)

    def test_only_characters_that_normalisation_leaves(self):
        self.assertNotIn("￥", required_characters("", ("currency",), TextRules()))
        self.assertIn("￥", required_characters("", ("currency",), TextRules(normalizer="nfc")))

    def test_are_covered_where_the_text_lacks_them(self):
        table = dataclasses.replace(texts.table("en"), required=frozenset("₹१q"))
        covered = seeds.cover(table, 0.98)
        alphabet = covered.alphabet.tobytes().decode("utf-32-le")
        self.assertContainsSubset("₹१q", alphabet)
        without = seeds.cover(texts.table("en"), 0.98).alphabet.tobytes().decode("utf-32-le")
        self.assertContainsSubset(set(alphabet), {*without, *"₹१q"})


class BuildTest(parameterized.TestCase):
    @parameterized.parameters("vocap", "union", "bpe", "joint")
    def test_lossless(self, method):
        settings = dict(LOSSLESS, split_digits=True, required_chars=("ascii", "digits"), reserved=2)
        own = build(method, **settings, control_symbols=("<|a|>",), user_defined_symbols=("{a<",))
        processor = spm.SentencePieceProcessor(model_proto=own.model)
        pieces = [processor.id_to_piece(i) for i in range(len(processor))]
        self.assertLen(pieces, 1900)
        self.assertEqual(pieces[: len(SPECIALS)], list(SPECIALS))
        self.assertEqual(pieces[5:10], ["<|a|>", "<reserved_0>", "<reserved_1>", "{a<", "<0x00>"])
        for text in (*ODD, *LINES):
            self.assertEqual(processor.decode(processor.encode(text)), text)
        self.assertContainsSubset("0123456789०१२३४५६७८९{}<>", pieces)
        self.assertEqual([p for p in pieces[265:] if re.search(r"\d.|.\d", p)], [])
        self.assertIn("{a<", processor.encode("x{a<b", out_type=str))
        indented = processor.encode("a:\n    b", out_type=str)
        self.assertTrue({"▁▁▁", "▁▁▁▁"} & set(indented), indented)
        self.assertNotIn(processor.piece_to_id("<|a|>"), processor.encode("<|a|>"))

    def test_each_rule_is_part_of_what_is_cached(self):
        with tempfile.TemporaryDirectory() as cache:
            models = [
                build(cache=cache, **change).model
                for change in ({}, {"normalizer": "nfc"}, {"required_chars": ("currency",)}, {})
            ]
        self.assertLen(set(models), 3)
        self.assertEqual(models[0], models[-1])
        self.assertEqual(models[0], build().model)

    def test_a_table_of_other_rules_is_refused(self):
        from vocap import building, pretoken_tables

        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "en.runs.gz")
            pretoken_tables.write_table(path, pretokens.count_pretokens(LINES))
            settings = VocabularySettings(
                target_size=2200, sizes=(), normalizer="nfc", num_workers=1
            )
            with self.assertRaisesRegex(
                ValueError, "by the rules nmt_nfkc, .*count the text again"
            ):
                building.build_vocabulary({"en": path}, {}, settings, pathlib.Path(folder))

    def test_sizes_follow_the_text_and_grow_where_they_end(self):
        """A first limit that is too small changes nothing."""
        from unittest import mock

        from vocap import building

        expected = build(alpha=1.0, beta=1.0)
        with mock.patch.object(building, "_first_limit", lambda *_: 200):
            found = build(alpha=1.0, beta=1.0)
        self.assertEqual(found.model, expected.model)
        first = {lang: sizes[0] for lang, (sizes, _) in found.curves.items()}
        characters = {
            lang: len(seeds.cover(pretokens.count_pretokens(lines), 0.9995).alphabet)
            for lang, lines in (("en", LINES[:120]), ("zh", LINES[240:]))
        }
        self.assertContainsSubset(characters.items(), first.items())
