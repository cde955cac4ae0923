"""Models that see whose language model is that of no other architecture."""

from __future__ import annotations

import math
from dataclasses import replace

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import Body, Sizes, decoder_body, read_sizes, softmax_attention
from kvplan.catalog.families.softmax import mixtures
from kvplan.catalog.families.softmax.heterogeneous import read_chatglm
from kvplan.catalog.families.softmax.mixtures import MixtureFamily, after_dense_ones, ernie_range, read_mixture
from kvplan.catalog.families.softmax.plain import ATTENTION_BIAS, Flag, PlainFamily, read_plain
from kvplan.catalog.families.softmax.windows import muse
from kvplan.catalog.families.wrappers.more_towers import moondream_modules
from kvplan.catalog.families.wrappers.multimodal import text_section
from kvplan.catalog.families.wrappers.towers import read_towers
from kvplan.catalog.parts import AttentionTraits, MoeTraits, attention, feed_forward, mixture, norm, norms, outside
from kvplan.catalog.spec import ExtraModule, FeedForward, LayerSpec, MoeFeedForward, RopeSpec
from kvplan.catalog.tensors import Tensor

_MUSE = MoeTraits(latent_size=1, latent_names=("pre_expert_proj", "post_expert_proj"), latent_norm="pre_expert_norm")
_MOLMO_ROWS = 128
"""Rows of the embedding for tokens that the head does not have."""


def read_molmo(view: ConfigView) -> Body:
    """Molmo: Qwen 2 or OLMo by its keys; ``intermediate_size`` is that of gate and up together."""
    for key, known in (("layer_norm_type", "rms"), ("weight_tying", False)):
        if view.config.get(key, known) != known:
            raise view.reject(key, f"{str(known).lower()} (vLLM serves no other)")
    family = PlainFamily(
        Flag(("qkv_bias",), False), qk_norm="full", qk_norm_flag=Flag(("attention_layer_norm",), False), tied=None
    )
    vocab = view.optional_integer("embedding_size") or view.integer("vocab_size")
    own = {"vocab_size": vocab, "intermediate_size": view.integer("intermediate_size", minimum=2) // 2}
    body = read_plain(view.changed(own), family)
    tower = ExtraModule("vision tower", "vision", None)
    return replace(_with_rows(body, _MOLMO_ROWS), extras=(tower,))


def read_molmo2(view: ConfigView) -> Body:
    """Molmo 2: Qwen 3 or OLMo by its keys, with rows of the embedding for tokens that the head does not have."""
    text = text_section(view) or view
    kind = text.text("qk_norm_type", default="qwen3")
    if kind not in ("qwen3", "olmo"):
        raise text.reject("qk_norm_type", "qwen3 or olmo")
    family = PlainFamily(
        Flag(("qkv_bias", "attention_bias"), False),
        qk_norm="head" if kind == "qwen3" else "full",
        qk_norm_flag=Flag(("use_qk_norm",), True),
        tied=None,
    )
    body = read_plain(text, family)
    body = _with_rows(body, text.integer("additional_vocab_size", default=_MOLMO_ROWS, minimum=0))
    return replace(body, extras=read_towers(view, body.hidden_size))


def _with_rows(body: Body, count: int) -> Body:
    """With ``count`` rows more in the embedding than the head has."""
    rows = body.vocab_size + count
    tensors = tuple(
        replace(tensor, shape=(rows, body.hidden_size)) if tensor.role == "embedding" else tensor
        for tensor in body.tensors
    )
    return replace(body, tensors=tensors)


_ARIA = MixtureFamily(
    PlainFamily(ATTENTION_BIAS, ATTENTION_BIAS, tied=None, max_positions=2048),
    expert_size=("intermediate_size",),
    shared_count=("moe_num_shared_experts",),
    shared_default=2,
    traits=MoeTraits(shared_name="shared_experts"),
)


def read_aria(view: ConfigView) -> Body:
    """Aria: Llama's attention, experts in every layer."""
    text = _text(view)
    if text.flag("mlp_bias", default=False):
        raise text.reject("mlp_bias", "false (biases of its experts are not known)")
    body = read_mixture(text, _ARIA)
    return replace(body, extras=read_towers(view, body.hidden_size))


def read_muse_spark_omni(view: ConfigView) -> Body:
    """Muse Spark, which sees and hears."""
    body = read_muse_spark(_text(view))
    return replace(body, extras=read_towers(view, body.hidden_size))


def read_moondream3(view: ConfigView) -> Body:
    """Moondream 3: attention beside a feed-forward or experts; each head's queries and values are scaled by two rows.

    Read as vLLM does (models/moondream3.py and its Moondream3Config): an empty ``config`` is the released model's.
    """
    own = view.section("config") or ConfigView({}, path=view.path)
    text = own.section("text") or ConfigView({})
    experts = text.section("moe") or ConfigView({})
    hidden, vocab = text.integer("dim", default=2048), text.integer("vocab_size", default=51200)
    heads = text.integer("n_heads", default=32)
    layers, first = text.layers("n_layers", default=24), experts.integer("start_layer", default=4, minimum=0)
    if hidden % heads:
        raise text.reject("dim", f"a multiple of the {heads} heads")
    mixer = attention(
        *(hidden, heads, text.integer("n_kv_heads", default=32), hidden // heads),
        traits=AttentionTraits.biased(True, True, name="attn"),
    )
    dense = feed_forward(hidden, text.integer("ff_dim", default=8192), gated=False, bias=True)
    routed = mixture(
        hidden,
        experts.integer("n_experts", default=64),
        experts.integer("n_experts_per_tok", default=8),
        experts.integer("expert_inner_dim", default=1024),
        traits=MoeTraits(router_bias=True),
    )
    beside = (
        *norm("ln", hidden, bias=True),
        Tensor("attn.tau_alpha", (heads,), "state", "column"),
        *(Tensor(f"attn.tau_w{name}", (heads, 3 * hidden), "state", "column") for name in "qv"),
    )
    vision = own.section("vision") or ConfigView({})
    return Body(
        layers=tuple(LayerSpec(mixer, None, routed if i >= first else dense, beside) for i in range(layers)),
        tensors=outside(hidden, vocab, tied=False, norm_bias=True, head_bias=True),
        hidden_size=hidden,
        vocab_size=vocab,
        tied=False,
        max_position_embeddings=text.integer("max_context", default=4096),
        rope=RopeSpec(text.number("rope_theta", default=1_500_000.0), min(32, hidden // heads)),
        extras=moondream_modules(vision, hidden),
    )


def _text(view: ConfigView) -> ConfigView:
    text = text_section(view)
    if text is None:
        raise view.reject("text_config", "an object")
    return text


def read_glm4v(view: ConfigView) -> Body:
    """GLM-4V: ChatGLM with a tower."""
    body = read_chatglm(view)
    return replace(body, extras=read_towers(view, body.hidden_size))


def read_interns1_pro(view: ConfigView) -> Body:
    """Intern-S1-Pro: Qwen 3 with experts, whose rotary positions are sums of cosines and sines with learned weights."""
    text = _text(view)
    qwen = mixtures.FAMILIES["Qwen3MoeForCausalLM"]
    family = replace(qwen, plain=replace(qwen.plain, output_bias=False))
    body = read_mixture(text, family)
    turns = _num_frequencies(text, read_sizes(text))
    weights = Tensor("rotary_emb.coefficients", (2 * read_sizes(text).kv_heads, turns, turns), "position")
    return replace(body, tensors=(*body.tensors, weights), extras=read_towers(view, body.hidden_size))


def _num_frequencies(text: ConfigView, sizes: Sizes) -> int:
    """Count the frequencies that are stated, else those that turn at least once within the longest sequence."""
    scaling = text.section("rope_scaling") or text.section("rope_parameters")
    if scaling is None or not scaling.has("fope_init_factor"):
        raise text.reject("rope_scaling", "an object with fope_init_factor, as all of this architecture have")
    stated = scaling.optional_integer("num_inv_freq")
    if stated is not None:
        return min(stated, sizes.head // 2)
    theta = scaling.number("rope_theta", default=text.number("rope_theta", default=10_000.0))
    slowest = 2 * math.pi / text.integer("max_position_embeddings")
    return sum(theta ** (-2 * index / sizes.head) > slowest for index in range(sizes.head // 2))


def read_ernie_vl(view: ConfigView) -> Body:
    """ERNIE 4.5 VL: in the same layers experts of text and experts of images, of which a token of text meets none."""
    text, of_images = _halves(view)
    if not view.has("tie_word_embeddings"):
        raise view.reject("tie_word_embeddings", "true or false")
    ernie = mixtures.FAMILIES["Ernie4_5_MoeForCausalLM"]
    use_bias = Flag(("use_bias",), False)
    plain = replace(ernie.plain, output_bias=False, qkv_bias=use_bias, head_bias=False)
    family = replace(ernie, plain=plain, shared_default=0, shared_bias=False)
    body = read_mixture(text, family)
    known: dict[int, LayerSpec] = {}
    layers = tuple(known.setdefault(id(layer), _with_images(layer, of_images)) for layer in body.layers)
    return replace(body, layers=layers, extras=read_towers(view, body.hidden_size))


_OF_BOTH = ("moe_num_experts", "moe_intermediate_size", "moe_layer_start_index", "moe_layer_end_index")
"""Keys with a number for text and one for images."""


def _halves(view: ConfigView) -> tuple[ConfigView, tuple[Tensor, ...]]:
    """The config of text alone, and the experts of images; refused where these are not in the same layers."""
    pairs = {key: view.integers(key) or [] for key in _OF_BOTH}
    for key, pair in pairs.items():
        if len(pair) != 2:
            raise view.reject(key, "a number for text and one for images")
    text, images = (view.changed({key: pair[index] for key, pair in pairs.items()}) for index in (0, 1))
    number = view.layers("num_hidden_layers")
    if ernie_range(text, number) != ernie_range(images, number):
        raise view.reject("moe_layer_start_index", "the same layers for text and images")
    if pairs["moe_num_experts"][0] != pairs["moe_num_experts"][1]:
        raise view.reject("moe_num_experts", "the same number for text and images")
    traits = MoeTraits(name="mlp.images", router_bias=True)
    size = pairs["moe_intermediate_size"][1]
    part = mixture(view.integer("hidden_size"), pairs["moe_num_experts"][1], 0, size, traits=traits)
    return text, part.tensors


def _with_images(layer: LayerSpec, of_images: tuple[Tensor, ...]) -> LayerSpec:
    part: FeedForward | None = layer.feed_forward
    if not isinstance(part, MoeFeedForward):
        return layer
    return replace(layer, feed_forward=replace(part, tensors=part.tensors + of_images))


def read_muse_spark(view: ConfigView) -> Body:
    """Muse Spark: windows, gated attention, experts in a latent, a gate of the residual stream behind each block.

    transformers: MuseSparkTextModel. Norms of queries, keys and attention's output have no weights.
    """
    if view.config.get("num_shared_experts"):
        raise view.reject("num_shared_experts", "0 (vLLM serves none)")
    sizes = read_sizes(view)
    traits = AttentionTraits(output_gate="separate")
    windows = muse(view, sizes.layers)
    mixers = {window: softmax_attention(sizes, traits, window=window) for window in set(windows)}
    gates = tuple(Tensor(f"residual_gate{index}", (sizes.hidden,), "state") for index in range(2))
    around = norms(3, sizes.hidden) + gates
    dense, sparse = feed_forward(sizes.hidden, view.integer("intermediate_size")), _muse_mixture(view, sizes.hidden)
    kinds = after_dense_ones(view, sizes.layers)
    layers = [
        LayerSpec(mixers[window], None, sparse if is_sparse else dense, around)
        for window, is_sparse in zip(windows, kinds, strict=True)
    ]
    return decoder_body(view, sizes, layers, tied=None)


def _muse_mixture(view: ConfigView, hidden: int) -> FeedForward:
    """Each expert's output has a norm, whose weight all share."""
    inner = view.integer("moe_hidden_size", default=4096)
    part = mixture(
        hidden,
        view.integer("num_local_experts"),
        view.integer("num_experts_per_tok"),
        view.integer("moe_intermediate_size"),
        traits=replace(_MUSE, latent_size=inner),
    )
    return replace(part, tensors=part.tensors + norm("mlp.post_expert_norm", inner))
