"""Which reader knows which architecture. Modules are imported when a model needs them, not before."""

from __future__ import annotations

from functools import partial
from importlib import import_module

from kvplan.catalog.families.body import Reader

_FAMILIES = "kvplan.catalog.families."

_READERS: dict[str, str] = {
    "GPT2LMHeadModel": "classic:read_gpt2",
    "GPTBigCodeForCausalLM": "classic:read_gpt_bigcode",
    "GPTNeoForCausalLM": "classic:read_gpt_neo",
    "GPTJForCausalLM": "classic:read_gptj",
    "CodeGenForCausalLM": "classic:read_gptj",
    "OPTForCausalLM": "classic:read_opt",
    "BloomForCausalLM": "classic:read_bloom",
    "MptForCausalLM": "classic:read_mpt",
    "FalconForCausalLM": "classic:read_falcon",
    "Gemma3nForCausalLM": "gemma:read_gemma3n",
    "Gemma4ForCausalLM": "gemma:read_gemma4",
    "MambaForCausalLM": "state:read_mamba",
    "FalconMambaForCausalLM": "state:read_mamba",
    "Mamba2ForCausalLM": "state:read_mamba2",
    "JambaForCausalLM": "hybrid:read_jamba",
    "BambaForCausalLM": "hybrid:read_bamba",
    "GraniteMoeHybridForCausalLM": "hybrid:read_granite_hybrid",
    "FalconH1ForCausalLM": "hybrid:read_falcon_h1",
    "NemotronHForCausalLM": "hybrid:read_nemotron_h",
    "Qwen3NextForCausalLM": "delta:read_qwen3_next",
    "Qwen3_5ForCausalLM": "delta:read_qwen3_next",
    "Qwen3_5MoeForCausalLM": "delta:read_qwen3_next",
    "KimiLinearForCausalLM": "delta:read_kimi_linear",
    "Lfm2ForCausalLM": "short_conv:read_lfm2",
    "Lfm2MoeForCausalLM": "short_conv:read_lfm2",
    "MiniMaxForCausalLM": "delta:read_minimax",
    "MiniMaxText01ForCausalLM": "delta:read_minimax",
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
    "RWForCausalLM": "FalconForCausalLM",
    "MPTForCausalLM": "MptForCausalLM",
}


_TABLES: tuple[tuple[str, str, str], ...] = (
    ("plain", "FAMILIES", "read_plain"),
    ("mixtures", "MIXTURES", "read_mixture"),
    ("latent", "LATENT", "read_latent"),
)
"""Modules with a table of families: module, table, and the function that reads a config by a row of it."""


def find_reader(architecture: str) -> Reader | None:
    """The reader of ``architecture``, or None when it is not known."""
    name = _SAME_AS.get(architecture, architecture)
    for module_name, table, function in _TABLES:
        module = import_module(_FAMILIES + module_name)
        family = getattr(module, table).get(name)
        if family is not None:
            return partial(getattr(module, function), family=family)
    address = _READERS.get(name)
    if address is None:
        return None
    module_name, function = address.split(":")
    reader: Reader = getattr(import_module(_FAMILIES + module_name), function)
    return reader


def architecture_of_type(model_type: str) -> str | None:
    """The causal language model of a ``model_type``, for configs that name no architecture."""
    return _ARCHITECTURE_OF_TYPE.get(model_type)


def known_architectures() -> tuple[str, ...]:
    """All names that ``find_reader`` knows, sorted."""
    tables = [getattr(import_module(_FAMILIES + module), table) for module, table, _ in _TABLES]
    return tuple(sorted({*_READERS, *_SAME_AS, *(name for table in tables for name in table)}))
