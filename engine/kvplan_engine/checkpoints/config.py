"""The shape of a decoder, as every family's config.json is read into it. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of one decoder, the same in every layer.

    architecture: the name in config.json, which a ``Family`` is registered under. head_size: of queries, keys and
    values. ffn_size: inner width of the MLP. activation: ``silu_and_mul``, ``gelu_new`` (tanh formula) or ``gelu``
    (error function). layer_norm: LayerNorm with a bias; otherwise RMSNorm. head_norms: queries and keys are normalised
    head by head. window_tokens: sliding window of every layer, None for full attention. rope: the RoPE parameters
    (``rope_theta``, ``rope_type`` and what that type needs), None for learned positions.
    """

    architecture: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    ffn_size: int
    activation: str
    vocab_size: int
    max_position_embeddings: int
    norm_eps: float
    layer_norm: bool
    head_norms: bool
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    dtype: str
    window_tokens: int | None
    rope: dict[str, Any] | None
    eos_token_ids: tuple[int, ...]

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_size

    @property
    def kv_size(self) -> int:
        return self.num_kv_heads * self.head_size

    @property
    def qkv_size(self) -> int:
        return self.query_size + 2 * self.kv_size

    @property
    def gated_mlp(self) -> bool:
        """Whether the MLP's first projection gives a gate and an up half, which the activation multiplies."""
        return self.activation.endswith("_and_mul")

    @property
    def is_rotary(self) -> bool:
        return self.rope is not None
