"""XLM-R's small encoder with one key changed at a time. Takes an hour on two cores."""

from research.ablation import study

STUDY = study("Ablation of XLM-R in small", "research/configs/xlm_r.py:reference,DATA")
