"""VECO's comparison with XLM (Table 2) at the paper's size. Needs accelerators."""

from research.figure import study
from research.studies.veco import table2

STUDY = study(
    "VECO against XLM", "configs/veco.py:base,DATA", {"table2": table2("base")}, is_small=False
)
