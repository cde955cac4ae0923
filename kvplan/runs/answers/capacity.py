"""What a pool holds, what a load reached of it, and what held it back: the headline of a run that only counted.

Sequences at once are the smaller of what the pool has room for and what the load asks of it. So both are said, and why
they differ: found by elimination, since a scheduler admits whatever seats, blocks, the load and a step's tokens allow.
"""

from __future__ import annotations

from kvplan.runs.columns import Row
from kvplan.units import format_tokens, plural

_ALIKE = 0.005
"""Two counts of a pool's tokens this close are said once."""


def capacity_text(row: Row) -> str:
    """``the pool holds 3.8 sequences of 160k tokens (629,312 tokens), and this load reached 128: ...``.

    Without the pool's tokens, which rows of earlier versions lack, only what was reached.
    """
    reached = f"this load reached {row['max_running'] or 0:,} at once: {_held_back(row)}"
    tokens, longest = row.get("kv_cache_tokens"), row["max_model_len"]
    if not tokens or not longest:
        return reached
    return (
        f"the pool holds {_sequences(tokens, longest)} of {format_tokens(longest)} tokens ({tokens:,} tokens"
        f"{_as_vllm_counts(row, tokens, longest)}), and {reached}"
    )


def preemption_text(row: Row) -> str | None:
    """Say that a setting preempts, None where it does not."""
    number = row.get("num_preemptions")
    return f"blocks ran out: {plural(int(number), 'preemption')}" if number else None


def _sequences(tokens: int, longest: int) -> str:
    number = tokens / longest
    return f"{number:,.1f} sequences" if number < 10 else f"{int(number):,} sequences"


def _as_vllm_counts(row: Row, tokens: int, longest: int) -> str:
    """vLLM's own count, where its blocks of unlike layers hold another number."""
    theirs = row.get("kv_cache_tokens_vllm")
    if theirs is None or abs(theirs / tokens - 1) < _ALIKE:
        return ""
    return f"; vLLM's own blocks, as it counts them, {theirs:,}: {_sequences(theirs, longest)}"


def _held_back(row: Row) -> str:
    running, seats = row["max_running"] or 0, row["max_num_seqs"]
    in_flight, requests = row["max_concurrency"], row["num_prompts"]
    if (preempted := preemption_text(row)) is not None:
        return preempted
    if row["status"] == "queued":
        return "blocks ran out, so requests waited for them"
    if seats and running >= seats:
        return f"max_num_seqs {seats:,} seats no more"
    if in_flight and running >= in_flight:
        return f"it keeps {in_flight:,} in flight"
    if requests and running >= requests:
        return f"it has {plural(requests, 'request')}"
    step = row["max_num_batched_tokens"]
    return f"{step:,} tokens a step held prompts back" if step else "a step's tokens held prompts back"
