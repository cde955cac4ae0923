"""``--speculative-config`` of kvplan's own engine: who proposes tokens, and how many."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import ModelSpec
from kvplan.catalog.speculation.reading import with_speculation
from kvplan.errors import UsageError
from kvplan.files import parse_json
from kvplan.settings import ServingSettings

AXIS: Final = "num_speculative_tokens"
_OPTION: Final = "--speculative-config"
_EXAMPLE: Final = f"""for example {_OPTION} '{{"method": "ngram", "num_speculative_tokens": 4}}'"""
_DRAFT_MODEL: Final = "draft_model"
_METHODS: Final = ("ngram", _DRAFT_MODEL, "mtp")
_LOOKUPS: Final = ("prompt_lookup_min", "prompt_lookup_max")


def read_drafting(text: str) -> dict[str, Any]:
    """The JSON object. UsageError for anything else, and for what the engine would refuse."""
    try:
        found = parse_json(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UsageError(f"{_OPTION} '{text}' is not a JSON object.", hint=_EXAMPLE)
    unknown = next((name for name in found if name not in ("method", "model", AXIS, *_LOOKUPS)), None)
    if unknown is not None:
        raise UsageError(f"kvplan's engine does not know '{unknown}' of {_OPTION}.", hint=_EXAMPLE)
    method = method_of(found)
    if method not in _METHODS:
        raise UsageError(
            f"kvplan's engine proposes by 'ngram', 'draft_model' or 'mtp', and {_OPTION} says {method!r}.",
            hint=_EXAMPLE,
        )
    if method == _DRAFT_MODEL and not isinstance(found.get("model"), str):
        raise UsageError(f"{_OPTION} has method 'draft_model' and no model.", hint="add its 'model'")
    for name in (AXIS, *_LOOKUPS):
        value = found.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"'{name}' of {_OPTION} is not a whole number of at least 1.", hint=_EXAMPLE)
    return found


def method_of(found: Mapping[str, Any]) -> object:
    """Find it as vLLM does: a model without a method is a draft model, unless it is called after a method.

    "mimo_mtp" and the like are older names of "mtp".
    """
    model = found.get("model")
    inferred = None if model is None else "ngram" if model in ("ngram", "[ngram]") else _DRAFT_MODEL
    method = found.get("method", inferred)
    return "mtp" if str(method).endswith("_mtp") else method


def with_absolute_path(text: str) -> str:
    """The JSON with the draft model's path made absolute, where it is one."""
    found = read_drafting(text)
    path = Path(str(found.get("model", ""))).expanduser()
    is_path = method_of(found) == _DRAFT_MODEL and path.exists()
    return json.dumps({**found, "model": str(path.resolve())}) if is_path else text


def swept_model(name: str, text: str | None) -> ModelSpec:
    """The model ``name``, with the drafter that the JSON names, if it has layers."""
    spec, found = resolve_model(name), {} if text is None else read_drafting(text)
    method = str(method_of(found)) if found else "ngram"
    if method == "ngram":
        return spec
    drafter = found.get("model") if method == _DRAFT_MODEL else None
    asked = ServingSettings(speculative_method=method, speculative_model=drafter, num_speculative_tokens=1)
    return with_speculation(spec, asked).spec


def with_drafts(axes: Mapping[str, str], text: str | None) -> dict[str, str]:
    """``axes`` with the number of tokens that the JSON names, where the axis does not vary it."""
    found = {} if text is None else read_drafting(text)
    return dict(axes) if AXIS in axes or AXIS not in found else {**axes, AXIS: str(found[AXIS])}


def check_drafting(axes: Mapping[str, str], text: str | None) -> None:
    """UsageError where one of both is given, and the other is not."""
    if text is None and AXIS in axes:
        raise UsageError(
            "--num-speculative-tokens says how many tokens are proposed, but not by whom.",
            hint=f"""add {_OPTION} '{{"method": "ngram"}}'""",
        )
    if text is None:
        return
    if AXIS not in with_drafts(axes, text):
        raise UsageError(f"{_OPTION} says by whom tokens are proposed, but not how many.", hint=_EXAMPLE)


def loads_draft_model(text: str | None, num_tokens: int) -> bool:
    """Whether the engine of a trial has weights of a drafter, which one without drafts has not."""
    return text is not None and num_tokens > 0 and method_of(read_drafting(text)) != "ngram"


def engine_config(text: str, num_tokens: int) -> dict[str, Any]:
    """The engine's ``speculative_config``."""
    return {**read_drafting(text), AXIS: num_tokens}
