"""A small model and random LoRA adapters of it, as PEFT saves them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import PreTrainedModel

ALL_LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def save_adapter(model: PreTrainedModel, path: Path, seed: int, **options: Any) -> Path:
    """Random A and B, both large enough to change tokens. options: of LoraConfig; ``model`` is as before afterwards."""
    config = LoraConfig(**{"r": 4, "lora_alpha": 8, "target_modules": list(ALL_LINEAR)} | options)
    adapted = get_peft_model(model, config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.15)
    adapted.save_pretrained(path)
    adapted.unload()
    return path
