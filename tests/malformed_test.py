"""Malformed input: every command ends in a plain error with status 2, and leaves all as it was."""

import pathlib
import re

from absl.testing import absltest, parameterized

from tests.malformed import cases, harness, templates

_PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "errors.md"


class MalformedTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.enter_context(templates.quick())

    @parameterized.named_parameters(
        (re.sub(r"\W+", "_", f"{number} {case.kind} {case.name}"), case)
        for number, case in enumerate(cases.CASES)
    )
    def test_an_error_of_the_user(self, case):
        harness.check(self, case, templates.template(case.template))


class PageTest(absltest.TestCase):
    def test_the_table_says_how_many_cases_there_are(self):
        rows = re.findall(r"^\| (.+) \| (\d+) \|$", _PAGE.read_text(encoding="utf-8"), re.M)
        counts = cases.counts()
        expected = {**counts, "all": sum(counts.values())}
        self.assertEqual({kind: int(count) for kind, count in rows}, expected)


if __name__ == "__main__":
    absltest.main()
