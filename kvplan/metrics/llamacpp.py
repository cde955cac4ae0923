"""llama-server's /slots: what its metrics page stopped telling in May 2025 (#13660), how many tokens are held.

A slot is a place for one sequence: ``n_ctx`` tokens at most, of which ``n_prompt_tokens`` (prompt and answer) are in
the cache. An idle slot keeps those of its last sequence until another takes it, so idle ones count as free. Whether
slots share one pool (``--kv-unified``, the default where ``--parallel`` is not given) is told nowhere: then all of them
cannot be filled at once, and a share of the pool is not known. tools/server/server-context.cpp, b11434.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from kvplan.metrics.reading import ServerReading

_LARGEST: Final = 2**53
"""More is no number of tokens."""


def with_slots(reading: ServerReading, document: object) -> ServerReading:
    """The reading with what the slots hold; as it was for anything but a list of slots."""
    if not isinstance(document, list) or not document or not all(isinstance(slot, Mapping) for slot in document):
        return reading
    busy = [slot for slot in document if slot.get("is_processing")]
    held = [_count(slot, "n_prompt_tokens") for slot in busy]
    known = [tokens for tokens in held if tokens is not None]
    return replace(
        reading,
        num_slots=len(document),
        slot_tokens=_count(document[0], "n_ctx"),
        kv_cache_used_tokens=float(sum(known)) if len(known) == len(held) else None,
    )


def _count(slot: Mapping[str, Any], name: str) -> int | None:
    value = slot.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST else None
