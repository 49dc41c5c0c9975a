"""VECO's comparison with XLM (Table 2) at a small size; `veco_full` has the paper's size."""

from research.figure import Figure, Point, study


def table2(prefix: str) -> Figure:
    """The four rows of Table 2, as runs whose names begin with `prefix`."""
    return Figure(
        title="Cross-sequence masked LM against masked LM, without pairs and with",
        place="Table 2",
        axis="data",
        points=(
            Point(f"{prefix}_xlm_text", 0.0, "XLM"),
            Point(f"{prefix}_xlm", 1.0, "XLM"),
            Point(f"{prefix}_text", 0.0, "VECO"),
            Point(prefix, 1.0, "VECO"),
        ),
        keys=("objective", "model.cross_attention", "data.pair_share"),
        ticks={0.0: "text", 1.0: "text and pairs"},
        paper={"XLM": {0.0: 59.8, 1.0: 61.2}, "VECO": {0.0: 60.6, 1.0: 67.7}},
        note="XLM is masked LM, and TLM on pairs. Nine languages, 240,000 steps (Table 7).",
    )


STUDY = study(
    "VECO against XLM in small",
    "configs/veco.py:small,DATA",
    {"small_table2": table2("small")},
    is_small=True,
)
