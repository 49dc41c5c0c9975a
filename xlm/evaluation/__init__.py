"""Evaluation: exact masked-LM loss, retrieval between parallel sentences, tables and reports.

Functions from parameters or finished results to numbers and pages, and the search for what a
decoder says. Nothing here changes parameters.
"""
