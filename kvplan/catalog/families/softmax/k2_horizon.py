"""K2 Horizon: a gated attention whose values come, in layers with experts, from a mixture too."""

from __future__ import annotations

from dataclasses import replace

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import Body, Sizes, read_sizes
from kvplan.catalog.families.softmax.mixtures import MixtureFamily, read_feed_forwards, stepped
from kvplan.catalog.families.softmax.plain import PlainFamily, assemble, dense_feed_forward
from kvplan.catalog.parts import MoeTraits, linear
from kvplan.catalog.spec import LayerSpec, MoeFeedForward, SoftmaxAttention
from kvplan.catalog.tensors import Tensor

_NEEDED = ("attention_bias", "attention_gate_func", "moe_gate_bias", "query_key_norm", "tie_word_embeddings")


def read_k2_horizon(view: ConfigView) -> Body:
    """Read it as vLLM does (vllm/model_executor/models/k2_horizon.py), which takes no key for granted."""
    for key in _NEEDED:
        if not view.names(key):
            raise view.reject(key, "a value: its class has a default that is not published here")
    if view.has("dual_chunk_attention_config"):
        raise view.reject("dual_chunk_attention_config", "none (what its layers keep then is not known)")
    sizes = read_sizes(view)
    bias, gate_bias = view.flag("attention_bias", default=False), view.flag("moe_gate_bias", default=False)
    plain = PlainFamily(
        bias,
        bias,
        qk_norm="per_head" if view.flag("query_key_norm", default=False) else "none",
        output_gate="separate" if view.has("attention_gate_func") else "none",
    )
    family = MixtureFamily(
        plain,
        stepped,
        expert_size=("moe_intermediate_size",),
        shared_count=("num_shared_experts",),
        router_bias=gate_bias,
        traits=MoeTraits(shared_name="shared_experts"),
    )
    if view.integer("num_experts", minimum=0):
        parts = read_feed_forwards(view, family, sizes)
    else:
        parts = [dense_feed_forward(view, plain, sizes)] * sizes.layers
    body = assemble(view, plain, sizes, parts)
    experts = view.integer("mova_num_experts", minimum=0)
    if not experts:
        return body
    size = 2 * experts * sizes.kv_heads * sizes.head * sizes.hidden / 2**30
    view.assume(
        f"vLLM copies the matrices of all {experts} value experts of a layer in each step ({size:.2f} GiB in 16 bits), "
        "which the activations here leave out."
    )
    routed = {layer: _routed_values(view, sizes, layer, gate_bias) for layer in set(body.layers)}
    return replace(body, layers=tuple(routed[layer] for layer in body.layers))


def _routed_values(view: ConfigView, sizes: Sizes, layer: LayerSpec, gate_bias: bool) -> LayerSpec:
    """A layer with experts makes its values by a router and experts of their own; one without by a matrix."""
    mixer = layer.mixer
    if not isinstance(layer.feed_forward, MoeFeedForward) or not isinstance(mixer, SoftmaxAttention):
        return layer
    experts, active = view.integer("mova_num_experts"), view.integer("mova_num_experts_per_tok")
    kept = tuple(each for each in mixer.tensors if not each.name.startswith("self_attn.v_proj"))
    router = linear("self_attn.v_router", experts, sizes.hidden, bias=gate_bias)
    values = Tensor(
        "self_attn.v_experts.*", (experts, sizes.kv_heads * sizes.head, sizes.hidden), "linear", "kv", active
    )
    return replace(layer, mixer=replace(mixer, tensors=(*kept, *router, values)))
