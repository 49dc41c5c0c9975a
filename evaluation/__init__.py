"""Evaluation: exact masked-LM loss, retrieval between parallel sentences, tables and reports.

What lives here: functions from parameters (or finished results) to numbers and pages. What does
not: anything that changes parameters.
"""
