"""The model of a log: the one that was named, or what the log's own name for it is known as."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from kvplan.catalog.models import find_profile, profiles, read_profile, resolve_model
from kvplan.catalog.spec import ModelSpec
from kvplan.catalog.variants import find_variant
from kvplan.errors import KvplanError


def named_model(given: str | None, logged: str | None) -> ModelSpec | None:
    """The model that was named; one that only the log names may be unknown."""
    if given is not None:
        return resolve_model(given)
    for name in _names(logged):
        try:
            return resolve_model(name)
        except KvplanError:
            continue
    return None


def is_another_model(spec: ModelSpec, logged: str | None) -> bool:
    """Whether a log's name for its model is known, without asking the hub, and has another shape than ``spec``."""
    for name in _names(logged):
        profile: Mapping[str, Any] | None = find_profile(name)
        if profile is None:
            variant = find_variant(name, profiles())
            profile = None if variant is None else variant.profile
        if profile is not None:
            shape = read_profile(profile)
            return (shape.num_parameters, shape.num_layers) != (spec.num_parameters, spec.num_layers)
    return False


_CACHED = re.compile(r"models--([\w.-]+?)--([\w.-]+)")
"""A model's folder in the Hugging Face cache."""


def shown_name(logged: str | None) -> str | None:
    """The model as people call it: the repository's id where the log has its folder in the Hugging Face cache."""
    cached = _CACHED.search(logged or "")
    return "/".join(cached.groups()) if cached else logged


def _names(logged: str | None) -> list[str]:
    """The model as logged; of a path that is not here, its last part may be a known name."""
    if logged is None:
        return []
    if _CACHED.search(logged):
        return [shown_name(logged) or logged]
    last = logged.rstrip("/").rsplit("/", 1)[-1]
    return [last] if logged.startswith(("/", "~", ".")) and not os.path.exists(logged) else [logged]
