"""The encoder of XLM-R's analysis in small with one key changed at a time; an hour of two cores."""

from research.ablation import study

STUDY = study("Ablation of XLM-R in small", "research/configs/xlm_r.py:reference,DATA")
