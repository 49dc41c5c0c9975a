"""Decisions and scores of outputs, whatever their batches; selection of the best parameters."""

import dataclasses
import types

import jax
import numpy as np
from absl.testing import absltest, parameterized
from scipy import special

from input_pipeline.tasks.examples import Answer, QuestionExample, TaggedExample, TextExample
from input_pipeline.tasks.features import QuestionFeature, TaggedFeature, TextFeature
from input_pipeline.tasks.tasks import TASKS
from tests import tiny_tasks
from xlm.evaluation import tasks
from xlm.evaluation.metrics.questions import Found
from xlm.evaluation.tasks import ALL, Predictor, Selection, TaskData
from xlm.experiment.task_kinds import KINDS
from xlm.models.encoder import Encoder
from xlm.models.heads import ClassificationHead
from xlm.objectives.fine_tuning import FineTuning, classification_loss, tagging_loss
from xlm.training.settings import MeshSettings
from xlm.training.sharding import make_mesh

XNLI, WIKIANN = TASKS["xnli"], TASKS["wikiann"]


def texts(*labels: float) -> TaskData:
    examples = [TextExample(str(i), "x", None, label) for i, label in enumerate(labels)]
    return TaskData("en", examples, examples)


class ClassesTest(parameterized.TestCase):
    def test_the_highest_class(self):
        data, outputs = texts(0, 2, 1), [np.eye(3)[i] for i in (0, 1, 1)]
        decided = tasks.classes(outputs)
        self.assertEqual(decided, [0, 1, 1])
        self.assertEqual(tasks.label_scores(XNLI, data, decided), {"accuracy": 2 / 3})
        lines = KINDS["classification"].lines(XNLI, data, outputs, decided, None)
        rest = round(1 / (np.e + 2), 6)
        probable = {"entailment": rest, "neutral": round(np.e * rest, 6), "contradiction": rest}
        found = lines[1].pop("probabilities")
        self.assertEqual(lines[1], {"id": "1", "prediction": "neutral"})
        self.assertEqual(found.keys(), probable.keys())
        for label, value in probable.items():
            self.assertAlmostEqual(found[label], value, places=5)

    def test_a_number(self):
        data, outputs = texts(0.0, 2.5, 5.0), [np.array([x]) for x in (1.0, 2.0, 3.0)]
        decided = tasks.numbers(outputs)
        self.assertEqual(decided, [1.0, 2.0, 3.0])
        self.assertAlmostEqual(tasks.label_scores(TASKS["stsb"], data, decided)["pearson"], 1.0)
        lines = KINDS["regression"].lines(TASKS["stsb"], data, outputs, decided, None)
        self.assertEqual(lines[0], {"id": "0", "prediction": 1.0})
        with self.assertRaisesRegex(ValueError, "cola, en: example 1 has no label"):
            tasks.label_scores(TASKS["cola"], texts(0, None), [0, 0])


class TagsTest(absltest.TestCase):
    def test_windows_of_a_sentence_are_joined(self):
        tag = WIKIANN.labels.index
        examples = [
            TaggedExample("0", ("in", "New", "York"), (tag("O"), tag("B-LOC"), tag("I-LOC"))),
            TaggedExample("1", ("Abe",), (tag("B-PER"),)),
        ]

        def window(example: int, first: int, count: int) -> TaggedFeature:
            row = np.zeros(count + 2, np.int32)
            return TaggedFeature(example, row, row, count, row[:0], first)

        # In another order, and with more states than words.
        features = [window(1, 0, 1), window(0, 2, 1), window(0, 0, 2)]
        found = [["B-LOC"], ["I-LOC"], ["O", "B-LOC"]]
        outputs = []
        for names in found:
            scores = np.full((5, len(WIKIANN.labels)), 0.5)
            scores[range(len(names)), [tag(name) for name in names]] = 1
            outputs.append(scores)
        data = TaskData("en", examples, features)
        decided = tasks.tags(data, outputs)
        self.assertEqual(decided, [examples[0].tags, (tag("B-LOC"),)])
        self.assertEqual(
            tasks.tag_scores(WIKIANN, data, decided), {"f1": 0.5, "precision": 0.5, "recall": 0.5}
        )
        self.assertEqual(
            KINDS["tagging"].lines(WIKIANN, data, outputs, decided, None)[1],
            # A score of 1 against six of 0.5.
            {"id": "1", "words": ["Abe"], "prediction": ["B-LOC"], "probabilities": [0.215555]},
        )
        self.assertEqual(tasks.tag_scores(TASKS["udpos"], data, decided)["accuracy"], 0.75)


class AnswersTest(parameterized.TestCase):
    """One token per character after `<s> ? </s> </s>`; windows of unequal lengths."""

    def data(self) -> TaskData:
        examples = [
            QuestionExample("a", "?", "北京是首都", (Answer("首都", 3),)),
            QuestionExample("b", "?", "nothing", ()),
        ]
        features = [self.window(0, 0, 3), self.window(0, 2, 5), self.window(1, 0, 7)]
        return TaskData("zh", examples, features)

    def window(self, example: int, first: int, last: int) -> QuestionFeature:
        count = last - first
        offsets = np.zeros((count + 5, 2), np.int32)
        offsets[4 : 4 + count] = [(i, i + 1) for i in range(first, last)]
        best = np.zeros(count + 5, bool)
        best[4 : 4 + count] = True
        return QuestionFeature(example, np.zeros(count + 5, np.int32), offsets, best, 0, 0)

    def outputs(self, null: float) -> list[np.ndarray]:
        """Outputs with best answers 首都 (second window) and "thin"; `null` is the score of b."""
        rows = [np.zeros((len(f.offsets) + 2, 2)) for f in self.data().features]
        for row, start, end, score in ((1, 5, 6, 2.0), (0, 4, 5, 1.0), (2, 6, 9, 1.0)):
            rows[row][start, 0] = rows[row][end, 1] = score
        rows[2][0] = null / 2
        return [row[: len(f.offsets)] for row, f in zip(rows, self.data().features, strict=True)]

    def answers(self, null: float) -> list[Found]:
        return tasks.answers(self.data(), self.outputs(null), max_answer_length=4, n_best=5)

    def lines(self, task: str, found: list[Found], threshold: float | None) -> list[dict]:
        return KINDS["extractive_qa"].lines(TASKS[task], self.data(), [], found, threshold)

    def test_answers_are_text_of_the_context(self):
        found = self.answers(0.0)
        self.assertEqual([one.best.text for one in found], ["首都", "thin"])
        self.assertEqual([one.best.start for one in found], [3, 2])
        line = self.lines("squad", found, None)[0]
        odds = sum(np.exp(span.score - 4.0) for span in found[0].spans)
        self.assertAlmostEqual(line.pop("probability"), 1 / odds, places=5)
        self.assertEqual(
            line, {"id": "a", "prediction": "首都", "start": 3, "score": 4.0, "null_score": 0.0}
        )

    def test_answers_are_withheld_above_the_threshold(self):
        task, data = TASKS["squad2"], self.data()
        found = self.answers(3.0)  # a: null 0 - 4, b: null 3 - 2
        threshold = tasks.null_threshold(task, data, found)
        self.assertBetween(threshold, -4, 1 - 1e-9)
        for given in (None, threshold):
            self.assertEqual(tasks.answer_scores(task, data, found, given)["f1"], 1.0)
        predictions = [line["prediction"] for line in self.lines("squad2", found, threshold)]
        self.assertEqual(predictions, ["首都", ""])
        withheld = self.lines("squad2", found, threshold)[1]["probability"]
        given = self.lines("squad2", found, 2.0)[1]["probability"]
        self.assertAlmostEqual(withheld / given, np.e, places=4)  # scores of 3 and 2
        # A threshold of other data gives another score.
        self.assertEqual(tasks.answer_scores(task, data, found, 2.0)["f1"], 0.5)
        self.assertEqual(tasks.answer_scores(task, data, found, -5.0)["f1"], 0.5)
        predictions = [line["prediction"] for line in self.lines("squad2", found, 2.0)]
        self.assertEqual(predictions, ["首都", "thin"])
        self.assertIsNone(tasks.null_threshold(TASKS["xquad"], data, self.answers(9)))
        # "No answer" does not count among the best.
        found = tasks.answers(data, self.outputs(9.0), max_answer_length=4, n_best=1)
        self.assertEqual([found.best.text for found in found], ["首都", "thin"])

    def test_answers_are_compared_by_the_rules_of_the_task(self):
        example = QuestionExample("a", "?", "北京，是首都", (Answer("北京是", 0),))
        data = TaskData("zh", [example], [self.window(0, 0, 6)])
        output = np.zeros((11, 2))
        output[4, 0] = output[7, 1] = 1
        found = tasks.answers(data, [output], max_answer_length=4, n_best=5)
        self.assertEqual(found[0].best.text, "北京，是")
        # MLQA drops the Chinese comma, SQuAD's script does not.
        self.assertEqual(tasks.answer_scores(TASKS["mlqa"], data, found)["exact_match"], 1.0)
        self.assertEqual(tasks.answer_scores(TASKS["xquad"], data, found)["exact_match"], 0.0)


class PredictorTest(parameterized.TestCase):
    def setUp(self):
        super().setUp()
        head = ClassificationHead(3, 0.1)
        self.objective = FineTuning(Encoder(tiny_tasks.SETTINGS), head, classification_loss)
        rng = np.random.default_rng(2)
        sizes = {"dense": (16, 16), "output": (16, 3)}
        task = {
            name: {"kernel": rng.normal(size=size), "bias": np.zeros(size[1])}
            for name, size in sizes.items()
        }
        self.params = {
            "encoder": tiny_tasks.params(),
            "task": jax.tree.map(lambda x: x.astype(np.float32), task),
        }

    def features(self) -> list[TextFeature]:
        rng = np.random.default_rng(0)
        rows = [rng.integers(5, tiny_tasks.VOCAB, n).astype(np.int32) for n in (9, 3, 12, 4, 8)]
        return [TextFeature(i, row, None) for i, row in enumerate(rows)]

    @parameterized.parameters(False, True)
    def test_outputs_are_in_the_order_of_the_features(self, on_a_mesh):
        mesh = make_mesh(MeshSettings(-1, 1, 1, 1, ())) if on_a_mesh else None
        predictor = Predictor(
            self.objective.outputs, batch_size=2, buckets=(8, 12), pad=1, mesh=mesh
        )
        features = self.features()
        found = predictor(self.params, features)
        self.assertLen(found, 5)
        self.assertEqual(predictor(self.params, []), [])
        arrays = [feature.arrays(12, 1) for feature in features]
        batch = {name: np.stack([row[name] for row in arrays]) for name in arrays[0]}
        expected = jax.jit(self.objective.outputs)(self.params, batch)
        np.testing.assert_allclose(np.stack(found), expected, rtol=1e-5, atol=1e-5)
        self.assertGreater(np.ptp(expected, axis=0).max(), 0.01)


def data(language: str, *labels: int) -> TaskData:
    examples = [TextExample(str(i), "x", "y", label) for i, label in enumerate(labels)]
    return TaskData(language, examples, [(language, label) for label in labels])


@dataclasses.dataclass
class Model:
    """Predicts for each language the class in its parameters."""

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
        score = lambda one, outputs: tasks.label_scores(XNLI, one, tasks.classes(outputs))  # noqa: E731
        return Selection("accuracy", languages, Model(), score, keep, best or {}, **options)

    def at(self, step: int, **params: int):
        return types.SimpleNamespace(step=np.int32(step), params=params)

    def test_scores_by_language_and_their_mean(self):
        found = self.selection()(self.at(1, en=0, sw=2))
        mean = {"validation/accuracy": 0.625}  # mean of languages, not of examples
        by_language = {"validation/accuracy/en": 0.75, "validation/accuracy/sw": 0.5}
        self.assertEqual(found, {**mean, **by_language})

    def test_the_first_of_the_best_is_kept(self):
        select = self.selection()
        steps = [
            self.at(1, en=2, sw=0),  # 0: better than nothing
            self.at(2, en=0, sw=0),  # 0.375
            self.at(3, en=1, sw=0),  # worse
            self.at(4, en=0, sw=1),  # 0.625
            self.at(5, en=0, sw=2),  # equal
        ]
        for state in steps:
            select(state)
        expected = [(ALL, steps[at].params, at + 1, best)
                    for at, best in ((0, 0.0), (1, 0.375), (3, 0.625))]  # fmt: skip
        self.assertEqual(self.kept, expected)
        # The best before a stop counts.
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
            self.at(2, en=1, sw=2),  # 0.25 and 0.5: equal mean
            self.at(3, en=0, sw=1),  # 0.75 and 0.5: only the mean is better
        ]
        for state in steps:
            select(state)
        first, second, third = (one.params for one in steps)
        by_all = (ALL, first, 1, 0.375), (ALL, third, 3, 0.625)
        by_language = ("en", first, 1, 0.75), ("sw", second, 2, 0.5)
        self.assertEqual(self.kept, [by_all[0], *by_language, by_all[1]])

    def test_patience_counts_evaluations_without_a_better_mean(self):
        select = self.selection(patience=2, history={1: 0.0, 2: 0.375})
        self.assertFalse(select.is_over(2))
        told = "step 3: validation accuracy 12.5 .en 25.0, sw 0.0.; best 37.5 after step 2"
        with self.assertLogs(level="INFO") as logs:
            select(self.at(3, en=1, sw=0))
        self.assertRegex(logs.output[0], told)
        self.assertFalse(select.is_over(3))
        select(self.at(4, en=0, sw=0))  # only equal
        self.assertEqual([select.is_over(step) for step in (3, 4)], [False, True])
        select(self.at(5, en=0, sw=1))  # better
        self.assertFalse(select.is_over(5))
        # A resumed run repeats evaluations. Later ones do not count.
        self.assertEqual(self.selection(history=select.history).is_over(5), False)
        again = self.selection(patience=2, history={**select.history, 4: 0.375})
        self.assertEqual([again.is_over(step) for step in (0, 2, 4)], [False, False, True])

    def test_the_mean_loss_is_that_of_batches(self):
        rng, loss = np.random.default_rng(0), classification_loss
        rows = [rng.integers(5, 20, n).astype(np.int32) for n in (9, 3, 12)]
        features = [TextFeature(i, row, i) for i, row in enumerate(rows)]
        outputs = rng.normal(size=(3, 3))
        batch = {"labels": np.arange(3), "weights": np.ones(3)}
        total, weight = loss(outputs, batch)["loss"]
        self.assertAlmostEqual(
            tasks.mean_loss(loss, features, list(outputs), 1), float(total / weight), places=5
        )
        # Words have equal weights in rows of different lengths.
        words = [TaggedFeature(i, row, row, len(row), row % 3, 0) for i, row in enumerate(rows)]
        of_rows = [rng.normal(size=(n, 3)) for n in (16, 16, 12)]
        losses = [
            -special.log_softmax(one, axis=1)[np.arange(len(row)), row % 3]
            for one, row in zip(of_rows, rows, strict=True)
        ]
        found = tasks.mean_loss(tagging_loss, words, of_rows, 1)
        self.assertAlmostEqual(found, np.concatenate(losses).mean(), places=5)
