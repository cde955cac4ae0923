"""Checked reading of what the sections of several formats have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kvplan.catalog.config_view import ConfigView

MOST_NAMES: Final = 100_000


def names(section: ConfigView, *keys: str) -> tuple[str, ...]:
    """Return the module names under the first of ``keys`` that has some; one name may stand without its list.

    Longer than other lists of a config: one entry per module. KvplanError for what is no list of names.
    """
    for key in keys:
        value = section.config.get(key)
        if isinstance(value, str):
            return (value,)
        if not value:
            continue
        if not isinstance(value, list) or len(value) > MOST_NAMES or not all(isinstance(name, str) for name in value):
            raise section.reject(key, "a list of module names")
        return tuple(value)
    return ()


def entries(section: ConfigView, key: str) -> dict[str, ConfigView | None]:
    """Return the objects under ``key``, each by its name; None for one that is null. KvplanError for other values."""
    inner = section.section(key)
    if inner is None:
        return {}
    if len(inner.config) > MOST_NAMES:
        raise section.reject(key, f"at most {MOST_NAMES:,} entries")
    return {str(name): inner.section(name) for name in inner.config}


def bits(section: ConfigView, *keys: str, default: int = 4) -> int:
    """Return the bits of a weight."""
    return section.integer(*keys, default=default, minimum=1, maximum=16)


def grouped(section: ConfigView, *keys: str, default: int = 128) -> dict[str, Any]:
    """Return granularity and ``group_size`` as AWQ and GPTQ write it: -1 and 0 mean one scale per output channel."""
    size = section.integer(*keys, default=default, minimum=-1, maximum=2**20)
    if size <= 0:
        return {"granularity": "channel", "group_size": None}
    return {"granularity": "group", "group_size": size}


def block_shape(section: ConfigView, key: str) -> tuple[int, int] | None:
    """Return the rows and columns that share a scale; None where the section says none."""
    shape = section.integers(key, minimum=1)
    if shape is None:
        return None
    if len(shape) != 2:
        raise section.reject(key, "two whole numbers")
    return shape[0], shape[1]


def flattened(value: Any) -> tuple[str, ...]:
    """Return the texts in lists of lists of any depth."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list):
        return tuple(text for each in value for text in flattened(each))
    return ()


def mapping(value: object) -> Mapping[str, Any]:
    """Return ``value`` where it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}
