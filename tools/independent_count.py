"""An independent parameter count: transformers builds the model on the meta device (no memory, no weights).

What is left out is what kvplan names apart: vision and audio towers, their projectors, multi-token-prediction layers,
and buffers (a load-balancing correction is a parameter in some architectures and a buffer in others; both count).
"""

from __future__ import annotations

import json
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOWERS = (
    "visual",
    "vision_tower",
    "vision_adapter",
    "vision_projection",
    "vision_model",
    "vision_embedder",
    "embed_vision",
    "multi_modal_projector",
    "mm_projector",
    "projector",
    "audio_tower",
    "embed_audio",
    "embed_vision",
    "vision_embed",
    "mtp",
)
SAME_MODEL = {"kimi_k2": "deepseek_v3", "mimo": "qwen2", "deepseek_ref": "deepseek_v4"}
"""Model types under which a config was published for code that transformers has under another name."""
CORRECTIONS = (
    "e_score_correction_bias",
    "expert_bias",
    "tokens_per_expert_bias",
    "moe_statics",
    "correction_bias",
    "layer_scalar",
)


@dataclass(frozen=True, slots=True)
class IndependentCount:
    """Parameters of the causal language model, and of the parts left out, by their name."""

    num_parameters: int
    num_corrections: int
    towers: dict[str, int]


def build_meta_model(config: dict[str, Any]) -> Any:
    """The model that transformers makes of a raw config, on the meta device. Raises what transformers raises."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if config.get("model_type") == "kimi_k25":
            config = {**config["text_config"], "model_type": "kimi_k2", "architectures": ["DeepseekV3ForCausalLM"]}
        if config.get("model_type") == "qwen3_omni_moe":  # what speaks is no part of the language model
            config = {**config["thinker_config"], "architectures": ["Qwen3OmniMoeThinkerForConditionalGeneration"]}
        renamed = SAME_MODEL.get(str(config.get("model_type")))
        stripped = {key: value for key, value in config.items() if key not in ("quantization_config", "auto_map")}
        stripped |= {"model_type": renamed} if renamed else {}
        pattern = stripped.get("sliding_window_pattern")
        if isinstance(pattern, str):  # EXAONE's letters, which this transformers does not read: same period as a number
            stripped["sliding_window_pattern"] = len(pattern)
        (Path(folder) / "config.json").write_text(json.dumps(stripped))
        loaded = transformers.AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            return _model_class(transformers, loaded)


def _model_class(transformers: Any, loaded: Any) -> Any:
    named = (loaded.architectures or [None])[0]
    if named is not None and hasattr(transformers, named):
        return getattr(transformers, named)._from_config(loaded)
    return transformers.AutoModelForCausalLM.from_config(loaded)


def count_independently(config: dict[str, Any]) -> IndependentCount:
    """Count each tensor once (tied weights share one)."""
    model = build_meta_model(config)
    total, corrections, towers = 0, 0, dict[str, int]()
    for name, tensor in model.named_parameters(remove_duplicate=True):
        tower = next((part for part in TOWERS if part in name.split(".")), None)
        if tower is not None:
            towers[tower] = towers.get(tower, 0) + tensor.numel()
        else:
            total += tensor.numel()
    for name, tensor in model.named_buffers():
        if name.rsplit(".", 1)[-1] in CORRECTIONS or "moe_statics" in name:
            corrections += tensor.numel()
    return IndependentCount(total, corrections, towers)
