"""MPT: slopes instead of positions (ALiBi), LayerNorm without biases; no bias anywhere."""

from __future__ import annotations

from typing import Any

from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import attention, decoder, mlp
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.norms import Norms


def _read(config: dict[str, Any]) -> ModelDescription:
    hidden, heads = int(config["d_model"]), int(config["n_heads"])
    inner_config = config.get("attn_config") or {}
    positions = int(config["max_seq_len"])
    own = {"hidden_size": hidden, "num_attention_heads": heads, "max_position_embeddings": positions}
    own["num_key_value_heads"] = int(inner_config.get("kv_n_heads") or heads)
    keys = config | own | {"intermediate_size": int(config.get("expansion_ratio", 4)) * hidden}
    norms = Norms("layer_no_bias", float(config.get("layer_norm_epsilon", 1e-5)))
    alibi, scale = bool(inner_config.get("alibi", True)), inner_config.get("softmax_scale")
    clip = inner_config.get("clip_qkv") or None
    options = {"alibi": alibi, "clip": clip} | ({"scale": float(scale)} if scale else {})
    layer = Layer((attention(keys, rope=None, **options),), mlp(keys, activation="gelu", gated=False), norms)
    rows = None if alibi else positions
    return decoder(keys, [layer] * int(config["n_layers"]), norms, tied=True, learned_positions=rows)


MPT = Family(
    architectures=("MPTForCausalLM", "MptForCausalLM"),
    model_types=("mpt",),
    read=_read,
    names=TensorNames(
        embedding="transformer.wte",
        positions="transformer.wpe",
        layer="transformer.blocks.{}",
        qkv=("attn.Wqkv",),
        output="attn.out_proj",
        up=("ffn.up_proj",),
        down="ffn.down_proj",
        attention_norm="norm_1",
        mlp_norm="norm_2",
        final_norm="transformer.norm_f",
    ),
)
