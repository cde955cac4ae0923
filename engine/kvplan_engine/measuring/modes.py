"""Measurements of steps in other ways: launched, captured and one ahead, with a prompt, with tokens drawn at random."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial

from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from kvplan_engine import Engine, SamplingParams
from kvplan_engine.kernels.cuda.products.skinny import MOST_ROWS
from kvplan_engine.measuring.engine import (
    GREEDY,
    STEP_BATCHES,
    STEP_CONTEXT,
    STEP_COUNT,
    add_sequences,
    decode_steps,
    length_limit,
    make_engine,
)
from kvplan_engine.measuring.support import Bench

# Where a decode step's time goes: the kernels of replayed steps by torch's profiler, and the gaps between them.


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
    shape: dict[str, object] = {"model": model, "batch": batch, "launches": len(spans) // STEPS}
    shape |= {"gaps_us": round(sum(gaps) / STEPS, 1), "largest_gap_us": round(max(gaps, default=0.0), 1)}
    bench.add(
        "profile",
        "one decode step",
        whole / STEPS,
        "us",
        shape,
        share=1 - sum(gaps) / whole,
        reference="first kernel to last, of which something ran",
        median_seconds=whole / STEPS / 1e6,
        excluded="profiling makes each launch a little slower",
    )
    times, counts = Counter[str](), Counter(span.name for span in spans)
    for span in spans:
        times[span.name] += span.end - span.begin  # type: ignore[assignment]
    for kernel, microseconds in times.most_common(MOST_KERNELS):
        shape = {"model": model, "batch": batch, "kernel": kernel[:80], "launches": counts[kernel] // STEPS}
        bench.add(
            "profile",
            "one decode step's kernel",
            microseconds / STEPS,
            "us",
            shape,
            share=microseconds / whole,
            reference="the step",
            median_seconds=microseconds / STEPS / 1e6,
        )


def gaps_between(spans: list[Span]) -> list[float]:
    """Microseconds in which nothing ran, between spans in the order of their beginnings."""
    gaps, ended = [], spans[0].begin
    for span in spans:
        if span.begin > ended:
            gaps.append(span.begin - ended)
        ended = max(ended, span.end)
    return gaps


RANDOM = {
    "temperature": {"temperature": 0.8},
    "temperature and top-p": {"temperature": 0.8, "top_p": 0.95},
    "temperature and seed": {"temperature": 0.8, "seed": 7},
}
RANDOM_BATCHES = (16, 256)
RANDOM_GOAL = 1 / 1.05  # the greedy step over the random one
LADDER_MODES = {
    "eager": {"enforce_eager": True, "async_scheduling": False},
    "graphs": {"enforce_eager": False, "async_scheduling": False},
    "graphs, one step ahead": {"enforce_eager": False, "async_scheduling": True},
    "the same, kernels begin early": {"enforce_eager": False, "async_scheduling": True, "enable_pdl": True},
}
SKINNY_MODES = {
    "skinny products": {"enforce_eager": False, "async_scheduling": True, "enable_pdl": False},
    "skinny products, kernels begin early": {"enforce_eager": False, "async_scheduling": True, "enable_pdl": True},
}
PROMPT_MODES = {
    "eager": {"enforce_eager": True, "enable_pdl": False},
    "graphs": {"enforce_eager": False},
}
PROMPT_LENGTHS, PROMPT_BATCH, PROMPT_STEPS = (32, 200, 440), 16, 20


def measure_ladder(bench: Bench) -> None:
    """What graphs, overlap and early launches each bring to a step of a small model, where launching costs most."""
    name, context, steps = ("tiny", 20, 3) if bench.dry else ("qwen3-0.6b", STEP_CONTEXT, STEP_COUNT)
    batches = (2,) if bench.dry else STEP_BATCHES
    longest, eager = length_limit(bench, batches, context, steps), dict[int, float]()
    measure = partial(_measure_modes, bench, name=name, context=context, steps=steps, eager=eager)
    with make_engine(bench, name, max(batches), longest) as engine:
        measure(engine, LADDER_MODES, batches)
        measure_prompt_steps(bench, engine, name)
    few = tuple(batch for batch in batches if batch <= MOST_ROWS)
    with make_engine(bench, name, max(few), longest, linear_backend="cuda_skinny") as engine:
        measure(engine, SKINNY_MODES, few)


def _measure_modes(
    bench: Bench,
    engine: Engine,
    modes: dict[str, dict[str, bool]],
    batches: tuple[int, ...],
    *,
    name: str,
    context: int,
    steps: int,
    eager: dict[int, float],
) -> None:
    """A row for each mode and batch. eager: seconds of the first mode's step by batch, which others are held to."""
    for mode, settings in modes.items():
        engine.reconfigure(**settings)
        for batch in batches:
            measured = decode_steps(engine, batch, context, steps)
            eager.setdefault(batch, measured.median_seconds)
            shape = {"model": name, "batch": batch, "context": context, "graph_bytes": engine.memory.graph_bytes}
            reference = "the eager step of the same batch"
            bench.add_step(f"decode step, {mode}", shape, measured.seconds, eager[batch], reference=reference)


def measure_prompt_steps(bench: Bench, engine: Engine, name: str) -> None:
    """A step in which a prompt joins sequences that decode: launched, and as a graph."""
    lengths, batch, steps = ((3, 9), 2, 2) if bench.dry else (PROMPT_LENGTHS, PROMPT_BATCH, PROMPT_STEPS)
    eager: dict[int, float] = {}
    for mode, settings in PROMPT_MODES.items():
        engine.reconfigure(async_scheduling=False, **settings)
        for length in lengths:
            seconds = prompt_steps(engine, batch, length, steps)
            eager.setdefault(length, statistics.median(seconds))
            shape = {"model": name, "batch": batch, "prompt": length}
            reference = "the eager step with the same prompt"
            bench.add_step(f"step with a prompt, {mode}", shape, seconds, eager[length], reference=reference)


def prompt_steps(engine: Engine, batch: int, length: int, steps: int) -> list[float]:
    """Seconds of ``steps`` steps, each of ``batch`` sequences that decode and one prompt of ``length`` tokens."""
    add_sequences(engine, batch, 4, 2 * steps + 4, GREEDY)
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    for _ in range(2):
        engine.step()
    seconds = []
    for number in range(steps):
        prompt = [1 + (97 * number + place) % 500 for place in range(length)]  # none of them cached
        engine.add_request(f"prompt-{length}-{number}", prompt, params)
        started = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - started)
    while engine.has_unfinished_requests():
        engine.step()
    return seconds


def measure_random(bench: Bench) -> None:
    """A step whose tokens are drawn at random, against the greedy one of the same batch."""
    name, context, steps = ("tiny", 20, 3) if bench.dry else ("llama-3.1-8b", STEP_CONTEXT // 4, STEP_COUNT // 2)
    batches = (2,) if bench.dry else RANDOM_BATCHES
    with make_engine(bench, name, max(batches), length_limit(bench, batches, context, steps)) as engine:
        for batch in batches:
            greedy = decode_steps(engine, batch, context, steps).median_seconds
            for way, sampling in RANDOM.items():
                measured = decode_steps(engine, batch, context, steps, sampling)
                said = {"reference": "the greedy step of the same batch", "goal": RANDOM_GOAL}
                shape = {"model": name, "batch": batch, "context": context}
                bench.add_step(f"decode step, {way}", shape, measured.seconds, greedy, **said)
