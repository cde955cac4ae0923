"""``--limit-mm-per-prompt``: how many items of each kind a prompt may have, as vLLM reads it.

A kind that is not named has no limit (999, vllm/config/multimodal.py, MultiModalConfig.get_limit_per_prompt). A tower
whose kinds are all limited to 0 is not loaded (_mark_tower_model in vllm/model_executor/models/interfaces.py); where
that is so of every kind of the model, it is served as with ``--language-model-only``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from kvplan.catalog.spec import ModelSpec
from kvplan.errors import UsageError
from kvplan.settings import ServingSettings

NO_LIMIT: Final = 999
MODALITIES: Final = ("image", "video", "audio")
_HINT: Final = """for example --limit-mm-per-prompt '{"image": 2, "video": 0}' or image=2,video=0"""
_MARKS: Final = {
    "image": ("vision_config", "image_token_id", "image_token_index"),
    "video": ("video_token_id", "video_token_index", "video_token"),
    "audio": ("audio_config", "audio_token_id", "audio_token_index"),
}
"""Keys of a config, any of which says that the model takes such items."""

Settings = TypeVar("Settings", bound=ServingSettings)


def modality_limits(text: str | None) -> dict[str, int]:
    """Return the limit of each kind that ``text`` names. UsageError for what vLLM does not take."""
    if text is None:
        return {}
    given = _as_json(text) if text.lstrip().startswith("{") else _as_pairs(text)
    unknown = next((name for name in given if name not in MODALITIES), None)
    if unknown is not None:
        raise UsageError(f"--limit-mm-per-prompt has no kind '{unknown}'.", hint="one of " + ", ".join(MODALITIES))
    return {name: _count(name, value) for name, value in given.items()}


def _as_json(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--limit-mm-per-prompt '{text}' is not JSON.", hint=_HINT) from error
    assert isinstance(found, dict), "it begins with a brace"
    return found


def _as_pairs(text: str) -> Mapping[str, Any]:
    pairs = [part.partition("=") for part in text.split(",")]
    if any(not sign for _, sign, _ in pairs):
        raise UsageError(f"--limit-mm-per-prompt '{text}' names no number of items.", hint=_HINT)
    return {name.strip(): number.strip() for name, _, number in pairs}


def _count(name: str, value: Any) -> int:
    """A number, or an object with a ``count`` beside the sizes of the items."""
    number = value.get("count", NO_LIMIT) if isinstance(value, Mapping) else value
    if isinstance(number, str) and number.isdecimal() and len(number) < 10:
        number = int(number)
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise UsageError(f"--limit-mm-per-prompt takes a number of items for {name}, not '{number}'.", hint=_HINT)
    return number


def own_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a config that describes what is served: of models that also speak, the thinker's."""
    thinker = config.get("thinker_config")
    return thinker if isinstance(thinker, Mapping) else config


def taken_modalities(spec: ModelSpec) -> tuple[str, ...]:
    """Return the kinds of items that the model takes, as far as its config says."""
    named = {*spec.raw_config, *own_config(spec.raw_config)}
    return tuple(name for name, keys in _MARKS.items() if not named.isdisjoint(keys))


def as_limited(spec: ModelSpec, settings: Settings) -> Settings:
    """Return ``settings`` as those of a language model alone where a prompt may have no item of any kind."""
    limits, taken = modality_limits(settings.limit_mm_per_prompt), taken_modalities(spec)
    if not taken or any(limits.get(name, NO_LIMIT) for name in taken):
        return settings
    return replace(settings, language_model_only=True)
