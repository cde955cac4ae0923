"""kvplan's answers to the comparison's questions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.answer import Estimate, EstimateRequest, make_estimate
from kvplan.settings import ServingSettings
from peers.questions import (
    CONTEXT_TOKENS,
    GPU,
    GPU_MEMORY_UTILIZATION,
    MAX_NUM_BATCHED_TOKENS,
    Question,
    Subject,
    write_config,
)

_SAFETENSORS_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


@dataclass(frozen=True, slots=True)
class OurAnswer:
    """Bytes of the weights (language model and towers) and of the logical cache; whole sequences; the context asked."""

    weights: int
    kv_cache: int
    sequences: int
    context_tokens: int
    concurrency: float
    """Sequences with their fraction, as vLLM prints it."""

    def value(self, subject: Subject) -> int:
        """The figure that is compared."""
        return {"weights": self.weights, "kv_cache": self.kv_cache, "sequences": self.sequences}[subject]


def estimate(model: str) -> Estimate:
    """The estimate for one H100 under the newest vLLM, in the comparison's settings."""
    spec = resolve_model(model)
    settings = ServingSettings(
        gpu_memory_utilization=GPU_MEMORY_UTILIZATION, max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS
    )
    request = EstimateRequest(context_of(spec), (find_gpu(GPU),), EngineChoice("vllm"), settings)
    return make_estimate(spec, request)


def context_of(spec: ModelSpec) -> int:
    """32,768 tokens, or the model's longest if that is less."""
    return min(CONTEXT_TOKENS, spec.max_position_embeddings or CONTEXT_TOKENS)


def our_answer(found: Estimate) -> OurAnswer:
    """The three figures of an estimate with one deployment."""
    concurrency = found.deployments[0].max_concurrency
    return OurAnswer(
        weights=found.weights.total_bytes + found.extra_weight_bytes,
        kv_cache=found.cache.logical_bytes,
        sequences=math.floor(concurrency),
        context_tokens=found.context_tokens,
        concurrency=concurrency,
    )


def question_of(model: str, found: Estimate, folder: Path) -> Question:
    """The question for the peers; writes the model's config under ``folder``."""
    return Question(
        model=model,
        directory=write_config(model, folder),
        context_tokens=found.context_tokens,
        weight_bytes=found.weights.total_bytes + found.extra_weight_bytes,
        elements_by_dtype=elements_by_dtype(found),
    )


def elements_by_dtype(found: Estimate) -> dict[str, int]:
    """Elements of the checkpoint as safetensors counts them: 8-bit floats by element, packed formats by byte."""
    counts: dict[str, int] = {}
    for part in found.weights.components:
        name = _SAFETENSORS_NAMES.get(part.format, "F8_E4M3" if part.format.startswith("fp8") else "U8")
        counts[name] = counts.get(name, 0) + (part.num_bytes if name == "U8" else part.num_elements)
    if found.extra_weight_bytes:
        dtype = _SAFETENSORS_NAMES[found.dtype]
        counts[dtype] = counts.get(dtype, 0) + found.extra_weight_bytes // (4 if dtype == "F32" else 2)
    return counts
