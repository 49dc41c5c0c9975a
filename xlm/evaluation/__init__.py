"""Evaluation: exact masked-LM loss, retrieval between parallel sentences, tables and reports.

In scope: functions from parameters (or finished results) to numbers and pages; the search for what
a decoder says. Out of scope: anything that changes parameters.
"""
