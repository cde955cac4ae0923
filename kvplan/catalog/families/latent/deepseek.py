"""Models with latent attention: DeepSeek V2 and V3, Kimi K2, GLM 5, MiniCPM 3, Mistral Small 4, LongCat and similar."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import (
    HEAD_KEYS,
    HIDDEN_KEYS,
    LAYER_KEYS,
    Body,
    Sizes,
    decoder_body,
    multi_token_layers,
    read_rope,
)
from kvplan.catalog.families.softmax import mixtures
from kvplan.catalog.families.softmax.mixtures import (
    MixtureFamily,
    after_dense_ones,
    after_first_layer,
    read_feed_forwards,
    read_mixture,
)
from kvplan.catalog.families.softmax.plain import Flag, PlainFamily
from kvplan.catalog.parts import MoeTraits, feed_forward, linear, mixture, norm, norms
from kvplan.catalog.spec import FeedForward, LatentAttention, LayerSpec, RopeSpec, SparseIndexer
from kvplan.catalog.tensors import Tensor

_SHARED = MoeTraits(shared_name="shared_experts")


@dataclass(frozen=True, slots=True)
class LatentFamily:
    """One family with latent attention: its mixture (None: dense everywhere) and whether it has an indexer."""

    mixture: MixtureFamily | None
    has_indexer: bool = False
    tied: bool = False
    num_norms: int = 2


def _deepseek(*, correction: bool) -> MixtureFamily:
    return MixtureFamily(
        PlainFamily(), after_dense_ones, shared_count=("n_shared_experts",), router_bias=correction, traits=_SHARED
    )


_GLM = MixtureFamily(
    PlainFamily(), after_first_layer, shared_count=("n_shared_experts",), router_bias=True, traits=_SHARED
)


def _counted_from_the_first(view: ConfigView, num_layers: int) -> list[bool]:
    """Sarvam's rule: every ``moe_layer_freq``-th layer, counted from the first behind the dense ones."""
    first, step = view.integer("first_k_dense_replace", default=1, minimum=0), view.integer("moe_layer_freq", default=1)
    return [index >= first and (index - first) % step == 0 for index in range(num_layers)]


_SARVAM = MixtureFamily(
    PlainFamily(),
    _counted_from_the_first,
    shared_count=("num_shared_experts",),
    shared_default=1,
    shared_each=("moe_shared_expert_intermediate_size",),
    router_bias=Flag(("moe_router_enable_expert_bias",), True),
    traits=_SHARED,
)

_PANGU = MixtureFamily(
    PlainFamily(),
    after_dense_ones,
    shared_count=("n_shared_experts",),
    router_bias=Flag(("router_enable_expert_bias",), False),
    traits=_SHARED,
)

FAMILIES: dict[str, LatentFamily] = {
    "DeepseekV2ForCausalLM": LatentFamily(_deepseek(correction=False)),
    "DeepseekV3ForCausalLM": LatentFamily(_deepseek(correction=True)),
    "DeepseekV32ForCausalLM": LatentFamily(_deepseek(correction=True), has_indexer=True),
    "GlmMoeDsaForCausalLM": LatentFamily(_deepseek(correction=True), has_indexer=True),
    "Glm4MoeLiteForCausalLM": LatentFamily(_GLM),
    "Mistral4ForCausalLM": LatentFamily(_deepseek(correction=False)),
    "MistralLarge3ForCausalLM": LatentFamily(_deepseek(correction=False)),
    "SarvamMLAForCausalLM": LatentFamily(_SARVAM),
    "MiniCPM3ForCausalLM": LatentFamily(None, tied=True),
    "YoutuForCausalLM": LatentFamily(None),
}


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """The sizes of a latent attention, as the config states them."""

    heads: int
    q_lora: int | None
    kv_lora: int
    rope: int
    nope: int
    value: int


def read_latent_sizes(view: ConfigView) -> LatentSizes:
    return LatentSizes(
        heads=view.integer(*HEAD_KEYS),
        q_lora=view.optional_integer("q_lora_rank"),
        kv_lora=view.integer("kv_lora_rank"),
        rope=view.integer("qk_rope_head_dim", minimum=0),
        nope=view.integer("qk_nope_head_dim"),
        value=view.integer("v_head_dim"),
    )


def read_indexer(view: ConfigView) -> SparseIndexer:
    return SparseIndexer(
        num_heads=view.integer("index_n_heads"),
        head_size=view.integer("index_head_dim"),
        topk=view.integer("index_topk"),
    )


def latent_attention(
    hidden: int,
    sizes: LatentSizes,
    *,
    bias: bool = False,
    indexer: SparseIndexer | None = None,
    chosen_tokens: int | None = None,
    gate: int = 0,
) -> LatentAttention:
    """A latent attention and its weights; ``bias`` is that of the down projections and of the output.

    ``chosen_tokens``: of a layer that has no indexer and attends to what another's chose. ``gate``: rows of a matrix
    that gates the output, one per element (Kimi K3) or per head (Ling 3).
    """
    return LatentAttention(
        num_heads=sizes.heads,
        kv_lora_rank=sizes.kv_lora,
        qk_rope_head_size=sizes.rope,
        qk_nope_head_size=sizes.nope,
        v_head_size=sizes.value,
        q_lora_rank=sizes.q_lora,
        indexer=indexer,
        chosen_tokens=chosen_tokens if indexer is None else indexer.topk,
        tensors=_latent_tensors(hidden, sizes, bias=bias, gate=gate) + _indexer_tensors(hidden, sizes, indexer),
    )


def _latent_tensors(hidden: int, sizes: LatentSizes, *, bias: bool, gate: int) -> tuple[Tensor, ...]:
    name, query = "self_attn", sizes.heads * (sizes.nope + sizes.rope)
    if sizes.q_lora is None:
        tensors = linear(f"{name}.q_proj", query, hidden, "column")
    else:
        tensors = linear(f"{name}.q_a_proj", sizes.q_lora, hidden, bias=bias)
        tensors += norm(f"{name}.q_a_layernorm", sizes.q_lora)
        tensors += linear(f"{name}.q_b_proj", query, sizes.q_lora, "column")
    tensors += linear(f"{name}.kv_a_proj_with_mqa", sizes.kv_lora + sizes.rope, hidden, bias=bias)
    tensors += norm(f"{name}.kv_a_layernorm", sizes.kv_lora)
    tensors += linear(f"{name}.kv_b_proj", sizes.heads * (sizes.nope + sizes.value), sizes.kv_lora, "column")
    tensors += linear(f"{name}.o_proj", hidden, sizes.heads * sizes.value, "row", bias=bias)
    return tensors + (linear(f"{name}.g_proj", gate, hidden, "column") if gate else ())


def _indexer_tensors(hidden: int, sizes: LatentSizes, indexer: SparseIndexer | None) -> tuple[Tensor, ...]:
    if indexer is None:
        return ()
    name = "self_attn.indexer"
    return (
        *linear(f"{name}.wq_b", indexer.num_heads * indexer.head_size, sizes.q_lora or hidden),
        *linear(f"{name}.wk", indexer.head_size, hidden),
        *norm(f"{name}.k_norm", indexer.head_size, bias=True),
        *linear(f"{name}.weights_proj", indexer.num_heads, hidden),
    )


def read_latent(view: ConfigView, family: LatentFamily) -> Body:
    """A body whose every layer has latent attention, or whole heads where the config gives a latent's heads no size."""
    # DeepSeek V2's class without latents, as in DeepSeek OCR: keys and values of every head, as DeepSeek MoE has.
    if view.config.get("qk_nope_head_dim") == 0 and view.config.get("qk_rope_head_dim") == 0:
        if view.flag("attention_bias", default=False):
            raise view.reject("attention_bias", "false (vLLM's class has no biases there)")
        return read_mixture(view, mixtures.FAMILIES["DeepseekForCausalLM"])
    sizes = decoder_sizes(view)
    latent = read_latent_sizes(view)
    bias = view.flag("attention_bias", default=False)
    indexer = read_indexer(view) if family.has_indexer else None
    chosen = None if indexer is None else indexer.topk
    parts = _feed_forwards(view, family, sizes)
    layers = []
    for index, part in enumerate(parts):
        own = indexer if _has_own_indexer(view, index) else None
        mixer = latent_attention(sizes.hidden, latent, bias=bias, indexer=own, chosen_tokens=chosen)
        layers.append(LayerSpec(mixer, None, part, norms(family.num_norms, sizes.hidden)))
    extras = multi_token_layers(view, layers[-1], sizes.hidden)
    body = decoder_body(view, sizes, layers, tied=family.tied, rotary=False, extras=extras)
    return replace(body, rope=latent_rope(view, latent.rope))


def read_axk1(view: ConfigView) -> Body:
    """A.X K1: DeepSeek V3 with a norm behind each feed-forward."""
    _check_type(view, "axk1")
    if view.text("topk_method", default="noaux_tc") != "noaux_tc":
        raise view.reject("topk_method", "'noaux_tc' (without it the routers have no correction)")
    experts = replace(_deepseek(correction=True), sparse=after_first_layer)
    return read_latent(view, LatentFamily(experts, num_norms=3))


def read_pangu_ultra(view: ConfigView) -> Body:
    """openPangu Ultra MoE: DeepSeek V3 with norms behind attention and feed-forward too."""
    _check_type(view, "pangu_ultra_moe")
    return read_latent(view, LatentFamily(_PANGU, num_norms=4 if view.flag("sandwich_norm", default=False) else 2))


def _check_type(view: ConfigView, model_type: str) -> None:
    """vLLM decides by the type whether a layer keeps a latent or keys and values of every head (is_deepseek_mla)."""
    if view.text("model_type", default=model_type) != model_type:
        raise view.reject("model_type", f"'{model_type}' (of another vLLM does not keep latents)")


def latent_rope(view: ConfigView, rotary_size: int) -> RopeSpec | None:
    """All of the rotary part turns; a share that the config names is that part of the whole head."""
    return replace(read_rope(view, rotary_size), rotary_size=rotary_size) if rotary_size else None


def decoder_sizes(view: ConfigView) -> Sizes:
    heads = view.integer(*HEAD_KEYS)
    return Sizes(view.integer(*HIDDEN_KEYS), view.layers(*LAYER_KEYS), heads, heads, 1, view.integer("vocab_size"))


def _feed_forwards(view: ConfigView, family: LatentFamily, sizes: Sizes) -> list[FeedForward]:
    if family.mixture is None:
        return [feed_forward(sizes.hidden, view.integer("intermediate_size"))] * sizes.layers
    return read_feed_forwards(view, family.mixture, sizes)


def _has_own_indexer(view: ConfigView, index: int) -> bool:
    """GLM 5.2 and later: ``indexer_types`` says which layers reuse the selection of the layer before ("shared")."""
    types = view.texts("indexer_types")
    if types is None:
        return True
    if index >= len(types) or types[index] not in ("full", "shared"):
        raise view.reject("indexer_types", "full or shared for each layer")
    return types[index] == "full"


def read_longcat(view: ConfigView) -> Body:
    """LongCat Flash: each layer is two latent attentions, each with a dense part, and one mixture beside the first.

    The router also chooses among experts that pass their input on: they have no weights, and a token that picks them
    meets fewer than ``moe_topk`` experts, so the active parameters here are the most a token can meet.
    """
    sizes = decoder_sizes(view)
    mixer = latent_attention(sizes.hidden, read_latent_sizes(view), bias=view.flag("attention_bias", default=False))
    dense_size = view.integer("ffn_hidden_size", "intermediate_size")
    num_experts, idle = view.integer("n_routed_experts"), view.integer("zero_expert_num", default=0, minimum=0)
    routed = mixture(
        sizes.hidden,
        num_experts,
        view.integer("moe_topk", "num_experts_per_tok"),
        view.integer("expert_ffn_hidden_size", "moe_intermediate_size"),
        shared_intermediate=dense_size,
        traits=MoeTraits(shared_path="mlps.0"),
    )
    has_bias = view.flag("router_bias", default=False)
    router = Tensor("mlp.router.classifier", (num_experts + idle, sizes.hidden), "router", in_float32=True)
    corrections = (Tensor("mlp.router.e_score_correction_bias", (num_experts + idle,), "bias"),) * (1 + has_bias)
    tensors = (router, *corrections, *(tensor for tensor in routed.tensors if tensor.role != "router"))
    first = LayerSpec(mixer, None, replace(routed, tensors=tensors), norms(2, sizes.hidden))
    second = LayerSpec(mixer, None, feed_forward(sizes.hidden, dense_size, name="mlps.1"), norms(2, sizes.hidden))
    body = decoder_body(view, sizes, (first, second) * sizes.layers, rotary=False)
    return replace(body, rope=latent_rope(view, mixer.qk_rope_head_size))


def read_longcat_ngram(view: ConfigView) -> Body:
    """LongCat Flash Lite: embeddings of the last few tokens, looked up by hash, are added to each token's own."""
    body = read_longcat(view)
    ratio = view.optional_integer("ngram_vocab_size_ratio")
    if ratio is None:
        return body
    num_tables = view.integer("emb_split_num") * (view.integer("emb_neighbor_num", minimum=2) - 1)
    if body.hidden_size % num_tables:
        raise view.reject("emb_split_num", f"a number whose {num_tables} tables share {body.hidden_size} evenly")
    size = body.hidden_size // num_tables
    rows = sum(ratio * body.vocab_size + 2 * index + 1 for index in range(num_tables))
    tables = Tensor("ngram_embeddings.embedders", (rows, size), "embedding", "vocab")
    projections = Tensor("ngram_embeddings.post_projs", (num_tables, body.hidden_size, size), "embedding")
    return replace(body, tensors=(*body.tensors, tables, projections))
