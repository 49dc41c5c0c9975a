"""VoCap's vocabularies at a small size, and the paper's tables for `vocap_paper_full`."""

from collections.abc import Mapping

from research.figure import Figure, Point, places, study

_OF_VOCABULARY = ("vocab.method", "vocab.target_size", "vocab.alpha")
_OF_LAYER = ("output_layer", "optimizer.embedding_update")
# Run, label and XTREME average of each row of Table 1.
_TABLE_1 = (
    ("xlmr_250k", "XLM-R 250K", 60.7),
    ("joint_250k", "JOINT 250K", 61.1),
    ("joint_500k", "JOINT 500K", 61.4),
    ("vocap_250k", "VoCap 250K", 61.5),
    ("vocap_500k", "VoCap 500K", 63.1),
    ("vocap_500k_knn", "k-NN", 63.7),
    ("vocap_500k_half", "half emb", 62.5),
    ("vocap_500k_knn_half", "both", 62.5),
)
# Run, label and XNLI of each row of Table 2.
_TABLE_2 = (
    ("short_full", "full", 69.2),
    ("short_knn", "k-NN", 69.3),
    ("short_target_sampling", "target sampling", 68.8),
    ("short_nce", "NCE", 56.0),
    ("short_neg", "NEG", 56.5),
)
_TABLE_3: dict[float, float] = {5: 68.5, 10: 69.3, 25: 69.2, 50: 69.3, 100: 69.5}
_TABLE_4 = {0.0: 66.9, 0.3: 69.0, 0.7: 69.2, 1.0: 69.5}
_METHODS = ("vocap", "joint", "proportional", "clustered", "uniform")
_UNION = {  # run -> label
    "joint": "JOINT f^0.7", "joint_even": "JOINT f^0.3", "vocap": "VoCap", "union": "union",
    "union_fair": "union, parity 1",
}  # fmt: skip


def _beta(prefix: str, default: str, sizes: Mapping[str, str]) -> Figure:
    """Table 4 at some vocabulary sizes; `sizes` has their labels by the end of a run's name."""
    return Figure(
        title="Weight of the languages' amounts of text in the allocation",
        place="Table 4",
        axis="beta",
        points=tuple(
            Point((default if beta == 0.7 else f"{prefix}beta{int(10 * beta)}") + end, beta, label)
            for end, label in sizes.items()
            for beta in _TABLE_4
        ),
        keys=("vocab.beta", "vocab.target_size"),
        paper={"500K": _TABLE_4},
        note="NER falls from 61.5 to 60.9 as XNLI rises; POS is 71.7 or 71.8.",
    )


FIGURES: dict[str, dict[str, Figure]] = {
    "full": {
        "table1": Figure(
            title="Vocabularies and output layers",
            place="Table 1",
            axis="run",
            keys=(*_OF_VOCABULARY, *_OF_LAYER, "model.embedding_size"),
            measure="XTREME, average",
            note="A million updates.",
            **places(_TABLE_1),
        ),
        "table2": Figure(
            title="Approximations of the softmax",
            place="Table 2",
            axis="output layer",
            keys=_OF_LAYER,
            note="Half a million updates.",
            **places(_TABLE_2),
        ),
        "table3": Figure(
            title="Neighbours k",
            place="Table 3",
            axis="k",
            points=tuple(Point("short_knn" if k == 50 else f"short_k{k}", k) for k in _TABLE_3),
            keys=_OF_LAYER,
            is_log=True,
            paper={"all": _TABLE_3},
            note="The full softmax has 69.2.",
        ),
        "table4": _beta("short_", "short_full", {"": "500K"}),
    },
    "small": {
        "methods": Figure(
            title="Ways to choose the pieces, by what encoders learn on them",
            place="Table 1, Figures 4 and 6",
            axis="method",
            points=tuple(
                Point(f"{method}{suffix}", x, f"{size} pieces")
                for suffix, size in (("", "8,000"), ("_16k", "16,000"))
                for x, method in enumerate(_METHODS)
            ),
            keys=_OF_VOCABULARY,
            ticks=dict(enumerate(_METHODS)),
            paper={"250K": {0: 61.5, 1: 61.1}, "500K": {0: 63.1, 1: 61.4}},
            measure="XTREME, average",
            note="The paper compares VoCap with JOINT.",
        ),
        "union": Figure(
            title="Encoders on the union's pieces",
            place="beyond the paper",
            axis="vocabulary",
            points=tuple(Point(f"{name}_16k", x, "16,000 pieces") for x, name in enumerate(_UNION)),
            keys=(*_OF_VOCABULARY, "vocab.beta", "vocab.parity", "vocab.byte_fallback"),
            ticks=dict(enumerate(_UNION.values())),
            measure="XTREME, average",
        ),
        "beta": _beta("", "vocap", {"": "8,000 pieces", "_16k": "16,000 pieces"}),
    },
}

STUDY = study(
    "VoCap's vocabularies in small",
    "research/configs/vocap.py:vocap,DATA",
    FIGURES["small"],
    is_small=True,
)
