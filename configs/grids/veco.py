"""VECO's comparison with XLM as a grid, at full size and in small; `configs/veco.py`."""

from configs.grids import Grid, Point

_TICKS = {0.0: "text", 1.0: "text and pairs"}
_PAPER = {"XLM": {0.0: 59.8, 1.0: 61.2}, "VECO": {0.0: 60.6, 1.0: 67.7}}


def _table2(prefix: str, minutes: float) -> Grid:
    """The four rows of Table 2, of the runs whose names begin with `prefix`."""
    return Grid(
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
        ticks=_TICKS,
        paper=_PAPER,
        note="XLM is masked LM, on pairs TLM. Nine languages; 240,000 steps (Table 7).",
        minutes=minutes,
        is_small=prefix == "small",
    )


GRIDS: dict[str, dict[str, Grid]] = {
    "": {"table2": _table2("base", 0.0), "small_table2": _table2("small", 12.0)},
}
