"""Settings compared by `studies.sampling_quality`, with complete labels."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

FULL, FULL_BIAS = "full", "full_bias"
PUBLISHED, CORRECTED = "knn", "knn_corrected"
# Random instead of trained parameters, fine-tuned as well.
RANDOM, RANDOM_LABEL = "random", "random parameters"
GROUPS = {
    "method": "Methods (paper Table 2)",
    "k": "Neighbours k (paper Table 3)",
    "n": "Steps between refreshes n",
    "half": "Half embedding (paper Section 3.2)",
}
# Settings with a fine-tuned score in the paper's Tables 1 to 3, and what mends them.
_TUNED_GROUPS = ("k", "half")
_TUNED_METHODS = (FULL, PUBLISHED, CORRECTED, "target_sampling", "nce", "nce_bias", "neg")


@dataclasses.dataclass(frozen=True)
class Setting:
    """Output layer of the study.

    Attributes:
      name: name in folders and --settings.
      label: label in tables; names every deviation from the paper's method.
      group: its table, of `GROUPS`.
      change: keys of the config that differ from the study's.
    """

    name: str
    label: str
    group: str
    change: Mapping[str, Any]

    @property
    def reference(self) -> str:
        """Name of the reference full softmax, with the same initial output bias."""
        return FULL_BIAS if self.change["output_layer.frequency_bias"] else FULL

    @property
    def is_fine_tuned(self) -> bool:
        return self.group in _TUNED_GROUPS or self.name in _TUNED_METHODS

    @property
    def tuned_reference(self) -> str:
        """Name of the setting whose fine-tuned scores its own are compared with.

        Of methods it is the full softmax; else the same method with the study's k and embeddings.
        """
        if self.group == "method" or self.change["output_layer.kind"] == "full":
            return FULL
        return CORRECTED if self.change["output_layer.log_q_correction"] else PUBLISHED

    def overrides(self, seed: int) -> dict[str, Any]:
        """Keys of a run's config that differ from the study's."""
        return {**self.change, "train.seed": seed}

    def config(self, config: ConfigDict, seed: int = 0) -> ConfigDict:
        """Config of a run."""
        config = config.copy_and_resolve_references()
        config.update_from_flattened_dict(self.overrides(seed))
        return config


def study(config: ConfigDict) -> tuple[Setting, ...]:
    """All settings, with k, n, S and the sizes of the encoder from `config`."""
    layer, half = config.output_layer, config.model.hidden_size // 2
    halved = {"model.embedding_size": half}
    return (
        *_methods(config),
        *(one for k in (5, 10, 25, 50, 100) if k != layer.k for one in _with_k(config, k)),
        *(one for n in _intervals(config) for one in _with_n(config, n)),
        Setting("half_full", f"full softmax, E = {half}", "half", _change("full", **halved)),
        Setting("half_knn", f"k-NN as published, E = {half}", "half", _change("knn", **halved)),
        Setting("half_corrected", f"k-NN corrected, E = {half}", "half", _corrected(**halved)),
    )


def _change(
    kind: str, *, log_q: bool = False, bias: bool = False, tenth: bool = False, **more: Any
) -> dict[str, Any]:
    """Keys that define a method completely, independent of the config's values."""
    return {
        "output_layer.kind": kind,
        "output_layer.log_q_correction": log_q,
        "output_layer.frequency_bias": bias,
        "output_layer.full_softmax_fraction": 0.1 if tenth else 0.0,
        **more,
    }


def _corrected(**more: Any) -> dict[str, Any]:
    return _change("knn", log_q=True, bias=True, tenth=True, **more)


def _methods(config: ConfigDict) -> tuple[Setting, ...]:
    layer = config.output_layer
    drawn, published = f"S = {layer.num_negatives}", f"k = {layer.k}, n = {layer.refresh_every}"
    named = {
        FULL: ("full softmax", _change("full")),
        FULL_BIAS: ("full softmax, frequency bias", _change("full", bias=True)),
        PUBLISHED: (f"k-NN as published ({published})", _change("knn")),
        "knn_bias": ("k-NN, frequency bias", _change("knn", bias=True)),
        "knn_log_q": ("k-NN, log Q", _change("knn", log_q=True)),
        "knn_tenth": ("k-NN, exact last tenth", _change("knn", tenth=True)),
        CORRECTED: ("k-NN corrected: log Q, frequency bias, exact last tenth", _corrected()),
        "target_sampling": (f"target sampling ({drawn})", _change("target_sampling")),
        "target_sampling_log_q": (
            f"target sampling ({drawn}), log Q", _change("target_sampling", log_q=True),
        ),
        "nce": (f"NCE ({drawn})", _change("nce")),
        "nce_bias": (f"NCE ({drawn}), frequency bias", _change("nce", bias=True)),
        "neg": (f"NEG ({drawn})", _change("neg")),
    }  # fmt: skip
    return tuple(Setting(name, label, "method", keys) for name, (label, keys) in named.items())


def _with_k(config: ConfigDict, k: int) -> tuple[Setting, ...]:
    more: dict[str, Any] = {"output_layer.k": k}
    if k > config.output_layer.k:
        # Neighbours of untrained embeddings are random tokens, whose union is most of V.
        more["output_layer.capacity"] = config.vocab.target_size
    return (
        Setting(f"k{k}", f"k-NN as published, k = {k}", "k", _change("knn", **more)),
        Setting(f"k{k}_corrected", f"k-NN corrected, k = {k}", "k", _corrected(**more)),
    )


def _intervals(config: ConfigDict) -> list[int]:
    """Values of n: one that violates |V| << n |W|, two that satisfy it."""
    steps, n = config.train.num_steps, config.output_layer.refresh_every
    return [one for one in (max(n // 20, 1), 2 * n, steps) if one <= steps and one != n]


def _with_n(config: ConfigDict, n: int) -> tuple[Setting, ...]:
    more: dict[str, Any] = {"output_layer.refresh_every": n}
    label = f"n = {n}"
    if n < config.output_layer.refresh_every:
        label += " (breaks V << n W)"
    elif n == config.train.num_steps:
        label = "index of the first embeddings kept"
    return (
        Setting(f"n{n}", f"k-NN as published, {label}", "n", _change("knn", **more)),
        Setting(f"n{n}_corrected", f"k-NN corrected, {label}", "n", _corrected(**more)),
    )
