"""Figures of XLM-R's analysis (Section 5.1) at a small size; `xlm_r_full` has the paper's."""

from research.configs import xlm_r
from research.figure import Figure, Point, study


def _languages(word: str) -> Figure:
    is_small = word == "small"
    most = 60 if is_small else 100
    names = {15: "reference"} if is_small else {100: "reference"}
    counts = (7, 15, 30, most) if is_small else (7, 15, 30, 60, most)
    series = "small" if is_small else "Wikipedia"
    more = () if is_small else tuple(Point(f"cc_{n}", n, "CommonCrawl") for n in counts)
    return Figure(
        title="How many languages fit a model? (the curse of multilinguality)",
        place="Section 5.1, Transfer-dilution trade-off, first figure",
        axis="languages",
        points=(*(Point(names.get(n, f"languages_{n}"), n, series) for n in counts), *more),
        keys=("corpus.languages", "corpus.text"),
        is_log=True,
        paper={"Wikipedia": {7: 71.8, 100: 67.7}},
        note="The text has 71.8 and 67.7. The points between are only in a figure: better from 7 "
        "to 15 languages, above all in low-resource ones, then worse.",
    )


def _capacity(word: str) -> Figure:
    counts, reference = ((7, 15, 30), 15) if word == "small" else ((7, 30, 100), 100)
    first, *wider = counts
    return Figure(
        title="Does a wider model undo the curse?",
        place="Section 5.1, Transfer-dilution trade-off, second figure",
        axis="languages",
        points=(
            *(
                Point("reference" if n == reference else f"languages_{n}", n, "equal width")
                for n in counts
            ),
            Point(f"languages_{first}", first, "growing width"),
            *(Point(f"wide_{n}", n, "growing width") for n in wider),
        ),
        keys=("corpus.languages", "model"),
        is_log=True,
        paper={"equal width": {7: 71.8, 100: 67.7}},
        note="Widths 768, 960 and 1,152 for 7, 30 and 100 languages. Ours are 128, 160 and 192 for "
        "7, 15 and 30. Only in a figure: with them XLM-30 is on par with XLM-7, XLM-100 behind.",
    )


def _examples() -> Figure:
    """Figure of small runs with as many examples per language as with seven languages."""
    first = Point("languages_7", 7, "width 128")
    return Figure(
        title="The curse of multilinguality at equal examples of each language",
        place="Section 5.1, Transfer-dilution trade-off",
        axis="languages",
        points=(
            first,
            *(Point(f"languages_{n}_examples", n, "width 128") for n in (15, 30)),
            first._replace(series="growing width"),
            *(Point(f"wide_{n}_examples", n, "growing width") for n in (15, 30)),
        ),
        keys=("corpus.languages", "model", "train.num_steps"),
        is_log=True,
        note="Not in the paper, whose models have equal updates. Here each language has 343 "
        "updates on average: 2,400, 5,143 and 10,286 for 7, 15 and 30 languages. This separates "
        "the cost in examples from the cost in capacity. The stream favours languages with much "
        "text (`data.alpha`), so the seven get somewhat more with others. Widths are those of "
        "`capacity`.",
    )


def _alpha(word: str) -> Figure:
    alphas = (*xlm_r.ALPHAS, 1.0) if word == "small" else xlm_r.ALPHAS
    return Figure(
        title="High- against low-resource languages, by the exponent of sampling",
        place="Section 5.1, High-resource/Low-resource trade-off",
        axis="alpha",
        points=tuple(
            Point("reference" if alpha == 0.3 else f"alpha_{alpha}", alpha) for alpha in alphas
        ),
        keys=("data.alpha",),
        note="Only in a figure: with a higher alpha, high-resource languages are better and "
        "low-resource ones worse. 0.3 is best over all. The vocabulary keeps alpha 0.3.",
    )


def _vocabulary(word: str) -> Figure:
    is_small = word == "small"
    unit = 1000
    equal = (4, 16, 32) if is_small else (32, 64, 128, 256)
    wide = (4, 16, 32) if is_small else (128, 256, 512)
    both = [Point("reference", 8 if is_small else 150, one) for one in ("parameters", "width")]
    return Figure(
        title="How many pieces, at constant parameters and at constant width?",
        place="Section 5.1, Importance of Capacity and Vocabulary Size",
        axis="pieces",
        points=tuple(
            Point(point.run, unit * point.x, f"constant {point.series}")
            for point in (
                *(Point(f"parameters_{n}k", n, "parameters") for n in equal),
                *(Point(f"pieces_{n}k", n, "width") for n in wide),
                *both,
            )
        ),
        keys=("vocab.target_size", "model"),
        is_log=True,
        paper={
            "constant parameters": {32_000: 0.0, 256_000: 2.8},
            "constant width": {128_000: 0.0, 512_000: 3.0},
        },
        measure="XNLI, gain over the least size",
        note="The text has gains: 2.8 from 32K to 256K at constant parameters, more than 3 from "
        "128K to 512K at constant width. The scores are only in figures.",
    )


def _corpora(word: str) -> Figure:
    points: tuple[Point, ...]
    if word == "small":
        points = (
            Point("wikipedia_7", 0, "7 languages"),
            Point("languages_7", 1, "7 languages"),
            Point("wikipedia_15", 0, "15 languages"),
            Point("reference", 1, "15 languages"),
        )
    else:
        points = tuple(
            Point(run, x, f"{n} languages")
            for n in (7, 100)
            for x, run in ((0, "reference" if n == 100 else f"languages_{n}"), (1, f"cc_{n}"))
        )
    return Figure(
        title="Small corpora against large ones",
        place="Section 5.1, Importance of large-scale training with more data; Section 5.4",
        axis="corpus",
        ticks={0: "Wikipedia", 1: "CommonCrawl"},
        points=points,
        keys=("corpus.languages", "corpus.text", "corpus.max_train_bytes_of"),
        paper={"Swahili": {0: 0.0, 1: 7.0}, "Urdu": {0: 0.0, 1: 4.8}},
        measure="XNLI, gain over Wikipedia, translate-train-all",
        note="Only in a figure: all models on CommonCrawl are much better. The gains are from "
        "Section 5.4. Here: amounts of text in the proportions of the two corpora (VoCap, Tables 7 "
        "and 8), from the same sources.",
    )


def _batch(word: str) -> Figure:
    sizes = {"small": (8, 32), "ablation": (4096, 8192)}[word]
    points = [Point(f"batch_{n}", n, "equal updates") for n in sizes]
    if word == "small":
        points += [Point(f"batch_{n}_examples", n, "equal examples") for n in sizes]
        points += [Point("reference", 16, "equal examples")]
    points.append(Point("reference", 16 if word == "small" else 2048, "equal updates"))
    return Figure(
        title="Batch size",
        place="Section 5.1, Importance of large-scale training with more data",
        axis="sequences a batch",
        points=tuple(points),
        keys=("train.batch_size", "train.num_steps"),
        is_log=True,
        note="Only in a figure: larger is better.",
    )


def _steps(word: str) -> Figure:
    counts = (600, 1200, 2400, 4800, 9600) if word == "small" else (50, 100, 200, 400)
    unit = 1 if word == "small" else 1000
    name = "steps_{}" if word == "small" else "steps_{}k"
    reference, first = (2400, "languages_7") if word == "small" else (200, "reference")
    return Figure(
        title="Training past the plateau of validation perplexity",
        place="Section 5.1, Importance of large-scale training with more data",
        axis="updates",
        points=tuple(Point(first if n == reference else name.format(n), unit * n) for n in counts),
        keys=("train.num_steps",),
        is_log=True,
        note="From the text: the published XLM has 71.3, and more than 75 after tuning and longer "
        "training. The paper does not state the updates. Each run has its own schedule. Ours have "
        "seven languages.",
    )


def _tokenizer(word: str) -> Figure:
    points = [Point("reference", 0, "raw text"), Point("bpe", 1, "raw text")]
    if word != "small":
        points.append(Point("segmented", 0, "segmented text"))
        points.append(Point("segmented_bpe", 1, "segmented text"))
    return Figure(
        title="SentencePiece on raw text against language-specific preprocessing and BPE",
        place="Section 5.1, Simplifying multilingual tokenization with Sentence Piece",
        axis="pieces of",
        ticks={0: "unigram model", 1: "BPE"},
        points=tuple(points),
        keys=("corpus.text", "vocab.method"),
        note="Only in a figure: SentencePiece loses nothing. The paper compares the unigram model "
        "on raw text with BPE on segmented text. DATA/segmented has the same text, segmented by "
        "the tools of each language. At a small size both read raw text.",
    )


def figures(word: str) -> dict[str, Figure]:
    found = {
        "languages": _languages(word),
        "alpha": _alpha(word),
        "vocabulary": _vocabulary(word),
        "capacity": _capacity(word),
        "corpora": _corpora(word),
        "batch": _batch(word),
        "steps": _steps(word),
        "tokenizer": _tokenizer(word),
    }
    if word == "small":
        found["examples"] = _examples()
    return found


STUDY = study(
    "XLM-R's analysis in small",
    "research/configs/xlm_r.py:reference,DATA",
    figures("small"),
    is_small=True,
)
