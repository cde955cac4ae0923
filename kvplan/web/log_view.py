"""A start-up log as the page shows it: the same account as ``kvplan explain`` prints, cell by cell."""

from __future__ import annotations

from typing import Any

from kvplan.api import Explanation
from kvplan.explaining.explanation import difference_gib
from kvplan.settings import KNOBS
from kvplan.units import format_gib

_NOBODYS = ("has_flashinfer", "estimate_cudagraphs")
"""Read off a log, and set by no option."""


def log_view(found: Explanation, document: dict[str, Any]) -> dict[str, Any]:
    """What was started, where its memory went, and what to change."""
    return {
        "title": f"{document['engine']} {document['version'] or '(version not printed)'}",
        "model": document["model"] or "a model without a name",
        "gpu": document["gpu"],
        "failure": document["failure"],
        "settings": [
            {"name": KNOBS[name].option, "value": str(value)}
            for name, value in document["settings"].items()
            if name not in _NOBODYS
        ],
        "memory": [
            {
                "part": part.name,
                "logged": _gib(part.logged_bytes),
                "predicted": _gib(part.predicted_bytes),
                "difference": "-" if (apart := difference_gib(part)) is None else f"{apart:+.2f}",
            }
            for part in found.answer.parts
            if (part.logged_bytes, part.predicted_bytes) != (None, None)
        ],
        "counts": [
            {"part": name, "logged": _count(document[key]["logged"]), "predicted": _predicted(document[key])}
            for name, key in (("KV cache tokens", "kv_cache_tokens"), ("blocks", "num_blocks"))
            if set(document[key].values()) != {None}
        ],
        "changes": [
            {
                "change": each["change"],
                "gained": None if each["gained_tokens"] is None else f"+{each['gained_tokens']:,} tokens",
            }
            for each in document["changes"]
        ],
        "notes": document["notes"],
    }


def _predicted(count: dict[str, int | None]) -> str:
    low, high = count.get("predicted_low"), count.get("predicted_high")
    return _count(count["predicted"]) + (f" ({_count(low)} to {_count(high)})" if high else "")


def _gib(size: int | None) -> str:
    return "-" if size is None else f"{format_gib(size)} GiB"


def _count(found: int | None) -> str:
    return "-" if found is None else f"{found:,}"
