"""Models and GPUs as rows name them: ids that no profile ships, kinds of model, generations of GPU."""

from __future__ import annotations

from typing import Final, Literal

from kvplan.catalog.devices.gpus import GpuProfile, find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import LatentAttention, ModelSpec, MoeFeedForward
from kvplan.errors import UsageError

ModelKind = Literal["dense", "mixture", "latent"]
"""latent: a mixture with latent attention (DeepSeek-V3 and its like)."""

SAME_SHAPE: Final = {
    "zai-org/GLM-4.6": "glm-4.5",
    "zai-org/GLM-4.6-FP8": "glm-4.5",
    "GLM-4.7": "glm-4.5",
    "GLM-4.7-FP8": "glm-4.5",
    "Qwen/Qwen3-235B-A22B-Instruct-2507": "qwen3-235b-a22b",
    "Qwen/Qwen3-235B-A22B-Instruct-2507-FP8": "qwen3-235b-a22b-fp8",
    "Qwen2.5-32B": "qwen2.5-32b-instruct",
    "Qwen/Qwen3-Coder-Next-FP8": "qwen3-next-80b-a3b",
    "TheBloke/OpenHermes-2.5-Mistral-7B-GPTQ": "mistral-7b-v0.1",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": "qwen2.5-1.5b-instruct",
    "nvidia/Llama-3.1-Nemotron-Nano-8B-v1": "llama-3.1-8b",
    "neuralmagic/Llama-3.1-Nemotron-70B-Instruct-HF-FP8-dynamic": "llama-3.3-70b-instruct-fp8-dynamic",
}
"""Ids without a profile of their own: a shipped model with the same layers, heads and experts."""

FP4_CHECKPOINTS: Final = {"deepseek-ai/DeepSeek-R1-0528": "nvidia/DeepSeek-R1-0528-FP4"}
"""What InferenceX serves in 4 bits (its README); AMD's own checkpoint of it has the same shape."""

_GPUS: Final = {
    "a100 sxm": "a100-80gb-sxm",
    "a100 sxm 80gb": "a100-80gb-sxm",
    "a100 sxm 40gb": "a100-40gb-sxm",
    "a800 sxm 80gb": "a800-80gb",
    "h100 sxm 80gb": "h100-sxm",
    "v100 pcie 32gb": "v100-32gb-pcie",
    "v100s pcie 32gb": "v100s",
}


def model_named(name: str) -> ModelSpec:
    """KvplanError where no profile has it, nor its shape."""
    return resolve_model(SAME_SHAPE.get(name, name))


def gpu_named(name: str) -> GpuProfile:
    """UsageError for one that no profile describes, and for several nodes."""
    if "nodes" in name:
        raise UsageError(f"{name}: how the model is spread over them is not stated")
    return find_gpu(_GPUS.get(name.casefold(), name))


def model_kind(spec: ModelSpec) -> ModelKind:
    if any(isinstance(layer.mixer, LatentAttention) for layer in spec.layers):
        return "latent"
    is_mixture = any(isinstance(layer.feed_forward, MoeFeedForward) for layer in spec.layers)
    return "mixture" if is_mixture else "dense"
