"""Commands run by hand now and then: python -m tools.NAME.

Counting and fetching text, memory estimates, models and tokenizers in and out, tables of results.
"""
