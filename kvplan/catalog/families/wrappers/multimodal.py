"""Multimodal models: the text config is read as a language model, the vision and audio towers are counted apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from operator import itemgetter
from typing import Any

from kvplan.catalog.architectures import architectures, of_type
from kvplan.catalog.config_view import ConfigView
from kvplan.catalog.families.common import Body
from kvplan.catalog.families.wrappers.towers import read_towers
from kvplan.errors import UnknownArchitectureError
from kvplan.paths import read_shipped

_TEXT_SECTIONS = ("text_config", "llm_config", "language_config")


def read_multimodal(view: ConfigView) -> Body:
    """The language model of ``text_config`` (or of a flat config), with the towers as extras."""
    from kvplan.catalog.registry import find_reader

    view = thinking_part(view)
    inner = _text_view(view)
    architecture = _text_architecture(view, inner)
    reader = find_reader(architecture)
    if reader is None or reader is read_multimodal:
        raise UnknownArchitectureError(
            f"Unknown language model {architecture} inside the config.",
            hint="if its layers are like those of a known one: --assume text_config.architectures=LlamaForCausalLM",
        )
    body = reader(inner)
    return replace(body, extras=(*read_towers(view, body.hidden_size), *body.extras))


def thinking_part(view: ConfigView) -> ConfigView:
    """The part that reads and answers in text, where a model has others: Qwen's Omni models speak, Alpamayo drives."""
    thinker = view.section("thinker_config") or view.section("vlm_config")
    if thinker is None:
        return view
    merged = {"architectures": view.config.get("architectures"), **thinker.config}
    if view.has("tie_word_embeddings"):
        merged["tie_word_embeddings"] = view.config["tie_word_embeddings"]
    return ConfigView(merged, path=thinker.path, assumptions=view.assumptions)


def text_section(view: ConfigView) -> ConfigView | None:
    """The language model's own section of a wrapper's config, or None where it stands at the top."""
    sections = (view.section(name) for name in _TEXT_SECTIONS)
    return next((section for section in sections if section is not None), None)


def _text_view(view: ConfigView) -> ConfigView:
    """The text config with the wrapper's setting for tied embeddings and the defaults of its type.

    The outer setting decides, as in vLLM (``VllmConfig.with_hf_config``): transformers 5 keeps it where both layers to
    be tied are seen, and writes the text class's default into the section. One that is silent there says it inside.
    Mistral 3's section decides: the outer class's default is to tie, what is published is not, and vLLM looks at the
    checkpoint for a head (``ModelConfig.maybe_untie_word_embeddings``).
    """
    section = text_section(view)
    if section is None:
        return view
    merged = dict(section.config)
    is_said_inside = section.has("tie_word_embeddings") and _outer_name(view) in _TIED_INSIDE
    if view.has("tie_word_embeddings") and not is_said_inside:
        merged["tie_word_embeddings"] = view.config["tie_word_embeddings"]
    elif "tie_word_embeddings" not in merged and _ties(view):
        merged["tie_word_embeddings"] = True
    model_type = section.text("model_type", default="")
    for key, value in _defaults().get(model_type, {}).items():
        if merged.get(key) is None and not _has_alternative(key, merged):
            merged[key] = value
            shown = str(value).lower() if isinstance(value, bool) else f"{value:,}"
            view.assume(f"'{section.path}{key}' is not in the config: {shown}, the default of {model_type}.")
    if model_type == "glm_ocr_text" and merged.get("head_dim") is None:  # where GLM 4 itself has heads of 128
        merged["head_dim"] = merged["hidden_size"] // merged["num_attention_heads"]
    return ConfigView(merged, path=section.path, assumptions=view.assumptions)


@cache
def _defaults() -> Mapping[str, Mapping[str, Any]]:
    """What transformers' configuration classes take for a key that a nested config leaves out, by ``model_type``."""
    return read_shipped("text-defaults.json", itemgetter("defaults"))


def _has_alternative(key: str, config: Mapping[str, Any]) -> bool:
    return key == "sliding_window" and "layer_types" in config and config["model_type"] != "gemma4_unified_text"


_TIED_INSIDE = frozenset(("Mistral3ForConditionalGeneration",))


def _ties(view: ConfigView) -> bool:
    """Whether the wrapper's class ties the embeddings where no part of the config says so."""
    row = architectures().get(_outer_name(view))
    return row is not None and row.ties


def _outer_name(view: ConfigView) -> str:
    """The wrapper's own architecture; of a config that names none, what its type stands for."""
    named = view.texts("architectures")
    row = None if named else of_type(view.text("model_type", default=""))
    return named[0] if named else "" if row is None else row.architecture


def _of_version(view: ConfigView, known: Mapping[str, str]) -> str:
    """The language model of the config's ``version`` (vllm/model_executor/models/minicpmv.py)."""
    version = view.config.get("version") or next(iter(known))
    is_first = _outer_name(view) == "MiniCPMV" and not view.has("version") and view.config.get("query_num") == 64
    if str(version) not in known or is_first:
        raise view.reject("version", "one of " + ", ".join(known))
    return known[str(version)]


def _text_architecture(view: ConfigView, inner: ConfigView) -> str:
    """What the text config names, else what its type stands for, else what this wrapper always holds."""
    from kvplan.catalog.registry import find_reader

    outer = architectures().get(_outer_name(view))
    if outer is not None and outer.text_model_of_version:
        return _of_version(view, outer.text_model_of_version)
    if inner is not view:
        named = inner.texts("architectures") or []
        if named and find_reader(named[0]) is not None:
            return named[0]
        known = of_type(inner.text("model_type", default=""))
        if known is not None and not known.is_wrapper:
            return known.architecture
        if named:
            return named[0]
    always = None if outer is None else outer.text_model
    return always or _outer_name(view) or "without a name"
