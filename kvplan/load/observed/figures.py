"""A run as columns of a row. Definitions of throughput and latency are those of a sweep's trials (vLLM's)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import numpy as np

from kvplan.load.client.record import RequestRecord
from kvplan.load.observed.health import ClientHealth
from kvplan.load.observed.monitor import ServerView
from kvplan.metrics.histograms import Histogram
from kvplan.metrics.prometheus import figure_of
from kvplan.metrics.window import WindowFigures
from kvplan.runs.columns import Row
from kvplan.runs.directory import Series
from kvplan.runs.request_lines import RequestLine, gaps_between, longest_gap, rounded
from kvplan.sweeps.worker.metrics import RequestTrace, goodput_figures, latency_statistics, serving_figures

_MOST_POINTS = 400
# Below this share of chunks per token the gaps between chunks are not those between tokens.
LEAST_CHUNKS_PER_TOKEN: Final = 0.95
_TOKEN_COLUMNS: Final = ("total_output_tokens", "output_throughput", "total_token_throughput")


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """The measured part of a run. records: all of them, warm-ups too. is_open: latency counts from the schedule.

    start, end: of the measured part, on the records' clock.
    """

    records: tuple[RequestRecord, ...]
    is_open: bool

    @property
    def measured(self) -> list[RequestRecord]:
        return [record for record in self.records if not record.is_warmup]

    @property
    def start(self) -> float:
        return min((self.arrival(record) for record in self.measured), default=0.0)

    @property
    def end(self) -> float:
        """When the last measured request had its last token, or failed."""
        return max((record.times[-1] if record.is_served else record.ended for record in self.measured), default=0.0)

    @property
    def duration(self) -> float:
        return max(self.end - self.start, 1e-9)

    def arrival(self, record: RequestRecord) -> float:
        """When the request counts as arrived: scheduled in an open loop, begun in a closed one."""
        return record.scheduled if self.is_open else record.started


def client_figures(run: MeasuredRun, slo_seconds: Mapping[str, float]) -> Row:
    """Throughput, latency, goodput, and how tokens were counted. Nothing that needs a count where there is none."""
    measured = run.measured
    traces = [_trace(run, record) for record in measured]
    row = serving_figures(traces, run.duration)
    row |= goodput_figures(traces, run.duration, slo_seconds)
    served = [record for record in measured if record.is_served]
    row |= _sent_figures(served)
    row |= counting(served)
    if any(record.is_warmup for record in run.records):
        row |= _rates_within(run)
    if any(record.token_source is None for record in served):
        row |= _without_counts(slo_seconds)
    if not tells_gaps(row):
        row |= latency_statistics("itl", [])
    return row


def _trace(run: MeasuredRun, record: RequestRecord) -> RequestTrace:
    num_prompt = record.num_prompt_tokens or record.num_prompt_tokens_asked
    times = token_times(record) if record.is_served else []
    return RequestTrace(str(record.index), num_prompt, run.arrival(record), times, record.is_served)


def token_times(record: RequestRecord) -> list[float]:
    """When each token came. Where only the end told how many there were, they are spread evenly between first and last:
    TTFT, TPOT and latency are exact so, gaps are not. Without any count, first and last alone."""
    number = record.num_output_tokens or 0
    if record.counts and len(record.counts) == len(record.times):
        times = [time for time, count in zip(record.times, record.counts, strict=True) for _ in range(count)]
        return times + [record.times[-1]] * (number - len(times))
    if number < 2:
        return record.times[:1] if number else [record.times[0], record.times[-1]]
    return [float(time) for time in np.linspace(record.times[0], record.times[-1], number)]


def counting(served: Sequence[RequestRecord]) -> Row:
    """Return how tokens were counted; the weakest way where requests differ."""
    ways = {record.token_source for record in served}
    weakest = next((way for way in (None, "usage", "token_ids", "continuous_usage") if way in ways), None)
    tokens = sum(record.num_output_tokens or 0 for record in served)
    chunks = sum(len(record.times) for record in served)
    known = weakest is not None and tokens > 0
    return {"token_source": weakest, "chunks_per_token": chunks / tokens if known else None}


def tells_gaps(row: Row) -> bool:
    """Return whether the gaps between chunks are those between tokens."""
    return (row.get("chunks_per_token") or 0.0) >= LEAST_CHUNKS_PER_TOKEN and row.get("token_source") != "usage"


def _sent_figures(served: Sequence[RequestRecord]) -> Row:
    """TTFT from the moment of sending: what is left when the client's and the schedule's waiting is taken away."""
    ttfts = [1000 * (record.times[0] - record.started) for record in served]
    if not ttfts:
        return {"mean_sent_ttft_ms": None, "p99_sent_ttft_ms": None}
    return {"mean_sent_ttft_ms": float(np.mean(ttfts)), "p99_sent_ttft_ms": float(np.percentile(ttfts, 99))}


def _rates_within(run: MeasuredRun) -> Row:
    """Rates of everything that came within the measured part, whoever asked for it: warm-up requests are not drained,
    so the server still worked for them then."""
    served = [record for record in run.records if record.is_served]
    within = [sum(run.start <= time <= run.end for time in token_times(record)) for record in served]
    finished = [record for record in served if run.start <= record.times[-1] <= run.end]
    prompts = sum(record.num_prompt_tokens or record.num_prompt_tokens_asked for record in finished)
    return {
        "request_throughput": len(finished) / run.duration,
        "output_throughput": sum(within) / run.duration,
        "total_token_throughput": (sum(within) + prompts) / run.duration,
    }


def _without_counts(slo_seconds: Mapping[str, float]) -> Row:
    """What a server that never counts tokens leaves unknown."""
    row: Row = cast(Row, dict.fromkeys(_TOKEN_COLUMNS))
    row |= latency_statistics("tpot", [])
    row |= latency_statistics("itl", [])
    if "tpot" in slo_seconds:
        row |= {"request_goodput": None, "goodput_pct": None, "slo_pass": None}
    return row


def health_figures(health: ClientHealth) -> Row:
    return {
        "client_bound": health.is_bound,
        "dispatch_delay_p99_ms": 1000 * health.dispatch_delay_p99,
        "loop_lag_p99_ms": 1000 * health.loop_lag_p99,
        "client_cpu_pct": 100 * health.cpu_share,
    }


def server_figures(server: ServerView) -> Row:
    """What the server told of the run: gauges by the readings within it, counts from before to after."""
    readings, within, window = server.readings, server.within, server.window
    if not readings:
        return {}
    usages = [reading.kv_cache_usage for reading in within if reading.kv_cache_usage is not None]
    fullest = [usage for reading in within if (usage := reading.kv_cache_usage_highest) is not None]
    running = [reading.num_running for reading in within if reading.num_running is not None]
    waiting = [reading.num_waiting for reading in within if reading.num_waiting is not None]
    row: Row = {
        "engine": readings[-1].engine,
        "engine_version": server.limits.version,
        "data_parallel_size": readings[-1].num_engines,
        "kv_cache_tokens": readings[-1].cache.kv_cache_size_tokens,
        "kv_usage_mean": float(np.mean(usages)) if usages else None,
        "kv_usage_p95": float(np.percentile(usages, 95)) if usages else None,
        "kv_usage_max": max(fullest, default=None),
        "max_running": int(max(running)) if running else None,
        "max_waiting": int(max(waiting)) if waiting else None,
    }
    told = {name: getattr(server.limits, name) for name in ("kernels", "device", "device_memory_bytes", "dtype")}
    row |= cast(Row, {name: value for name, value in told.items() if value is not None})
    if server.limits.max_num_seqs or readings[-1].max_num_seqs:
        row["max_num_seqs"] = server.limits.max_num_seqs or readings[-1].max_num_seqs or 0
    if window is None or window.restarted:
        return row
    hits = window.prefix_cache_hits if readings[-1].prefix_unit == "tokens" else None
    return row | {
        "num_preemptions": None if window.num_preemptions is None else int(window.num_preemptions),
        "num_cached_tokens": None if hits is None else int(hits),
        "prefix_hit_rate": window.prefix_hit_rate,
        **_draft_figures(server, window),
        "queue_p95": resolved_percentile(window.queue_time, 95),
        "server_mean_queue_ms": _mean_ms(window.queue_time),
        "server_mean_ttft_ms": _mean_ms(window.ttft),
        "server_mean_itl_ms": _mean_ms(window.itl),
        "server_mean_e2el_ms": _mean_ms(window.e2e_latency),
    }


def _draft_figures(server: ServerView, window: WindowFigures) -> Row:
    """What became of the draft tokens; nothing of a server that does not draft."""
    if not window.num_drafts:
        told = [length for reading in server.within if (length := reading.mean_acceptance_length)]
        return {"mean_acceptance_length": float(np.mean(told))} if told else {}
    by_position = sorted(window.accepted_per_position.items(), key=lambda item: figure_of(item[0]) or 0.0)
    return {
        "num_drafts": int(window.num_drafts),
        "num_draft_tokens": int(window.num_draft_tokens or 0),
        "num_accepted_tokens": int(window.num_accepted_tokens or 0),
        "acceptance_rate": window.acceptance_rate,
        "mean_acceptance_length": window.mean_acceptance_length,
        "accepted_per_position": " ".join(f"{count / window.num_drafts:.3f}" for _, count in by_position) or None,
    }


def resolved_percentile(histogram: Histogram | None, percent: float) -> float | None:
    """A percentile that the buckets can tell: not in the first one, of which only the upper edge is known."""
    edges = None if histogram is None else histogram.percentile_range(percent)
    if histogram is None or edges is None or edges[0] == 0.0:
        return None
    return histogram.percentile(percent)


def _mean_ms(histogram: Histogram | None) -> float | None:
    mean = None if histogram is None else histogram.mean
    return None if mean is None else 1000 * mean


def series_of(run: MeasuredRun, server: ServerView) -> Series | None:
    """At most 400 points, one per reading; None without readings within the run. A figure that one reading lacks is
    left out."""
    stride = -(-len(server.readings) // _MOST_POINTS) or 1
    readings = server.readings[::stride]
    if len(readings) < 2 or not server.within:
        return None
    moments = np.array([reading.seconds for reading in readings])
    arrived = np.array(sorted(time for record in run.records if record.is_served for time in token_times(record)))
    counts = np.searchsorted(arrived, moments)
    spans = np.diff(moments)
    rates = np.concatenate([[0.0], np.diff(counts) / np.where(spans > 0, spans, 1.0)])
    columns: dict[str, list[float | None]] = {
        "seconds": [round(float(moment) - run.start, 4) for moment in moments],
        "kv_usage": [reading.kv_cache_usage for reading in readings],
        "num_running": [reading.num_running for reading in readings],
        "num_waiting": [reading.num_waiting for reading in readings],
        "output_tokens_per_second": [round(float(rate), 3) for rate in rates],
    }
    return cast(Series, {name: values for name, values in columns.items() if None not in values})


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
