from absl.testing import parameterized

import vocap
from tests.vocap import records, texts
from vocap import choosing, report


def candidate(parity: float, **ratios: float) -> choosing.Candidate:
    return choosing.Candidate({"method": "union", "parity": parity}, 20.0, ratios)


class ChoosingTest(parameterized.TestCase):
    def test_the_fewest_tokens_within_the_limit(self):
        few, fair = candidate(0, a=0.7, b=1.2), candidate(1, a=0.95, b=1.0)
        ranked = lambda limit: min((few, fair), key=lambda one: choosing._rank(one, limit))  # noqa: E731
        self.assertIs(ranked(1.3), few)
        self.assertIs(ranked(1.1), fair)
        self.assertIs(ranked(0.9), fair)  # neither is, and b pays least

    def test_builds_what_its_keys_build(self):
        train = {lang: texts.sentences(lang)[::2] for lang in ("en", "sw", "ka")}
        heldout = {lang: texts.sentences(lang)[1::2] for lang in train}
        chosen = vocap.build(train, 800, heldout=heldout, method="auto", max_ratio=9.0)
        found = chosen.candidates[0]
        again = vocap.build(train, 800, heldout=heldout, **found.settings)
        self.assertEqual(chosen.model, again.model)
        self.assertEqual(found.mean_ratio, min(one.mean_ratio for one in chosen.candidates))

    def test_held_out_text_is_needed(self):
        with self.assertRaisesRegex(ValueError, "no held-out text of sw to choose by"):
            vocap.build(
                {"en": texts.sentences("en"), "sw": texts.sentences("sw")}, 900,
                heldout={"en": ["a"]}, method="auto",
            )  # fmt: skip

    @parameterized.parameters((1.3, "fewest tokens of those within 1.3"), (1.1, "comes closest"))
    def test_the_report_says_what_and_why(self, limit, words):
        record = records.record()
        record["settings"]["max_ratio"] = limit
        record["candidates"] = [
            {"settings": one.settings, "tokens": one.tokens, "ratios": one.ratios}
            for one in (candidate(0.5, a=0.7, b=1.2), candidate(1, a=0.9, b=1.2))
        ]
        text = report.choice(record)
        self.assertStartsWith(text, "**Chosen: union with parity 0.5.**")
        self.assertIn(words, text)
        self.assertIn("`--config.vocab.parity=1`", text)
