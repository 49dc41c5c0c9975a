"""Figures of XLM-R's analysis (Section 5.1) at the paper's size. Needs accelerators."""

from research.figure import study
from research.studies.xlm_r import figures

STUDY = study(
    "XLM-R's analysis",
    "research/configs/xlm_r_full.py:reference,DATA",
    figures("ablation"),
    is_small=False,
)
