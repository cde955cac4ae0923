"""Inkling: windows and full layers, in each convolutions of keys, values and both outputs; no rotary positions."""

from __future__ import annotations

from dataclasses import replace

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import Body, Sizes, decoder_body, layer_types, read_sizes
from kvplan.catalog.families.softmax.mixtures import after_dense_ones
from kvplan.catalog.families.wrappers.multimodal import text_section
from kvplan.catalog.families.wrappers.towers import read_towers
from kvplan.catalog.parts import (
    FULL,
    AttentionTraits,
    MoeTraits,
    attention,
    feed_forward,
    linear,
    mixture,
    norm,
    norms,
    sliding,
)
from kvplan.catalog.spec import FeedForward, LayerSpec, SoftmaxAttention, StateMixer
from kvplan.catalog.tensors import Tensor

_ONLY = {
    "q_bias": False,
    "o_bias": False,
    "gate_activation": "sigmoid",
    "norm_after_topk": True,
}
"""Keys that vLLM's class knows one value of, or none."""


def read_inkling(view: ConfigView) -> Body:
    """vLLM: InklingForCausalLM and InklingForConditionalGeneration (vllm/models/inkling)."""
    text = text_section(view) or view
    text = _uniform(text)
    sizes = read_sizes(text)
    local_ids = _local_layers(text, sizes.layers)
    kinds = {is_local: _layer_parts(text, sizes, is_local=is_local) for is_local in (True, False)}
    dense = _num_dense(text, sizes.layers)
    part = feed_forward(sizes.hidden, text.integer("dense_intermediate_size"))
    parts = {True: _mixture(text, sizes.hidden), False: replace(part, tensors=part.tensors + _scale(text))}
    around = norms(2, sizes.hidden)
    layers = []
    for index in range(sizes.layers):
        mixer, streams = kinds[index in local_ids]
        layers.append(LayerSpec(mixer, None, parts[index >= dense], around, streams))
    body = decoder_body(text, sizes, layers, tied=None, rotary=False)
    tensors = tuple(replace(each, split="replicated") if each.role == "embedding" else each for each in body.tensors)
    if text.flag("use_embed_norm", default=False):
        tensors += norm("embed_norm", sizes.hidden)
    return replace(body, tensors=tensors, extras=read_towers(view, sizes.hidden) if text is not view else ())


def _uniform(text: ConfigView) -> ConfigView:
    """The keys of the published config where transformers' have other names, and what all layers have in common."""
    for key, known in _ONLY.items():
        if text.config.get(key, known) not in (known, None):
            raise text.reject(key, f"{str(known).lower()}, the only one that vLLM serves")
    kernel = text.integer("sconv_kernel_size", "conv_kernel_size", default=4, minimum=2)
    own: dict[str, object] = {
        "sconv_kernel_size": kernel,
        "vocab_size": text.integer("padded_vocab_size", "vocab_size"),
    }
    dense = text.optional_integer("dense_intermediate_size") or text.integer("intermediate_size")
    if not text.has("dense_intermediate_size") and text.has("moe_intermediate_size"):
        own["intermediate_size"] = text.integer("moe_intermediate_size")
    if text.has("layer_types"):  # transformers' class has all of them, vLLM's those that its keys ask for
        own = {"use_embed_norm": True, "use_global_scale": True, "use_gate_bias": True, **text.config, **own}
    return text.changed({**own, "dense_intermediate_size": dense})


def _local_layers(text: ConfigView, num_layers: int) -> set[int]:
    """Layers with windows: ``local_layer_ids``, which vLLM reads, or ``layer_types``, as transformers 5 writes them."""
    listed, types = text.integers("local_layer_ids"), layer_types(text, num_layers)
    if types is None:
        if listed is None:
            raise text.reject("local_layer_ids", "the numbers of the layers with windows")
        return set(listed)
    if set(types) - {"hybrid_sliding", "hybrid"}:
        raise text.reject("layer_types", "hybrid_sliding or hybrid for each layer")
    found = {index for index, kind in enumerate(types) if kind == "hybrid_sliding"}
    if listed is not None and set(listed) != found:
        raise text.reject("layer_types", "the layers of local_layer_ids")
    return found


def _num_dense(text: ConfigView, num_layers: int) -> int:
    """How many layers at the start are dense: ``dense_mlp_idx``, or as many as ``mlp_layer_types`` begins with."""
    stated = text.layers("dense_mlp_idx", default=0, minimum=0)
    if not text.has("mlp_layer_types"):
        return stated
    is_sparse = after_dense_ones(text, num_layers)
    is_written_by_transformers = text.has("layer_types") and not text.has("dense_mlp_idx")
    dense = is_sparse.count(False) if is_written_by_transformers else stated
    if is_sparse != [index >= dense for index in range(num_layers)]:
        raise text.reject("mlp_layer_types", "dense for the first dense_mlp_idx layers, as vLLM reads them")
    return dense


def _layer_parts(text: ConfigView, sizes: Sizes, *, is_local: bool) -> tuple[SoftmaxAttention, StateMixer]:
    """Attention with a term of the distance between two tokens, and the convolutions beside it."""
    heads, kv_heads, head, window = sizes.heads, sizes.kv_heads, sizes.head, FULL
    extent = text.integer("rel_extent", default=1024)
    if is_local:
        extent = text.integer("sliding_window_size", default=512)
        heads = text.integer("swa_num_attention_heads", default=heads)
        kv_heads = text.integer("swa_num_key_value_heads", default=kv_heads)
        head, window = text.integer("swa_head_dim", default=head), sliding(extent)
    if heads % kv_heads or sizes.hidden % kv_heads:
        key = "swa_num_key_value_heads" if is_local else "num_key_value_heads"
        raise text.reject(key, "a divisor of the heads and of the hidden size")
    mixer = attention(sizes.hidden, heads, kv_heads, head, window=window, traits=AttentionTraits(qk_norm="head"))
    rel = text.integer("d_rel", default=16)
    more = linear("self_attn.r_proj", heads * rel, sizes.hidden, "column")
    more += (Tensor("self_attn.rel_logits_proj", (rel, extent), "position"),)
    channels, kernel = (kv_heads * head, kv_heads * head, sizes.hidden, sizes.hidden), text.integer("sconv_kernel_size")
    filters = tuple(Tensor(f"sconv{index}", (count, kernel), "conv", "column") for index, count in enumerate(channels))
    streams = StateMixer("stream_conv", sum(channels), kernel, (), num_groups=kv_heads, tensors=filters)
    return replace(mixer, tensors=mixer.tensors + more), streams


def _scale(text: ConfigView) -> tuple[Tensor, ...]:
    return (Tensor("mlp.global_scale", (1,), "norm"),) if text.flag("use_global_scale", default=False) else ()


def _mixture(text: ConfigView, hidden: int) -> FeedForward:
    """The router also scores the shared experts."""
    size, shared = text.integer("intermediate_size"), text.integer("n_shared_experts")
    experts = text.integer("n_routed_experts")
    traits = MoeTraits(router_bias=text.flag("use_gate_bias", default=False), shared_name="shared_experts")
    part = mixture(
        hidden,
        experts,
        text.integer("num_experts_per_tok"),
        size,
        shared_intermediate=size * shared,
        traits=traits,
    )
    tensors = tuple(
        replace(each, shape=(experts + shared, hidden)) if each.role == "router" else each for each in part.tensors
    )
    return replace(part, tensors=tensors + _scale(text))
