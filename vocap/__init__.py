"""VoCap: allocation of vocabulary capacity to languages (Zheng et al., EMNLP 2021).

In scope: tables of script runs, unigram vocabularies of growing sizes, their average log
probability (ALP, Eq. 1), language probabilities (Eq. 3), the greedy allocation (Algorithm 1,
Eq. 2) and its baselines, the merge into one SentencePiece model, and the report.

Out of scope: jax, TensorFlow, configs, and every other package of this project. A laptop is enough;
text is read by `input_pipeline.corpus`, reached through `build_vocab.py`.

Pipeline: `runs.count_runs` -> `nested.train` (through `unigram`) ->
`allocation.allocate` (through `methods`) -> `merge.fit_scores`, `merge.write_model` ->
`report.write_report`; `building.build_vocabulary` chains them and caches every artefact.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """`vocap.build` and `vocap.Vocabulary`, imported with what they need when first used."""
    if name in ("build", "Vocabulary"):
        from vocap import api

        return getattr(api, name)
    raise AttributeError(f"module vocap has no attribute {name!r}")
