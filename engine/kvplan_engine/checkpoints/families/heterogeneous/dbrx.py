"""DBRX: keys of its own in config.json; LayerNorms without biases, experts in every layer."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.common import model
from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.description.mixers import Attention, Rope
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.norms import Norms


def read_dbrx(config: dict[str, Any]) -> ModelDescription:
    """transformers: DbrxModel."""
    hidden, heads = int(config["d_model"]), int(config["n_heads"])
    attn, ffn = config["attn_config"], config["ffn_config"]
    size = hidden // heads
    theta = float(attn.get("rope_theta", 10000.0))
    mixer = Attention(heads, int(attn["kv_n_heads"]), size, size, scale=size**-0.5, rope=Rope(theta, size))
    expert = Mlp(int(ffn["ffn_hidden_size"]), "silu")
    mixture = Mixture(int(ffn["moe_num_experts"]), int(ffn["moe_top_k"]), expert)
    norm = Norms("layer_no_bias", 1e-5)
    return model(
        {**config, "max_position_embeddings": config["max_seq_len"]},
        [Layer((mixer,), mixture, norm)] * int(config["n_layers"]),
        norm,
        hidden_size=hidden,
    )
