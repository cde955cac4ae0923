"""Families with a mixture of experts in some or all layers: a reader for each, and the row that names it."""

from __future__ import annotations

from dataclasses import replace

from kvplan_engine.checkpoints.families.common import (
    Config,
    after_dense_ones,
    attention,
    decoder,
    mlp,
    norms,
    rope,
    routed,
    stepped,
    whole,
)
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.mixtures.parts import (
    MIXTRAL_GGUF,
    MIXTRAL_NAMES,
    OLMOE_GGUF,
    QWEN2_MOE_GGUF,
    QWEN3_MOE_GGUF,
    QWEN_NAMES,
    bailing_mixture,
    grouped_sigmoid,
    shared_mlp,
    with_late_windows,
    with_names,
)
from kvplan_engine.checkpoints.fields import head_size, window, with_heads_of
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.norms import NormPlaces
from kvplan_engine.errors import EngineError


def read_mixtral(config: Config) -> ModelDescription:
    """transformers: MixtralModel."""
    mixture = Mixture(whole(config, "num_local_experts"), whole(config, "num_experts_per_tok"), mlp(config, bias=False))
    turns = rope(config, head_size(config), theta=1e6)
    kept = window(config.get("sliding_window"))
    mixer = attention(config, rope=turns, kept=kept, qkv_bias=False, output_bias=False)
    return decoder(config, norms({"rms_norm_eps": 1e-5, **config}), mixer, mixture, max_positions=131072)


def read_minimax_m2(config: Config) -> ModelDescription:
    """transformers: MiniMaxM2Model. The published config says ``rotary_dim``, in elements of a head, and no dtype."""
    expert = mlp(config, bias=False)
    mixture = routed(config, "num_local_experts", expert=expert, scoring="sigmoid", correction=True)
    config = with_heads_of(128, config)
    turns = rope(config, head_size(config), rotary_size=config.get("rotary_dim"), theta=5e6)
    head_norm = "all" if config.get("use_qk_norm", True) else "none"
    mixer = attention(config, rope=turns, head_norm=head_norm, qkv_bias=False, output_bias=False)
    named = config.get("dtype") or config.get("torch_dtype")
    stored = config if named or config.get("model_type") != "minimax_m2" else {**config, "dtype": "bfloat16"}
    return decoder(stored, norms(config), mixer, mixture, max_positions=196608)


def _qwen_mixture(config: Config, shared_size: int) -> Mixture:
    return Mixture(
        whole(config, "num_experts", "num_local_experts"),
        whole(config, "num_experts_per_tok"),
        mlp(config, whole(config, "moe_intermediate_size", "intermediate_size"), bias=False),
        normalised=bool(config.get("norm_topk_prob", False)),
        shared=shared_mlp(config, shared_size),
        shared_gate=shared_size > 0,
    )


def read_qwen2_moe(config: Config) -> ModelDescription:
    """transformers: Qwen2MoeModel."""
    mixer = with_late_windows(config, qkv_bias=bool(config.get("qkv_bias", True)), output_bias=False)
    mixture = _qwen_mixture(config, whole(config, "shared_expert_intermediate_size", default=5632))
    return decoder(config, norms(config), mixer, mixture, stepped(config), max_positions=32768)


def read_qwen3_moe(config: Config) -> ModelDescription:
    """transformers: Qwen3MoeModel."""
    mixer = with_late_windows(config, head_norm="head")
    return decoder(config, norms(config), mixer, _qwen_mixture(config, 0), stepped(config), max_positions=32768)


def _olmoe(config: Config, places: NormPlaces, eps: float, theta: float) -> ModelDescription:
    if config.get("clip_qkv") is not None:
        raise EngineError("the engine does not clip queries, keys and values (clip_qkv).")
    normalised = bool(config.get("norm_topk_prob", False))
    expert = mlp(config, bias=False)
    mixture = routed(config, ("num_experts", "num_local_experts"), expert=expert, normalised=normalised)
    norm = norms({"rms_norm_eps": eps, **config}, places=places)
    return decoder(
        config,
        norm,
        attention(config, rope=rope(config, head_size(config), theta=theta), head_norm="all"),
        mixture,
        max_positions=4096,
    )


def read_olmoe(config: Config) -> ModelDescription:
    """transformers: OlmoeModel."""
    return _olmoe(config, "before", 1e-5, 1e4)


def read_flex_olmo(config: Config) -> ModelDescription:
    """transformers: FlexOlmoModel."""
    return _olmoe(config, "after", 1e-6, 5e5)


def read_glm4_moe(config: Config) -> ModelDescription:
    """transformers: Glm4MoeModel. Half of each head turns."""
    mixer = attention(
        config,
        rope=rope(config, head_size(config), partial=0.5),
        head_norm="head" if config.get("use_qk_norm", False) else "none",
        output_bias=False,
    )
    sparse = after_dense_ones(config, first=1)
    mixture = grouped_sigmoid(config, shared=1)
    norm = norms({"rms_norm_eps": 1e-5, **config})
    return decoder(config, norm, mixer, mixture, sparse, dense=mlp(config, bias=False), max_positions=131072)


def read_dots1(config: Config) -> ModelDescription:
    """transformers: Dots1Model."""
    mixer = with_late_windows(config, head_norm="head")
    mixture = grouped_sigmoid(config, normalised=False)
    return decoder(config, norms(config), mixer, mixture, after_dense_ones(config), max_positions=2048)


def read_hy_v3(config: Config) -> ModelDescription:
    """transformers: HYV3Model. One dense layer, then experts, unless ``mlp_layer_types`` says otherwise."""
    config = with_heads_of(128, config)
    size = whole(config, "moe_intermediate_size", "expert_hidden_dim")
    mixture = Mixture(
        whole(config, "num_local_experts", "num_experts"),
        whole(config, "num_experts_per_tok"),
        mlp(config, size),
        scoring="sigmoid",
        scale=float(config.get("router_scaling_factor") or 1.0),
        correction=True,
        shared=shared_mlp(config, size * whole(config, "num_shared_experts", default=0)),
    )
    sparse = after_dense_ones(config, first=1)
    return decoder(config, norms(config), attention(config, head_norm="head"), mixture, sparse, max_positions=131072)


def read_deepseek_moe(config: Config) -> ModelDescription:
    """modeling_deepseek.py of deepseek-ai/deepseek-moe-16b-base."""
    shared = whole(config, "moe_intermediate_size") * whole(config, "n_shared_experts", default=0)
    mixture = routed(config, "n_routed_experts", shared, normalised=bool(config.get("norm_topk_prob", False)))
    dense = mlp(config, bias=False)
    return decoder(config, norms(config), attention(config), mixture, after_dense_ones(config), dense=dense)


def read_bailing_moe(config: Config) -> ModelDescription:
    """modeling_bailing_moe.py and modeling_bailing_moe_v2.py of inclusionAI's Ling and Ring."""
    if config.get("norm_head") or config.get("norm_softmax"):
        raise EngineError("the engine does not normalise the rows of Bailing's head (norm_head, norm_softmax).")
    bias = bool(config.get("use_bias", False))
    mixer = attention(
        config,
        rope=rope(config, head_size(config)),
        qkv_bias=bool(config.get("use_qkv_bias", bias)),
        output_bias=bias,
        head_norm="head" if config.get("use_qk_norm", False) else "none",
    )
    dense = mlp(config, bias=bias)
    mixture = bailing_mixture(config)
    return decoder(config, norms(config), mixer, mixture, after_dense_ones(config), dense=dense, max_positions=32768)


def read_param2(config: Config) -> ModelDescription:
    """Param 2, as vLLM reads it: the size of the shared experts is that of all together."""
    keys = {
        "first_k_dense_replace": 1,
        "num_shared_experts": 1,
        "moe_router_enable_expert_bias": True,
        "score_function": "sigmoid",
        "use_qkv_bias": False,
        **config,
    }
    if config.get("moe_shared_expert_intermediate_size") is not None:
        keys["num_shared_experts"] = 1
    return read_bailing_moe(keys)


def _ernie_sparse(config: Config) -> list[bool]:
    """Tell the mixtures: from ``moe_layer_start_index`` to ``moe_layer_end_index`` (-1: the last), every
    ``moe_layer_interval``-th.
    """
    number = int(config["num_hidden_layers"])
    first, step = whole(config, "moe_layer_start_index", default=1), whole(config, "moe_layer_interval", default=1)
    end = whole(config, "moe_layer_end_index", default=-1)
    last = number - 1 if end == -1 else end
    return [(index + 1) % step == 0 and first <= index <= last for index in range(number)]


def read_ernie4_5_moe(config: Config) -> ModelDescription:
    """transformers: Ernie4_5_MoeModel."""
    bias = bool(config.get("use_bias", False))
    keys = {**config, "mlp_bias": bias}
    size = whole(config, "moe_intermediate_size", "intermediate_size")
    mixture = Mixture(
        whole(config, "moe_num_experts", "num_experts"),
        whole(config, "moe_k", "num_experts_per_tok"),
        mlp(config, size, bias=False),
        correction=True,
        shared=shared_mlp(keys, size * whole(config, "moe_num_shared_experts", default=2)),
    )
    turns = rope(config, head_size(config), neighbours=True, theta=500000.0)
    mixer = attention(config, rope=turns, qkv_bias=bias, output_bias=bias)
    norm = norms({"rms_norm_eps": 1e-5, **config})
    return decoder(
        config,
        norm,
        mixer,
        mixture,
        _ernie_sparse(config),
        dense=mlp(keys),
        tied=True,
        head_bias=bias,
        max_positions=131072,
    )


def read_granite_moe(config: Config) -> ModelDescription:
    """transformers: GraniteMoeModel and GraniteMoeSharedModel."""
    mixture = Mixture(
        whole(config, "num_local_experts"),
        whole(config, "num_experts_per_tok"),
        mlp(config, bias=False),
        scoring="softmax_of_top",
        normalised=False,
        shared=shared_mlp(config, whole(config, "shared_intermediate_size", default=0)),
    )
    mixer = attention(config, scale=float(config.get("attention_multiplier") or 1.0))
    return decoder(
        config,
        norms(config),
        mixer,
        mixture,
        residual_scale=float(config.get("residual_multiplier") or 1.0),
        embedding_scale=float(config.get("embedding_multiplier") or 1.0),
        logits_scale=1.0 / float(config.get("logits_scaling") or 1.0),
    )


def _same_for_all(config: Config, *keys: str, default: int | None = None) -> int:
    """A number that configs may give for each layer. ValueError where layers differ, KeyError where there is none."""
    value = next((config[key] for key in keys if config.get(key) is not None), default)
    if value is None:
        raise KeyError(keys[0])
    if isinstance(value, list):
        if len(set(value)) != 1:
            raise ValueError(f"layers differ in their {keys[0]}")
        value = value[0]
    return int(value)


def read_hunyuan_moe(config: Config) -> ModelDescription:
    """transformers: HunYuanMoEV1Model."""
    keys = ("moe_intermediate_size", "intermediate_size")
    size = _same_for_all(config, *keys)
    mixture = Mixture(
        _same_for_all(config, "num_experts"),
        _same_for_all(config, "moe_topk", "num_experts_per_tok"),
        mlp(config, size, bias=False),
        shared=mlp(config, size * _same_for_all(config, "num_shared_expert", default=1), bias=False),
    )
    mixer = attention(config, head_norm="head", norm_after_rope=True)
    return decoder(config, norms({"rms_norm_eps": 1e-5, **config}), mixer, mixture)


def read_phimoe(config: Config) -> ModelDescription:
    """transformers: PhimoeModel."""
    config = {**config, "max_position_embeddings": whole(config, "max_position_embeddings", default=131072)}
    mixture = Mixture(
        whole(config, "num_local_experts"),
        whole(config, "num_experts_per_tok"),
        mlp(config, bias=False),
        scoring="sparse_mixer",
        normalised=False,
        jitter=float(config.get("router_jitter_noise", 0.01)),
    )
    turns = rope(config, head_size(config), theta=1e6)
    mixer = attention(config, rope=turns, kept=window(config.get("sliding_window")))
    norm = norms({"rms_norm_eps": 1e-5, **config}, "layer")
    bias = bool(config.get("lm_head_bias", False))
    return decoder(config, norm, mixer, mixture, head_bias=bias)


_QWEN2_NAMES = with_names(
    QWEN_NAMES,
    shared__up=("mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"),
    shared__down="mlp.shared_expert.down_proj",
    shared_gate="mlp.shared_expert_gate",
)
_HY_V3_NAMES = with_names(
    QWEN_NAMES,
    router="mlp.router.gate",
    correction="mlp.expert_bias",
    shared__up=("mlp.shared_mlp.gate_proj", "mlp.shared_mlp.up_proj"),
    shared__down="mlp.shared_mlp.down_proj",
)
_BAILING_NAMES = replace(
    with_names(QWEN_NAMES, correction="mlp.gate.expert_bias"),
    embedding="model.word_embeddings",
    qkv=("attention.query_key_value",),
    output="attention.dense",
    query_norm="attention.query_layernorm",
    key_norm="attention.key_layernorm",
)
GRANITE_MOE_NAMES = TensorNames(
    inside={
        "router": "block_sparse_moe.router.layer",
        "experts.up": "block_sparse_moe.input_linear",
        "experts.down": "block_sparse_moe.output_linear",
        "shared.up": "shared_mlp.input_linear",
        "shared.down": "shared_mlp.output_linear",
    }
)
_HUNYUAN_NAMES = with_names(
    QWEN_NAMES,
    router="mlp.gate.wg",
    shared__up=("mlp.shared_mlp.gate_proj", "mlp.shared_mlp.up_proj"),
    shared__down="mlp.shared_mlp.down_proj",
)

TABLE = (
    Family(("MixtralForCausalLM",), read_mixtral, MIXTRAL_NAMES, gguf=MIXTRAL_GGUF),
    Family(("MiniMaxM2ForCausalLM",), read_minimax_m2, MIXTRAL_NAMES),
    Family(("Qwen2MoeForCausalLM",), read_qwen2_moe, _QWEN2_NAMES, gguf=QWEN2_MOE_GGUF),
    Family(("Qwen3MoeForCausalLM",), read_qwen3_moe, QWEN_NAMES, gguf=QWEN3_MOE_GGUF),
    Family(("OlmoeForCausalLM",), read_olmoe, QWEN_NAMES, gguf=OLMOE_GGUF),
    Family(("FlexOlmoForCausalLM",), read_flex_olmo, QWEN_NAMES),
    Family(("Glm4MoeForCausalLM",), read_glm4_moe, QWEN_NAMES),
    Family(("Dots1ForCausalLM",), read_dots1, QWEN_NAMES),
    Family(("HYV3ForCausalLM",), read_hy_v3, _HY_V3_NAMES),
    Family(("DeepseekForCausalLM",), read_deepseek_moe, QWEN_NAMES),
    Family(("BailingMoeForCausalLM", "BailingMoeV2ForCausalLM"), read_bailing_moe, _BAILING_NAMES),
    Family(("SarvamMoEForCausalLM",), read_bailing_moe),
    Family(("Param2MoEForCausalLM",), read_param2),
    Family(
        ("Ernie4_5_MoeForCausalLM",),
        read_ernie4_5_moe,
        with_names(QWEN_NAMES, correction="mlp.moe_statics.e_score_correction_bias"),
    ),
    Family(("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"), read_granite_moe, GRANITE_MOE_NAMES),
    Family(
        ("HunYuanMoEV1ForCausalLM",),
        read_hunyuan_moe,
        replace(_HUNYUAN_NAMES, query_norm="self_attn.query_layernorm", key_norm="self_attn.key_layernorm"),
    ),
    Family(("PhimoeForCausalLM", "PhiMoEForCausalLM"), read_phimoe, MIXTRAL_NAMES),
)
