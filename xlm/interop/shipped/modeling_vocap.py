"""Encoders of this folder for PyTorch: `AutoModel.from_pretrained(folder, trust_remote_code=True)`.

It lies beside the weights of an encoder for which `transformers` has no class: gated or relative
biases by distance, other orders of norms, half embeddings, cross-attention, heads on mean states.
It needs only torch and transformers. Parameters have the names and shapes of the file. Kernels are
[in, out], and names in "layers" have a leading axis of layers.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)


class VocapConfig(PretrainedConfig):
    """Settings of config.json; the attributes are those of the exported encoder."""

    model_type = "vocap-encoder"

    def __init__(self, **settings):
        self.pad_token_id = 1
        for name, value in {"task": None, "cross_attention": False, "embedding_norm": True,
                            "norm_epsilon": 1e-5, "norm": "layer", "first_norm": True,
                            "mlp": "gelu", "bias": True, "qk_norm": False, "local_window": 0,
                            "global_every": 1, "local_rotary_theta": 1e4,
                            **settings}.items():  # fmt: skip
            setattr(self, name, value)
        super().__init__(**settings)


class Dense(nn.Module):
    """Dense layer, or one for each of `layers`."""

    def __init__(self, inputs, outputs, layers=None, has_bias=True):
        super().__init__()
        stack = () if layers is None else (layers,)
        self.kernel = nn.Parameter(torch.empty(*stack, inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(*stack, outputs)) if has_bias else None

    def forward(self, x, layer=None):
        x = x @ (self.kernel if layer is None else self.kernel[layer])
        if self.bias is None:
            return x
        return x + (self.bias if layer is None else self.bias[layer])


class Norm(nn.Module):
    """Norm of the config's kind, or one for each of `layers`."""

    def __init__(self, config, size, layers=None):
        super().__init__()
        stack = () if layers is None else (layers,)
        self.epsilon, self.is_rms = config.norm_epsilon, config.norm == "rms"
        self.scale = nn.Parameter(torch.ones(*stack, size))
        has_bias = config.norm == "layer"
        self.bias = nn.Parameter(torch.zeros(*stack, size)) if has_bias else None

    def forward(self, x, layer=None):
        scale, bias = (
            one if one is None or layer is None else one[layer] for one in (self.scale, self.bias)
        )
        if self.is_rms:
            return F.rms_norm(x, x.shape[-1:], scale, self.epsilon)
        return F.layer_norm(x, x.shape[-1:], scale, bias, self.epsilon)


class Gate(nn.Module):
    """Factor of the bias of each query and head (XLM-E, arXiv 2106.16138)."""

    def __init__(self, heads, size, layers):
        super().__init__()
        self.update = nn.Parameter(torch.zeros(layers, heads, size))
        self.reset = nn.Parameter(torch.zeros(layers, heads, size))
        self.scale = nn.Parameter(torch.ones(layers, heads))

    def forward(self, query, layer):  # [B, H, Q, D] -> [B, H, Q, 1]
        update = torch.sigmoid((query * self.update[layer][:, None]).sum(-1, keepdim=True))
        reset = torch.sigmoid((query * self.reset[layer][:, None]).sum(-1, keepdim=True))
        return 1 + update + (1 - update) * self.scale[layer][:, None, None] * reset


class Attention(nn.Module):
    """Attention of all layers, to the sequence itself or to a context."""

    def __init__(self, config, is_gated=False):
        super().__init__()
        width, layers = config.hidden_size, config.num_layers
        self.heads = config.num_heads
        for name in ("query", "key", "value", "output"):
            setattr(self, name, Dense(width, width, layers, config.bias))
        if config.qk_norm:
            for name in ("query_norm", "key_norm"):
                setattr(self, name, Norm(config, width // self.heads, layers))
        if is_gated:
            self.gate = Gate(self.heads, width // self.heads, layers)

    def forward(self, x, source, layer, mask, bias=None, rotation=None, dropout=0.0):
        def by_head(states):
            return states.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        query, key, value = (
            by_head(dense(states, layer))
            for dense, states in ((self.query, x), (self.key, source), (self.value, source))
        )
        if hasattr(self, "query_norm"):
            query, key = self.query_norm(query, layer), self.key_norm(key, layer)
        if bias is not None and hasattr(self, "gate"):
            bias = bias * self.gate(query, layer)
        if rotation is not None:
            query, key = rotated(query, *rotation), rotated(key, *rotation)
        lowest = torch.finfo(x.dtype).min
        bias = 0 if bias is None else bias
        scores = torch.where(mask, torch.zeros((), dtype=x.dtype, device=x.device) + bias, lowest)
        scores = scores.expand(x.shape[0], self.heads, x.shape[1], source.shape[1])
        mixed = F.scaled_dot_product_attention(query, key, value, scores, dropout)
        return self.output(mixed.transpose(1, 2).flatten(2), layer)


def rotated(x, cos, sin):
    one, two = x.chunk(2, dim=-1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)


class Mlp(nn.Module):
    """Dense, GELU, dense, perhaps with a gate, another dense layer."""

    def __init__(self, config):
        super().__init__()
        width, size, layers = config.hidden_size, config.mlp_size, config.num_layers
        self.wide = Dense(width, size, layers, config.bias)
        self.output = Dense(size, width, layers, config.bias)
        self.gate = Dense(width, size, layers, config.bias) if config.mlp != "gelu" else None
        self.activation = F.silu if config.mlp == "swiglu" else F.gelu

    def forward(self, x, layer):
        middle = self.activation(self.wide(x, layer))
        return self.output(middle if self.gate is None else middle * self.gate(x, layer), layer)


class Embeddings(nn.Module):
    """Embeddings of tokens, projected if their width differs, and of any positions."""

    def __init__(self, config):
        super().__init__()
        width, size = config.hidden_size, config.embedding_size
        self.table = nn.Parameter(torch.empty(config.vocab_size, size))
        self.project = Dense(size, width, has_bias=config.bias) if size != width else None
        is_learned = config.position == "learned"
        self.positions = nn.Parameter(torch.empty(config.max_length, width)) if is_learned else None
        self.norm = Norm(config, width) if config.embedding_norm else None

    def forward(self, tokens):
        x = F.embedding(tokens, self.table)
        if self.project is not None:
            x = self.project(x)
        if self.positions is not None:
            x = x + self.positions[: tokens.shape[1]]
        return x if self.norm is None else self.norm(x)


class Distances(nn.Module):
    """Bias of the scores by distance, key minus query, in T5's buckets."""

    def __init__(self, config):
        super().__init__()
        self.buckets, self.most = config.distance_buckets, config.max_distance
        self.bias = nn.Parameter(torch.zeros(self.buckets, config.num_heads))

    def forward(self, length):
        """Return [1, H, L, L]."""
        index = torch.arange(length, device=self.bias.device)
        distance = index[None] - index[:, None]
        half, exact = self.buckets // 2, self.buckets // 4
        # Logarithms in Python, since runtimes round differently.
        scale = (half - exact) / math.log(self.most / exact)
        of_size = [exact + math.floor(math.log(size / exact) * scale + 1e-9)
                   for size in range(exact, self.most)]  # fmt: skip
        of_size = torch.tensor([*range(exact), *of_size, half - 1], device=index.device)
        bucket = of_size[distance.abs().clamp(max=self.most)] + half * (distance > 0)
        return self.bias[bucket].permute(2, 0, 1)[None]


class Layers(nn.Module):
    """All layers; parameters have a leading axis of layers."""

    def __init__(self, config):
        super().__init__()
        width, layers = config.hidden_size, config.num_layers
        self.attention = Attention(config, is_gated=config.position == "gated")
        self.attention_norm = Norm(config, width, layers)
        if config.cross_attention:
            self.cross_attention = Attention(config)
            self.cross_attention_norm = Norm(config, width, layers)
        self.mlp = Mlp(config)
        self.mlp_norm = Norm(config, width, layers)


class VocapPreTrainedModel(PreTrainedModel):
    config_class = VocapConfig
    base_model_prefix = ""
    _supports_sdpa = True

    def _init_weights(self, module):
        for name, parameter in module.named_parameters(recurse=False):
            if name in ("kernel", "table", "positions"):
                nn.init.normal_(parameter, std=0.02)


class VocapModel(VocapPreTrainedModel):
    """The encoder: states [B, L, D], or those of VECO's decoder if a context is given."""

    _keys_to_ignore_on_load_unexpected = [r"^head\.", r"^task\."]

    def __init__(self, config):
        super().__init__(config)
        self.embeddings = Embeddings(config)
        if config.num_layers:
            self.layers = Layers(config)
            if config.position in ("relative", "gated"):
                self.distances = Distances(config)
        is_pre = config.norm_position == "pre"
        self.final_norm = Norm(config, config.hidden_size) if is_pre else None
        self._add_heads(config)
        self.post_init()

    def _add_heads(self, config):
        """Add the modules of a head; the encoder has none."""

    def get_input_embeddings(self):
        return self.embeddings

    def encode(
        self, input_ids, attention_mask=None, encoder_hidden_states=None,
        encoder_attention_mask=None, is_causal=None, output_hidden_states=False,
    ):  # fmt: skip
        config, length = self.config, input_ids.shape[1]
        if length > config.max_length:
            raise ValueError(f"{length} tokens, but the model has {config.max_length} positions")
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        mask = attention_mask[:, None, None].bool()
        has_context = encoder_hidden_states is not None
        if has_context if is_causal is None else is_causal:
            ones = torch.ones(length, length, dtype=torch.bool, device=input_ids.device)
            mask = mask & ones.tril()
        context_mask = None
        if has_context:
            if encoder_attention_mask is None:
                encoder_attention_mask = encoder_hidden_states.new_ones(
                    encoder_hidden_states.shape[:2]
                )
            context_mask = encoder_attention_mask[:, None, None].bool()
        x = self.embeddings(input_ids)
        x = F.dropout(x, config.dropout_rate, self.training)
        bias = self.distances(length) if hasattr(self, "distances") else None
        index = torch.arange(length, device=input_ids.device)
        near = mask & ((index[:, None] - index).abs() <= config.local_window // 2)
        thetas = config.rotary_theta, config.local_rotary_theta
        rotations = [
            self._rotation(length, x, theta) if config.position == "rotary" else None
            for theta in thetas
        ]
        states = [x]
        for layer in range(config.num_layers):
            is_local = config.local_window > 0 and layer % config.global_every > 0
            seen, rotation = near if is_local else mask, rotations[is_local]
            x = self._layer(layer, x, seen, bias, rotation, encoder_hidden_states, context_mask)
            states.append(x)
        if self.final_norm is not None:
            x = states[-1] = self.final_norm(x)
        return BaseModelOutput(x, hidden_states=tuple(states) if output_hidden_states else None)

    def _layer(self, layer, x, mask, bias, rotation, context, context_mask):
        config, layers = self.config, self.layers
        dropout = config.attention_dropout_rate if self.training else 0.0
        parts = [
            (layers.attention_norm,
             lambda x: layers.attention(x, x, layer, mask, bias, rotation, dropout)),
            (layers.mlp_norm, lambda x: layers.mlp(x, layer)),
        ]  # fmt: skip
        if context is not None:
            parts.insert(1, (
                layers.cross_attention_norm,
                lambda x: layers.cross_attention(x, context, layer, context_mask, dropout=dropout),
            ))  # fmt: skip
        for norm, part in parts:
            if norm is layers.attention_norm and not (config.first_norm or layer):
                x = x + F.dropout(part(x), config.dropout_rate, self.training)
            elif config.norm_position == "pre":
                x = x + F.dropout(part(norm(x, layer)), config.dropout_rate, self.training)
            else:
                x = norm(x + F.dropout(part(x), config.dropout_rate, self.training), layer)
        return x

    def _rotation(self, length, x, theta):
        half = self.config.hidden_size // self.config.num_heads // 2
        index = torch.arange(half, dtype=torch.float64, device="cpu")
        frequencies = (theta ** (-index / half)).float().to(x.device)
        angles = torch.arange(length, device=x.device)[:, None] * frequencies
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    def forward(self, input_ids, attention_mask=None, **options):
        options = {k: v for k, v in options.items() if k not in ("return_dict", "token_type_ids")}
        return self.encode(input_ids, attention_mask, **options)


class Head(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.dense = Dense(config.hidden_size, config.embedding_size, has_bias=config.bias)
        self.norm = Norm(config, config.embedding_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))


class VocapForMaskedLM(VocapModel):
    _keys_to_ignore_on_load_unexpected = [r"^task\."]

    def _add_heads(self, config):
        self.head = Head(config)

    def forward(self, input_ids, attention_mask=None, labels=None, **options):
        output = super().forward(input_ids, attention_mask, **options)
        states = self.head.norm(F.gelu(self.head.dense(output.last_hidden_state)))
        logits = states @ self.embeddings.table.T + self.head.bias
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return MaskedLMOutput(loss, logits, output.hidden_states)


class _ForTask(VocapModel):
    """An encoder with the head of a task, whose modules are in the file."""

    _keys_to_ignore_on_load_unexpected = [r"^head\."]

    def _add_heads(self, config):
        shapes = (config.task or {}).get("shapes") or {
            "output": [config.hidden_size, config.num_labels]
        }
        self.task = nn.ModuleDict({
            name: Dense(*shape, has_bias=name == "output" or "norm" not in shapes)
            if len(shape) == 2 else Norm(config, *shape)
            for name, shape in shapes.items()
        })  # fmt: skip


class VocapForSequenceClassification(_ForTask):
    def forward(self, input_ids, attention_mask=None, labels=None, **options):
        output = super().forward(input_ids, attention_mask, **options)
        states = output.last_hidden_state
        if (self.config.task or {}).get("pooling") == "mean":
            mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            weights = mask[:, :, None].to(states.dtype)
            state = (states * weights).sum(1) / weights.sum(1).clamp(min=1)
        else:
            state = states[:, 0]
        if "norm" in self.task:  # ModernBERT's
            state = self.task["norm"](F.gelu(self.task["dense"](state)))
        elif "dense" in self.task:
            state = torch.tanh(self.task["dense"](state))
        logits, loss = self.task["output"](state), None
        if labels is not None and logits.shape[1] == 1:
            loss = F.mse_loss(logits[:, 0], labels.float())
        elif labels is not None:
            loss = F.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss, logits, output.hidden_states)


class VocapForTokenClassification(_ForTask):
    def forward(self, input_ids, attention_mask=None, labels=None, **options):
        output = super().forward(input_ids, attention_mask, **options)
        logits, loss = self.task["output"](output.last_hidden_state), None
        if labels is not None:
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return TokenClassifierOutput(loss, logits, output.hidden_states)


class VocapForQuestionAnswering(_ForTask):
    def forward(self, input_ids, attention_mask=None, **options):
        output = super().forward(input_ids, attention_mask, **options)
        start, end = self.task["output"](output.last_hidden_state).unbind(-1)
        return QuestionAnsweringModelOutput(None, start, end, output.hidden_states)
