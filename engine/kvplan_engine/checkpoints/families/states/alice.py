"""AliceAI: Kimi Delta Attention beside Qwen3-Next's attention, experts in every layer. It is described and not run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.common import attention, by_period, mlp, model, norms, rope
from kvplan_engine.checkpoints.families.states.parts import kimi_delta
from kvplan_engine.checkpoints.fields import with_heads_of
from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.description.model import Layer, ModelDescription, Shape


def read_alice(config: dict[str, Any]) -> ModelDescription:
    """Read it as vLLM does (vllm/model_executor/models/alice_ai.py): earlier blocks are weighed for each block."""
    config = {**with_heads_of(256, config), "attention_bias": False}
    norm, size = norms(config, "rms_plus_one"), int(config["head_dim"])
    mixer = attention(config, rope=rope(config, size, partial=0.25), head_norm="head", gate="element")
    heads, head = int(config["linear_num_key_heads"]), int(config["linear_key_head_dim"])
    state = kimi_delta(heads, head, int(config.get("linear_conv_kernel_dim", 4)))
    part = _mixture(config)
    kinds = by_period(config, int(config.get("full_attention_interval", 4)), "linear_attention")
    layers = [
        Layer(
            (mixer if kind == "full_attention" else state,),
            part,
            norm,
            others=_weighed(config, "mlp", *(("attn",) if index else ())),
        )
        for index, kind in enumerate(kinds)
    ]
    found = model(config, layers, norm, max_positions=None, others=_weighed(config, "final"))
    return replace(found, tie_word_embeddings=False)


def _weighed(config: dict[str, Any], *names: str) -> tuple[Shape, ...]:
    """A norm and one row of scores each."""
    sizes = (int(config["hidden_size"]),)
    return tuple(Shape(f"{name}_res_{part}", sizes) for name in names for part in ("norm", "proj"))


def _mixture(config: dict[str, Any]) -> Mixture:
    shared = int(config["shared_expert_intermediate_size"])
    return Mixture(
        int(config["num_experts"]),
        int(config["num_experts_per_tok"]),
        mlp(config, int(config["moe_intermediate_size"]), bias=False),
        scoring="sigmoid",
        normalised=bool(config.get("norm_topk_prob", True)),
        correction=True,
        shared=mlp(config, shared, bias=False) if shared else None,
        shared_gate=shared > 0,
    )
