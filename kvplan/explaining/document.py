"""An explained start-up log as the JSON document ``kvplan.explain/1``."""

from __future__ import annotations

from typing import Any

from kvplan.explaining.explanation import LogAccount
from kvplan.explaining.stated_settings import named_settings

SCHEMA = "kvplan.explain/1"


def explanation_document(answer: LogAccount) -> dict[str, Any]:
    """The whole account."""
    log, predicted = answer.log, answer.predicted
    low, high = predicted.tokens_range or (None, None)
    return {
        "schema": SCHEMA,
        "engine": log.engine,
        "version": log.version,
        "model": log.model,
        "gpu": None if answer.gpu is None else answer.gpu.id,
        "settings": named_settings(log.settings),
        "failure": log.stopped,
        "memory": [
            {"part": part.name, "logged_bytes": part.logged_bytes, "predicted_bytes": part.predicted_bytes}
            for part in answer.parts
        ],
        "kv_cache_tokens": {
            "logged": log.kv_cache_tokens,
            "predicted": predicted.kv_cache_tokens,
            "predicted_low": low,
            "predicted_high": high,
        },
        "num_blocks": {"logged": log.num_blocks, "predicted": predicted.num_blocks},
        "max_concurrency": {"logged": log.max_concurrency, "predicted": predicted.max_concurrency},
        "changes": [{"change": each.sentence, "gained_tokens": each.gained_tokens} for each in answer.changes],
        "notes": list(answer.notes),
    }
