"""Which reader knows which architecture. Modules are imported when a model needs them, not before."""

from __future__ import annotations

from functools import partial
from importlib import import_module

from kvplan.catalog.families.body import Reader
from kvplan.catalog.families.plain import FAMILIES, read_plain

_FAMILIES = "kvplan.catalog.families."

_READERS: dict[str, str] = {
    "GPT2LMHeadModel": "classic:read_gpt2",
    "MixtralForCausalLM": "mixtures:read_mixtral",
}

_ARCHITECTURE_OF_TYPE: dict[str, str] = {
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}

_SAME_AS: dict[str, str] = {
    "LLaMAForCausalLM": "LlamaForCausalLM",
}


def find_reader(architecture: str) -> Reader | None:
    """The reader of ``architecture``, or None when it is not known."""
    name = _SAME_AS.get(architecture, architecture)
    if name in FAMILIES:
        return partial(read_plain, family=FAMILIES[name])
    address = _READERS.get(name)
    if address is None:
        return None
    module, function = address.split(":")
    reader: Reader = getattr(import_module(_FAMILIES + module), function)
    return reader


def architecture_of_type(model_type: str) -> str | None:
    """The causal language model of a ``model_type``, for configs that name no architecture."""
    return _ARCHITECTURE_OF_TYPE.get(model_type)


def known_architectures() -> tuple[str, ...]:
    return tuple(sorted({*FAMILIES, *_READERS, *_SAME_AS}))
