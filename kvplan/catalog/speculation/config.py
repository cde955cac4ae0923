"""``--speculative-config``: vLLM's JSON object, as the settings that kvplan knows by the same names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from kvplan.errors import UsageError
from kvplan.files import parse_json
from kvplan.settings import ServingSettings

_EXAMPLE: Final = """--speculative-config '{"method": "mtp", "num_speculative_tokens": 1}'"""
_READ: Final = ("method", "model", "num_speculative_tokens", "draft_tensor_parallel_size")
_WITHOUT_EFFECT: Final = (
    *("prompt_lookup_max", "prompt_lookup_min", "max_model_len", "revision", "code_revision", "enforce_eager"),
    *("rejection_sample_method", "draft_sample_method", "disable_padded_drafter_batch", "acceptance_method"),
)
"""Keys that change neither memory nor the figures given here."""


def with_speculative_config(settings: ServingSettings, text: str | None) -> ServingSettings:
    """``settings`` with what the JSON says of the drafter. UsageError for what is no such object, or is not known.

    A drafter is sized as divided over the same ranks as the model, which vLLM does unless it is told otherwise.
    """
    if text is None:
        return settings
    found = _parsed(text)
    unknown = sorted(set(found) - {*_READ, *_WITHOUT_EFFECT})
    if unknown:
        raise UsageError(
            f"kvplan does not know '{unknown[0]}' of --speculative-config.", hint=f"for example {_EXAMPLE}"
        )
    ranks = found.get("draft_tensor_parallel_size")
    if ranks is not None and ranks != settings.tensor_parallel_size:
        raise UsageError(
            f"kvplan sizes drafters on as many ranks as the model; draft_tensor_parallel_size is {ranks}.",
            hint=f"leave it out, or use {settings.tensor_parallel_size}",
        )
    told: dict[str, Any] = {
        "speculative_method": _name(found, "method"),
        "speculative_model": _name(found, "model"),
        "num_speculative_tokens": _count(found),
    }
    changed = replace(settings, **{name: value for name, value in told.items() if value is not None})
    changed.check(as_options=True)
    return changed


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = parse_json(text)
    except ValueError as error:
        raise UsageError(f"--speculative-config '{text}' is not JSON.", hint=f"for example {_EXAMPLE}") from error
    if not isinstance(found, dict):
        raise UsageError(f"--speculative-config '{text}' is not a JSON object.", hint=f"for example {_EXAMPLE}")
    return found


def _name(found: dict[str, Any], key: str) -> str | None:
    value = found.get(key)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"'{key}' of --speculative-config is not a text.", hint=f"for example {_EXAMPLE}")
    return value


def _count(found: dict[str, Any]) -> int | None:
    value = found.get("num_speculative_tokens")
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise UsageError(
            "'num_speculative_tokens' of --speculative-config is not a whole number.", hint=f"for example {_EXAMPLE}"
        )
    return value
