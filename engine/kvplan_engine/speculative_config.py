"""``speculative_config``: who proposes tokens ahead of the model, by vLLM's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from kvplan_engine.errors import SettingsError

METHODS = ("ngram", "draft_model", "mtp")
_EXAMPLE = "for example {'method': 'ngram', 'num_speculative_tokens': 4}"
_USUAL_NGRAM = 5  # vLLM's (vllm/config/speculative.py)
_MOST_DRAFTS = 64


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    """What proposes up to ``num_speculative_tokens`` tokens behind each sequence, which the next step verifies.

    prompt_lookup_min, prompt_lookup_max: with method ngram, of how many tokens the sequence's end is looked up in it.
    model: with method draft_model, the smaller model, named as ``model`` of the engine is. With method mtp the model's
    own layer for multi-token prediction proposes, and there is neither.
    """

    method: str
    num_speculative_tokens: int
    prompt_lookup_min: int = _USUAL_NGRAM
    prompt_lookup_max: int = _USUAL_NGRAM
    model: Any = None


def read_speculative_config(value: Any) -> SpeculativeConfig | None:
    """``value`` as a SpeculativeConfig, from one or from a dict as JSON has it. SettingsError for anything else."""
    if value is None or isinstance(value, SpeculativeConfig):
        return value
    if not isinstance(value, Mapping):
        raise SettingsError(f"speculative_config must be a dict, got {value!r}.", hint=_EXAMPLE)
    known = {field.name for field in fields(SpeculativeConfig)}
    unknown = next((name for name in value if name not in known), None)
    if unknown is not None:
        raise SettingsError(
            f"speculative_config has no '{unknown}' here.", hint="it may have " + ", ".join(sorted(known))
        )
    method = _method(value)
    model = value.get("model") if method == "draft_model" else None
    return SpeculativeConfig(method, _count(value, "num_speculative_tokens"), *_lookup(value), model)


def _method(value: Mapping[str, Any]) -> str:
    """Find it as vLLM does: a model without a method is a draft model, unless it is called after a method.

    "mimo_mtp" and the like are older names of "mtp".
    """
    method, model = value.get("method"), value.get("model")
    if str(method).endswith("_mtp"):
        method = "mtp"
    if method is None and model is not None:
        method = "ngram" if model in ("ngram", "[ngram]") else "draft_model"
    if method not in METHODS:
        raise SettingsError(
            f"speculative_config has method {method!r}, which is not one of {', '.join(METHODS)}.", hint=_EXAMPLE
        )
    if method == "draft_model" and model is None:
        raise SettingsError("speculative_config has method 'draft_model' and no model.", hint="add 'model'")
    return str(method)


def _lookup(value: Mapping[str, Any]) -> tuple[int, int]:
    """Shortest and longest n-gram; one that is not given is the other."""
    given = [_count(value, name) if name in value else None for name in ("prompt_lookup_min", "prompt_lookup_max")]
    shortest, longest = (each or next(filter(None, given), _USUAL_NGRAM) for each in given)
    if shortest > longest:
        raise SettingsError(
            f"speculative_config has prompt_lookup_min {shortest}, which is more than prompt_lookup_max {longest}."
        )
    return shortest, longest


def _count(value: Mapping[str, Any], name: str) -> int:
    number = value.get(name)
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= _MOST_DRAFTS:
        raise SettingsError(
            f"{name} of speculative_config must be a whole number from 1 to {_MOST_DRAFTS}, got {number!r}.",
            hint=_EXAMPLE,
        )
    return number
