"""What ``kvplan load`` prints: progress on stderr, results on stdout."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvplan.commands.printing.render import print_json, print_sentence, print_table
from kvplan.foreign_text import printable, unguarded
from kvplan.load.observed.monitor import EngineFigures, engine_figures
from kvplan.load.options import LoadOptions
from kvplan.load.run import LoadProgress, LoadRun, OnProgress
from kvplan.load.self_test import Ceiling
from kvplan.load.session import LoadOutcome
from kvplan.load.target import Target
from kvplan.load.traffic.plan import TrafficPlan
from kvplan.runs.columns import Row
from kvplan.runs.rows import number
from kvplan.terminal import fitted

_LATENCIES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E latency"}
_STATISTICS = {"mean": "mean", "median": "median", "p90": "p90", "p95": "p95", "p99": "p99", "p99_9": "p99.9"}
_COUNTED_BY = {
    "continuous_usage": "from the usage field of every chunk",
    "token_ids": "from the token ids of every chunk",
    "usage": "from the usage field at the end of each answer",
}


def announce(options: LoadOptions, target: Target, directory: Path) -> None:
    form = target.form
    searched = f"searching {options.search_range.variable}" if options.search else None
    text = options.traffic().as_text(searched)
    said = f"{form.model} at {form.address.url}: {text}; writing {directory}"
    print(fitted(printable(said), sys.stderr, further="  "), file=sys.stderr)
    for note in options.file_notes():
        print(printable(note), file=sys.stderr)
    if target.token_source is None:
        print("warning: the server does not count tokens, so there is no figure per token", file=sys.stderr)


def print_ceiling(ceiling: Ceiling, *, as_json: bool) -> None:
    """How much the client can read; as JSON only where nothing else is printed."""
    if as_json:
        print_json(
            {
                "schema": "kvplan.load-ceiling/1",
                "tokens_per_second": ceiling.tokens_per_second,
                "cpu_microseconds_per_token": 1e6 * ceiling.cpu_seconds_per_token,
                "num_in_flight": ceiling.num_in_flight,
            }
        )
        return
    print(
        f"self-test: the client reads {ceiling.tokens_per_second:,.0f} tokens/s in {ceiling.num_in_flight} streams "
        f"from a server that answers at once ({1e6 * ceiling.cpu_seconds_per_token:.1f} us of CPU per token)",
        file=sys.stderr,
    )


class StderrListener:
    """One line that is written over on a terminal; elsewhere one line per run."""

    def __init__(self, *, is_live: bool) -> None:
        self._is_live = is_live
        self._plan: TrafficPlan | None = None

    def run_started(self, plan: TrafficPlan, number: int) -> None:
        self._plan = plan

    @property
    def on_progress(self) -> OnProgress:
        return self._show if self._is_live else _say_nothing

    def run_ended(self, run: LoadRun, row: Row) -> None:
        start = "\r\x1b[K" if self._is_live else ""
        load = "" if self._plan is None else f" ({self._plan.arrivals_text})"
        print(f"{start}run {row['trial_number']}{load}: {printable(_one_line(row))}", file=unguarded(sys.stderr))

    def _show(self, progress: LoadProgress) -> None:
        sent = progress.sent
        parts = [f"{sent.seconds:.0f} s", f"{sent.num_ended:,} of {sent.num_sent:,} sent requests ended"]
        parts.append(f"{sent.num_tokens:,} tokens")
        reading = progress.reading
        if reading is not None and reading.num_running is not None:
            parts.append(f"{reading.num_running:.0f} running, {reading.num_waiting or 0:.0f} waiting")
        if reading is not None and reading.kv_cache_usage is not None:
            parts.append(f"KV {100 * reading.kv_cache_usage:.0f} %")
        print("\r\x1b[K" + printable(" · ".join(parts)), end="", flush=True, file=unguarded(sys.stderr))


def _say_nothing(progress: LoadProgress) -> None:
    """Nobody watches."""


def make_listener() -> StderrListener:
    return StderrListener(is_live=sys.stderr.isatty())


def _one_line(row: Row) -> str:
    if row["status"] == "failed" and not row["completed"]:
        return f"failed: {row['error']}"
    parts = [f"{row['status']}"]
    for name, text in (("output_throughput", "{:,.1f} tokens/s"), ("p99_ttft_ms", "TTFT p99 {:,.0f} ms"),
                       ("p99_tpot_ms", "TPOT p99 {:,.1f} ms")):  # fmt: skip
        value = number(row, name)
        if value is not None:
            parts.append(text.format(value))
    if row["bound_by"]:
        parts.append(f"bound by {row['bound_by']}")
    return ", ".join(parts)


def print_outcome(outcome: LoadOutcome, ceiling: Ceiling | None, *, as_json: bool) -> None:
    """The summary as JSON alone, or as tables. Warnings go to stderr either way."""
    for warning in _warnings(outcome, ceiling):
        print(fitted(f"warning: {printable(warning)}", sys.stderr, further="  "), file=sys.stderr)
    if as_json:
        print_json(outcome.summary)
        return
    if len(outcome.rows) > 1:
        _print_runs(outcome.rows)
    slo = outcome.summary["slo"]
    for search in slo["searches"] if slo else ():
        print(f"\n{search['sentence']}")
    main = outcome.summary["main_run"] - 1
    _print_run(outcome.rows[main], outcome.runs[main])
    if slo:
        print_sentence(_kept_or_missed(outcome.rows[main], slo["objectives_ms"]), indent="", further="  ")
    for sentence in outcome.drifts[main]:
        print(sentence)


def _warnings(outcome: LoadOutcome, ceiling: Ceiling | None) -> list[str]:
    found: list[str | None] = [run.server.missing for run in outcome.runs if run.server.missing]
    for row in outcome.rows:
        if row["status"] == "failed":
            found.append(f"run {row['trial_number']}: {row['error']}")
        if ceiling is not None:
            found.append(ceiling.warning(row["output_throughput"]))
    found += [run.verdict.sentence for run in outcome.runs if run.health.is_bound]
    return list(dict.fromkeys(text for text in found if text))


def _print_runs(rows: Sequence[Row]) -> None:
    head = [
        "run",
        "users" if any(row["users"] for row in rows) else "in flight",
        "requests/s",
        "tokens/s",
        "TTFT p99 ms",
        "TPOT p99 ms",
        "goodput %",
        "KV max %",
        "bound by",
    ]
    cells = [
        [
            str(row["trial_number"]),
            "" if row["max_concurrency"] is None else str(row["max_concurrency"]),
            str(row["request_rate"]),
            *(_figure(row, name) for name in ("output_throughput", "p99_ttft_ms", "p99_tpot_ms", "goodput_pct")),
            _percent(row, "kv_usage_max"),
            row["bound_by"] or "",
        ]
        for row in rows
    ]
    print_table("Runs, latency in ms", head, cells, text_columns=(len(head) - 1,))


def _print_run(row: Row, run: LoadRun) -> None:
    """One run in full: throughput, latency, the server's side, the client's side, and what bound it."""
    print(f"\n{row['completed']} of {row['num_prompts']} requests served in {row['duration']:.2f} s")
    for name, label, unit in (
        ("request_throughput", "requests", "requests/s"),
        ("output_throughput", "output", "tokens/s"),
        ("total_token_throughput", "prompt and output", "tokens/s"),
        ("request_goodput", "goodput", "requests/s"),
    ):
        value = number(row, name)
        if value is not None:
            print(f"  {label:18}{value:12,.2f} {unit}")
    rows = [
        [label, *(_figure(row, f"{statistic}_{name}_ms") for statistic in _STATISTICS)]
        for name, label in _LATENCIES.items()
    ]
    print()
    since = "from the schedule" if run.measured.is_open else "from sending"
    print_table(f"Latency in ms, {since}", ["", *_STATISTICS.values()], rows, text_columns=(0,))
    _print_server(row)
    _print_engines(engine_figures(run.server))
    counted = _COUNTED_BY.get(row["token_source"] or "", "not at all")
    chunks = "" if row["chunks_per_token"] is None else f", {row['chunks_per_token']:.2f} chunks per token"
    several = run.health.num_processes
    processes = f"{several} processes, " if several > 1 else ""
    core = "of a core at most" if several > 1 else "of a core"
    print()
    print_sentence(
        f"Client: {processes}requests were sent up to {row['dispatch_delay_p99_ms']:.1f} ms late (p99), loop lag "
        f"{row['loop_lag_p99_ms']:.1f} ms (p99), {row['client_cpu_pct']:.0f} % {core}; tokens counted {counted}"
        f"{chunks}",
        indent="",
        further="  ",
    )
    print_sentence(run.verdict.text, indent="", further="  ")


def _kept_or_missed(row: Row, objectives_ms: Mapping[str, float]) -> str:
    """``Service level missed: TTFT p99 57.4 ms (bound 1), TPOT p99 13.8 ms (bound 20).``"""
    figures = ", ".join(
        f"{_LATENCIES[name]} p99 {_figure(row, f'p99_{name}_ms') or '-'} ms (bound {bound:g})"
        for name, bound in objectives_ms.items()
    )
    return f"Service level {'kept' if row['slo_pass'] else 'missed'}: {figures}."


def _print_server(row: Row) -> None:
    """What the server told of itself; nothing where it told nothing."""
    if row["engine"] is None:
        return
    parts = []
    for name, text, factor in (
        ("kv_usage_max", "KV cache {:.0f} % full at most", 100.0),
        ("max_running", "{:.0f} running", 1.0),
        ("max_waiting", "{:.0f} waiting at most", 1.0),
        ("num_preemptions", "{:,.0f} preemptions", 1.0),
        ("prefix_hit_rate", "{:.0f} % of prompt tokens from the prefix cache", 100.0),
        ("acceptance_rate", "{:.0f} % of draft tokens accepted", 100.0),
        ("mean_acceptance_length", "{:.2f} tokens a verification", 1.0),
        ("server_mean_queue_ms", "mean queue {:,.1f} ms", 1.0),
        ("server_mean_ttft_ms", "mean TTFT {:,.1f} ms", 1.0),
        ("server_mean_itl_ms", "mean ITL {:,.2f} ms", 1.0),
    ):
        value = number(row, name)
        if value is not None:
            parts.append(text.format(factor * value))
    version = f" {row['engine_version']}" if row["engine_version"] else ""
    print(f"\nServer ({row['engine']}{version}): {', '.join(parts)}")


def _print_engines(engines: Mapping[str, EngineFigures]) -> None:
    """Beside their sum, where there are several."""
    for name, engine in engines.items():
        parts = [
            text.format(factor * value)
            for value, text, factor in (
                (engine.generation_tokens, "{:,.0f} tokens", 1.0),
                (engine.kv_usage_max, "KV cache {:.0f} % full at most", 100.0),
                (engine.max_running, "{:.0f} running", 1.0),
                (engine.max_waiting, "{:.0f} waiting at most", 1.0),
                (engine.num_preemptions, "{:,.0f} preemptions", 1.0),
                (engine.prefix_hit_rate, "{:.0f} % of prompt tokens from the prefix cache", 100.0),
            )
            if value is not None
        ]
        print(f"  engine {printable(name)}: {', '.join(parts)}")


def _figure(row: Row, name: str) -> str:
    value = number(row, name)
    return "" if value is None else f"{value:,.1f}"


def _percent(row: Row, name: str) -> str:
    value = number(row, name)
    return "" if value is None else f"{100 * value:.0f}"
