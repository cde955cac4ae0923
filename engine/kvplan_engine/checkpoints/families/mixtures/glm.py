"""Experts chosen as in DeepSeek V3, behind ordinary attention: GLM 4.5 to 4.7, dots.llm1, Hunyuan 3."""

from __future__ import annotations

from kvplan_engine.checkpoints.families.common import Config, attention, mlp, norms, rope
from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.mixtures.parts import (
    QWEN_NAMES,
    after_dense_ones,
    decoder,
    grouped_sigmoid,
    late_windows,
    shared_mlp,
    whole,
    with_names,
)
from kvplan_engine.checkpoints.fields import head_size, with_heads_of
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import ModelDescription


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
    kept = late_windows(config)

    def mixer(index: int) -> Attention:
        return attention(config, kept=kept[index], head_norm="head")

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
    types = config.get("mlp_layer_types")
    sparse = after_dense_ones(config, first=1) if types is None else [t == "sparse" for t in types]
    return decoder(config, norms(config), attention(config, head_norm="head"), mixture, sparse)


_HY_V3_NAMES = with_names(
    QWEN_NAMES,
    router="mlp.router.gate",
    correction="mlp.expert_bias",
    shared__up=("mlp.shared_mlp.gate_proj", "mlp.shared_mlp.up_proj"),
    shared__down="mlp.shared_mlp.down_proj",
)

FAMILIES = (
    Family(("Glm4MoeForCausalLM",), ("glm4_moe",), read_glm4_moe, QWEN_NAMES),
    Family(("Dots1ForCausalLM",), ("dots1",), read_dots1, QWEN_NAMES),
    Family(("HYV3ForCausalLM",), ("hy_v3",), read_hy_v3, _HY_V3_NAMES),
)
