"""Names and commands of the hostile conditions."""

import collections

from absl.testing import absltest

from benchmarks import hostile_table, hostile_world


class TableTest(absltest.TestCase):
    def test_conditions_have_own_titles_and_known_commands(self):
        found = hostile_table.conditions()
        counts = collections.Counter(one.title for one in found)
        self.assertEqual([title for title, count in counts.items() if count > 1], [])
        self.assertGreaterEqual(len(counts), 300)
        self.assertContainsSubset({one.command for one in found}, hostile_world.commands())
