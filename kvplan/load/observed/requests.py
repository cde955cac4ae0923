"""Each request of a run as a line of ``requests.jsonl``, made once the run has ended so that no client waits for it."""

from __future__ import annotations

from kvplan.load.client.record import RequestRecord
from kvplan.load.observed.figures import MeasuredRun, counting, tells_gaps, token_times
from kvplan.runs.request_lines import RequestLine, gaps_between, longest_gap, rounded


def request_lines(run: MeasuredRun, trial_id: str, *, with_gaps: bool = False) -> list[RequestLine]:
    """Return all requests in order of sending, warm-ups too. with_gaps: with every gap between tokens, where told."""
    has_gaps = tells_gaps(counting([record for record in run.measured if record.is_served]))
    start = run.start
    return [_line(run, record, trial_id, start, has_gaps, with_gaps) for record in run.records]


def _line(
    run: MeasuredRun, record: RequestRecord, trial_id: str, start: float, has_gaps: bool, with_gaps: bool
) -> RequestLine:
    times = token_times(record) if record.is_served else []
    arrival = run.arrival(record)
    # A server that counts nothing tells when output began and ended, not of how many tokens it was.
    tpot = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 and record.num_output_tokens else None
    ended = times[-1] if times else record.ended or None
    line: RequestLine = {
        "trial_id": trial_id,
        "id": record.index,
        "scheduled_s": round(record.scheduled - start, 6),
        "sent_s": round(record.started - start, 6),
        "ttft_s": rounded(times[0] - arrival if times else None),
        "tpot_s": rounded(tpot),
        "itl_max_s": longest_gap(times) if has_gaps else None,
        "e2el_s": rounded(times[-1] - arrival if times else None),
        "end_s": rounded(None if ended is None else ended - start),
        "input_tokens": record.num_prompt_tokens or record.num_prompt_tokens_asked,
        "cached_tokens": record.num_cached_tokens,
        "output_tokens": record.num_output_tokens,
        "error": None if record.is_served else record.error or "no token came",
    }
    if record.is_warmup:
        line["is_warmup"] = True
    if with_gaps and has_gaps:
        line["itl_s"] = gaps_between(times)
    return line
