"""Settings of evaluation and of the search for translations. Nothing here needs jax."""

import dataclasses

from xlm.common import schema


@dataclasses.dataclass(frozen=True)
class DecodingSettings:
    """Settings of a search; the `decoding` section of a config.

    Attributes:
      beams: K, live hypotheses per sentence; 1 for greedy decoding.
      max_length: T, tokens of the longest hypothesis, its `</s>` included; the T-th is always
        `</s>`.
      length_penalty: a; the score of a hypothesis of n tokens, `</s>` included, is its log
        probability over n^a. 0 for none, 1 for the mean of the tokens. (Wu et al. 2016, Eq. 14,
        divide by ((5 + n) / 6)^a, which favours length less if n is small.)
      no_repeat_ngram: n; no n tokens in a row come twice in a hypothesis. 0 for no such rule.
      early_stop: whether the search for a sentence ends with its K-th finished hypothesis, as it
        always does with one beam. Otherwise it ends when no unfinished hypothesis can beat the
        worst of K.
      samples: number of random hypotheses, which depend on the sentence's number; 0 to search.
      temperature: divisor of the logits of samples; above 1 they are more varied.
      top_k: samples come from the k most probable tokens; 0 for all.
      top_p: samples come from the fewest most probable tokens with this total probability.
      seed: random seed of samples.
      mbr: whether the best hypothesis has the largest mean chrF against all of them (minimum Bayes
        risk) instead of the largest score.
    """

    beams: int = schema.key(5, at_least=1, at_most=1 << 10)
    max_length: int = schema.key(128, at_least=1, at_most=1 << 16)
    length_penalty: float = schema.key(1.0)
    no_repeat_ngram: int = schema.key(0, at_least=0)
    early_stop: bool = schema.key(False)
    samples: int = schema.key(0, at_least=0, at_most=1 << 10)
    temperature: float = schema.key(1.0, above=0)
    top_k: int = schema.key(0, at_least=0)
    top_p: float = schema.key(1.0, above=0, at_most=1)
    seed: int = schema.key(0, at_least=0, below=2**31)
    mbr: bool = schema.key(False)

    def __post_init__(self):
        schema.check(self, "decoding")


@dataclasses.dataclass(frozen=True)
class EvaluationSettings:
    """Settings of the evaluation; the `evaluation` section of a config.

    Attributes:
      batch_size: sequences per batch.
      num_folds: passes of the masked-LM evaluation, each masking one fold.
      max_sequences: held-out sequences per language; 0 for all.
      max_sequences_in_training: the same for the evaluations during training.
      seed: random seed of the folds, and of the example sentences in the report.
      retrieval_layer: layer with the states for sentence vectors; -1 for two thirds of the layers.
      retrieval_pivot: language to compare the others with.
      retrieval_max_sentences: number of evenly spaced pairs per parallel set; 0 for all. The cost
        grows with the square of their number.
      frozen_generator: working directory of a run of replaced-token detection. Its generator's
        samples test discriminators, besides those of their own generator; "" for none.
    """

    batch_size: int = schema.key(32, at_least=1, at_most=1 << 20)
    num_folds: int = schema.key(7, at_least=1)
    max_sequences: int = schema.key(1000, at_least=0)
    max_sequences_in_training: int = schema.key(64, at_least=0)
    seed: int = schema.key(0, at_least=0, below=2**31)
    retrieval_layer: int = schema.key(-1, at_least=-1)
    retrieval_pivot: str = schema.key("en")
    retrieval_max_sentences: int = schema.key(1000, at_least=0)
    frozen_generator: str = schema.key("")


def sentence_layer(layer: int, num_layers: int) -> int:
    """Return the layer for sentence vectors: two thirds of all for -1."""
    return round(num_layers * 2 / 3) if layer < 0 else layer
