"""Which engine a question is about, and the defaults of kvplan's own. Releases of others: ``catalog.releases``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.catalog.releases.facts import release_number
from kvplan.errors import UsageError
from kvplan.settings import ServingSettings

KVPLAN_DEFAULTS = ServingSettings(
    gpu_memory_utilization=0.9, max_num_batched_tokens=2048, max_num_seqs=256, block_size=16
)
"""What kvplan's own engine does where nothing is said (tests/agreement compares it with the engine's own record)."""

ENGINES = ("kvplan", "vllm", "sglang")


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """``--engine``: one of ENGINES; ``version`` is that of vLLM or SGLang.

    Published results have another engine too, by its name here (trtllm), and a ``backend`` where one is named
    that is not the release's default: pytorch or tensorrt of TensorRT-LLM, in-process of vLLM without a server.
    """

    name: str
    version: str = "latest"
    backend: str = ""

    @classmethod
    def parse(cls, text: str, known: Sequence[str] = ENGINES) -> EngineChoice:
        """``vllm``, ``vllm@0.19`` or ``kvplan``, if ``known`` has that engine. UsageError otherwise."""
        name, _, version = text.strip().casefold().partition("@")
        if name == "sglang" and name not in known:
            hint = "kvplan estimate --engine sglang sizes its memory; plan prints SGLang's command beside vLLM's"
            raise UsageError("Only vLLM's scheduler and prefix cache are modelled here, not SGLang's.", hint=hint)
        if name == "sglang" and version not in ("", "latest") and release_number(version) is None:
            raise UsageError(f"'{version}' is not a version of SGLang.", hint="write it like sglang@0.5.23")
        if name not in known or (version and name == "kvplan"):
            others = "".join(f"{each}, " for each in known if each != "vllm")
            hint = f"{others}vllm, or vllm@VERSION such as vllm@0.19; `kvplan sweep --help` lists engines to measure"
            raise UsageError(f"Unknown --engine '{text}'.", hint=hint)
        return cls(name, version or "latest")
