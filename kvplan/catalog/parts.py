"""The parts that models are built of, with the weights of each; the readers of configs assemble them.

Shapes are (out, in). Facts about which part has which weight are those of the published modelling code; every family
is checked against an independent count (tests/catalog).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from kvplan.catalog.spec import (
    DenseFeedForward,
    MoeFeedForward,
    SoftmaxAttention,
    SparseIndexer,
    WindowKind,
)
from kvplan.catalog.tensors import Role, Split, Tensor
from kvplan.errors import KvplanError


@dataclass(frozen=True, slots=True)
class Window:
    """Which past tokens an attention layer sees, and so how many it must keep."""

    kind: WindowKind = "full"
    tokens: int | None = None


FULL = Window()


def sliding(tokens: int) -> Window:
    return Window("sliding", tokens)


def chunked(tokens: int) -> Window:
    return Window("chunked", tokens)


def linear(
    name: str, out: int, inner: int, split: Split = "replicated", *, bias: bool = False, role: Role = "linear"
) -> tuple[Tensor, ...]:
    """A matrix and, with ``bias``, its bias vector (which a row-split layer holds whole on every rank)."""
    weight = Tensor(name, (out, inner), role, split)
    if not bias:
        return (weight,)
    return (weight, Tensor(f"{name}.bias", (out,), "bias", "replicated" if split == "row" else split))


def norm(name: str, size: int, *, bias: bool = False) -> tuple[Tensor, ...]:
    scale = Tensor(name, (size,), "norm")
    return (scale, Tensor(f"{name}.bias", (size,), "norm")) if bias else (scale,)


def norms(count: int, size: int, *, bias: bool = False) -> tuple[Tensor, ...]:
    """``count`` norms of the hidden size, as every layer has them."""
    return sum((norm(f"norm{index}", size, bias=bias) for index in range(count)), ())


@dataclass(frozen=True, slots=True)
class AttentionTraits:
    """What differs between softmax attentions beside their sizes."""

    q_bias: bool = False
    k_bias: bool = False
    v_bias: bool = False
    output_bias: bool = False
    output_gate: Literal["none", "element", "separate", "head"] = "none"
    """Gate of the output: per element beside the query or in a matrix of its own, or per head."""
    gate_bias: bool = False
    """A number for each head beside the output's gate."""
    sinks: bool = False
    qk_norm: Literal["none", "head", "per_head", "full"] = "none"
    """Norm of queries and keys: one for all heads, one for each head, or one over all heads' elements."""
    qk_norm_bias: bool = False
    values_from_keys: bool = False
    """No value projection: the values are the keys before their rotation (Gemma 4's global layers)."""
    name: str = "self_attn"

    @classmethod
    def biased(cls, qkv: bool, output: bool, **others: object) -> AttentionTraits:
        return cls(q_bias=qkv, k_bias=qkv, v_bias=qkv, output_bias=output, **others)  # type: ignore[arg-type]


def attention(
    hidden: int,
    heads: int,
    kv_heads: int,
    head_k: int,
    *,
    head_v: int | None = None,
    window: Window = FULL,
    traits: AttentionTraits = AttentionTraits(),
    kv_shared_with: int | None = None,
    indexer: SparseIndexer | None = None,
) -> SoftmaxAttention:
    """A softmax attention and its weights. A layer that reads another layer's cache has no K and V projection."""
    head_v = head_k if head_v is None else head_v
    query_out = heads * head_k * (2 if traits.output_gate == "element" else 1)
    name = traits.name
    tensors = linear(f"{name}.q_proj", query_out, hidden, "column", bias=traits.q_bias)
    if kv_shared_with is None:
        tensors += linear(f"{name}.k_proj", kv_heads * head_k, hidden, "kv", bias=traits.k_bias)
        if not traits.values_from_keys:
            tensors += linear(f"{name}.v_proj", kv_heads * head_v, hidden, "kv", bias=traits.v_bias)
    tensors += linear(f"{name}.o_proj", hidden, heads * head_v, "row", bias=traits.output_bias)
    if traits.output_gate == "head":
        tensors += linear(f"{name}.g_proj", heads, hidden, "column")
    elif traits.output_gate == "separate":
        tensors += linear(f"{name}.g_proj", heads * head_v, hidden, "column")
    if traits.gate_bias:
        tensors += (Tensor(f"{name}.gate_bias", (heads,), "bias", "column"),)
    if traits.sinks:
        tensors += (Tensor(f"{name}.sinks", (heads,), "state", "column"),)
    tensors += _qk_norms(heads, kv_heads, head_k, traits, with_key=kv_shared_with is None)
    if indexer is not None:
        tensors += key_indexer(hidden, indexer)
    return SoftmaxAttention(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size_k=head_k,
        head_size_v=head_v,
        window_kind=window.kind,
        window_tokens=window.tokens,
        kv_shared_with=kv_shared_with,
        qkv_bias=traits.q_bias,
        output_bias=traits.output_bias,
        output_gate=traits.output_gate,
        sinks=traits.sinks,
        qk_norm=traits.qk_norm,
        indexer=indexer,
        tensors=tensors,
    )


def key_indexer(hidden: int, indexer: SparseIndexer) -> tuple[Tensor, ...]:
    """MiniMax M3's indexer beside a grouped attention: queries and one key from the hidden state, both normed."""
    return (
        *linear("self_attn.index_q_proj", indexer.num_heads * indexer.head_size, hidden),
        *linear("self_attn.index_k_proj", indexer.head_size, hidden),
        *norm("self_attn.index_q_norm", indexer.head_size),
        *norm("self_attn.index_k_norm", indexer.head_size),
    )


def _qk_norms(
    heads: int, kv_heads: int, head_size: int, traits: AttentionTraits, *, with_key: bool
) -> tuple[Tensor, ...]:
    if traits.qk_norm == "none":
        return ()
    query, key = (head_size, head_size) if traits.qk_norm == "head" else (heads * head_size, kv_heads * head_size)
    found = norm(f"{traits.name}.q_norm", query, bias=traits.qk_norm_bias)
    return found + norm(f"{traits.name}.k_norm", key, bias=traits.qk_norm_bias) if with_key else found


def feed_forward(
    hidden: int,
    intermediate: int,
    *,
    gated: bool = True,
    bias: bool = False,
    down_bias: bool = False,
    name: str = "mlp",
) -> DenseFeedForward:
    """up and down, and with ``gated`` a gate beside up. ``bias``: of all of them, ``down_bias``: of down alone."""
    tensors = linear(f"{name}.gate_proj", intermediate, hidden, "column", bias=bias) if gated else ()
    tensors += linear(f"{name}.up_proj", intermediate, hidden, "column", bias=bias)
    tensors += linear(f"{name}.down_proj", hidden, intermediate, "row", bias=bias or down_bias)
    return DenseFeedForward(intermediate, gated, bias, tensors)


LATENT_PROJECTIONS = ("latent_proj", "routed_expert_down_proj", "routed_expert_up_proj")
"""How the names of the projections around a mixture's latent end."""


@dataclass(frozen=True, slots=True)
class MoeTraits:
    """What differs between mixtures of experts beside their sizes."""

    name: str = "mlp"
    gated: bool = True
    bias: bool = False
    shared_bias: bool = False
    """Biases of the shared expert alone."""
    router_bias: bool = False
    """A bias of the router, or the correction that balances the load: one number per expert."""
    float32_router: bool = False
    """vLLM keeps the router's weights in float32 (``params_dtype`` of the gate in its class)."""
    shared_gate: bool = False
    """The shared expert's output is scaled by a gate of its own (Qwen)."""
    shared_name: str = "shared_expert"
    shared_path: str = ""
    """Where the shared expert stands when it is not inside the mixture."""
    latent_size: int | None = None
    """Experts work on a projection of this size instead of the hidden size (Nemotron 3 Super, Kimi K3)."""
    latent_names: tuple[str, str] = ("fc1_latent_proj", "fc2_latent_proj")
    """Of the projections to that size and back."""
    latent_norm: str = ""
    """Of a norm of what comes back from the experts, before it is projected."""


def mixture(
    hidden: int,
    num_experts: int,
    experts_per_token: int,
    expert_intermediate: int,
    *,
    shared_intermediate: int = 0,
    traits: MoeTraits = MoeTraits(),
) -> MoeFeedForward:
    """Router, experts and shared experts. ``shared_intermediate`` is the sum over the shared experts.

    KvplanError where a token would use more experts than there are.
    """
    if experts_per_token > num_experts:
        raise KvplanError(
            f"The config has {num_experts:,} experts, of which each token uses {experts_per_token:,}.",
            hint="correct the config.json, or pass the published one",
        )
    inner = traits.latent_size or hidden
    router = linear(f"{traits.name}.gate", num_experts, hidden, bias=traits.router_bias, role="router")
    tensors = (replace(router[0], in_float32=traits.float32_router), *router[1:])
    tensors += _experts(inner, num_experts, experts_per_token, expert_intermediate, traits)
    if shared_intermediate:
        shared = traits.shared_path or f"{traits.name}.{traits.shared_name}"
        bias = traits.bias or traits.shared_bias
        tensors += feed_forward(hidden, shared_intermediate, gated=traits.gated, bias=bias, name=shared).tensors
        if traits.shared_gate:
            tensors += linear(f"{traits.name}.shared_expert_gate", 1, hidden, role="router")
    if traits.latent_size:
        down, up = (f"{traits.name}.{name}" for name in traits.latent_names)
        tensors += linear(down, traits.latent_size, hidden)
        tensors += linear(up, hidden, traits.latent_size)
        if traits.latent_norm:
            tensors += norm(f"{traits.name}.{traits.latent_norm}", traits.latent_size)
    return MoeFeedForward(
        num_experts=num_experts,
        experts_per_token=experts_per_token,
        expert_intermediate_size=expert_intermediate,
        shared_intermediate_size=shared_intermediate,
        gated=traits.gated,
        bias=traits.bias,
        tensors=tensors,
    )


def _experts(inner: int, experts: int, active: int, intermediate: int, traits: MoeTraits) -> tuple[Tensor, ...]:
    def stack(name: str, out: int, into: int, split: Split) -> tuple[Tensor, ...]:
        full = f"{traits.name}.experts.*.{name}"
        weight = Tensor(full, (experts, out, into), "expert", split, active)
        if not traits.bias:
            return (weight,)
        bias_split: Split = "column" if split == "column" else "replicated"
        return (weight, Tensor(f"{full}.bias", (experts, out), "bias", bias_split, active))

    gate = stack("gate_proj", intermediate, inner, "column") if traits.gated else ()
    return gate + stack("up_proj", intermediate, inner, "column") + stack("down_proj", inner, intermediate, "row")


def outside(
    hidden: int,
    vocab: int,
    *,
    tied: bool,
    positions: int = 0,
    final_norm: bool = True,
    norm_bias: bool = False,
    head_bias: bool = False,
) -> tuple[Tensor, ...]:
    """What stands outside the layers: embedding, learned positions, final norm and the head where it is its own."""
    tensors: tuple[Tensor, ...] = (Tensor("embed_tokens", (vocab, hidden), "embedding", "vocab"),)
    if positions:
        tensors += (Tensor("embed_positions", (positions, hidden), "position"),)
    if final_norm:
        tensors += norm("norm", hidden, bias=norm_bias)
    if not tied:
        tensors += (Tensor("lm_head", (vocab, hidden), "head", "vocab"),)
    if head_bias:
        tensors += (Tensor("lm_head.bias", (vocab,), "bias", "vocab"),)
    return tensors


def hyper_connections(hidden: int, streams: int, *, mixes: bool = True) -> tuple[Tensor, ...]:
    """Return what gates one layer's streams before and after each of its parts; ``mixes``: also with each other."""
    found: tuple[Tensor, ...] = ()
    rows, scales = ((2 + streams) * streams, 3) if mixes else (2 * streams, 2)
    for part in ("attn_hc", "ffn_hc"):
        found += (
            Tensor(f"{part}.fn", (rows, streams * hidden), "router", in_float32=True),
            Tensor(f"{part}.base", (rows,), "bias"),
            Tensor(f"{part}.scale", (scales,), "norm"),
        )
    return found


def hyper_head(hidden: int, streams: int) -> tuple[Tensor, ...]:
    """What gates the streams into one behind the last layer."""
    return (
        Tensor("hc_head.fn", (streams, streams * hidden), "router", in_float32=True),
        Tensor("hc_head.base", (streams,), "bias"),
        Tensor("hc_head.scale", (1,), "norm"),
    )
