"""Token counts and times at the end of an answer."""

from __future__ import annotations

import time
from typing import Any

from kvplan_engine.server.engine_client.generation import Generation


def usage(generations: list[Generation], num_completion_tokens: int) -> dict[str, Any]:
    """OpenAI's ``usage``. A prompt counts once, however many samples answer it."""
    num_prompt_tokens = sum(generation.num_prompt_tokens for generation in generations)
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_completion_tokens,
        "total_tokens": num_prompt_tokens + num_completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(each.num_cached_tokens for each in generations)},
    }


def request_metrics(generations: list[Generation]) -> dict[str, float | None]:
    """vLLM's ``metrics`` of a request, in ms: of its first prompt's first sample, from arrival on."""
    first = generations[0]
    times = first.answers[0]
    result: dict[str, float | None] = {
        "time_to_first_token_ms": None,
        "generation_time_ms": None,
        "queue_time_ms": None,
        "mean_itl_ms": None,
        "tokens_per_second": None,
    }
    if first.scheduled_seconds is not None:
        result["queue_time_ms"] = _ms(first.scheduled_seconds - first.arrival_seconds)
    if times.num_tokens:
        generating = times.last_token - times.first_token
        result["time_to_first_token_ms"] = _ms(times.first_token - first.arrival_seconds)
        result["generation_time_ms"] = _ms(generating)
        if times.num_tokens > 1:
            result["mean_itl_ms"] = _ms(generating / (times.num_tokens - 1))
        elapsed = time.perf_counter() - first.arrival_seconds
        result["tokens_per_second"] = round(times.num_tokens / elapsed, 3)
    return result


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
