"""Small random models with latent attention, one of each family that runs, and checkpoints of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from small_models import VOCAB_SIZE

_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "vocab_size": VOCAB_SIZE,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 256,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "q_lora_rank": 40,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
_DENSE = _SIZES | {"intermediate_size": 96}
_EXPERTS = _DENSE | {
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
    "n_group": 4,
    "topk_group": 2,
}
_INDEX = {"index_n_heads": 8, "index_head_dim": 16, "index_topk": 12}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
_MSCALE = {"mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32, "beta_slow": 1}

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v2": (
        "DeepseekV2Config",
        _EXPERTS
        | {"topk_method": "group_limited_greedy", "norm_topk_prob": False}
        | {"rope_parameters": _YARN | _MSCALE | {"mscale": 0.707, "mscale_all_dim": 0.707}},
    ),
    "deepseek_v2_lite": (
        "DeepseekV2Config",
        _EXPERTS | {"q_lora_rank": None, "topk_method": "greedy", "attention_bias": True, "n_shared_experts": 2},
    ),
    "deepseek_v3": ("DeepseekV3Config", _EXPERTS | {"rope_parameters": _YARN | _MSCALE, "attention_bias": True}),
    "glm4_moe_lite": ("Glm4MoeLiteConfig", _EXPERTS | {"n_group": 1, "topk_group": 1, "rms_norm_eps": 1e-5}),
    "mistral4": (
        "Mistral4Config",
        _EXPERTS | {"rope_parameters": _YARN | _MSCALE | {"llama_4_scaling_beta": 0.1}, "rope_interleave": True},
    ),
    "deepseek_v32": ("DeepseekV32Config", _EXPERTS | _INDEX | {"rope_parameters": _YARN | _MSCALE}),
    "glm_moe_dsa": (
        "GlmMoeDsaConfig",
        _EXPERTS | _INDEX | {"n_group": 1, "topk_group": 1, "indexer_types": ["full", "shared", "full"]},
    ),
    "minicpm3": (
        "MiniCPM3Config",
        _DENSE | {"scale_depth": 1.4, "scale_emb": 12, "dim_model_base": 16, "tie_word_embeddings": True},
    ),
    "youtu": ("YoutuConfig", _DENSE | {"rope_interleave": False, "tie_word_embeddings": True}),
}


class LatentCheckpoint:
    """A saved random model: ``path`` for the engine, ``model`` for transformers."""

    def __init__(self, name: str, folder: Path) -> None:
        torch.manual_seed(list(CONFIGS).index(name))
        class_name, values = CONFIGS[name]
        config = getattr(transformers, class_name)(**values, initializer_range=0.15)
        model_class = getattr(transformers, class_name.replace("Config", "ForCausalLM"))
        self.model = model_class(config).float().eval()
        named = [*self.model.named_parameters(), *self.model.named_buffers()]
        with torch.no_grad():  # what begins at 0 or 1 would not show if it were forgotten
            for tensor_name, tensor in named:
                if "inv_freq" in tensor_name or "embed_scale" in tensor_name:
                    continue
                if tensor.ndim == 1 or not tensor.any():
                    tensor += 0.3 * torch.randn_like(tensor)
        self.path = folder / name
        self.model.save_pretrained(self.path)
