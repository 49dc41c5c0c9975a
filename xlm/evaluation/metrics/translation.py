"""BLEU, chrF, chrF++ and tokenised BLEU by sacreBLEU (Post 2018): signatures, comparisons."""

import collections
import re
from collections.abc import Mapping, Sequence
from typing import Any

from xlm.common import packages

# Tokenizers of BLEU that need no download, for languages without words in the default of
# mteval-v13a. Results with MeCab for Japanese and Korean differ.
_TOKENIZERS = {
    **dict.fromkeys(("zh", "zho", "cmn", "yue"), "zh"),
    **dict.fromkeys(("ja", "ko", "th", "lo", "km", "my"), "char"),
    **dict.fromkeys(("jpn", "kor", "tha", "lao", "khm", "mya"), "char"),
}
_DEFAULT_TOKENIZER = "13a"


def scores(references: Sequence[str], hypotheses: Sequence[str], language: str) -> dict[str, float]:
    """Return BLEU, chrF, chrF++ and tokenised BLEU of a corpus, each between 0 and 1.

      bleu             with case, of plain text: "sacreBLEU" (VECO, Tables 3 and 4)
      chrf             F2 of character 6-grams, chrF2 (Popovic 2015)
      chrf++           the same, also of words and pairs of words (Popovic 2017)
      tokenized_bleu   without case or smoothing, like multi-bleu.perl -lc: "BLEU" (ibid.)

    multi-bleu.perl splits tokenised text at blanks. Here plain text has the tokens of `bleu`:
    papers use the scripts of Moses, which differ a little and are not part of sacreBLEU. `language`
    is the code of the target language, for its tokenizer, with or without script or region. Raises
    ValueError if there are no sentences, or the lengths differ.
    """
    if len(references) != len(hypotheses) or not references:
        raise ValueError(
            f"{len(hypotheses)} translations for {len(references)} references; give one for each, "
            "in the same order, and at least one"
        )
    percentages = {
        name: metric.corpus_score(list(hypotheses), [list(references)]).score
        for name, metric in _metrics(language).items()
    }
    # Rounding makes a perfect BLEU, the exponential of a mean of logarithms, exceed 100.
    return {name: min(score / 100, 1.0) for name, score in percentages.items()}


def mean_chrf(texts: Sequence[str]) -> dict[str, float]:
    """Return each distinct text's mean sentence chrF, 0 to 100, against all (Eikema and Aziz 2022).

    The largest is the choice of minimum Bayes risk among samples.
    """
    chrf, counts = _metrics("")["chrf"], collections.Counter(texts)
    return {
        one: sum(count * chrf.sentence_score(one, [other]).score
                 for other, count in counts.items()) / len(texts)
        for one in counts
    }  # fmt: skip


def compared(references: Any, systems: Mapping[str, Any], language: str) -> dict[str, list[Any]]:
    """Return sacreBLEU's `Result`s by metric: paired bootstrap against the first (Koehn 2004)."""
    # sacreBLEU's results are by name, and both kinds of BLEU have the same.
    metrics = {key: one for key, one in _metrics(language).items() if key != "tokenized_bleu"}
    from sacrebleu.significance import PairedTest

    return PairedTest([*systems.items()], metrics, [references], "bs", 1000)()[1]


def signatures(language: str) -> dict[str, str]:
    """Return sacreBLEU's signature of each of `scores`, to report with them."""
    found = {}
    for name, metric in _metrics(language).items():
        metric.corpus_score([""], [[""]])  # a signature has the number of references
        found[name] = str(metric.get_signature())
    return found


def _metrics(language: str) -> dict[str, Any]:
    with packages.needed("scoring translations", "translate"):
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    without_script = re.split("[-_]", language)[0].lower()
    tokenizer = _TOKENIZERS.get(without_script, _DEFAULT_TOKENIZER)
    # "force" only suppresses a warning about text that looks tokenised.
    options: dict[str, Any] = {"tokenize": tokenizer, "force": True}
    return {
        "bleu": BLEU(**options),
        "chrf": CHRF(),
        "chrf++": CHRF(word_order=2),
        "tokenized_bleu": BLEU(lowercase=True, smooth_method="none", **options),
    }
