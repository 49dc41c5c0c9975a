"""Questions about a context with the answers in it: JSON of SQuAD 1.1 and 2.0.

XQuAD, MLQA and TyDiQA-GoldP have the same form. Offsets count characters (code points). A misplaced
answer is an error, since a score over fewer questions is not comparable.
"""

import json
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

from input_pipeline.tasks import files
from input_pipeline.tasks.examples import Answer, QuestionExample
from input_pipeline.tasks.tasks import Task


def read_questions(path: pathlib.Path, task: Task) -> Iterator[tuple[str | None, QuestionExample]]:
    """Yield (language, example) of a file; the language is None unless TyDiQA's ids name it.

    It joins the answers of a repeated question, as in XTREME's translations. Raise ValueError if
    the file is not JSON of this form, two questions have one id, or answers are misplaced.
    """
    text = files.read_text(path)
    try:
        data = json.loads(text)
    except RecursionError as error:
        raise ValueError(
            f"{path}: nested too deeply for JSON of SQuAD; copy or download it again"
        ) from error
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path}, line {error.lineno}: not JSON ({error.msg}); the file must have the form of "
            "SQuAD: copy or download it again"
        ) from error
    found: dict[str, QuestionExample] = {}
    for example in _examples(data, path):
        old = found.setdefault(example.id, example)
        if old is example:
            continue
        if (old.question, old.context) != (example.question, example.context):
            raise ValueError(
                f"{path}: two questions have the id {example.id!r}; rename or remove one"
            )
        answers = tuple(dict.fromkeys((*old.answers, *example.answers)))
        found[example.id] = QuestionExample(example.id, old.question, old.context, answers)
    check_answers(found.values(), str(path))
    for example in found.values():
        yield language_of_id(example.id, task), example


def language_of_id(question_id: str, task: Task) -> str | None:
    """Return the language in an id of TyDiQA; None for other datasets."""
    return task.id_languages.get(question_id.split("-")[0])


def check_answers(examples: Iterable[QuestionExample], where: str) -> None:
    """Raise ValueError with the first misplaced answer, and their number."""
    wrong = [
        (example, answer)
        for example in examples
        for answer in example.answers
        if not answer.text.strip()
        or answer.start < 0
        or not example.context.startswith(answer.text, answer.start)
    ]
    if wrong:
        example, answer = wrong[0]
        there = example.context[max(answer.start, 0) :][: len(answer.text) or 20]
        raise ValueError(
            f"{where}, question {example.id!r}: the answer {answer.text!r} is not at character "
            f"{answer.start} of its context, which has {there!r} there ({len(wrong)} such "
            "answers); answer_start counts characters, not bytes, from 0: correct it or remove the "
            "question"
        )


def _examples(data: Any, path: pathlib.Path) -> Iterator[QuestionExample]:
    where = "at the top"
    try:
        for article in data["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    where = f"in question {question.get('id')!r}"
                    yield _example(paragraph["context"], question)
                    where = f"after question {question['id']!r}"
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path}: not of the form of SQuAD: {where}, {type(error).__name__} {error}; expected "
            '{"data": [{"paragraphs": [{"context": "...", "qas": [{"id": "...", "question": '
            '"...", "answers": [{"text": "...", "answer_start": 0}]}]}]}]}'
        ) from error
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{path}: {where}, remove {error.object[error.start]!r}, half of a character"
        ) from error


def _checked(value: Any, kind: type, name: str) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{name} must be {kind.__name__}, is {value!r}")
    return value


def _example(context: str, question: dict[str, Any]) -> QuestionExample:
    # Impossible questions of SQuAD 2.0 have answers that are only plausible.
    is_impossible = question.get("is_impossible", False)
    answers = [] if is_impossible else question.get("answers", [])
    for text in (context, question["question"]):
        _checked(text, str, "context and question").encode()
    # XTREME hides the answers of its tests: they are empty.
    found = [
        Answer(
            _checked(one["text"], str, "text of an answer"),
            _checked(one["answer_start"], int, "answer_start"),
        )
        for one in answers
        if one["text"]
    ]
    distinct = tuple(dict.fromkeys(found))  # those of several annotators are often the same
    return QuestionExample(str(question["id"]), question["question"], context, distinct)
