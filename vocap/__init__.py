"""VoCap: allocation of vocabulary capacity to languages (Zheng et al., EMNLP 2021).

The pipeline is `pretokens.count_pretokens` -> `nested.train` (through `unigram`) ->
`allocation.allocate` (through `methods`) -> `merge.fit_scores`, `merge.write_model` ->
`report.write_report`. `building.build_vocabulary` chains these and caches every artefact.

The package needs no jax, TensorFlow or config, and runs on a laptop. `build_vocab.py` reads text
through `input_pipeline.corpus`.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import `build`, `extend` and `Vocabulary` of `vocap.api` on first use."""
    if name in ("build", "extend", "Vocabulary"):
        from vocap import api

        return getattr(api, name)
    raise AttributeError(f"module vocap has no attribute {name!r}")
