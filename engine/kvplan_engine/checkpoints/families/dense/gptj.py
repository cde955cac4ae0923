"""GPT-J, CodeGen: attention and MLP side by side behind one norm; neighbours in part of each head turn; head bias."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.fields import activation, attention, decoder, mlp
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.mixers import Rope
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.norms import Norms


def _read(config: dict[str, Any]) -> ModelDescription:
    hidden, heads = int(config["n_embd"]), int(config["n_head"])
    own = {"hidden_size": hidden, "num_attention_heads": heads, "max_position_embeddings": config["n_positions"]}
    keys = config | own | {"intermediate_size": int(config.get("n_inner") or 4 * hidden)}
    norms = Norms("layer", float(config.get("layer_norm_epsilon", 1e-5)), "parallel")
    positions = Rope(10000.0, min(int(config.get("rotary_dim") or 64), hidden // heads), neighbours=True)
    inner = mlp(keys, activation=activation(config.get("activation_function", "gelu_new")), gated=False, bias=True)
    layer = Layer((attention(keys, rope=positions),), inner, norms)
    return decoder(keys, [layer] * int(config["n_layer"]), norms, head_bias=True)


GPTJ_NAMES = TensorNames(
    embedding="transformer.wte",
    layer="transformer.h.{}",
    qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
    output="attn.out_proj",
    up=("mlp.fc_in",),
    down="mlp.fc_out",
    attention_norm="ln_1",
    final_norm="transformer.ln_f",
)

GPTJ = Family(
    architectures=("GPTJForCausalLM",),
    model_types=("gptj",),
    read=_read,
    names=GPTJ_NAMES,
)
CODEGEN = Family(
    architectures=("CodeGenForCausalLM",),
    model_types=("codegen",),
    read=_read,
    names=replace(GPTJ_NAMES, qkv=("attn.qkv_proj",), row_order="quarters"),
)
