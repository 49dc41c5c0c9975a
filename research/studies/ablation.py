"""The quickstart's encoder with one key changed at a time. Takes an hour on two cores."""

from research.ablation import study

STUDY = study("Ablation of the quickstart", "configs/quickstart.py")
