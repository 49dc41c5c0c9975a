"""XY-LENT's ablations as a grid; `configs/xy_lent.py`. In small they are `studies.xy_lent`."""

from configs.grids import Grid, Point

# Run, label, row of Table 2 and XNLI; the English-centric run and the whole are in two rows.
_TABLE_2 = (
    ("base_250k", "250K pieces", "vocabulary", 76.6),
    ("base_english", "500K pieces", "vocabulary", 78.1),
    ("base_english", "pairs with English", "pairs", 78.1),
    ("base", "pairs of all", "pairs", 80.5),
    ("base_mlm", "masked LM", "objective", 78.4),
    ("base", "ELECTRA", "objective", 80.5),
)


def _series(name: str) -> dict[float, float]:
    return {float(x): score for x, (_, _, series, score) in enumerate(_TABLE_2) if series == name}


GRIDS: dict[str, dict[str, Grid]] = {
    "": {
        "table2": Grid(
            title="Vocabulary, pairs of languages, objective",
            place="Table 2",
            axis="choice",
            points=tuple(
                Point(run, float(x), series) for x, (run, _, series, _) in enumerate(_TABLE_2)
            ),
            keys=("objective", "vocab.target_size", "data.pair_sampling", "mask"),
            ticks={float(x): label for x, (_, label, _, _) in enumerate(_TABLE_2)},
            paper={name: _series(name) for name in ("vocabulary", "pairs", "objective")},
            note="Pairs with English are CCAligned's in the paper, pairs of all CCMatrix's; "
            "multiCCAligned has 79.5. Here both are of one DATA, the former drawn from the latter.",
        ),
    },
}
