"""Studies: comparisons of quality that take hours. Each resumes, and ends in a report.

Run as python -m studies.NAME.
"""
