"""Evaluation: exact masked-LM loss, retrieval, decoding, scores of tasks, tables and reports.

Nothing here changes parameters.
"""
