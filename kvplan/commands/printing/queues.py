"""Percentiles of a load with their intervals, and the terms of a step, as ``plan`` and ``estimate`` print them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kvplan.catalog.published_errors import FigureName
from kvplan.commands.printing.render import print_sentence, print_table, say
from kvplan.estimate.speed.queueing.figures import Distribution
from kvplan.estimate.speed.queueing.front_end import BUSIEST
from kvplan.estimate.speed.queues import ExplainedStep, Queues
from kvplan.estimate.speed.steps.step_terms import term_names
from kvplan.planner.answer.ranges import within


def queues_text(queues: Queues) -> str:
    """``TTFT p50 45 (30-80) ms, p99 ...``: each figure with its 90 % interval."""
    figures = queues.figures
    parts = [f"TTFT {_percentiles(queues, 'ttft', figures.ttft)}"]
    if figures.tpot is not None:
        parts.append(f"TPOT {_percentiles(queues, 'tpot', figures.tpot)}")
    tokens = queues.output_throughput
    parts.append(f"{within(tokens, queues.between('throughput', tokens))} tokens/s")
    return ", ".join(parts)


_FIGURES: Final[dict[FigureName, str]] = {"ttft": "TTFT", "tpot": "TPOT", "throughput": "tokens/s"}


def intervals_text(queues: Queues, whose: str = "") -> str:
    """What the intervals were learned from, of ``whose`` engines, and how wide they are; "" where from nothing."""
    known = {name: each for name, each in queues.intervals.items() if each is not None and each.num_rows}
    if not known:
        return ""
    widths = ", ".join(f"{_FIGURES[name]} within {each.width_text}" for name, each in known.items())
    num_rows, num_alike = (max(getattr(each, count) for each in known.values()) for count in ("num_rows", "num_alike"))
    alike = f"{num_alike:,} of servers like this" if num_alike else "none of a server like this"
    return f"; intervals hold 9 in 10 of up to {num_rows:,} published measurements{whose}, {alike}: {widths}"


_BOUND_BY_SERVERS = 1.05
"""Work of the servers beside the engine's, from which on their pace is worth a word: below it both read alike."""


def server_text(share: float, num_servers: int) -> str | None:
    """Sentence on API servers that the engine keeps busy for ``share`` of their time; None where they hardly matter."""
    if share <= BUSIEST:
        return None
    servers = "API server" if num_servers == 1 else f"{num_servers} API servers"
    more = "more of them (--api-server-count, vLLM 0.9.1 and later), data-parallel groups or replicas raise it"
    if share < _BOUND_BY_SERVERS:
        busy = f"vLLM's {servers} would work for {100 * min(share, 1.0):.0f} % of the time"
        return f"{busy}; queues are played up to {100 * BUSIEST:.0f} %; {more}"
    return f"tokens/s are what vLLM's {servers} can stream, the engine would make {share:.1f} times as many; {more}"


def print_steps(name: str, steps: Sequence[ExplainedStep]) -> None:
    """Terms of the steps of the instance ``name``, in milliseconds."""
    terms = term_names(step.terms for step in steps)
    rows = [
        (step.name, *(f"{1000 * getattr(step.terms, term):,.2f}" for term in terms), f"{1000 * step.seconds:,.2f}")
        for step in steps
    ]
    head = ("step of " + name, *(f"{term.replace('_', ' ')} ms" for term in terms), "whole ms")
    say()
    print_table(None, head, rows, text_columns=(0,))
    print_sentence(
        "Weights (and activations) are read while products are computed, so a step may take less than its parts. "
        "host: what launching and the engine itself add."
    )


def _percentiles(queues: Queues, name: FigureName, found: Distribution) -> str:
    p50 = within(found.median, queues.between(name, found.median), 1000)
    p99 = within(found.p99, queues.between(name, found.p99, "p99"), 1000)
    return f"p50 {p50} ms, p99 {p99} ms"
