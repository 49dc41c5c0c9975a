"""Warnings about the text of a build, for its log and its report; no result depends on them."""

import itertools
from typing import Any

import sentencepiece as spm
from absl import logging
from ml_collections import ConfigDict

from input_pipeline import preparation_plan as plans
from input_pipeline import sources
from input_pipeline.corpus import CorpusStream
from input_pipeline.packed_dataset import SPLITS, PackedDataset
from input_pipeline.sources import CorpusSpec
from input_pipeline.tokenization import unknown_warning
from xlm.common import artifacts, tables
from xlm.common.languages import label
from xlm.experiment.data import Folders

_SAMPLE = 1000  # blocks of a language, whose unknown characters are named


def look(config: ConfigDict, folders: Folders, spec: CorpusSpec) -> dict[str, Any]:
    """Warn of defects in samples of the text, unless they are recorded or the look is turned off.

    Returns the record, which a stage writes at its end.
    """
    recorded = _read(folders)
    if not config.corpus.inspect:
        return recorded
    from input_pipeline.inspection import brief  # numba

    every = sources.find_text(spec, with_empty=True)
    states = [(one.language, *plans.states([one.path])[0]) for one in every]
    made_from = artifacts.fingerprint(states)
    if recorded.get("made_from") == made_from:
        return recorded
    kept = sources.find_text(spec)  # tells of empty files
    try:
        found = brief.warnings(kept)
    except OSError as error:  # of temporary files: the build can do without
        found = [f"nothing was looked at in the text: {error}"]
    for line in found:
        logging.warning("%s", line)
    empty = [f"{label(one.language)}: {one.path} has no text" for one in every if one not in kept]
    return {"made_from": made_from, "warnings": [*empty, *found]}


def unknown(spec: CorpusSpec, dataset: PackedDataset, tokenizer: bytes) -> list[str]:
    """Warn of languages with many unknown tokens, after reading a part of their text."""
    processor, stream = spm.SentencePieceProcessor(model_proto=tokenizer), CorpusStream(spec)
    lines = []
    for language, found in dataset.statistics.items():
        counts = [sum(found[split][key] for split in SPLITS) for key in ("unknown", "tokens")]
        blocks = itertools.islice(stream.blocks(language), _SAMPLE)
        texts = (sentence for block in blocks for sentence in block.sentences)
        if line := unknown_warning(label(language), counts[0], counts[1], processor, texts):
            logging.warning("%s", line)
            lines.append(line)
    return lines


def section(folders: Folders) -> list[str]:
    """Return the parts of a report on the text of a working directory."""
    lines = [one for key in ("warnings", "unknown") for one in _read(folders).get(key, ())]
    shown = "\n".join(f"- {tables.text_cell(line)}" for line in lines)
    return ["## Text", shown or "Nothing to warn of."]


def _read(folders: Folders) -> dict[str, Any]:
    return artifacts.read_object(folders.text_record) if folders.text_record.exists() else {}
