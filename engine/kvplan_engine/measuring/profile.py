"""Where a decode step's time goes: the kernels of replayed steps by torch's profiler, and the gaps between them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from kvplan_engine import Engine
from kvplan_engine.measuring.engine import GREEDY, STEP_CONTEXT, add_sequences, length_limit, make_engine
from kvplan_engine.measuring.support import Bench, Row

BATCHES = (1, 64, 256)
STEPS = 4
MOST_KERNELS = 12
"""Rows of a batch: the kernels that take most time together."""


@dataclass(frozen=True, slots=True)
class Span:
    """One kernel or copy on the device, in microseconds."""

    name: str
    begin: float
    end: float


def measure_profile(bench: Bench) -> None:
    """Some steps in which all sequences decode, for each batch."""
    name, context = ("tiny", 20) if bench.dry else ("llama-3.1-8b", STEP_CONTEXT)
    batches = (2,) if bench.dry else BATCHES
    with make_engine(bench, name, max(batches), length_limit(bench, batches, context, 2 * STEPS)) as engine:
        for batch in batches:
            add_rows(bench, name, batch, spans_of_steps(bench, engine, batch, context))


def spans_of_steps(bench: Bench, engine: Engine, batch: int, context: int) -> list[Span]:
    """What ran on the device in STEPS steps, in order."""
    add_sequences(engine, batch, context, 2 * STEPS, GREEDY)
    while len(engine.step()) < batch:
        pass
    bench.synchronize()
    with profile(activities=[ProfilerActivity.CPU if bench.dry else ProfilerActivity.CUDA]) as profiler:
        for _ in range(STEPS):
            engine.step()
        bench.synchronize()
    while engine.has_unfinished_requests():
        engine.step()
    wanted = DeviceType.CPU if bench.dry else DeviceType.CUDA
    spans = [
        Span(event.name, event.time_range.start, event.time_range.end)
        for event in profiler.events() or ()
        if event.device_type == wanted and event.time_range.end > event.time_range.start
    ]
    return sorted(spans, key=lambda span: span.begin)


def add_rows(bench: Bench, model: str, batch: int, spans: list[Span]) -> None:
    """One row for the whole and one for each of the kernels that take most time."""
    if not spans:
        raise RuntimeError("the profiler saw nothing on the device")
    whole = max(span.end for span in spans) - spans[0].begin
    gaps = gaps_between(spans)
    seconds = whole / STEPS / 1e6
    shape = {"model": model, "batch": batch, "launches": len(spans) // STEPS}
    bench.add(
        Row(
            "profile",
            "one decode step",
            whole / STEPS,
            "us",
            shape | {"gaps_us": round(sum(gaps) / STEPS, 1), "largest_gap_us": round(max(gaps, default=0.0), 1)},
            share=1 - sum(gaps) / whole,
            reference="first kernel to last, of which something ran",
            median_seconds=seconds,
            excluded="profiling makes each launch a little slower",
        )
    )
    times, counts = Counter[str](), Counter(span.name for span in spans)
    for span in spans:
        times[span.name] += span.end - span.begin  # type: ignore[assignment]
    for kernel, microseconds in times.most_common(MOST_KERNELS):
        bench.add(
            Row(
                "profile",
                "one decode step's kernel",
                microseconds / STEPS,
                "us",
                {"model": model, "batch": batch, "kernel": kernel[:80], "launches": counts[kernel] // STEPS},
                share=microseconds / whole,
                reference="the step",
                median_seconds=microseconds / STEPS / 1e6,
            )
        )


def gaps_between(spans: list[Span]) -> list[float]:
    """Microseconds in which nothing ran, between spans in the order of their beginnings."""
    gaps, ended = [], spans[0].begin
    for span in spans:
        if span.begin > ended:
            gaps.append(span.begin - ended)
        ended = max(ended, span.end)
    return gaps
