"""The models and settings of the comparison, and a question as a probe reads it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kvplan.catalog.models import find_profile

Subject = Literal["weights", "kv_cache", "sequences"]
SUBJECTS: dict[Subject, str] = {
    "weights": "weights",
    "kv_cache": "KV cache of one sequence",
    "sequences": "sequences at once on one H100 80 GB",
}

MODELS = (
    "llama-3.1-8b",
    "gpt2",
    "qwen3-32b",
    "mixtral-8x7b",
    "deepseek-v3",
    "deepseek-v3.2",
    "gemma-3-27b",
    "gpt-oss-20b",
    "qwen3-next-80b-a3b",
    "jamba-v0.1",
    "nemotron-3-nano-30b",
    "mistral-7b-v0.1",
    "phi-3.5-mini",
)
CONTEXT_TOKENS = 32_768
GPU = "h100-sxm"
GPU_MEMORY_UTILIZATION = 0.9
MAX_NUM_BATCHED_TOKENS = 8_192
"""vLLM's default on an H100."""


@dataclass(frozen=True, slots=True)
class Question:
    """What every planner is asked about one model. Weights are handed to peers that would read them from the Hub.

    ``elements_by_dtype``: elements of the checkpoint under safetensors' names; ``directory`` holds its config.json.
    """

    model: str
    directory: Path
    context_tokens: int
    weight_bytes: int
    elements_by_dtype: dict[str, int]
    gpu_memory_utilization: float = GPU_MEMORY_UTILIZATION
    max_num_batched_tokens: int = MAX_NUM_BATCHED_TOKENS

    def as_json(self) -> str:
        """The probe's only argument."""
        return json.dumps(
            {
                "directory": str(self.directory),
                "context_tokens": self.context_tokens,
                "weight_bytes": self.weight_bytes,
                "elements_by_dtype": self.elements_by_dtype,
                "gpu_memory_utilization": self.gpu_memory_utilization,
                "max_num_batched_tokens": self.max_num_batched_tokens,
            }
        )


def write_config(model: str, parent: Path) -> Path:
    """The published config of a shipped profile as ``config.json`` in a folder of its own; returns the folder.

    Without ``auto_map``, which names code files of the Hub's repository that a local folder does not have.
    """
    folder = parent / model
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(published_config(model)))
    return folder


def published_config(model: str) -> dict[str, Any]:
    """The raw config.json of a shipped profile, without ``auto_map``."""
    profile = find_profile(model)
    if profile is None:
        raise LookupError(f"no profile is called {model}")
    return {key: value for key, value in profile["config"].items() if key != "auto_map"}
