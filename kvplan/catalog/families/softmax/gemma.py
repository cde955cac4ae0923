"""Gemma 3n and Gemma 4: per-layer embeddings, caches shared between layers, larger heads in the global layers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import (
    Body,
    Sizes,
    decoder_body,
    layer_types,
    read_sizes,
    softmax_attention,
    windows_of_types,
)
from kvplan.catalog.families.positions import FULL_TYPE, WINDOW_TYPE, rope_of_type, with_ropes
from kvplan.catalog.parts import (
    FULL,
    AttentionTraits,
    MoeTraits,
    Window,
    attention,
    feed_forward,
    linear,
    mixture,
    norm,
    norms,
    sliding,
)
from kvplan.catalog.spec import FeedForward, LayerSpec, MoeFeedForward, SoftmaxAttention
from kvplan.catalog.tensors import Tensor


def _windows(view: ConfigView, num_layers: int, *, period: int, last_is_full: bool) -> list[Window]:
    """``layer_types``, or all layers slide but each ``period``-th."""
    tokens = view.integer("sliding_window", default=512)
    types = layer_types(view, num_layers)
    if types is not None:
        return windows_of_types(view, types, tokens)
    found = [sliding(tokens) if (index + 1) % period else FULL for index in range(num_layers)]
    return [*found[:-1], FULL] if last_is_full else found


def _shared_caches(view: ConfigView, windows: list[Window], *, default: int) -> list[int | None]:
    """The layer whose cache each layer reads: the last ``num_kv_shared_layers`` read the last own one of their kind."""
    count = view.integer("num_kv_shared_layers", default=default, minimum=0)
    if count >= len(windows):
        raise view.reject("num_kv_shared_layers", f"fewer than the {len(windows)} layers")
    first = len(windows) - count
    owners = {window.kind: index for index, window in enumerate(windows[:first])}
    for window in windows[first:]:
        if window.kind not in owners:
            raise view.reject("num_kv_shared_layers", f"a {window.kind} layer before the first one that shares")
    return [None if index < first else owners[window.kind] for index, window in enumerate(windows)]


@dataclass(frozen=True, slots=True)
class PerLayerInput:
    """Gemma's per-layer embeddings: ``size`` elements per token and layer, from an embedding of their own."""

    size: int
    vocab: int

    def layer_tensors(self, hidden: int) -> tuple[Tensor, ...]:
        if not self.size:
            return ()
        return (
            *linear("per_layer_input_gate", self.size, hidden),
            *linear("per_layer_projection", hidden, self.size),
            *norm("post_per_layer_input_norm", hidden),
        )

    def outer_tensors(self, hidden: int, num_layers: int) -> tuple[Tensor, ...]:
        if not self.size:
            return ()
        width = num_layers * self.size
        return (
            Tensor("embed_tokens_per_layer", (self.vocab, width), "embedding", "vocab"),
            *linear("per_layer_model_projection", width, hidden),
            *norm("per_layer_projection_norm", self.size),
        )


def _read_per_layer_input(view: ConfigView) -> PerLayerInput:
    size = view.integer("hidden_size_per_layer_input", default=256, minimum=0)
    return PerLayerInput(size, view.integer("vocab_size_per_layer_input", default=262144))


def read_gemma3n(view: ConfigView) -> Body:
    """Gemma 3n's text model: AltUp streams, Laurel blocks, per-layer embeddings, the last layers' caches shared."""
    sizes = read_sizes(view, head_default=256)
    per_layer = _read_per_layer_input(view)
    windows = _windows(view, sizes.layers, period=5, last_is_full=False)
    shared = _shared_caches(view, windows, default=15)
    inner = view.per_layer("intermediate_size", sizes.layers)
    streams = view.integer("altup_num_inputs", default=4, maximum=64)
    rest = norms(4, sizes.hidden) + per_layer.layer_tensors(sizes.hidden)
    rest += _laurel(sizes.hidden, view.integer("laurel_rank", default=64)) + _altup(sizes.hidden, streams)
    bias = view.flag("attention_bias", default=False)
    traits = AttentionTraits.biased(bias, bias, qk_norm="head")
    layers = []
    for window, owner, width in zip(windows, shared, inner, strict=True):
        mixer = softmax_attention(sizes, traits, window=window, kv_shared_with=owner)
        layers.append(LayerSpec(mixer, None, feed_forward(sizes.hidden, width), rest))
    extra = per_layer.outer_tensors(sizes.hidden, sizes.layers)
    for name in ("altup_projections", "altup_unembed_projections"):
        extra += sum((linear(name, sizes.hidden, sizes.hidden) for _ in range(1, streams)), ())
    ropes = (
        rope_of_type(view, sizes.head, FULL_TYPE, theta=1_000_000.0),
        rope_of_type(view, sizes.head, WINDOW_TYPE),
    )
    return with_ropes(decoder_body(view, sizes, layers, tied=True, rotary=False, further=extra), ropes)


def _laurel(hidden: int, rank: int) -> tuple[Tensor, ...]:
    return (
        *linear("laurel.linear_left", rank, hidden),
        *linear("laurel.linear_right", hidden, rank),
        *norm("laurel.post_laurel_norm", hidden),
    )


def _altup(hidden: int, streams: int) -> tuple[Tensor, ...]:
    return (
        *norm("altup.correct_output_scale", hidden),
        *linear("altup.correction_coefs", streams, streams),
        *linear("altup.prediction_coefs", streams**2, streams),
        *linear("altup.modality_router", streams, hidden),
        *norm("altup.router_norm", hidden),
    )


def read_gemma4(view: ConfigView) -> Body:
    """Gemma 4's text model: global layers with heads of ``global_head_dim``, whose values may be their keys."""
    sizes = read_sizes(view, head_default=256)
    view = _with_global_sizes(view, sizes.layers)
    per_layer = _read_per_layer_input(view)
    windows = _windows(view, sizes.layers, period=6, last_is_full=True)
    shared = _shared_caches(view, windows, default=0)
    mixture_part = _gemma4_experts(view, sizes)
    rest = norms(7 if mixture_part else 4, sizes.hidden) + per_layer.layer_tensors(sizes.hidden)
    rest += (Tensor("layer_scalar", (1,), "norm"),)
    layers = []
    for window, owner in zip(windows, shared, strict=True):
        mixer = _gemma4_attention(view, sizes, window, owner)
        part = mixture_part or _gemma4_dense(view, sizes, is_shared=owner is not None)
        layers.append(LayerSpec(mixer, None, part, rest))
    wide = view.integer("global_head_dim", default=512)
    ropes = (
        # pairs that do not turn have their place in the table too
        replace(rope_of_type(view, wide, FULL_TYPE, theta=1_000_000.0), rotary_size=wide),
        rope_of_type(view, sizes.head, WINDOW_TYPE),
    )
    extra = per_layer.outer_tensors(sizes.hidden, sizes.layers)
    return with_ropes(decoder_body(view, sizes, layers, tied=True, rotary=False, further=extra), ropes)


def _with_global_sizes(view: ConfigView, num_layers: int) -> ConfigView:
    """``per_layer_config`` (transformers 5.20 and later) gives the full layers' sizes; the last layer is one."""
    listed = view.section("per_layer_config")
    last = None if listed is None else listed.section(str(num_layers - 1))
    if last is None:
        return view
    head = last.config.get("head_dim", view.config.get("head_dim"))
    kv_heads = last.config.get("num_key_value_heads")
    return view.changed({"global_head_dim": head, "num_global_key_value_heads": kv_heads})


def _gemma4_attention(view: ConfigView, sizes: Sizes, window: Window, owner: int | None) -> SoftmaxAttention:
    head, kv_heads, values_from_keys = sizes.head, sizes.kv_heads, False
    if window.kind == "full":
        head = view.integer("global_head_dim", default=512)
        values_from_keys = view.flag("attention_k_eq_v", default=False)
        if values_from_keys:
            kv_heads = view.integer("num_global_key_value_heads", default=kv_heads)
    bias = view.flag("attention_bias", default=False)
    traits = AttentionTraits.biased(bias, bias, qk_norm="head", values_from_keys=values_from_keys)
    return attention(sizes.hidden, sizes.heads, kv_heads, head, window=window, traits=traits, kv_shared_with=owner)


def _gemma4_dense(view: ConfigView, sizes: Sizes, *, is_shared: bool) -> FeedForward:
    wide = is_shared and view.flag("use_double_wide_mlp", default=False)
    return feed_forward(sizes.hidden, view.integer("intermediate_size") * (2 if wide else 1))


def _gemma4_experts(view: ConfigView, sizes: Sizes) -> MoeFeedForward | None:
    """The mixture of the 26B model: its dense feed-forward runs beside the experts as a shared one does."""
    if not view.flag("enable_moe_block", default=False):
        return None
    num_experts = view.integer("num_experts")
    found = mixture(
        sizes.hidden,
        num_experts,
        view.integer("top_k_experts"),
        view.integer("moe_intermediate_size"),
        shared_intermediate=view.integer("intermediate_size"),
        traits=MoeTraits(name="moe", shared_path="mlp"),
    )
    scales = (
        Tensor("router.scale", (sizes.hidden,), "norm"),
        Tensor("router.per_expert_scale", (num_experts,), "norm"),
    )
    return MoeFeedForward(
        found.num_experts,
        found.experts_per_token,
        found.expert_intermediate_size,
        found.shared_intermediate_size,
        tensors=tuple(replace(tensor, name=_gemma4_name(tensor.name)) for tensor in found.tensors) + scales,
    )


def _gemma4_name(name: str) -> str:
    """The checkpoint's own names, which quantizers' lists use: the experts and the router stand beside the ``mlp``."""
    return "router.proj" if name == "moe.gate" else name.removeprefix("moe.")
