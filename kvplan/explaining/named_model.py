"""The model of a log: the one that was named, or what the log's own name for it is known as."""

from __future__ import annotations

import os
import re

from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import ModelSpec
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


_CACHED = re.compile(r"models--([\w.-]+?)--([\w.-]+)")
"""A model's folder in the Hugging Face cache."""


def _names(logged: str | None) -> list[str]:
    """The model as logged; of a path that is not here, its last part may be a known name."""
    if logged is None:
        return []
    cached = _CACHED.search(logged)
    if cached:
        return ["/".join(cached.groups())]
    last = logged.rstrip("/").rsplit("/", 1)[-1]
    return [last] if logged.startswith(("/", "~", ".")) and not os.path.exists(logged) else [logged]
