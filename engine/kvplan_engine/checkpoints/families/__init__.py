"""The families of models that the engine runs: one file each, registered in ``FAMILIES``.

    family   what a family has to say: architecture, config.json, tensor names, GGUF
    gpt2     GPT-2
    llama    Llama, and ``llama_config``, which the families below build on
    mistral  Mistral: Llama with a sliding window
    qwen2    Qwen2: Llama with biases on queries, keys and values
    qwen3    Qwen3: Llama with norms of each query and key head

``docs/how-to/add-a-model-family.md`` walks through adding one. Everything else asks ``family_of``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.gpt2 import GPT2
from kvplan_engine.checkpoints.families.llama import LLAMA
from kvplan_engine.checkpoints.families.mistral import MISTRAL
from kvplan_engine.checkpoints.families.qwen2 import QWEN2
from kvplan_engine.checkpoints.families.qwen3 import QWEN3
from kvplan_engine.errors import EngineError

FAMILIES = (GPT2, LLAMA, MISTRAL, QWEN2, QWEN3)

_BY_ARCHITECTURE = {family.architecture: family for family in FAMILIES}
SUPPORTED_ARCHITECTURES = tuple(_BY_ARCHITECTURE)
_ARCHITECTURE_OF_TYPE = {family.model_type: family.architecture for family in FAMILIES}


def architecture_of(config: Mapping[str, Any]) -> str:
    """The architecture a config.json names, else that of its ``model_type``; "?" where it names neither."""
    named = config.get("architectures") or [_ARCHITECTURE_OF_TYPE.get(config.get("model_type", ""), "?")]
    return str(named[0])


def family_of(architecture: str) -> Family:
    """The family of ``architecture``; EngineError where the engine does not run it."""
    family = _BY_ARCHITECTURE.get(architecture)
    if family is None:
        raise EngineError(
            f"the engine does not run {architecture} yet.",
            hint="it runs " + ", ".join(SUPPORTED_ARCHITECTURES) + "; `kvplan estimate` sizes many more",
        )
    return family
