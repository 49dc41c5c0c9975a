"""Score tokenizers of any origin on text, side by side: fit, length, coverage, cost by language.

    xlm score-tokenizer --tokenizers=mine=runs/mine/vocab/spm.model,xlmr=xlmr \\
        --text=TEXT --output=DIR [--parallel=news.tsv]

A tokenizer is a SentencePiece model, a tokenizer.json of Hugging Face (BPE and WordPiece too), or a
folder with one. TEXT is a folder of <lang>.txt or <lang>.jsonl files, one sentence a line. Best
choose text that no tokenizer was trained on. --parallel is a TSV or a folder of aligned files
(docs/parallel_text.md). It compares the languages of --text with --pivot, which --text may lack.
The command skips lines that are not UTF-8, with a warning. DIR gets report.html to sort and search,
report.md with plots, scores.csv and results.json.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from absl import flags, logging

from input_pipeline import sources, text_files
from input_pipeline.corpus import ParallelText, load_corpus
from input_pipeline.sources import CorpusSpec, ParallelSource
from vocap import segmentation, segmentation_report
from xlm.common import console, html_report, outputs, tables
from xlm.interop.segmenter import Segmenter, read_segmenter

_TOKENIZERS = flags.DEFINE_list("tokenizers", None, "NAME=PATH of each tokenizer.")
_TEXT = flags.DEFINE_string("text", None, "Folder of text by language.")
_PARALLEL = flags.DEFINE_list("parallel", [], "Parallel text: TSV files, folders, quoted patterns.")
_LANGUAGES = flags.DEFINE_list("languages", [], "Languages to use; all by default.")
_PIVOT = flags.DEFINE_string("pivot", "en", "Language to compare others with.")
_REFERENCE = flags.DEFINE_string(
    "reference", "", "Name of the tokenizer to compare others with; the first by default."
)
_SENTENCES = flags.DEFINE_integer(
    "sentences", 20_000, "Most sentences of a language, from the first on.", lower_bound=1
)
_OUTPUT = outputs.define_flags("The folder of the report.")

OPTIONS = {"required": ("tokenizers", "text", "output")}


def main(_) -> None:
    tokenizers = [one.partition("=")[2] for one in _TOKENIZERS.value]
    inputs = [_TEXT.value, *tokenizers, *_PARALLEL.value]
    with outputs.folder(_OUTPUT.value, inputs) as aside:
        segmenters = _read_segmenters()
        reference = _REFERENCE.value or next(iter(segmenters))
        if reference not in segmenters:
            raise ValueError(
                f"--reference: no tokenizer is called {reference!r}; there are "
                f"{', '.join(segmenters)}; name one of these"
            )
        text, parallel = _read_text()
        scores = _score(segmenters, text, parallel)
        about = _about(text, parallel)
        segmentation_report.write_report(aside, scores, _PIVOT.value, reference, about)
    print(tables.page(*segmentation_report.summary(scores, _PIVOT.value, reference)))
    print(f"report: {pathlib.Path(_OUTPUT.value, html_report.PAGE)}")


def _read_segmenters() -> dict[str, Segmenter]:
    segmenters: dict[str, Segmenter] = {}
    for one in _TOKENIZERS.value:
        name, _, path = one.partition("=")
        if not (name and path):
            raise ValueError(f"--tokenizers: {one!r} must be NAME=PATH, such as mine=spm.model")
        if name in segmenters:
            raise ValueError(f"--tokenizers: {name!r} comes twice; give each a name of its own")
        segmenters[name] = read_segmenter(pathlib.Path(path))
    return segmenters


def _read_text() -> tuple[dict[str, list[str]], list[ParallelText]]:
    """Read sentences by language, and parallel text; warn of lines that cannot be read."""
    paths = tuple(str(pathlib.Path(path).absolute()) for path in _PARALLEL.value)
    spec = CorpusSpec(
        root=_TEXT.value, text=("",), parallel_eval=paths,
        heldout_fraction=0.0, parallel_heldout_fraction=0.0,
    )  # fmt: skip
    with text_files.skipping_bad_lines() as skipped:
        try:
            corpus = load_corpus(dataclasses.replace(spec, parallel_eval=()))
            found = sources.find_parallel(spec)
            if _PARALLEL.value:
                _check_pivot(found)
            languages = _LANGUAGES.value or list(corpus.train)
            if missing := sorted(set(languages) - set(corpus.train)):
                raise ValueError(
                    f"--languages: {_TEXT.value} has no text in {', '.join(missing)}; there are "
                    f"{', '.join(corpus.train)}; name some of these, or add text"
                )
            _warn_of_untaxed(found, languages)
            # Read separately, even if it is the same text: nothing is trained on either.
            parallel = [
                ParallelText(source.name, source.languages, tuple(filter(None, source.rows())))
                for source in found
            ]
        finally:
            for path, bad in skipped.items():
                logging.warning(
                    "%s: skipped %d lines that are not UTF-8, or hold NUL or half a character; if "
                    "these are many, %s", path, bad.lines, text_files.CONVERT,
                )  # fmt: skip
    text = {language: corpus.sentences(language)[: _SENTENCES.value] for language in languages}
    return text, parallel


def _about(text: Mapping[str, Sequence[str]], parallel: Sequence[ParallelText]) -> str:
    number = sum(map(len, text.values()))
    items = [
        f"- Text: {tables.escaped(_TEXT.value)}, {len(text)} languages, {number:,} sentences, at "
        f"most {_SENTENCES.value:,} of a language.",
        *(
            f"- Parallel text: {tables.escaped(one.name)}, {len(one.languages)} languages, "
            f"{len(one.rows):,} rows."
            for one in parallel
        ),
    ]
    named = (one.partition("=") for one in _TOKENIZERS.value)
    items += [f"- **{tables.escaped(name)}**: {tables.escaped(path)}" for name, _, path in named]
    return "\n".join(items)


def _check_pivot(parallel: Sequence[ParallelSource]) -> None:
    languages = _languages_of(parallel)
    if not languages:
        raise ValueError(
            f"--parallel={','.join(_PARALLEL.value)} has no text in two languages; add the files "
            "or columns of a second one, or leave --parallel out"
        )
    if _PIVOT.value not in languages:
        raise ValueError(
            f"--pivot: no parallel text is in {_PIVOT.value!r}; there are "
            f"{', '.join(languages)}; name one of these"
        )


def _warn_of_untaxed(parallel: Sequence[ParallelSource], languages: Sequence[str]) -> None:
    """Warn of languages of parallel text that get no tax, though --languages does not omit them."""
    found = _languages_of(parallel)
    others = [one for one in found if one in (_LANGUAGES.value or found) and one != _PIVOT.value]
    with_pivot = _languages_of([one for one in parallel if _PIVOT.value in one.languages])
    # Unknown tokens may flatter a tax. Only the text shows this, so there is no tax without it.
    if without_text := [one for one in others if one not in languages]:
        logging.warning(
            "no tax of %s, which --parallel has and --text has not: add text of these languages, "
            "such as the parallel text",
            ", ".join(without_text),
        )
    if without_pivot := [one for one in others if one in languages and one not in with_pivot]:
        logging.warning(
            "no tax of %s: --parallel has no text of these beside the pivot, %s",
            ", ".join(without_pivot), _PIVOT.value,
        )  # fmt: skip


def _languages_of(parallel: Sequence[ParallelSource]) -> list[str]:
    return sorted({language for source in parallel for language in source.languages})


def _score(
    segmenters: Mapping[str, Segmenter],
    text: Mapping[str, Sequence[str]],
    parallel: Sequence[ParallelText],
) -> dict[str, segmentation.TokenizerScore]:
    texts: dict[str, dict[str, dict[str, np.ndarray]]] = {name: {} for name in segmenters}
    is_used = {name: np.zeros(one.size, bool) for name, one in segmenters.items()}
    for language in console.bar(text, "score", len(text), "languages"):
        found = zip(*segmentation.score_text([*segmenters.values()], text[language]), strict=True)
        for name, (score, counts) in zip(segmenters, found, strict=True):
            texts[name][language] = score
            is_used[name] |= counts > 0
    # All parallel text together, in rows of the same languages.
    languages = sorted({language for one in parallel for language in one.languages})
    cells = [dict(zip(one.languages, row, strict=True)) for one in parallel for row in one.rows]
    rows = [[row.get(language, "") for language in languages] for row in cells]
    scores = {}
    for name, one in segmenters.items():
        tax = {}
        if rows:
            tokens = segmentation.row_tokens(one, rows)
            samples = segmentation.taxes(tokens, languages.index(_PIVOT.value))
            tax = {
                language: column
                for language, column in zip(languages, samples.T, strict=True)
                if language != _PIVOT.value and language in text and np.isfinite(column[0])
            }
        sentences = {language: len(lines) for language, lines in text.items()}
        used = float(is_used[name][one.is_piece].mean())
        scores[name] = segmentation.TokenizerScore(
            one.kind, one.size, used, sentences, texts[name], tax
        )
    return scores
