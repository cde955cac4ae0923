"""Small quantised checkpoints of models with experts, latents and states, and the same weights in transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from dense_models import randomise
from float4_packers import mxfp4_parts
from quantised_checkpoints import FORMATS, QuantisedCheckpoint
from safetensors.torch import load_file, save_file
from small_models import VOCAB_SIZE

_SIZES: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 64,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 2,
    "vocab_size": VOCAB_SIZE,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_MIXTRAL = _SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2}
_QWEN2 = _SIZES | {"num_experts": 4, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 96}
_QWEN3 = _SIZES | {"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True, "head_dim": 32}
_OSS = _MIXTRAL | {"head_dim": 32, "layer_types": ["full_attention"] * 2}

MIXTURES: dict[str, tuple[str, dict[str, Any], str]] = {
    "mixtral-gptq-act-order": ("MixtralConfig", _MIXTRAL, "gptq-act-order"),
    "mixtral-awq": ("MixtralConfig", _MIXTRAL, "awq"),
    "qwen2-int4-zeros": ("Qwen2MoeConfig", _QWEN2, "int4-zeros"),
    "qwen3-fp8-block": ("Qwen3MoeConfig", _QWEN3, "fp8-block"),
    "qwen3-nvfp4": ("Qwen3MoeConfig", _QWEN3, "nvfp4"),
    "gpt-oss": ("GptOssConfig", _OSS, "mxfp4"),
}
"""The class of the config, its values, and the format of the weights."""
_LATENT = (
    _SIZES
    | {"num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 32, "n_group": 1, "topk_group": 1}
    | {
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 16,
        "v_head_dim": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    }
)
_DELTA = (
    _QWEN3
    | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "shared_expert_intermediate_size": 64}
    | {
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "layer_types": ["linear_attention", "full_attention"],
    }
)
_MAMBA = (
    _SIZES
    | {"attn_layer_indices": [1], "mamba_n_heads": 8}
    | {
        "mamba_d_state": 16,
        "mamba_d_head": 32,
    }
)
MIXERS: dict[str, tuple[str, dict[str, Any], str]] = {
    "deepseek-v3-int4-zeros": ("DeepseekV3Config", _LATENT, "int4-zeros"),
    "qwen3-next-gptq-act-order": ("Qwen3NextConfig", _DELTA, "gptq-act-order"),
    "bamba-int8": ("BambaConfig", _MAMBA, "int8"),
}
"""The same of models with latents and states."""

Tensors = dict[str, torch.Tensor]


def _each_matrix(name: str, dense: Tensors) -> tuple[dict[str, Any], Tensors, Tensors]:
    """The section of the config, what the checkpoint holds, and the weights that it means."""
    section, pack = FORMATS[name]
    stored, meant = dict(dense), dict(dense)
    for key, weight in dense.items():
        if re.search(r"(_proj|_proj_with_mqa|_proj_qkvz|_proj_ba|\.w[123])\.weight$", key):
            packed, meant[key] = pack(weight, section)
            del stored[key]
            stored |= {key.removesuffix("weight") + leaf: tensor for leaf, tensor in packed.items()}
    return section, stored, meant


def _gpt_oss(name: str, dense: Tensors) -> tuple[dict[str, Any], Tensors, Tensors]:
    """Of all experts at once, [experts, inputs, outputs], which are packed along the inputs."""
    stored, meant = dict(dense), dict(dense)
    for key, weight in dense.items():
        if key.endswith(("gate_up_proj", "experts.down_proj")):
            experts, inputs, outputs = weight.shape
            pairs, exponents, values = mxfp4_parts(weight.transpose(1, 2).reshape(-1, inputs))
            del stored[key]
            stored[f"{key}_blocks"] = pairs.view(experts, outputs, inputs // 32, 16)
            stored[f"{key}_scales"] = exponents.view(experts, outputs, inputs // 32)
            meant[key] = values.view(experts, outputs, inputs).transpose(1, 2).contiguous()
    ignored = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    return {"quant_method": "mxfp4", "modules_to_not_convert": ignored}, stored, meant


_PACKERS: dict[str, Callable[[str, Tensors], tuple[dict[str, Any], Tensors, Tensors]]] = {"GptOssConfig": _gpt_oss}


def make_mixture(name: str, folder: Path) -> QuantisedCheckpoint:
    """``path`` for the engine; the model's weights are those that the checkpoint means."""
    class_name, values, weight_format = (MIXTURES | MIXERS)[name]
    torch.manual_seed(list(MIXTURES | MIXERS).index(name))
    config = getattr(transformers, class_name)(**values, initializer_range=0.15)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    randomise(model)
    dense, quantised = folder / "dense", folder / name
    model.save_pretrained(dense)
    packer = _PACKERS.get(class_name, _each_matrix)
    section, stored, meant = packer(weight_format, load_file(dense / "model.safetensors"))
    save_file(
        {key: tensor.contiguous() for key, tensor in meant.items()},
        dense / "model.safetensors",
        metadata={"format": "pt"},
    )
    quantised.mkdir()
    save_file({key: tensor.contiguous() for key, tensor in stored.items()}, quantised / "model.safetensors")
    written = json.loads((dense / "config.json").read_text()) | {"quantization_config": section}
    (quantised / "config.json").write_text(json.dumps(written))
    answering = transformers.AutoModelForCausalLM.from_pretrained(dense, dtype=torch.float32).eval()
    return QuantisedCheckpoint(quantised, answering)
