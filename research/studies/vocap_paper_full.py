"""Tables 1 to 4 of VoCap's paper at the paper's size. Needs accelerators."""

from research.figure import study
from research.studies.vocap_paper import FIGURES

STUDY = study(
    "VoCap's tables", "configs/vocap_paper.py:vocap_500k,DATA", FIGURES["full"], is_small=False
)
