"""Blocks, optimizers and phases of today's encoders at a small size, beyond the four papers."""

from research.configs.mmbert import RUNS
from research.figure import Figure, Point, study

_RATES = {"1e-3": 1e-3, "3e-3": 3e-3, "1e-2": 1e-2}
# Shares of the steps.
_PHASES = {
    "modern": "one", "phases": "74, 22, 4 %", "phases_even": "50, 25, 25 %",
    "merged": "74, 22, 4 %, three decays merged",
}  # fmt: skip

FIGURES = {
    "blocks": Figure(
        title="Blocks of XLM-R, with gated or rotary positions, against ModernBERT's",
        place="beyond the papers",
        axis="blocks",
        points=tuple(Point(name, x) for x, name in enumerate(("gated", "rotary", "modern"))),
        keys=("model",),
        ticks={0: "XLM-R's, gated bias", 1: "XLM-R's, rotary", 2: "ModernBERT's"},
        note="Equal tokens, text, pieces, optimizer (Muon at 5e-3) and number of parameters.",
    ),
    "optimizers": Figure(
        title="Muon, AdamW and StableAdamW on ModernBERT's blocks",
        place="beyond the papers",
        axis="learning rate",
        points=(
            Point("modern", 5e-3, "Muon"),
            *(Point(f"adamw_{name}", x, "AdamW") for name, x in _RATES.items()),
            *(Point(f"stable_adamw_{name}", x, "StableAdamW") for name, x in _RATES.items()),
        ),
        keys=("optimizer.kind", "optimizer.learning_rate"),
        is_log=True,
        note="Equal tokens. Muon has the rate of configs/small.py, the others have three rates.",
    ),
    "phases": Figure(
        title="One phase against mmBERT's three, and against the merger of three decays",
        place="mmBERT (arXiv 2509.06888), Sections 3 and 5",
        axis="phases",
        points=tuple(Point(name, x) for x, name in enumerate(_PHASES)),
        keys=("phases", "optimizer.final_rate_ratio"),
        ticks=dict(enumerate(_PHASES.values())),
        note="Phases have 9, 12 and 15 languages. hi, sw and ur join in the last. The merger has "
        "two more decays of 96 steps.",
    ),
}  # fmt: skip

STUDY = study(
    "Encoders of today in small", "research/configs/mmbert.py:modern,DATA", FIGURES, is_small=True
)
assert set(RUNS) == {run for one in FIGURES.values() for run in one.runs}
