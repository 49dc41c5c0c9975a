"""Score tokenizers of any origin on text, side by side: fit, length, coverage, cost by language.

    xlm score-tokenizer --tokenizers=mine=runs/mine/vocab/spm.model,xlmr=xlmr \\
        --text=TEXT --output=DIR [--parallel=news.tsv]

A tokenizer is a SentencePiece model, a tokenizer.json of Hugging Face (BPE and WordPiece too), or a
folder with one. TEXT is a folder of <lang>.txt or <lang>.jsonl files, one sentence a line; best
text that none of them was trained on. --parallel is a TSV or a folder of aligned files
(docs/corpus_format.md). It compares the languages of --text with --pivot, which --text need not
have. DIR gets report.md with plots, scores.csv and results.json.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from absl import flags, logging
from tqdm import tqdm

from input_pipeline import sources
from input_pipeline.corpus import ParallelText, load_corpus
from input_pipeline.sources import CorpusSpec, ParallelSource
from vocap import segmentation, segmentation_report
from xlm.common import outputs
from xlm.interop.segmenter import Segmenter, read_segmenter

_TOKENIZERS = flags.DEFINE_list("tokenizers", None, "NAME=PATH of each tokenizer.")
_TEXT = flags.DEFINE_string("text", None, "Folder of text by language.")
_PARALLEL = flags.DEFINE_list("parallel", [], "Parallel text: TSV files, folders, quoted patterns.")
_LANGUAGES = flags.DEFINE_list("languages", [], "Languages to use; all by default.")
_PIVOT = flags.DEFINE_string("pivot", "en", "Language that others are compared with.")
_SENTENCES = flags.DEFINE_integer(
    "sentences", 20_000, "Sentences of a language that are used, from the first on.", lower_bound=1
)
_OUTPUT = outputs.define_flags("The folder of the report.")

OPTIONS = {"required": ("tokenizers", "text", "output")}


def main(_) -> None:
    tokenizers = [one.partition("=")[2] for one in _TOKENIZERS.value]
    inputs = [_TEXT.value, *tokenizers, *_PARALLEL.value]
    with outputs.folder(_OUTPUT.value, inputs) as aside:
        scores = _scores()
        path = segmentation_report.write_report(aside, scores, _PIVOT.value)
    print(segmentation_report.summary_table(scores))
    print(f"report: {pathlib.Path(_OUTPUT.value, path.name)}")


def _scores() -> dict[str, segmentation.TokenizerScore]:
    segmenters: dict[str, Segmenter] = {}
    for one in _TOKENIZERS.value:
        name, _, path = one.partition("=")
        if not (name and path):
            raise ValueError(f"--tokenizers: {one!r} must be NAME=PATH, such as mine=spm.model")
        if name in segmenters:
            raise ValueError(f"--tokenizers: {name!r} is there twice; give each a name of its own")
        segmenters[name] = read_segmenter(pathlib.Path(path))
    paths = tuple(str(pathlib.Path(path).absolute()) for path in _PARALLEL.value)
    spec = CorpusSpec(
        root=_TEXT.value, text=("",), parallel_eval=paths,
        heldout_fraction=0.0, parallel_heldout_fraction=0.0,
    )  # fmt: skip
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
    text = {language: corpus.sentences(language)[: _SENTENCES.value] for language in languages}
    return {name: _score(name, one, text, parallel) for name, one in segmenters.items()}


def _check_pivot(parallel: Sequence[ParallelSource]) -> None:
    """Raise ValueError if no parallel text has the pivot, without which nothing is compared."""
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
    """Warn of languages of parallel text without a reported tax that nobody left out."""
    wanted = set(_LANGUAGES.value or _languages_of(parallel)) - {_PIVOT.value}
    others = [one for one in _languages_of(parallel) if one in wanted]
    with_pivot = _languages_of([one for one in parallel if _PIVOT.value in one.languages])
    # The text shows whether unknown tokens flatter a tax, so there is no tax without it.
    if without_text := [one for one in others if one not in languages]:
        logging.warning(
            "no tax of %s, which --parallel has and --text has not: add text of these languages, "
            "for which the parallel text can stand",
            ", ".join(without_text),
        )
    if without_pivot := [one for one in others if one in languages and one not in with_pivot]:
        logging.warning(
            "no tax of %s, of which --parallel has no text beside the pivot, %s",
            ", ".join(without_pivot), _PIVOT.value,
        )  # fmt: skip


def _languages_of(parallel: Sequence[ParallelSource]) -> list[str]:
    return sorted({language for source in parallel for language in source.languages})


def _score(
    name: str,
    segmenter: Segmenter,
    text: Mapping[str, Sequence[str]],
    parallel: Sequence[ParallelText],
) -> segmentation.TokenizerScore:
    texts: dict[str, segmentation.TextScore] = {}
    is_used = np.zeros(segmenter.size, bool)
    for language in tqdm(text, name, unit="language"):
        texts[language], counts = segmentation.score_text(
            segmenter.encode, text[language], segmenter.size, segmenter.unknown,
            is_unigram=segmenter.kind == "unigram",
        )  # fmt: skip
        is_used |= counts > 0
    # Tokens of a language and of the pivot, over all its parallel text.
    totals: dict[str, np.ndarray] = {}
    for one in parallel:
        found = segmentation.tax(segmenter.encode, one.rows, one.languages, _PIVOT.value)
        for language, numbers in found.items():
            totals[language] = totals.get(language, 0) + np.array(numbers)
    return segmentation.TokenizerScore(
        kind=segmenter.kind,
        size=segmenter.size,
        used=float(is_used[segmenter.is_piece].mean()),
        texts=texts,
        tax={
            language: own / of_pivot
            for language, (own, of_pivot) in ((key, n.tolist()) for key, n in totals.items())
            if language in text and of_pivot
        },
    )
