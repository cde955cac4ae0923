"""Each request that a worker served as a line of ``requests.jsonl``."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.runs.request_lines import RequestLine, longest_gap, rounded
from kvplan.sweeps.worker.metrics import RequestTrace

_NOT_SERVED = "it did not end"


def request_lines(traces: Sequence[RequestTrace], trial_id: str, *, timed: bool = True) -> list[RequestLine]:
    """Return the requests in order of sending. timed: False where nothing was computed, so no time means anything."""
    start = min((trace.arrival_seconds for trace in traces), default=0.0)
    return [_line(number, trace, trial_id, start, timed) for number, trace in enumerate(traces)]


def _line(number: int, trace: RequestTrace, trial_id: str, start: float, timed: bool) -> RequestLine:
    is_served = trace.finished and bool(trace.token_times)
    has_times = timed and is_served
    due = trace.arrival_seconds if trace.due_seconds is None else trace.due_seconds
    return {
        "trial_id": trial_id,
        "id": number,
        "scheduled_s": round(due - start, 6) if timed else 0.0,
        "sent_s": round(trace.arrival_seconds - start, 6) if timed else 0.0,
        "ttft_s": rounded(trace.ttft_seconds) if has_times else None,
        "tpot_s": rounded(trace.tpot_seconds) if has_times else None,
        "itl_max_s": longest_gap(trace.token_times) if has_times else None,
        "e2el_s": rounded(trace.latency_seconds) if has_times else None,
        "end_s": rounded(trace.token_times[-1] - start) if has_times else None,
        "input_tokens": trace.num_prompt_tokens,
        "cached_tokens": trace.num_cached_tokens,
        "output_tokens": len(trace.token_times) if is_served else None,
        "error": None if is_served else trace.error or _NOT_SERVED,
    }
