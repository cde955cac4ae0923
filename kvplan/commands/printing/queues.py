"""Percentiles of a load with their intervals, and the terms of a step, as ``plan`` and ``estimate`` print them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from kvplan.catalog.published_errors import ErrorInterval
from kvplan.commands.printing.render import print_sentence, print_table
from kvplan.estimate.speed.queueing.figures import Distribution
from kvplan.estimate.speed.queueing.front_end import BUSIEST
from kvplan.estimate.speed.queues import ExplainedStep, Queues
from kvplan.estimate.speed.steps.step_terms import StepTerms

if TYPE_CHECKING:
    from kvplan.planner.choices.slo_check import TailMiss


def queues_text(queues: Queues) -> str:
    """``TTFT p50 45 (30-80) ms, p99 ...``: each figure with its 90 % interval."""
    figures, intervals = queues.figures, queues.intervals
    parts = [f"TTFT {_percentiles(figures.ttft, intervals['ttft'])}"]
    if figures.tpot is not None:
        parts.append(f"TPOT {_percentiles(figures.tpot, intervals['tpot'])}")
    parts.append(f"{_within(queues.output_throughput, intervals['throughput'])} tokens/s")
    return ", ".join(parts)


def intervals_text(queues: Queues) -> str:
    """What the intervals were learned from; "" where no published measurement was."""
    rows = max(0 if each is None else each.num_rows for each in queues.intervals.values())
    return f"; intervals hold 9 in 10 of up to {rows:,} published measurements" if rows else ""


def tail_text(beyond: Sequence[TailMiss]) -> str:
    """``TTFT p99 190 ms (100 asked for)``, for each bound that is missed."""
    return ", ".join(
        f"{each.bound.name.upper()} p99 {1000 * each.p99_seconds:,.0f} ms ({1000 * each.bound.seconds:,.0f} asked for)"
        for each in beyond
    )


def server_text(share: float, num_servers: int) -> str | None:
    """Of API servers that the engine would keep busy for ``share`` of their time; None where they hardly matter."""
    if share <= BUSIEST:
        return None
    servers = "API server" if num_servers == 1 else f"{num_servers} API servers"
    more = "more of them (--api-server-count, vLLM 0.9.1 and later), data-parallel groups or replicas raise it"
    if share <= 1:
        busy = f"vLLM's {servers} would work for {100 * share:.0f} % of the time"
        return f"{busy}; queues are played up to {100 * BUSIEST:.0f} %; {more}"
    return f"tokens/s are what vLLM's {servers} can stream, the engine would make {share:.1f} times as many; {more}"


def print_steps(name: str, steps: Sequence[ExplainedStep]) -> None:
    """Terms of the steps of the instance ``name``, in milliseconds."""
    terms = [each.name for each in fields(StepTerms)]
    rows = [
        (step.name, *(f"{1000 * getattr(step.terms, term):,.2f}" for term in terms), f"{1000 * step.seconds:,.2f}")
        for step in steps
    ]
    head = ("step of " + name, *(f"{term.replace('_', ' ')} ms" for term in terms), "whole ms")
    print()
    print_table(None, head, rows, text_columns=(0,))
    print_sentence(
        "Weights (and activations) are read while products are computed, so a step may take less than its parts. "
        "host: what launching and the engine itself add."
    )


def span(low: float, high: float, form: str) -> str:
    """``30-80``; one number where both read alike."""
    first, last = format(low, form), format(high, form)
    return first if first == last else f"{first}-{last}"


def _percentiles(found: Distribution, interval: ErrorInterval | None) -> str:
    return f"p50 {_within(1000 * found.median, interval)} ms, p99 {_within(1000 * found.p99, interval)} ms"


def _within(value: float, interval: ErrorInterval | None) -> str:
    """``45 (30-80)``; the value alone where nothing was ever compared, or nothing else is likely."""
    if interval is None:
        return format(value, ",.3g") if value < 10 else format(value, ",.0f")
    form = ",.1f" if value < 10 else ",.0f"
    text, between = f"{value:{form}}", span(value * interval.low, value * interval.high, form)
    return text if text == between else f"{text} ({between})"
