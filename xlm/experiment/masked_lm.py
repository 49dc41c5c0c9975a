"""Builder of masked language modelling, with terms on pairs of translations."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from absl import logging
from ml_collections import ConfigDict

from input_pipeline.bitext import PAIRS, SEPARATE_PAIRS, token_counts
from input_pipeline.packed_dataset import PackedDataset
from input_pipeline.stream import PACKED
from knn_sampling.noise import cumulative_thresholds
from knn_sampling.output_layer import make_exact_layer, make_output_layer
from knn_sampling.samples import TokenStatistics
from knn_sampling.settings import OutputLayerSettings
from knn_sampling.table_sharding import TableSharding
from knn_sampling.working_rows import check_capacity
from vocap.allocation import language_probabilities
from xlm.common.schema import settings
from xlm.experiment.data import data_settings, kind_of_pairs, pair_shares, rows_of_tasks
from xlm.experiment.objectives import Setup
from xlm.models.encoder import Encoder, EncoderSettings
from xlm.objectives.contrastive import SentenceContrast
from xlm.objectives.masked_lm import MaskedLM, OnMaskedLM
from xlm.objectives.mixture import Mixture, Term
from xlm.objectives.objective import Objective
from xlm.objectives.settings import ContrastSettings, MaskSettings


def build(setup: Setup) -> Objective:
    """Build masked LM on packed sequences, with TLM and sentence contrast if there are pairs.

    With joint steps it is one masked LM, of text and pairs. Raises ValueError if settings do not
    fit the data; the message names the keys.
    """
    found = masked_lms(setup, encoder_settings(setup))
    contrast = setup.settings(ContrastSettings, "contrast")
    terms = {PACKED: Term(found[PACKED], "mlm")}
    if PAIRS in found:
        terms[PAIRS] = Term(found[PAIRS], "tlm", setup.config.data.pair_weight)
    if SEPARATE_PAIRS in found:
        contrasted = SentenceContrast(found[SEPARATE_PAIRS], contrast)
        terms[SEPARATE_PAIRS] = Term(contrasted, "mlm_and_contrast")
    return found[PACKED] if len(terms) == 1 else Mixture(terms)


def masked_lms(setup: Setup, encoder: EncoderSettings, scope: str = "") -> dict[str, MaskedLM]:
    """Build masked LM for each kind of batch of the run; joint batches count as text.

    All share the `encoder` and `scope`, the key of its parameters (see `MaskedLM`).
    """
    data = data_settings(setup.config)
    parts: dict[str, Any] = {**_parts(setup), "encoder": Encoder(encoder), "scope": scope}
    first, *later = _packed_statistics(setup)
    packed = MaskedLM(
        **parts, name="mlm", statistics=first[1], later_statistics=tuple(later),
        languages=setup.dataset.languages,
    )  # fmt: skip
    found: dict[str, MaskedLM] = {PACKED: packed}
    if not (data.pair_share or data.contrast_share):
        return found
    of_pairs = _pair_statistics(setup)._replace(languages=first[1].languages)
    if data.is_joint:
        mixed = [(step, _mixed_statistics(setup, one, of_pairs)) for step, one in (first, *later)]
        joint = dataclasses.replace(
            packed, statistics=mixed[0][1], later_statistics=tuple(mixed[1:]),
            positions_restart=data.pair_positions == "restart", pair_weight=data.pair_weight,
        )  # fmt: skip
        return {PACKED: joint}
    parts["mask"] = parts["mask"].of_pairs()
    of_separate_pairs = MaskedLM(**parts, name="tlm", statistics=of_pairs)
    if data.pair_share:
        kind = kind_of_pairs(setup.config)
        restart = kind == PAIRS and data.pair_positions == "restart"
        found[kind] = dataclasses.replace(of_separate_pairs, positions_restart=restart)
    if data.contrast_share:
        found[SEPARATE_PAIRS] = of_separate_pairs
    return found


def has_masked_lm(objective: Objective) -> bool:
    """Whether an objective is masked LM on packed sequences, or has it as a term or generator."""
    return isinstance(_masked_lm(objective), MaskedLM)


def masked_lm_of(objective: Objective) -> MaskedLM:
    """Return an objective's masked LM on packed sequences: itself, a part, or the generator.

    Raises ValueError if it has none.
    """
    found = _masked_lm(objective)
    if not isinstance(found, MaskedLM):
        raise ValueError(
            f"the objective {type(objective).__name__} has no masked LM on packed sequences, so no "
            "held-out loss, retrieval or memory can be computed; xlm export and finetune.py need "
            "its `encoder` and `encoder_params` (docs/own_objective.md)"
        )
    return found


def encoder_of(objective: Objective) -> Any:
    """Return the part of an objective with the encoder that is fine-tuned, and its parameters.

    That is a MaskedLM, a ReplacedToken, or another with `encoder` and `encoder_params`. Raises
    ValueError if it has none.
    """
    found = packed_term(objective)
    if hasattr(found, "encoder") and hasattr(found, "encoder_params"):
        return found
    return masked_lm_of(objective)


def _masked_lm(objective: Objective) -> Objective | None:
    found = packed_term(objective)
    return found.masked_lm if isinstance(found, OnMaskedLM) else found


def packed_term(objective: Objective) -> Objective | None:
    """Return the objective of packed sequences: itself or a term; None if there is none."""
    if not isinstance(objective, Mixture):
        return objective
    return objective.terms[PACKED].objective if PACKED in objective.terms else None


def encoder_settings(setup: Setup, *, cross_attention: bool = False) -> EncoderSettings:
    """Settings of the encoder in the config.

    Raises ValueError if sequences are longer than its positions, or `model.cross_attention` differs
    from `cross_attention`: whether the objective trains it.
    """
    found = setup.settings(EncoderSettings, "model", vocab_size=setup.vocab_size)
    if found.cross_attention != cross_attention:
        raise ValueError(
            f"model.cross_attention is {found.cross_attention}, must be {cross_attention} with "
            f'objective {setup.config.objective!r}; the objective that trains it is "veco"'
        )
    if found.max_length < setup.dataset.length:
        raise ValueError(
            f"model.max_length is {found.max_length}, but sequences have {setup.dataset.length} "
            "tokens (store.length); raise it to that at least"
        )
    return found


def _parts(setup: Setup) -> dict[str, Any]:
    """Common fields of masked LM on packed sequences and on pairs, but for the encoder."""
    dataset, settings = setup.dataset, setup.settings(OutputLayerSettings, "output_layer")
    mask = setup.settings(MaskSettings, "mask")
    _check_capacity(setup, settings, mask)
    axes = setup.mesh_settings.table_axes() if setup.mesh is not None else ((), ())
    sharding = TableSharding(setup.mesh, *axes)
    layout: dict[str, Any] = {"num_valid": dataset.vocab_size, "sharding": sharding}
    full_softmax_steps = round(settings.full_softmax_fraction * setup.num_steps)
    return {
        "output_layer": make_output_layer(settings, **layout),
        "exact_layer": make_exact_layer(settings, **layout),
        "mask": mask,
        "num_steps": setup.num_steps,
        "bos": dataset.special.bos,
        "pad": dataset.special.pad,
        "mask_id": dataset.special.mask,
        "special_ids": dataset.special.special_ids(),
        "across_documents": data_settings(setup.config).across_documents,
        "row_capacity": settings.row_capacity,
        "frequency_bias": settings.frequency_bias,
        "full_softmax_from": setup.num_steps - full_softmax_steps if settings.is_sampled else None,
    }


def _check_capacity(setup: Setup, settings: OutputLayerSettings, mask: MaskSettings) -> None:
    """Raise ValueError if a batch may need more classes than V', or more rows than a step has."""
    data, length = data_settings(setup.config), setup.dataset.length
    masks = [mask, mask.of_pairs()] if data.pair_share or data.contrast_share else [mask]
    size, slots = setup.batch_size, max(one.slots(length) for one in masks)
    if settings.is_sampled and 0 < settings.row_capacity < setup.vocab_size:
        check_capacity(settings.row_capacity, size * length, size * slots, setup.vocab_size)
    sequences = size // max(settings.num_groups(size), 1)
    distinct = min(sequences * slots, setup.dataset.vocab_size)
    if settings.kind == "knn" and settings.capacity < distinct:
        raise ValueError(
            f"output_layer.capacity is {settings.capacity}, but a group of {sequences} sequences "
            f"of {length} tokens can have {distinct} distinct targets, all of which must fit; "
            "raise the capacity or lower output_layer.group_size or train.batch_size"
        )


def warn_of_refreshes(config: ConfigDict, dataset: PackedDataset) -> None:
    """Warn if |V| << n |W| (VoCap, Section 3.1) does not hold under any interpretation."""
    layer = settings(OutputLayerSettings, config.output_layer)
    targets = config.train.batch_size * settings(MaskSettings, config.mask).slots(dataset.length)
    vocab_size, n = dataset.vocab_size, layer.refresh_every
    if layer.kind == "knn" and n * targets < vocab_size:
        logging.warning(
            "output_layer.refresh_every is %d: the neighbour index of %d tokens is rebuilt every "
            "%d targets, which costs more than the full softmax; set it to %d or more, or raise "
            "train.batch_size",
            n, vocab_size, n * targets, math.ceil(10 * vocab_size / targets),
        )  # fmt: skip


def language_shares(
    config: ConfigDict, dataset: PackedDataset, alpha: float | None = None
) -> dict[str, float]:
    """Share of each language in the training stream (Eq. 3), by default for `data.alpha`."""
    tokens = {lang: dataset.statistics[lang]["train"]["tokens"] for lang in dataset.languages}
    return language_probabilities(tokens, data_settings(config).alpha if alpha is None else alpha)


def _no_statistics() -> TokenStatistics:
    """Empty token statistics, for output layers that read none."""
    kinds = (jnp.float32, jnp.uint32, jnp.int32)
    return TokenStatistics(*(jnp.zeros(0, kind) for kind in kinds))


def _pair_statistics(setup: Setup) -> TokenStatistics:
    """Token statistics of the pairs; an exact softmax needs none, and reads no bitext."""
    if not setup.settings(OutputLayerSettings, "output_layer").is_sampled:
        return _no_statistics()
    alpha = data_settings(setup.config).pair_alpha
    counts = token_counts(setup.dataset, alpha, pair_shares(setup.config, setup.dataset))
    return statistics_of(setup.dataset, [(1.0, counts)], setup.vocab_size)


def _mixed_statistics(
    setup: Setup, text: TokenStatistics, pairs: TokenStatistics
) -> TokenStatistics:
    """Token statistics of joint steps, weighted by the number of masked tokens of each task."""
    if not setup.settings(OutputLayerSettings, "output_layer").is_sampled:
        return text  # for the bias, if at all
    mask, rows = setup.settings(MaskSettings, "mask"), rows_of_tasks(setup.config)
    masked = np.array([mask.rate, mask.of_pairs().rate]) * rows
    one, two = (np.asarray(found.probabilities, np.float64) for found in (text, pairs))
    mixed = (masked[0] * one + masked[1] * two) / masked.sum()
    return text._replace(
        probabilities=jnp.asarray(mixed, jnp.float32), thresholds=cumulative_thresholds(mixed)
    )


def _packed_statistics(setup: Setup) -> list[tuple[int, TokenStatistics]]:
    """Token statistics of the packed sequences, with the first step of each phase.

    An exact softmax needs them only for a bias that starts at the first phase's frequencies.
    """
    layer = setup.settings(OutputLayerSettings, "output_layer")
    if not (layer.is_sampled or layer.frequency_bias):
        return [(0, _no_statistics())]
    data = data_settings(setup.config)
    # Phases count only steps on packed sequences.
    share = 1.0 if data.is_joint else 1 - data.pair_share - data.contrast_share
    phases = ((0, data.alpha), *((round(step / share), a) for step, a in data.alpha_phases))
    return [
        (step, token_statistics(setup.dataset, language_shares(setup.config, setup.dataset, alpha),
                                setup.vocab_size))
        for step, alpha in (phases if layer.is_sampled else phases[:1])
    ]  # fmt: skip


def token_statistics(
    dataset: PackedDataset, shares: Mapping[str, float], vocab_size: int
) -> TokenStatistics:
    """Token statistics of the training text, for a table of `vocab_size` rows.

    `shares` are those of the languages in the stream.
    """
    counts = ((share, dataset.token_counts(lang)) for lang, share in shares.items())
    return statistics_of(dataset, counts, vocab_size)


def statistics_of(
    dataset: PackedDataset, counts: Iterable[tuple[float, np.ndarray]], vocab_size: int
) -> TokenStatistics:
    """Token statistics of a mixture of sources.

    A token's probability as a target is its add-one smoothed frequency in each source, weighted by
    the sources' shares.

    `counts` yields share and counts [pieces] of one source at a time, since those of hundreds of
    languages and millions of pieces take gigabytes.
    """
    special_ids = np.array(dataset.special.special_ids())
    mixed, highest = np.zeros(vocab_size), np.zeros(vocab_size)
    languages, seen = np.zeros(vocab_size, np.int32), np.zeros(vocab_size, bool)
    for number, (share, of_source) in enumerate(counts):
        own = np.zeros(vocab_size)
        own[: dataset.vocab_size] = of_source
        own[special_ids] = 0
        seen |= own > 0
        own[: dataset.vocab_size] += 1
        own[special_ids] = 0
        own = share * own / own.sum()
        mixed += own
        languages[own > highest] = number  # ties: the first source
        np.maximum(highest, own, out=highest)
    return TokenStatistics(
        jnp.asarray(mixed, jnp.float32),
        cumulative_thresholds(mixed),
        jnp.asarray(np.where(seen, languages, -1), jnp.int32),
    )
