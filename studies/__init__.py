"""Studies: comparisons of quality that take hours. Each is resumable and writes a report.

Run as python -m studies.NAME.
"""
