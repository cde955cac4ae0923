"""Which engine a question is about, and the defaults of kvplan's own. Releases of others: ``catalog.releases``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.errors import UsageError
from kvplan.settings import ServingSettings

KVPLAN_DEFAULTS = ServingSettings(
    gpu_memory_utilization=0.9, max_num_batched_tokens=2048, max_num_seqs=256, block_size=16
)
"""What kvplan's own engine does where nothing is said (tests/agreement compares it with the engine's own record)."""

ENGINES = ("kvplan", "vllm")


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """``--engine``: one of ENGINES; ``version`` is vLLM's.

    Published results have other engines too, by their names here (sglang, trtllm), and a ``backend`` where one is named
    that is not the release's default: pytorch or tensorrt of TensorRT-LLM, in-process of vLLM without a server.
    """

    name: str
    version: str = "latest"
    backend: str = ""

    @classmethod
    def parse(cls, text: str, known: Sequence[str] = ENGINES) -> EngineChoice:
        """``vllm``, ``vllm@0.19`` or ``kvplan``, if ``known`` has that engine. UsageError otherwise."""
        name, _, version = text.strip().casefold().partition("@")
        if name not in known or (version and name == "kvplan"):
            others = "kvplan, " if "kvplan" in known else ""
            hint = f"{others}vllm, or vllm@VERSION such as vllm@0.19; `kvplan sweep --help` lists engines to measure"
            raise UsageError(f"Unknown --engine '{text}'.", hint=hint)
        return cls(name, version or "latest")
