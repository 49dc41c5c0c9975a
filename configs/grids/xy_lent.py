"""XY-LENT's ablations as a grid; `configs/xy_lent.py`. In small they are `studies.xy_lent`."""

from configs.grids import Grid, Line, categories

# The English-centric run and the whole are in two rows.
_TABLE_2 = (
    Line("base_250k", "250K pieces", 76.6, "vocabulary"),
    Line("base_english", "500K pieces", 78.1, "vocabulary"),
    Line("base_english", "pairs with English", 78.1, "pairs"),
    Line("base", "pairs of all", 80.5, "pairs"),
    Line("base_mlm", "masked LM", 78.4, "objective"),
    Line("base", "ELECTRA", 80.5, "objective"),
)

GRIDS: dict[str, dict[str, Grid]] = {
    "": {
        "table2": Grid(
            title="Vocabulary, pairs of languages, objective",
            place="Table 2",
            axis="choice",
            keys=("objective", "vocab.target_size", "data.pair_sampling", "mask"),
            note="Pairs with English are CCAligned's in the paper, pairs of all CCMatrix's; "
            "multiCCAligned has 79.5. Here both are of one DATA, the former drawn from the latter.",
            **categories(_TABLE_2),
        ),
    },
}
