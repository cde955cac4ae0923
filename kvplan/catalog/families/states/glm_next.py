"""GLM 5.3 Flash: three Kimi Delta Attentions, then latent attention without positions, to tokens of chosen pools."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import Body, decoder_body, layer_types, multi_token_layers, stacked
from kvplan.catalog.families.latent.deepseek import decoder_sizes, latent_attention, read_indexer, read_latent_sizes
from kvplan.catalog.families.softmax.mixtures import MixtureFamily, after_dense_ones, read_feed_forwards
from kvplan.catalog.families.softmax.plain import PlainFamily
from kvplan.catalog.families.states.state import kimi_delta
from kvplan.catalog.parts import MoeTraits, hyper_connections, linear, norms
from kvplan.catalog.spec import LatentAttention, LayerSpec, SparseIndexer, StateMixer
from kvplan.catalog.tensors import Tensor

_Mixer = TypeVar("_Mixer", StateMixer, LatentAttention)
_INDEX_HEAD = 128
_LINEAR = "linear_attention"


def _after_three(view: ConfigView, num_layers: int) -> list[bool]:
    """``mlp_layer_types``, or three dense layers and then sparse ones."""
    if view.has("mlp_layer_types"):
        return after_dense_ones(view, num_layers)
    return [index >= 3 for index in range(num_layers)]


_MIXTURE = MixtureFamily(
    PlainFamily(),
    _after_three,
    expert_size=("moe_intermediate_size",),
    shared_count=("n_shared_experts",),
    shared_default=1,
    traits=MoeTraits(shared_name="shared_experts"),
)


def read_glm5_next(view: ConfigView) -> Body:
    """GLM 5.3 Flash's language model as vLLM reads it."""
    for key in ("attention_bias", "tie_word_embeddings"):
        if view.flag(key, default=False):
            raise view.reject(key, "false (vLLM's class has neither biases nor a tied head)")
    sizes = decoder_sizes(view)
    state, latent = _unquantized(_state(view, sizes.hidden)), _unquantized(_attention(view, sizes.hidden))
    is_linear = _linear_layers(view, sizes.layers)
    _refuse_shared_choices(view, is_linear)
    family = replace(_MIXTURE, router_bias=view.text("topk_method", default="noaux_tc") == "noaux_tc")
    parts = read_feed_forwards(view, family, sizes)
    beside = norms(2, sizes.hidden)
    connected = beside
    if view.flag("mhc", default=True):
        connected += hyper_connections(sizes.hidden, view.integer("hc_mult", default=4, maximum=64))
    layers = stacked(sizes, [state if linear else latent for linear in is_linear], parts, connected)
    # Layers for multi-token prediction have latent attention and one stream.
    own = LayerSpec(latent, None, parts[-1], beside)
    return decoder_body(view, sizes, layers, rotary=False, extras=multi_token_layers(view, own, sizes.hidden))


def _unquantized(mixer: _Mixer) -> _Mixer:
    """vLLM's class keeps states and attention in 16 bits whatever the checkpoint says."""
    return replace(mixer, tensors=tuple(replace(tensor, never_quantized=True) for tensor in mixer.tensors))


def _linear_layers(view: ConfigView, num_layers: int) -> list[bool]:
    types = layer_types(view, num_layers)
    if types is None:
        return [index % 4 != 3 for index in range(num_layers)]
    if set(types) - {_LINEAR, "indexed_attention", "deepseek_sparse_attention", "full_attention"}:
        raise view.reject("layer_types", f"{_LINEAR} or indexed_attention for each layer")
    return [kind == _LINEAR for kind in types]


def _refuse_shared_choices(view: ConfigView, is_linear: list[bool]) -> None:
    """vLLM's class has an indexer in each layer of latent attention; transformers' would leave some out."""
    roles = view.texts("indexer_types")
    if roles is None:
        skips = view.integer("index_topk_freq", default=1) > 1 or "S" in view.text("index_topk_pattern", default="")
        if skips:
            raise view.reject("index_topk_freq", "1, with no index_topk_pattern")
    elif len(roles) != len(is_linear) or any(
        role != "full" for role, linear in zip(roles, is_linear, strict=True) if not linear
    ):
        raise view.reject("indexer_types", "full for each layer of indexed_attention")


def _state(view: ConfigView, hidden: int) -> StateMixer:
    """Read it by the keys of transformers, or by Kimi Linear's, which go before them."""
    older = view.section("linear_attn_config") or ConfigView({}, path=view.path)
    bounded = not view.names("linear_lower_bound") or view.has("linear_lower_bound")
    if view.has("linear_attn_config"):
        bounded = bounded or older.has("gate_lower_bound") or older.flag("safe_gate", default=True)
    return kimi_delta(
        hidden,
        older.optional_integer("num_heads") or view.integer("linear_num_heads"),
        older.optional_integer("head_dim") or view.integer("linear_head_dim"),
        older.optional_integer("short_conv_kernel_size") or view.integer("linear_conv_kernel_dim", default=4),
        bounded=bounded,
    )


def _attention(view: ConfigView, hidden: int) -> LatentAttention:
    sizes, indexer = read_latent_sizes(view), replace(read_indexer(view), pool=_read_pool(view))
    if sizes.rope:
        raise view.reject("qk_rope_head_dim", "0 (there are no positions)")
    if sizes.q_lora is None:
        raise view.reject("q_lora_rank", "a whole number (the indexer's queries come from it)")
    if indexer.head_size != _INDEX_HEAD:
        raise view.reject("index_head_dim", f"{_INDEX_HEAD}, the one size that vLLM's kernels take")
    mixer = latent_attention(hidden, sizes, indexer=indexer)
    return replace(mixer, tensors=mixer.tensors + _pooling(hidden, indexer))


def _read_pool(view: ConfigView) -> int:
    pool = view.integer("index_kpool", default=16, minimum=2)
    if view.integer("index_topk") % pool:
        raise view.reject("index_topk", f"a multiple of index_kpool, {pool}")
    if not view.flag("index_kpool_always_select_tail", default=True):
        raise view.reject("index_kpool_always_select_tail", "true (vLLM's class refuses others)")
    return pool


def _pooling(hidden: int, indexer: SparseIndexer) -> tuple[Tensor, ...]:
    """What weighs the keys of a pool: a gate, and a bias of each position in it."""
    bias = Tensor("self_attn.indexer.index_kpool_compress_ape", (indexer.pool, indexer.head_size), "position")
    return (bias, *linear("self_attn.indexer.index_kpool_compress_gate", indexer.head_size, hidden))
