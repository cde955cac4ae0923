"""What moves information between tokens, and what it keeps of them. Sizes are numbers of elements, for one layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kvplan_engine.description.norms import NormKind

KeptKind = Literal["full", "window", "chunk", "state"]


@dataclass(frozen=True, slots=True)
class Kept:
    """Which tokens of a sequence a layer keeps.

    full: all of them. window: the last ``tokens``, a query's own position included. chunk: those of the query's own run
    of ``tokens``. state: none; one state of fixed size stands for all of them.
    """

    kind: KeptKind
    tokens: int | None = None

    def __post_init__(self) -> None:
        if (self.kind in ("window", "chunk")) != (self.tokens is not None) or (self.tokens or 1) < 1:
            raise ValueError(f"a layer that keeps '{self.kind}' cannot keep {self.tokens} tokens")


FULL = Kept("full")
STATE = Kept("state")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary positions: of each head's ``rotary_size`` elements, pairs turn by the position.

    neighbours: pairs are elements 2i and 2i + 1 (GPT-J's way), otherwise half of ``rotary_size`` apart. scaling:
    ``rope_type`` and what that type needs, as the config has it. offset: where the rotary elements begin in a head.
    """

    theta: float
    rotary_size: int
    neighbours: bool = False
    scaling: Mapping[str, Any] = field(default_factory=lambda: {"rope_type": "default"}, hash=False)
    offset: int = 0

    def same_table(self, other: Rope) -> bool:
        """Whether positions turn by the same angles, whichever elements are paired."""
        return (self.theta, self.rotary_size, self.scaling) == (other.theta, other.rotary_size, other.scaling)


@dataclass(frozen=True, slots=True)
class Indexer:
    """Sparse attention's index (DeepSeek V3.2): one key of ``head_size`` per token picks the ``top_k`` to attend to.

    neighbours: RoPE pairs neighbours in it, whatever the attention does. pool: one key stands for so many tokens, which
    a gate weighs (GLM 5.3 Flash, Step 5) or whose mean it is (Qwen 4). key_dtype: of these keys, whatever the KV cache
    is in (Step 5's, which are made as a pool's last token comes, so that one fewer are kept until then; Qwen 4's
    "model"); "kv": as that.
    """

    num_heads: int
    head_size: int
    top_k: int
    neighbours: bool = False
    pool: int = 1
    key_dtype: str = "kv"

    @property
    def query_size(self) -> int:
        return self.num_heads * self.head_size

    @property
    def columns(self) -> int:
        """Elements of a token's queries, key and weights."""
        return self.query_size + self.head_size + self.num_heads


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention with a key and a value per KV head and token.

    scale: what scores are multiplied with. rope: None where positions are learned, slopes or absent. head_norm: queries
    and keys are normalised: "head" each head with one weight of ``key_size``, "per_head" with a weight of each head's
    own, "all" across all heads at once; head_norm_kind: None for the layer's own kind. gate: attention's output is
    multiplied with a gate, per element or per head, projected from the layer's input ("element": in the same matrix as
    the query, "separate": in one of its own), behind ``gate_activation``. alibi: scores grow with a slope of each head
    times the key's position. sinks: a logit for each head without a value. reads_layer: this layer has no keys and
    values of its own and reads those of an earlier one. value_is_key: values are the keys before their norm.
    value_norm: each head of values is normalised, by an RMSNorm without a weight. shared_weights: several layers run
    the same projections, which the model lists among its ``others`` (Zamba 2). clip: queries, keys and values are kept
    within it, on both sides of 0. alibi_scale: of the slopes. growing_scale: (beta, tokens): the query at position p is
    multiplied with 1 + beta * log(1 + floor(p / tokens)). query_rank: queries come from a normalised latent (Step 3).
    """

    num_heads: int
    num_kv_heads: int
    key_size: int
    value_size: int
    scale: float
    rope: Rope | None = None
    kept: Kept = FULL
    softcap: float | None = None
    sinks: bool = False
    alibi: bool = False
    alibi_scale: float = 1.0
    growing_scale: tuple[float, int] | None = None
    clip: float | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    head_norm: Literal["none", "head", "per_head", "all"] = "none"
    head_norm_kind: NormKind | None = None
    norm_after_rope: bool = False
    gate: Literal["none", "element", "separate", "head"] = "none"
    gate_activation: Literal["sigmoid", "softplus"] = "sigmoid"
    reads_layer: int | None = None
    value_is_key: bool = False
    value_norm: bool = False
    indexer: Indexer | None = None
    shared_weights: bool = False
    query_rank: int | None = None

    @property
    def query_size(self) -> int:
        return self.num_heads * self.key_size

    @property
    def output_size(self) -> int:
        """Elements of attention's output per token, input of the output projection."""
        return self.num_heads * self.value_size

    @property
    def kv_size(self) -> int:
        """Elements of keys and values per token."""
        return self.num_kv_heads * (self.key_size + self.value_size)

    @property
    def has_equal_sizes(self) -> bool:
        """Whether values are as large as keys."""
        return self.key_size == self.value_size

    @property
    def qkv_size(self) -> int:
        return self.query_size + self.kv_size


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek V2): one latent of ``kv_rank`` and one rotary key per token, for all heads.

    q_rank: queries come from a latent of their own; None: straight from the layer's input. nope_size, rope_size: of a
    query's head without and with positions. latent_norm_eps: of both latents' norms. growing_scale: as Attention's.
    sparse_top_k: each token attends to so many at most, which the indexer chooses; where the layer has none of its own,
    the last layer that has one did. gate: rows of a projection of the layer's input that gates the output, per element
    (Kimi K3) or per head (Ling 3); 0: none.
    """

    num_heads: int
    q_rank: int | None
    kv_rank: int
    nope_size: int
    rope_size: int
    value_size: int
    scale: float
    rope: Rope | None
    bias: bool = False
    indexer: Indexer | None = None
    latent_norm_eps: float = 1e-6
    growing_scale: tuple[float, int] | None = None
    sparse_top_k: int | None = None
    gate: int = 0

    @property
    def query_size(self) -> int:
        return self.num_heads * (self.nope_size + self.rope_size)

    @property
    def row_size(self) -> int:
        """Elements that are kept of a token: its latent and its rotary key."""
        return self.kv_rank + self.rope_size

    @property
    def down_columns(self) -> int:
        """Elements of what a token's input is projected to first: the query's latent and the row that is kept."""
        return (self.q_rank or 0) + self.row_size

    @property
    def head_columns(self) -> int:
        """Elements of all heads' queries or of their outputs, whichever are more."""
        return max(self.query_size, self.num_heads * self.value_size)


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """DeepSeek V4's: one vector per token (key and value at once) in a window, and one per ``ratio`` tokens beyond.

    ratio None: the window alone. indexer: one small key per compressed vector. q_rank: queries come from a latent of
    this size. output_groups, output_rank: heads are projected to ``output_rank`` elements group by group, and from
    there to the hidden size. is_shared: layers share vectors (DeepSeek V4.1), and what makes them is among the layer's
    others; keeps_vectors, chooses: it is this layer that keeps them, that chooses among them.
    """

    num_heads: int
    head_size: int
    kept: Kept
    ratio: int | None = None
    indexer: Indexer | None = None
    rope: Rope | None = None
    q_rank: int = 0
    output_groups: int = 1
    output_rank: int = 0
    is_shared: bool = False
    keeps_vectors: bool = True
    chooses: bool = True


ConvKind = Literal["short_conv", "ngram_conv", "stream_conv"]
StateKind = Literal["gated_delta", "kimi_delta", "mamba1", "mamba2", "linear_attention"] | ConvKind


@dataclass(frozen=True, slots=True)
class State:
    """A layer whose memory of the past has a fixed size: state space, linear attention, short convolution.

    conv_channels x (conv_kernel - 1) inputs of a convolution are kept, and ``recurrent_shape`` = (heads, rows, columns)
    elements of state, () where there is none. conv_dtype, recurrent_dtype: None for the model's. num_heads, key_heads,
    key_size, value_size, num_groups: of the kind, 0 where it has none of them. rank: of the low-rank projections of a
    step (Mamba 1) or of a gate (Kimi). bias, output_bias, conv_bias: of the projections from and to the hidden state
    and of the convolution. norms: Mamba 2 normalises its output, Mamba 1 what comes before its state (Jamba),
    lightning attention each head's query and key (Ling 2.5); plain_norms: without weights (Falcon Mamba), norm_eps:
    None for the layer's own. norm_first: Mamba 2's norm stands before the gate. step_limits: what its steps are kept
    within. strength_scale: of a delta rule's strengths. full_gate, full_decay: a Kimi gate, or decay, is one matrix
    (Kimi K3, Ling 3). rope: of lightning attention's queries and keys (Ling 2.5). conv_taps: of a convolution that does
    not see all the inputs that are kept, but some, evenly apart (Qwen 4's n-grams). stream_conv: of keys,
    values and the outputs of both blocks (Inkling).
    """

    kind: StateKind
    conv_channels: int
    conv_kernel: int
    recurrent_shape: tuple[int, ...]
    conv_dtype: str | None = None
    recurrent_dtype: str | None = None
    num_heads: int = 0
    key_heads: int = 0
    key_size: int = 0
    value_size: int = 0
    num_groups: int = 1
    rank: int = 0
    bias: bool = False
    output_bias: bool = False
    conv_bias: bool = False
    norms: bool = False
    plain_norms: bool = False
    norm_eps: float | None = None
    norm_first: bool = False
    step_limits: tuple[float, float] = (0.0, math.inf)
    strength_scale: float = 1.0
    full_gate: bool = False
    full_decay: bool = False
    rope: Rope | None = None
    conv_taps: int | None = None


@dataclass(frozen=True, slots=True)
class CrossAttention:
    """Attention over an encoder's outputs: their keys and values are kept for the life of the sequence.

    encoder_tokens: per sequence, where the architecture fixes them; None: the input decides. bias: of queries, values
    and the output (keys have none). head_norm: each head of queries and keys is normalised.
    """

    num_heads: int
    num_kv_heads: int
    key_size: int
    value_size: int
    encoder_tokens: int | None = None
    bias: bool = False
    head_norm: bool = False


Mixer = Attention | LatentAttention | CompressedAttention | State | CrossAttention
