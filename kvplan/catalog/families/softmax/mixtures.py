"""Decoders with a mixture of experts in some or all layers, and softmax attention everywhere.

Each row of ``FAMILIES`` is a plain family plus three rules: which layers are sparse, how large the experts are, and
what the shared expert adds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import Body, Sizes, read_sizes
from kvplan.catalog.families.positions import granite_swa_ropes, mellum_ropes
from kvplan.catalog.families.softmax import windows
from kvplan.catalog.families.softmax.plain import (
    ATTENTION_BIAS,
    MLP_BIAS,
    Flag,
    PlainFamily,
    Trait,
    assemble,
    read_trait,
)
from kvplan.catalog.parts import MoeTraits, feed_forward, mixture
from kvplan.catalog.spec import FeedForward

EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
TOP_K_KEYS = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_k", "moe_topk", "num_selected_experts")

PLAIN_EXPERTS = MoeTraits()
SparseRule = Callable[[ConfigView, int], list[bool]]


def every_layer_sparse(view: ConfigView, num_layers: int) -> list[bool]:
    return [True] * num_layers


def after_dense_ones(view: ConfigView, num_layers: int) -> list[bool]:
    """DeepSeek's rule: ``first_k_dense_replace`` dense layers, then every ``moe_layer_freq``-th is sparse."""
    types = view.texts("mlp_layer_types")
    if types is not None:
        return _from_types(view, types, num_layers)
    if isinstance(view.config.get("moe_layer_freq"), list):
        return [bool(value) for value in view.per_layer("moe_layer_freq", num_layers, minimum=0)]
    first = view.integer("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", default=0, minimum=0)
    step = view.integer("moe_layer_freq", "moe_layer_interval", default=1)
    return [index >= first and index % step == 0 for index in range(num_layers)]


def named_layers(view: ConfigView, num_layers: int) -> list[bool]:
    """``mlp_layer_types``, which is needed: vLLM's class and transformers' take different ones where it is absent."""
    types = view.texts("mlp_layer_types")
    if types is None:
        raise view.reject("mlp_layer_types", f"dense or sparse for each of {num_layers} layers")
    return _from_types(view, types, num_layers)


def but_dense_ones(view: ConfigView, num_layers: int) -> list[bool]:
    """All but ``mlp_only_layers``, which is needed: vLLM's class and transformers' take different ones without it."""
    if view.integers("mlp_only_layers") is None:
        raise view.reject("mlp_only_layers", "the layers that are dense")
    return stepped(view, num_layers)


def after_first_layer(view: ConfigView, num_layers: int) -> list[bool]:
    """``mlp_layer_types``, or one dense layer and then sparse ones."""
    types = view.texts("mlp_layer_types")
    if types is not None:
        return _from_types(view, types, num_layers)
    if view.has("moe_layer_freq") or view.has("first_k_dense_replace"):
        return after_dense_ones(view, num_layers)
    return [index > 0 for index in range(num_layers)]


def _from_types(view: ConfigView, types: list[str], num_layers: int) -> list[bool]:
    if len(types) < num_layers or set(types) - {"dense", "sparse"}:
        raise view.reject("mlp_layer_types", f"dense or sparse for each of {num_layers} layers")
    return [kind == "sparse" for kind in types[:num_layers]]


def stepped(view: ConfigView, num_layers: int) -> list[bool]:
    """Qwen's rule: every ``decoder_sparse_step``-th layer but those in ``mlp_only_layers``."""
    dense = set(view.integers("mlp_only_layers") or [])
    step = view.integer("decoder_sparse_step", default=1)
    return [index not in dense and (index + 1) % step == 0 for index in range(num_layers)]


def interleaved(view: ConfigView, num_layers: int) -> list[bool]:
    """Llama 4's rule: every ``interleave_moe_layer_step``-th layer, or the listed ``moe_layers``."""
    listed = view.integers("moe_layers")
    if listed is not None:
        return [index in listed for index in range(num_layers)]
    step = view.integer("interleave_moe_layer_step", default=1)
    return [(index + 1) % step == 0 for index in range(num_layers)]


def ernie_range(view: ConfigView, num_layers: int) -> list[bool]:
    """ERNIE 4.5: from ``moe_layer_start_index`` to ``moe_layer_end_index``, every ``moe_layer_interval``-th layer."""
    first = view.integer("moe_layer_start_index", default=1, minimum=0)
    end = view.config.get("moe_layer_end_index")
    last = num_layers - 1 if end in (None, -1) else view.integer("moe_layer_end_index", minimum=0)
    step = view.integer("moe_layer_interval", default=1)
    return [(index + 1) % step == 0 and first <= index <= last for index in range(num_layers)]


@dataclass(frozen=True, slots=True)
class MixtureFamily:
    """How one family's mixture differs: keys are the config keys to look under, in order."""

    plain: PlainFamily
    sparse: SparseRule = every_layer_sparse
    expert_size: tuple[str, ...] = ("moe_intermediate_size", "intermediate_size")
    dense_size: tuple[str, ...] = ("intermediate_size",)
    shared_size: tuple[str, ...] = ()
    """Keys of the shared expert's whole size."""
    shared_size_default: int = 0
    shared_count: tuple[str, ...] = ()
    """Keys of a number of shared experts, each of the experts' size; where ``shared_size`` is not in the config."""
    shared_default: int = 0
    shared_each: tuple[str, ...] = ()
    """Keys of the size of one shared expert where it is not the routed experts'."""
    shared_bias: Trait = False
    router_bias: Trait = False
    router_dtype: str = ""
    """Key of the router's dtype, where vLLM asks the config for it; ``traits`` say what it is without."""
    traits: MoeTraits = PLAIN_EXPERTS


def shared_intermediate(view: ConfigView, family: MixtureFamily, expert_size: int) -> int:
    """Inner size of all shared experts together; 0 when there are none."""
    if family.shared_size and not (family.shared_count and not any(map(view.has, family.shared_size))):
        return view.integer(*family.shared_size, default=family.shared_size_default, minimum=0)
    if family.shared_each:
        expert_size = view.integer(*family.shared_each, default=expert_size)
    if family.shared_count:
        return expert_size * view.integer(*family.shared_count, default=family.shared_default, minimum=0)
    return expert_size * family.shared_default


def read_feed_forwards(view: ConfigView, family: MixtureFamily, sizes: Sizes) -> list[FeedForward]:
    """One feed-forward per layer: the mixture where the family's rule says so, else the dense one."""
    sparse = family.sparse(view, sizes.layers)
    expert_size = view.integer(*family.expert_size)
    float32 = family.traits.float32_router
    if family.router_dtype and view.has(family.router_dtype):
        float32 = view.text(family.router_dtype) in ("fp32", "float32")
    traits = replace(
        family.traits,
        router_bias=read_trait(view, family.router_bias),
        shared_bias=read_trait(view, family.shared_bias),
        float32_router=float32,
    )
    routed = mixture(
        sizes.hidden,
        view.integer(*EXPERT_KEYS),
        view.integer(*TOP_K_KEYS),
        expert_size,
        shared_intermediate=shared_intermediate(view, family, expert_size),
        traits=traits,
    )
    if all(sparse):
        return [routed] * sizes.layers
    plain = family.plain
    bias = read_trait(view, plain.mlp_bias)
    dense = feed_forward(sizes.hidden, view.integer(*family.dense_size), gated=plain.gated, bias=bias)
    return [routed if is_sparse else dense for is_sparse in sparse]


_QWEN2 = PlainFamily(qkv_bias=Flag(("qkv_bias",), True), windows=windows.when_used, max_positions=32768)
_QWEN3 = PlainFamily(ATTENTION_BIAS, ATTENTION_BIAS, qk_norm="head", windows=windows.when_used, max_positions=32768)
_GRANITE = PlainFamily(ATTENTION_BIAS, ATTENTION_BIAS, max_positions=2048)
_GLM = PlainFamily(
    ATTENTION_BIAS,
    qk_norm="head",
    qk_norm_flag=Flag(("use_qk_norm",), False),
    max_positions=131072,
    rotary_share=0.5,
)
_PHI = PlainFamily(
    ATTENTION_BIAS,
    ATTENTION_BIAS,
    norm_bias=True,
    head_bias=Flag(("lm_head_bias",), False),
    windows=windows.every_layer,
    max_positions=131072,
)
_OLMO = PlainFamily(ATTENTION_BIAS, ATTENTION_BIAS, qk_norm="full", max_positions=4096)
_GPT_OSS = PlainFamily(
    Flag(("attention_bias",), True),
    Flag(("attention_bias",), True),
    head_default=64,
    windows=windows.gpt_oss,
    sinks=True,
)
_EXAONE_MOE = MixtureFamily(
    PlainFamily(qk_norm="head", windows=windows.exaone4),
    after_first_layer,
    shared_count=("num_shared_experts",),
    router_bias=True,
)
_FLOAT32 = MoeTraits(float32_router=True)
_BAILING = MixtureFamily(
    PlainFamily(Flag(("use_qkv_bias", "use_bias"), False), Flag(("use_bias",), False), Flag(("use_bias",), False)),
    after_dense_ones,
    shared_count=("num_shared_experts",),
    shared_each=("moe_shared_expert_intermediate_size",),
    router_dtype="router_dtype",
)

FAMILIES: dict[str, MixtureFamily] = {
    "MixtralForCausalLM": MixtureFamily(
        PlainFamily(windows=windows.every_layer, max_positions=131072), traits=MoeTraits(name="block_sparse_moe")
    ),
    "Qwen2MoeForCausalLM": MixtureFamily(
        _QWEN2,
        stepped,
        shared_size=("shared_expert_intermediate_size",),
        shared_size_default=5632,
        traits=MoeTraits(shared_gate=True),
    ),
    "Qwen3MoeForCausalLM": MixtureFamily(_QWEN3, stepped),
    "OlmoeForCausalLM": MixtureFamily(_OLMO),
    "FlexOlmoForCausalLM": MixtureFamily(_OLMO),
    "PhimoeForCausalLM": MixtureFamily(_PHI),
    "PhiMoEForCausalLM": MixtureFamily(_PHI),
    "GraniteMoeForCausalLM": MixtureFamily(_GRANITE),
    "GraniteMoeSharedForCausalLM": MixtureFamily(_GRANITE, shared_size=("shared_intermediate_size",)),
    "DeepseekForCausalLM": MixtureFamily(
        PlainFamily(ATTENTION_BIAS, ATTENTION_BIAS, max_positions=2048),
        after_dense_ones,
        expert_size=("moe_intermediate_size",),
        shared_count=("n_shared_experts",),
    ),
    "Glm4MoeForCausalLM": MixtureFamily(
        _GLM,
        after_first_layer,
        shared_count=("n_shared_experts",),
        shared_default=1,
        router_bias=True,
        traits=_FLOAT32,
    ),
    "SolarOpenForCausalLM": MixtureFamily(
        PlainFamily(ATTENTION_BIAS, max_positions=131072),
        shared_count=("n_shared_experts",),
        shared_default=1,
        router_bias=True,
        traits=_FLOAT32,
    ),
    "MellumForCausalLM": MixtureFamily(
        PlainFamily(
            *(ATTENTION_BIAS, ATTENTION_BIAS),
            qk_norm="head",
            head_default=128,
            windows=windows.listed,
            ropes=mellum_ropes,
            max_positions=131072,
        ),
        after_dense_ones,
    ),
    "Dots1ForCausalLM": MixtureFamily(
        replace(_QWEN3, max_positions=2048),
        after_dense_ones,
        shared_count=("n_shared_experts",),
        router_bias=True,
    ),
    "Ernie4_5_MoeForCausalLM": MixtureFamily(
        PlainFamily(
            *(Flag(("use_bias",), False),) * 3,
            head_bias=Flag(("use_bias",), False),
            tied=True,
            max_positions=131072,
        ),
        ernie_range,
        shared_bias=Flag(("use_bias",), False),
        shared_count=("moe_num_shared_experts",),
        shared_default=2,
        router_bias=True,
        traits=_FLOAT32,
    ),
    "HunYuanMoEV1ForCausalLM": MixtureFamily(
        PlainFamily(ATTENTION_BIAS, ATTENTION_BIAS, qk_norm="head"), shared_default=1
    ),
    "MiniMaxM2ForCausalLM": MixtureFamily(
        PlainFamily(qk_norm="full", head_default=128, max_positions=196608),
        router_bias=True,
        traits=MoeTraits(name="block_sparse_moe", float32_router=True),
    ),
    "GptOssForCausalLM": MixtureFamily(_GPT_OSS, router_bias=True, traits=MoeTraits(bias=True)),
    "Llama4ForCausalLM": MixtureFamily(
        PlainFamily(ATTENTION_BIAS, ATTENTION_BIAS, windows=windows.llama4),
        interleaved,
        expert_size=("intermediate_size",),
        dense_size=("intermediate_size_mlp",),
        shared_default=1,
        traits=MoeTraits(name="feed_forward"),
    ),
    "ExaoneMoeForCausalLM": _EXAONE_MOE,
    "ExaoneMoEForCausalLM": _EXAONE_MOE,
    "HYV3ForCausalLM": MixtureFamily(
        PlainFamily(ATTENTION_BIAS, ATTENTION_BIAS, MLP_BIAS, qk_norm="head", head_default=128),
        after_first_layer,
        expert_size=("moe_intermediate_size", "expert_hidden_dim"),
        shared_count=("num_shared_experts",),
        router_bias=True,
        traits=_FLOAT32,
    ),
    "Cohere2MoeForCausalLM": MixtureFamily(
        PlainFamily(ATTENTION_BIAS, ATTENTION_BIAS, norms=1, tied=True, head_default=128, windows=windows.cohere2_moe),
        after_dense_ones,
        expert_size=("intermediate_size",),
        dense_size=("prefix_dense_intermediate_size",),
        shared_count=("num_shared_experts",),
    ),
    "GraniteMoeSWAForCausalLM": MixtureFamily(
        replace(_GRANITE, windows=windows.granite_swa, sinks=True, ropes=granite_swa_ropes),
        shared_size=("shared_intermediate_size",),
        traits=MoeTraits(name="block_sparse_moe"),
    ),
    "BailingMoeForCausalLM": _BAILING,
    "BailingMoeV2ForCausalLM": replace(
        _BAILING,
        plain=replace(_BAILING.plain, qk_norm="head", qk_norm_flag=Flag(("use_qk_norm",), False)),
        router_bias=Flag(("moe_router_enable_expert_bias",), False),
    ),
    "Param2MoEForCausalLM": MixtureFamily(
        PlainFamily(
            Flag(("use_qkv_bias",), False),
            Flag(("use_bias",), False),
            qk_norm="head",
            qk_norm_flag=Flag(("use_qk_norm",), False),
        ),
        after_first_layer,
        shared_size=("moe_shared_expert_intermediate_size",),
        shared_count=("num_shared_experts",),
        shared_default=1,
        router_bias=Flag(("moe_router_enable_expert_bias",), True),
        traits=_FLOAT32,
    ),
    "SarvamMoEForCausalLM": replace(
        _BAILING,
        plain=replace(_BAILING.plain, qk_norm="head", qk_norm_flag=Flag(("use_qk_norm",), False)),
        router_dtype="",
        router_bias=Flag(("moe_router_enable_expert_bias",), False),
    ),
    "BeamForCausalLM": MixtureFamily(
        PlainFamily(qk_norm="head", norms=4, tied=None, output_gate="separate", gate_bias=True, windows=windows.named),
        named_layers,
        router_bias=True,
        traits=_FLOAT32,
    ),
    "FlintForCausalLM": MixtureFamily(
        PlainFamily(
            ATTENTION_BIAS, qk_norm="head", head_default=128, sinks=True, windows=windows.named, max_positions=262144
        ),
        but_dense_ones,
        shared_size=("shared_expert_intermediate_size",),
        shared_size_default=1024,
    ),
    "Kolibri1ForCausalLM": MixtureFamily(
        PlainFamily(qk_norm="head", norms=4, head_default=128, windows=windows.kolibri, max_positions=262144),
        expert_size=("moe_intermediate_size",),
        shared_size=("shared_expert_intermediate_size",),
        shared_size_default=512,
        router_bias=True,
        traits=MoeTraits(shared_name="shared_experts"),
    ),
    "AfmoeForCausalLM": MixtureFamily(
        PlainFamily(
            qk_norm="head", norms=4, output_gate="separate", head_default=128, windows=windows.every_fourth_full
        ),
        after_dense_ones,
        shared_count=("num_shared_experts",),
        router_bias=True,
        traits=_FLOAT32,
    ),
}


def read_mixture(view: ConfigView, family: MixtureFamily) -> Body:
    """A body with the family's attention and its mixture of experts."""
    sizes = read_sizes(view, head_default=family.plain.head_default)
    return assemble(view, family.plain, sizes, read_feed_forwards(view, family, sizes))
