"""All cases: one for each way in which a command ends; readers' own tests have the rest."""

from tests.malformed import config_cases, folder_cases, model_cases, task_cases, text_cases

CASES = [
    *text_cases.CASES, *task_cases.CASES, *folder_cases.CASES, *model_cases.CASES,
    *config_cases.CASES,
]  # fmt: skip
