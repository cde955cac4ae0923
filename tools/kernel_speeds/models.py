"""The models that are sampled: the id that the tables know, the profile that kvplan has, and their sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["dense", "mixture", "latent"]


@dataclass(frozen=True, slots=True)
class SampledModel:
    """``tables``: the id in aiconfigurator-core; ``name``: kvplan's; ``sizes``: tensor-parallel sizes."""

    tables: str
    name: str
    kind: Kind
    sizes: tuple[int, ...]


MODELS: Final = (
    SampledModel("Qwen/Qwen3-1.7B", "qwen3-1.7b", "dense", (1, 2)),
    SampledModel("meta-llama/Meta-Llama-3.1-8B", "llama-3.1-8b", "dense", (1, 2, 4, 8)),
    SampledModel("Qwen/Qwen3-32B", "qwen3-32b", "dense", (1, 2, 4, 8)),
    SampledModel("meta-llama/Meta-Llama-3.1-70B", "llama-3.1-70b", "dense", (2, 4, 8)),
    SampledModel("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b", "mixture", (1, 2, 4, 8)),
    SampledModel("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b", "mixture", (1, 2, 4)),
    SampledModel("Qwen/Qwen3-235B-A22B", "qwen3-235b-a22b", "mixture", (4, 8)),
    SampledModel("Qwen/Qwen3-Coder-480B-A35B-Instruct", "qwen3-coder-480b-a35b", "mixture", (8,)),
    SampledModel("MiniMaxAI/MiniMax-M2.5", "minimax-m2.5", "mixture", (4, 8)),
    SampledModel("deepseek-ai/DeepSeek-V3", "deepseek-v3", "latent", (8,)),
)
FORMATS: Final = {
    "bfloat16": ("bfloat16", "bfloat16"),
    "fp8": ("fp8", "fp8_block"),
    "fp8-block": ("fp8_block", "fp8_block"),
    "fp4": ("nvfp4", "nvfp4"),
}
"""kvplan's format -> the tables' mode of dense products, and of experts.

Experts with one scale per matrix have no tuned kernel in vLLM's tables of Hopper, and none in SGLang's; most published
mixtures in 8-bit floats have block scales, so those stand for both.
"""
