"""All cases."""

from tests.malformed import (
    config_cases,
    folder_cases,
    model_cases,
    parallel_cases,
    task_cases,
    text_cases,
    tokenizer_cases,
)

CASES = [
    *text_cases.CASES,
    *parallel_cases.CASES,
    *task_cases.CASES,
    *tokenizer_cases.CASES,
    *folder_cases.CASES,
    *model_cases.CASES,
    *config_cases.CASES,
]
