"""Damages to bytes and to JSON documents that several targets share."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**70, -(2**63), 10**400, 1e308, -0.0, 0.5, float("nan"), float("inf"),
    "", "0", "-1", "1e9", "\x1b[2J", "\x00", "a" * 5000, "\ud800", "../../etc/passwd", "=1+1", [], {}, [[]], [None],
    {"a": {"b": []}}, [0] * 1000,
)  # fmt: skip
"""Values that nobody expects: other types, huge and negative numbers, control characters, a lone surrogate."""


def odd_value(rng: random.Random) -> Any:
    """Pick a value that nobody expects, sometimes a deeply nested one."""
    if rng.random() < 0.05:
        value: Any = 0
        for _ in range(rng.choice((20, 200))):
            value = [value] if rng.random() < 0.5 else {"a": value}
        return value
    return copy.deepcopy(rng.choice(ODD_VALUES))


def mutate_json(document: Any, rng: random.Random, *, most_changes: int = 4) -> Any:
    """Copy ``document`` with up to ``most_changes`` values replaced, dropped, doubled or added at random places."""
    changed = copy.deepcopy(document)
    for _ in range(rng.randint(1, most_changes)):
        places = _places(changed)
        if not places:
            return odd_value(rng)
        container, key = rng.choice(places)
        if isinstance(container, dict):
            _change_entry(container, key, rng)
        else:
            _change_item(container, key, rng)
    return changed


def deep_json(rng: random.Random) -> bytes:
    """Write a document nested deeper than any parser of Python follows."""
    depth = rng.choice((1_000, 100_000))
    return b"[" * depth + b"]" * depth if rng.random() < 0.5 else b'{"a":' * depth + b"0" + b"}" * depth


def _places(document: Any) -> list[tuple[Any, Any]]:
    """List every (container, key) within ``document``."""
    places: list[tuple[Any, Any]] = []
    waiting = [document]
    while waiting:
        container = waiting.pop()
        keys: Sequence[Any]
        if isinstance(container, dict):
            keys = list(container)
        elif isinstance(container, list):
            keys = range(len(container))
        else:
            continue
        places.extend((container, key) for key in keys)
        waiting.extend(container[key] for key in keys)
    return places


def _change_entry(entries: dict[Any, Any], key: Any, rng: random.Random) -> None:
    kind = rng.random()
    if kind < 0.15:
        del entries[key]
    elif kind < 0.25:
        entries[rng.choice(("", "extra", str(key) + "_", "__class__"))] = odd_value(rng)
    elif kind < 0.4:
        entries[key] = entries[rng.choice(list(entries))]
    else:
        entries[key] = _changed(entries[key], rng)


def _change_item(items: list[Any], index: int, rng: random.Random) -> None:
    kind = rng.random()
    if kind < 0.15:
        del items[index]
    elif kind < 0.25:
        items.insert(index, odd_value(rng))
    else:
        items[index] = _changed(items[index], rng)


def _changed(value: Any, rng: random.Random) -> Any:
    """Change a number a little or much, as a value of another type otherwise."""
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.5:
        as_float = float(value) if abs(value) < 2**1000 else 1e308
        return rng.choice((value + 1, value - 1, -value, value * 2, value * 1000, value // 2, as_float, str(value)))
    return odd_value(rng)


def mutate_bytes(data: bytes, rng: random.Random, *, most_changes: int = 8) -> bytes:
    """Copy ``data`` with bytes flipped, runs removed, doubled or overwritten, or its end cut off."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, most_changes)):
        if not changed:
            break
        start = rng.randrange(len(changed))
        length = min(rng.choice((1, 1, 2, 4, 8, 64)), len(changed) - start)
        kind = rng.random()
        if kind < 0.4:
            changed[start] ^= 1 << rng.randrange(8)
        elif kind < 0.6:
            changed[start : start + length] = rng.choice((b"\x00", b"\xff", b"\x7f", b"\x80")) * length
        elif kind < 0.7:
            changed[start : start + length] = rng.randbytes(length)
        elif kind < 0.8:
            del changed[start : start + length]
        elif kind < 0.9:
            changed[start:start] = changed[start : start + length]
        else:
            del changed[start:]
    return bytes(changed)
