"""The best parameters are kept, and only those."""

import dataclasses
import types

import numpy as np
from absl.testing import parameterized

from input_pipeline.tasks.examples import TextExample
from input_pipeline.tasks.tasks import TASKS
from xlm.evaluation.tasks import ALL, Selection, TaskData, classes, label_scores


def data(language: str, *labels: int) -> TaskData:
    examples = [TextExample(str(i), "x", "y", label) for i, label in enumerate(labels)]
    return TaskData(language, examples, [(language, label) for label in labels])


@dataclasses.dataclass
class Model:
    """Says the class of each language that its parameters name."""

    calls: int = 0

    def __call__(self, params, features):
        self.calls += 1
        return [np.eye(3)[params[language]] for language, _ in features]


class SelectionTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        self.kept = []

    def selection(self, best: dict[str, float] | None = None, **options: bool) -> Selection:
        languages = [data("en", 0, 0, 0, 1), data("sw", 2, 1)]
        keep = lambda *found: self.kept.append(found)  # noqa: E731
        score = lambda one, outputs: label_scores(TASKS["xnli"], one, classes(outputs))  # noqa: E731
        return Selection("accuracy", languages, Model(), score, keep, best or {}, **options)

    def at(self, step: int, **params: int):
        return types.SimpleNamespace(step=np.int32(step), params=params)

    def test_scores_by_language_and_their_mean(self):
        found = self.selection()(self.at(1, en=0, sw=2))
        mean = {"validation/accuracy": 0.625}  # of languages, not of examples
        by_language = {"validation/accuracy/en": 0.75, "validation/accuracy/sw": 0.5}
        self.assertEqual(found, {**mean, **by_language})

    def test_the_first_of_the_best_is_kept(self):
        select = self.selection()
        steps = [
            self.at(1, en=2, sw=0),  # 0: better than nothing
            self.at(2, en=0, sw=0),  # 0.375
            self.at(3, en=1, sw=0),  # worse
            self.at(4, en=0, sw=1),  # 0.625
            self.at(5, en=0, sw=2),  # the same
        ]
        for state in steps:
            select(state)
        expected = [(ALL, steps[at].params, at + 1, best)
                    for at, best in ((0, 0.0), (1, 0.375), (3, 0.625))]  # fmt: skip
        self.assertEqual(self.kept, expected)
        # What was kept before a stop counts.
        self.kept.clear()
        select = self.selection(best={ALL: 0.375})
        select(self.at(1, en=0, sw=0))
        self.assertEmpty(self.kept)
        select(self.at(2, en=0, sw=1))
        self.assertLen(self.kept, 1)

    def test_each_language_has_its_own_best(self):
        select = self.selection(best={"sw": 0.25}, by_language=True)
        steps = [
            self.at(1, en=0, sw=0),  # 0.75 and 0: the mean 0.375
            self.at(2, en=1, sw=2),  # 0.25 and 0.5: as good in the mean
            self.at(3, en=0, sw=1),  # 0.75 and 0.5: better in the mean alone
        ]
        for state in steps:
            select(state)
        first, second, third = (one.params for one in steps)
        by_all = (ALL, first, 1, 0.375), (ALL, third, 3, 0.625)
        by_language = ("en", first, 1, 0.75), ("sw", second, 2, 0.5)
        self.assertEqual(self.kept, [by_all[0], *by_language, by_all[1]])
