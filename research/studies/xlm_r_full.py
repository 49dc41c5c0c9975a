"""Figures of XLM-R's analysis (Section 5.1) at full size; needs accelerators."""

from research.figure import study
from research.studies.xlm_r import figures

STUDY = study(
    "XLM-R's analysis", "configs/xlm_r.py:ablation,DATA", figures("ablation"), is_small=False
)
