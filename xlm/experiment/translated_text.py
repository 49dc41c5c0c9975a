"""Texts of a translation model: from tokens to text, the best hypotheses, lost characters."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from input_pipeline.tasks import translation
from input_pipeline.tasks.features import TranslationFeature
from xlm.evaluation.metrics import translation as metrics
from xlm.evaluation.tasks import TaskData
from xlm.evaluation.translating import Hypothesis, Translator
from xlm.experiment.translation import TranslationModel
from xlm.interop import surface


def detokenized(
    found: TranslationModel, outputs: Sequence[np.ndarray], sources: Sequence[str]
) -> list[str]:
    """Texts of tokens [n]; the i-th `<unk>` is the i-th unknown part of the source, or nothing."""
    processor = found.tokenizer.processor
    unk, texts = processor.unk_id(), []
    for row, source in zip(outputs, sources, strict=True):
        pieces = processor.id_to_piece(row.tolist())
        places = [number for number, id_ in enumerate(row) if id_ == unk]
        parts = surface.unknown(found.of_sources, source) if places else []
        for place, part in itertools.zip_longest(places, parts[: len(places)], fillvalue=""):
            pieces[place] = part
        texts.append(processor.decode([one for one in pieces if one]))
    return texts


def n_best(
    found: TranslationModel, translator: Translator, params: Any,
    features: Sequence[TranslationFeature], sources: Sequence[str], has_prefixes: bool = False,
) -> list[list[Hypothesis]]:  # fmt: skip
    """Hypotheses for each feature with their texts, the best one first, by score or by chrF."""
    result, each = [], translator.n_best(params, features, has_prefixes=has_prefixes)
    for some, source in zip(each, sources, strict=True):
        texts = detokenized(found, [one.tokens for one in some], [source] * len(some))
        some = [one._replace(text=text) for one, text in zip(some, texts, strict=True)]
        if translator.settings.mbr:
            values = metrics.mean_chrf(texts)
            some.sort(key=lambda one: -values[one.text])
        result.append(some)
    return result


def lost_characters(
    found: TranslationModel, sources: Sequence[str], texts: Sequence[str]
) -> dict[str, Any]:
    """Count sources with unknown parts, and the parts that their outputs lack."""
    unk, count, lost = found.tokenizer.processor.unk_id(), 0, []
    rows = found.of_sources.encode(list(sources))
    for source, ids, text in zip(sources, rows, texts, strict=True):
        parts = surface.unknown(found.of_sources, source) if unk in ids else []
        count += len(parts) > 0
        lost += [part for part in parts if part not in text]
    return {"sources": count, "lost": len(lost), "examples": list(dict.fromkeys(lost))[:10]}


def ceilings(found: TranslationModel, data: Sequence[TaskData]) -> dict[str, float]:
    """BLEU of references through the tokenizer and back, which a perfect model reaches."""
    result = {}
    for one in data:
        references = [example.target for example in one.examples]
        rows = found.tokenizer.processor.encode(references, return_type="numpy")
        outputs = detokenized(found, rows, [example.source for example in one.examples])
        target = translation.direction(one.language)[1]
        # Texts of fewer than four words have a BLEU of 0 against themselves.
        is_same = outputs == references
        result[one.language] = (
            1.0 if is_same else metrics.scores(references, outputs, target)["bleu"]
        )
    return result
