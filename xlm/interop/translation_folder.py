"""Folders of models that translate, as MBart or Bart of `transformers`, which CTranslate2 converts.

An encoder and a decoder with learned positions are an MBart if LayerNorm precedes each sub-layer,
and a Bart if it follows. The target language is the decoder's first token: a piece, or a special
token such as `<2de>` with a table row beyond the pieces.
"""

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from vocap.settings import BOS_ID, EOS_ID, MASK_ID, PAD_ID, UNK_ID
from xlm.common import artifacts
from xlm.interop import huggingface, parameters, surface, vocabulary, weights
from xlm.interop.normalizer_json import added_token
from xlm.interop.vocabulary import TOKENIZER
from xlm.interop.weights import WEIGHTS

# Settings of both classes, and of their configs by ours.
_FIXED = {
    "position": "learned", "norm": "layer", "norm_epsilon": 1e-5, "mlp": "gelu", "bias": True,
    "qk_norm": False, "local_window": 0, "embedding_norm": True, "first_norm": True,
}  # fmt: skip
_OFFSET = 2  # rows before the first position, which neither class reads
# The bias of rows that are no classes. A file holds only finite numbers.
_NEVER = -1e9
_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
_LAYER = {
    "attention_norm": "self_attn_layer_norm",
    "cross_attention_norm": "encoder_attn_layer_norm",
    "mlp_norm": "final_layer_norm",
    "mlp.wide": "fc1",
    "mlp.output": "fc2",
    **{f"attention.{ours}": f"self_attn.{theirs}" for ours, theirs in _ATTENTION.items()},
    **{f"cross_attention.{ours}": f"encoder_attn.{theirs}" for ours, theirs in _ATTENTION.items()},
}
# Our modules and theirs of a side.
_MODULES = {
    "embeddings.norm": "layernorm_embedding",
    "final_norm": "layer_norm",
    **{f"layers.{ours}": f"layers.{{}}.{theirs}" for ours, theirs in _LAYER.items()},
}


@dataclasses.dataclass(frozen=True)
class TranslationParts:
    """A model that translates, for `write`.

    Attributes:
      params: {"encoder": ..., "decoder": ...} of `xlm.objectives.translation.Translation`.
      encoder, decoder: settings named as in `EncoderSettings`.
      symbols: table row of each target language, the default one first.
      tokenizer: the serialised SentencePiece model, with the special tokens of this project.
      decoding: `beams`, `max_length`, `length_penalty`, `no_repeat_ngram`, `early_stop`.
    """

    params: Mapping[str, Any]
    encoder: Mapping[str, Any]
    decoder: Mapping[str, Any]
    symbols: Mapping[str, int]
    tokenizer: bytes
    decoding: Mapping[str, Any]

    @property
    def is_pre_norm(self) -> bool:
        return self.encoder["norm_position"] == "pre"

    @property
    def class_name(self) -> str:
        return "MBart" if self.is_pre_norm else "Bart"


def refusal(parts: TranslationParts) -> str:
    """Return why neither class computes a model, without a full stop, or "" if one does."""
    found = parameters.differences(parts.encoder, _FIXED)
    if "dense" in parts.params["decoder"]["head"]:
        found.append("its decoder has a dense layer before the output embeddings")
    if reason := huggingface.why_not_exported(surface.to_export(parts.tokenizer)):
        found.append(reason)
    return "; ".join(found)


def write(folder: pathlib.Path, parts: TranslationParts, card: str) -> None:
    """Write a folder that `AutoModelForSeq2SeqLM` and `AutoTokenizer` read; absent or empty before.

    Raises ValueError if neither class computes the model.
    """
    artifacts.check_empty(folder)
    if reason := refusal(parts):
        raise ValueError(
            f"transformers' {parts.class_name} does not compute this model: {reason}; a run of "
            'finetune.py with translation.output_head=False and model.position "learned" exports'
        )
    tokenizer = huggingface.tokenizer_json(surface.to_export(parts.tokenizer))
    known = len(tokenizer["model"]["vocab"])
    tokenizer["added_tokens"] += [
        added_token(row, name, special=True)
        for name, row in symbol_names(parts).items()
        if row >= known
    ]
    huggingface.write_pretrained(folder, tokenizer, parts.encoder["max_length"])
    artifacts.write_bytes(folder / TOKENIZER, parts.tokenizer)
    weights.write(
        folder / WEIGHTS, dict(_tensors(parts, known)), {"format": "pt"},
        {TOKENIZER: parts.tokenizer},
    )  # fmt: skip
    artifacts.write_json(folder / "config.json", _config(parts))
    artifacts.write_json(folder / "generation_config.json", _generation(parts))
    artifacts.write_text(folder / "README.md", card)


def symbol_names(parts: TranslationParts) -> dict[str, int]:
    """Return the table row of each symbol's token, by its name in the tokenizer."""
    names = [piece.piece for piece in vocabulary.parse(parts.tokenizer).pieces]
    return {
        names[row] if row < len(names) else f"<2{language}>": row
        for language, row in parts.symbols.items()
    }


def _tensors(parts: TranslationParts, num_pieces: int) -> Iterator[tuple[str, np.ndarray]]:
    encoder, decoder = parts.params["encoder"], parts.params["decoder"]
    embeddings = encoder["embeddings"]
    yield "model.shared.weight", embeddings["table"]
    bias = np.array(decoder["head"]["bias"])
    bias[num_pieces:] = _NEVER
    yield "final_logits_bias", bias[None]
    for side, params in (("encoder", encoder), ("decoder", decoder)):
        positions = np.pad(embeddings["positions"], ((_OFFSET, 0), (0, 0)))
        yield f"model.{side}.embed_positions.weight", positions
        own = parameters.flattened({**params, "embeddings": embeddings})
        arrays = {name: np.asarray(value) for name, value in own}
        modules = {ours: f"model.{side}.{theirs}" for ours, theirs in _MODULES.items()}
        for name, (part,) in parameters.places(parameters.table_of(arrays, modules), arrays):
            yield name, part


def _config(parts: TranslationParts) -> dict[str, Any]:
    name, sizes = parts.class_name, parts.encoder
    of_sides = {
        f"{side}_{key}": value
        for side, one in (("encoder", sizes), ("decoder", parts.decoder))
        for key, value in (
            ("layers", one["num_layers"]),
            ("attention_heads", one["num_heads"]),
            ("ffn_dim", one["mlp_size"]),
        )
    }
    return {
        "architectures": [f"{name}ForConditionalGeneration"], "model_type": name.lower(),
        "is_encoder_decoder": True, "tie_word_embeddings": True, "scale_embedding": False,
        "activation_function": "gelu", "d_model": sizes["hidden_size"], **of_sides,
        "vocab_size": sizes["vocab_size"], "max_position_embeddings": sizes["max_length"],
        "dropout": sizes["dropout_rate"], "activation_dropout": 0.0,
        "attention_dropout": sizes["attention_dropout_rate"],
        "bos_token_id": BOS_ID, "pad_token_id": PAD_ID, "eos_token_id": EOS_ID,
        "decoder_start_token_id": next(iter(parts.symbols.values())),
        "forced_eos_token_id": None,
        # Only CTranslate2's converter reads these.
        "normalize_before": parts.is_pre_norm, "normalize_embedding": True,
    }  # fmt: skip


def _generation(parts: TranslationParts) -> dict[str, Any]:
    """Return the search of the run, which `generate` takes as its default."""
    of = parts.decoding
    # Ours ends when no longer hypothesis can do better: "never" in theirs.
    ends = {"early_stopping": of["early_stop"] or "never"} if of["beams"] > 1 else {}
    never = {BOS_ID, PAD_ID, UNK_ID, MASK_ID, *parts.symbols.values()}
    return {
        "bos_token_id": BOS_ID, "pad_token_id": PAD_ID, "eos_token_id": EOS_ID,
        "decoder_start_token_id": next(iter(parts.symbols.values())),
        "num_beams": of["beams"], "max_new_tokens": of["max_length"],
        "forced_eos_token_id": EOS_ID,  # ours end in any case
        "length_penalty": of["length_penalty"], "no_repeat_ngram_size": of["no_repeat_ngram"],
        "suppress_tokens": sorted(never - {EOS_ID}), **ends,
    }  # fmt: skip
