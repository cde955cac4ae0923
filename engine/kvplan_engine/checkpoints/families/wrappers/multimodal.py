"""A language model inside of another config: the text's own family reads it, vision and audio towers are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kvplan_engine.checkpoints.families.family import Family
from kvplan_engine.checkpoints.families.names import Inner
from kvplan_engine.checkpoints.fields import head_size
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.errors import EngineError

_LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
}

NESTED_DEFAULTS: dict[str, Mapping[str, Any]] = {
    "llama": _LLAMA,
    "mistral": {
        **_LLAMA,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
    },
    "cosmos3_edge_text": {
        "hidden_size": 2048,
        "intermediate_size": 9216,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 131072,
        "max_position_embeddings": 131072,
    },
    "emu3_text_model": {
        **_LLAMA,
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "vocab_size": 184622,
        "max_position_embeddings": 9216,
    },
    "opt": {
        "hidden_size": 768,
        "ffn_dim": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "vocab_size": 50272,
        "max_position_embeddings": 2048,
    },
    "qwen2": {"vocab_size": 151936, "max_position_embeddings": 32768},
    "gemma3_text": {
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
    },
    "gemma3n_text": {"vocab_size": 262400, "max_position_embeddings": 32768},
    "gemma4_text": {"vocab_size": 262144, "max_position_embeddings": 131072},
    "gemma4_unified_text": {
        "vocab_size": 262144,
        "max_position_embeddings": 262144,
        "sliding_window": 1024,
        "hidden_size_per_layer_input": 0,
    },
    "glm_ocr_text": {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 59392,
        "max_position_embeddings": 131072,
        "attention_bias": False,
    },
    "granite4_vision_text": _LLAMA,
}
"""Defaults by ``model_type`` of the text: of LlamaConfig, MistralConfig, Qwen2Config, Gemma3TextConfig and others."""


_SECTIONS = ("thinker_config", "vlm_config", "text_config", "llm_config", "language_config")
_DTYPES = ("dtype", "torch_dtype")
_TIE = "tie_word_embeddings"
_TIE_SAID_INSIDE = ("Mistral3ForConditionalGeneration",)
"""Whose outer class in transformers ties by default what is published untied."""

Find = Callable[[str], Family]


def read_multimodal(
    config: dict[str, Any], find: Find, types: Mapping[str, str], inner: Inner, *, tied: bool = False
) -> ModelDescription:
    """``find`` gives an architecture's family, ``types`` a model_type's architecture; ``inner``: what it always holds.

    tied: whether the embeddings are where the config does not say. EngineError where it does not say which language
    model it holds.
    """
    text = text_of(config)
    if tied:
        text = {"tie_word_embeddings": True, **text}
    if isinstance(inner, Mapping):
        architecture = _of_version(config, inner)
    else:
        architecture = _text_architecture(config, text, types, inner)
    described = find(architecture).read({**text, "architectures": [architecture]})
    return replace(described, architecture=config["architectures"][0], language_model=architecture)


def text_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The language model's own section, completed from around it; the whole config where it has no such section.

    The outer config decides about dtype and tied embeddings, and says what else the section leaves out.
    """
    found = dict(config)
    is_tied_inside = (config.get("architectures") or [""])[0] in _TIE_SAID_INSIDE
    while section := next((found[name] for name in _SECTIONS if isinstance(found.get(name), dict)), None):
        outer = {key: found[key] for key in (*_DTYPES, _TIE, "eos_token_id") if found.get(key) is not None}
        said = {key: value for key, value in section.items() if value is not None or key == "sliding_window"}
        decided = (*_DTYPES,) if is_tied_inside else (*_DTYPES, _TIE)
        usual = NESTED_DEFAULTS.get(str(section.get("model_type")), {})
        found = {**usual, **outer, **said, **{key: outer[key] for key in decided if key in outer}}
        if found.get("model_type") == "glm_ocr_text":
            found = {"head_dim": head_size(found), **found}
    return found


def _of_version(config: dict[str, Any], known: Mapping[str | None, str]) -> str:
    version = config.get("version")
    found = known.get(None if version is None else str(version))
    if found is None:
        raise EngineError(f"the engine does not know version {version} of {config['architectures'][0]}.")
    return found


def _text_architecture(
    config: dict[str, Any], text: dict[str, Any], types: Mapping[str, str], inner: str | None
) -> str:
    """What the text's type stands for, else what it names, else what this wrapper always holds."""
    outer = str(config["architectures"][0])
    by_type = types.get(str(text.get("model_type")))
    if by_type is not None and by_type != outer:
        return by_type
    named = str((text.get("architectures") or [outer])[0])
    if named != outer:
        return named
    if inner is None:
        raise EngineError(
            f"the config of this {outer} does not say which language model it holds.",
            hint="its text_config needs a model_type or architectures",
        )
    return inner
