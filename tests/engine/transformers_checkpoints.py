"""Small random models of every class of transformers that a test's table or a small config names, as checkpoints."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import transformers
from dense_models import SIZES

_SPREAD = 0.15
"""Of weights: with transformers' own 0.02 the likeliest tokens would be near ties."""
_DELTA: dict[str, Any] = SIZES | {
    "num_hidden_layers": 4,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 24,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
_MAMBA2: dict[str, Any] = SIZES | {
    "num_hidden_layers": 4,
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_d_state": 24,
    "mamba_n_groups": 2,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
    "hidden_size": 48,
}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3_next": ("Qwen3NextConfig", _DELTA),
    "qwen3_5": ("Qwen3_5TextConfig", _DELTA),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", _DELTA),
    "olmo_hybrid": ("OlmoHybridConfig", _DELTA | {"linear_num_value_heads": 2}),
    "bamba-unlimited": ("BambaConfig", _MAMBA2 | {"attn_layer_indices": [2]}),
}
"""Those that no other table names."""


def tabled_models() -> dict[str, tuple[str, dict[str, Any]]]:
    """The models of the equality tests' tables: transformers' class of configs, and what it is made with."""
    found = dict(OTHERS)
    for file in sorted(Path(__file__).parent.glob("*_models.py")):
        tables = [table for table in vars(import_module(file.stem)).values() if isinstance(table, dict)]
        for table in tables:
            found |= {name: made for name, model in table.items() if (made := _made_with(model)) is not None}
    return found


def _made_with(model: object) -> tuple[str, dict[str, Any]] | None:
    if isinstance(model, tuple) and len(model) >= 2 and str(model[0]).endswith("Config"):
        return model[0], model[1]
    config = getattr(model, "config", None)
    if isinstance(config, str) and config.endswith("Config"):
        return config, model.values  # type: ignore[attr-defined]
    return None


def small_checkpoint(config: Any, folder: Path) -> Any:
    """A random model of ``config`` of transformers in evaluation mode, saved into ``folder``."""
    torch.manual_seed(1)
    config.initializer_range = _SPREAD
    model = _class_of(config)(config).float().eval()
    with torch.no_grad():  # what begins at 0 or 1 would not show if it were forgotten
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "inv_freq" not in name and (tensor.ndim == 1 or not tensor.any()) and tensor.is_floating_point():
                tensor += 0.3 * torch.randn_like(tensor)
    model.save_pretrained(folder)
    return model


def _class_of(config: Any) -> Any:
    names = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    usual = type(config).__name__.replace("Config", "ForCausalLM")
    return getattr(transformers, names.get(config.model_type, usual))


def config_of(name: str, values: dict[str, Any]) -> Any:
    """A config of transformers' class ``name``."""
    return getattr(transformers, name)(**values)
