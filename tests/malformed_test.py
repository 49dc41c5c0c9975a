"""Malformed input: every command ends in a plain error with status 2, and leaves all as it was."""

from absl.testing import absltest, parameterized

from tests.malformed import cases, harness, templates


class MalformedTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.enter_context(templates.quick())

    @parameterized.named_parameters(
        (f"{number}_{case.kind}_{case.name}".replace(" ", "_"), case)
        for number, case in enumerate(cases.CASES)
    )
    def test_an_error_of_the_user(self, case):
        harness.check(self, case, templates.template(case.template))


if __name__ == "__main__":
    absltest.main()
