"""Architecture of an encoder, and of a decoder with the same layers."""

import dataclasses
import functools
import logging
from concurrent import futures
from typing import Literal, get_args

from xlm.common import schema

Kernel = Literal["xla", "blockwise", "flash", "splash"]
KERNELS = get_args(Kernel)
INITIALIZERS = ("normal", "fan_in", "megatron")
MLPS = ("gelu", "geglu", "swiglu")
NORMS = ("layer", "layer_no_bias", "rms")

Position = Literal["learned", "rotary", "relative", "gated"]
POSITIONS = get_args(Position)

# Largest head for which we compiled the "flash" kernel.
FLASH_HEAD_SIZE = 128

# Rematerialisation policies of a layer, see `xlm.models.transformer`.
REMAT = ("none", "dots", "full")


@dataclasses.dataclass(frozen=True)
class EncoderSettings:
    """The `model` section of a config plus the vocabulary size.

    Attributes:
      vocab_size: V, number of rows of the embedding table, padding included.
      embedding_size: E, width of token embeddings and of the output layer. Half of `hidden_size`
        gives the half embedding of paper Section 3.2.
      hidden_size: D.
      num_layers: number of Transformer layers.
      num_heads: number of attention heads; divides `hidden_size`.
      mlp_size: width of the feed-forward layer.
      max_length: longest sequence in tokens, number of positions.
      norm_position: "post" for LayerNorm after each sub-layer's residual sum, as in XLM-R; "pre"
        for LayerNorm before each sub-layer and once at the end, which converges earlier.
      norm: "layer" for LayerNorm, "layer_no_bias" for LayerNorm with only a scale, as in
        ModernBERT, or "rms" for RMSNorm.
      first_norm: whether the first layer's attention has a norm before it; ModernBERT's has none.
      embedding_norm: whether there is a LayerNorm after the embeddings; XLM-R XL has none.
      norm_epsilon: added to the variance by LayerNorm; 1e-5 in XLM-R.
      dropout_rate: after embeddings and after each sub-layer.
      attention_dropout_rate: on attention weights.
      dtype: of activations, "float32" or "bfloat16"; parameters are float32.
      attention: attention kernel. "xla", plain, and "blockwise", which holds the weights of a block
        of queries at a time, run on any backend. "flash" runs on a GPU, with dropout, bias and
        window, for heads of at most 128. "splash" runs on a TPU, without dropout or bias by
        distance. Both leave other attention to the first two, see `xlm.models.attention`. "auto"
        chooses by the backend, see `kernel`.
      remat: rematerialisation in the backward pass. "none" stores all activations, "dots" stores
        matrix products and recomputes the rest, "full" stores only the layer's input.
      unroll: layers per iteration of the scan over layers. 0 takes all on a GPU, where a scan
        copies activations, and one elsewhere. More layers take longer to compile.
      position: position encoding (`xlm.models.positions`): "learned" position embeddings, "rotary"
        queries and keys, a "relative" bias of the scores by distance, or that bias "gated" by the
        query.
      rotary_theta: bound of the wavelengths of rotary embeddings, over 2 pi; see
        `positions.rotate`.
      local_window: keys that a query of a local layer sees, half of them on each side of its own;
        0 for no local layers.
      global_every: layers 0, n, 2n, ... see whole segments if there are local layers; 3 in
        ModernBERT.
      local_rotary_theta: `rotary_theta` of local layers.
      qk_norm: whether queries and keys have a norm for each head, before the rotation.
      mlp: feed-forward layers: "gelu", or the gated "geglu" or "swiglu", whose `mlp_size` is the
        width of the gate.
      bias: whether dense layers have a bias; the output layer has one in any case.
      distance_buckets, max_distance: see `positions.distance_buckets`.
      distance_slope: initial slope of the bias by distance in the first head; 0 for a bias of
        zeros.
      initializer: of kernels of dense layers, "normal", "fan_in" or ModernBERT's "megatron", see
        `layers.initializer`.
      cross_attention: whether layers have cross-attention as well, to `decode`.
    """

    vocab_size: int
    embedding_size: int = schema.key(768, at_least=1)
    hidden_size: int = schema.key(768, at_least=1)
    num_layers: int = schema.key(12, at_least=0)
    num_heads: int = schema.key(12, at_least=1)
    mlp_size: int = schema.key(3072, at_least=1)
    max_length: int = schema.key(512, at_least=1)
    norm_position: str = schema.key("post", choices=("post", "pre"))
    dropout_rate: float = schema.key(0.1, at_least=0, below=1)
    attention_dropout_rate: float = schema.key(0.1, at_least=0, below=1)
    dtype: str = schema.key("float32", choices=("float32", "bfloat16"))
    attention: Kernel | Literal["auto"] = schema.key(
        "auto", choices=("auto", *KERNELS), effect="records"
    )
    remat: str = schema.key("none", choices=REMAT, effect="records")
    unroll: int = schema.key(0, at_least=0, effect="records")
    position: Position = schema.key("learned", choices=POSITIONS)
    rotary_theta: float = schema.key(10_000.0, above=1)
    distance_buckets: int = schema.key(32, at_least=1)
    max_distance: int = schema.key(128, at_least=1)
    distance_slope: float = schema.key(0.0, at_least=0)
    initializer: str = schema.key("normal", choices=INITIALIZERS)
    cross_attention: bool = schema.key(False)
    embedding_norm: bool = schema.key(True)
    norm_epsilon: float = schema.key(1e-05, above=0)
    norm: str = schema.key("layer", choices=NORMS)
    first_norm: bool = schema.key(True)
    mlp: str = schema.key("gelu", choices=MLPS)
    bias: bool = schema.key(True)
    qk_norm: bool = schema.key(False)
    local_window: int = schema.key(0, at_least=0)
    global_every: int = schema.key(1, at_least=1)
    local_rotary_theta: float = schema.key(10_000.0, above=1)

    @property
    def period(self) -> int:
        """Number of layers after which global and local ones repeat, 1 without local ones."""
        return self.global_every if self.local_window else 1

    def is_local(self, layer: int) -> bool:
        """Whether a layer is local; its place in the period suffices."""
        return layer % self.period > 0

    @property
    def head_size(self) -> int:
        """D / H, width of an attention head."""
        return self.hidden_size // self.num_heads

    @property
    def has_bias(self) -> bool:
        """Whether positions are a bias of the attention scores."""
        return self.position in ("relative", "gated")

    @property
    def kernel(self) -> Kernel:
        """Attention kernel: `attention`, or the backend's if that is "auto"."""
        return self.kernel_on("")

    def kernel_on(self, backend: str) -> Kernel:
        """Return `attention`, or the kernel of a backend if that is "auto".

        A TPU takes "splash" unless there is a bias by distance. A GPU takes "flash" for heads of at
        most 128, if it agrees with plain attention on random input, and otherwise "blockwise". All
        else takes "xla".
        """
        if self.attention != "auto":
            return self.attention
        import jax

        backend = backend or jax.default_backend()
        kind = self.dtype, self.position, self.head_size, self.cross_attention
        return _kernel_of(backend, *kind)

    @property
    def layers_at_once(self) -> int:
        """Layers per iteration of the scan: `unroll`, or the backend's if that is 0."""
        return self.layers_at_once_on("")

    def layers_at_once_on(self, backend: str) -> int:
        """Return `unroll`, or the layers per iteration of a backend if that is 0."""
        if self.unroll:
            return self.unroll
        import jax

        on_gpu = (backend or jax.default_backend()) == "gpu"
        return max(self.num_layers, 1) if on_gpu else 1

    def __post_init__(self):
        schema.check(self, "model")
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"model.hidden_size is {self.hidden_size}, must be a multiple of model.num_heads, "
                f"{self.num_heads}"
            )
        self._check_positions()
        self._check_local()
        self._check_attention()

    def _check_attention(self):
        if self.attention == "flash" and self.head_size > FLASH_HEAD_SIZE:
            raise ValueError(
                f"model.hidden_size {self.hidden_size} over model.num_heads {self.num_heads} is "
                f'{self.head_size}, but model.attention "flash" takes heads of at most '
                f'{FLASH_HEAD_SIZE}; change one of the two, or set model.attention to "blockwise"'
            )
        if self.attention == "splash" and self.has_bias:
            raise ValueError(
                'model.attention "splash" has no bias of the scores, which model.position '
                f'{self.position!r} is; set model.attention to "xla", or model.position to '
                '"learned" or "rotary"'
            )

    def _check_local(self):
        if self.local_window % 2 or (self.local_window and self.has_bias):
            raise ValueError(
                f"model.local_window is {self.local_window} and model.position {self.position!r}; "
                "a window must be even, with one half on each side, and local layers take no bias "
                'by distance: set model.position to "rotary" or "learned"'
            )
        if self.local_window and self.global_every == 1:
            raise ValueError(
                f"model.local_window is {self.local_window}, but model.global_every 1 makes all "
                "layers global; set it to 3, as in ModernBERT, or model.local_window to 0"
            )
        if not self.first_norm and self.norm_position == "post":
            raise ValueError(
                'model.first_norm is False, but with model.norm_position "post" the first norm '
                'follows the residual sum; set model.norm_position to "pre"'
            )

    def _check_positions(self):
        if self.position == "rotary" and self.head_size % 2:
            raise ValueError(
                f"model.hidden_size {self.hidden_size} over model.num_heads {self.num_heads} is "
                'odd; model.position "rotary" turns pairs of elements'
            )
        if self.distance_buckets < 4 or self.distance_buckets % 4:
            raise ValueError(
                f"model.distance_buckets is {self.distance_buckets}, must be a multiple of 4"
            )
        if self.max_distance <= self.distance_buckets // 4:
            raise ValueError(
                f"model.max_distance is {self.max_distance}, must be above "
                f"{self.distance_buckets // 4}, a fourth of model.distance_buckets"
            )

    def can_map_shards(self) -> bool:
        """Whether `jax.shard_map` over `data` can encode shards of a batch separately.

        Inside it JAX cannot partition a fused kernel over mesh axes that are left to the compiler.
        """
        from xlm.models.layout import only_data_is_split

        return self.kernel in ("xla", "blockwise") or only_data_is_split()


@functools.cache
def _kernel_of(
    backend: str, dtype: str, position: str, head_size: int, can_decode: bool = False
) -> Kernel:
    """Return the backend's kernel for `EncoderSettings.kernel`, logged once."""
    kernel: Kernel = "xla"
    if backend == "tpu" and position in ("learned", "rotary"):
        kernel = "splash"
    if backend == "gpu":
        said = _fault_of_flash(head_size, dtype, position, can_decode)
        kernel = "blockwise" if said else "flash"
        if said:
            logging.warning('attention runs without "flash", which is faster: %s', said)
    logging.debug(
        'model.attention "auto" is %s for %s positions and heads of %d in %s on this backend, %s',
        kernel, position, head_size, dtype, backend,
    )  # fmt: skip
    return kernel


def _fault_of_flash(head_size: int, dtype: str, position: str, can_decode: bool) -> str:
    """Return why this GPU cannot run "flash"; "" if it can, or if there is no GPU."""
    import jax

    from xlm.models import flash_attention

    if head_size > FLASH_HEAD_SIZE:
        return f"heads are of {head_size}, more than {FLASH_HEAD_SIZE}"
    if jax.devices()[0].platform != "gpu":  # this machine compiles for a GPU elsewhere
        return ""
    own = {"has_bias": position in ("relative", "gated"), "is_gated": position == "gated"}
    uses = [own]
    if can_decode:
        uses += [own | {"is_causal": True}, {"has_bias": False, "is_gated": False}]
    # In a thread, since callers may be tracing a function.
    with futures.ThreadPoolExecutor(1) as pool:
        found = (pool.submit(flash_attention.fault, head_size, dtype, **use) for use in uses)
        return next(filter(None, (one.result() for one in found)), "")
