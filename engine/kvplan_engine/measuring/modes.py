"""Measurements of steps in other ways: launched, captured and one ahead, with a prompt, with tokens drawn at random."""

from __future__ import annotations

import statistics
import time
from functools import partial

from kvplan_engine import Engine, SamplingParams
from kvplan_engine.kernels.cuda.products.skinny_launch import MOST_ROWS
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
from kvplan_engine.measuring.support import Bench, Row

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
            median = measured.median_seconds
            eager.setdefault(batch, median)
            bench.add(
                Row(
                    "engine",
                    f"decode step, {mode}",
                    median * 1e3,
                    "ms",
                    {"model": name, "batch": batch, "context": context, "graph_bytes": engine.memory.graph_bytes},
                    share=eager[batch] / median,
                    reference="the eager step of the same batch",
                    median_seconds=median,
                    samples_seconds=measured.seconds,
                )
            )


def measure_prompt_steps(bench: Bench, engine: Engine, name: str) -> None:
    """A step in which a prompt joins sequences that decode: launched, and as a graph."""
    lengths, batch, steps = ((3, 9), 2, 2) if bench.dry else (PROMPT_LENGTHS, PROMPT_BATCH, PROMPT_STEPS)
    eager: dict[int, float] = {}
    for mode, settings in PROMPT_MODES.items():
        engine.reconfigure(async_scheduling=False, **settings)
        for length in lengths:
            seconds = prompt_steps(engine, batch, length, steps)
            median = statistics.median(seconds)
            eager.setdefault(length, median)
            bench.add(
                Row(
                    "engine",
                    f"step with a prompt, {mode}",
                    median * 1e3,
                    "ms",
                    {"model": name, "batch": batch, "prompt": length},
                    share=eager[length] / median,
                    reference="the eager step with the same prompt",
                    median_seconds=median,
                    samples_seconds=seconds,
                )
            )


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
                bench.add(
                    Row(
                        "engine",
                        f"decode step, {way}",
                        measured.median_seconds * 1e3,
                        "ms",
                        {"model": name, "batch": batch, "context": context},
                        share=greedy / measured.median_seconds,
                        reference="the greedy step of the same batch",
                        goal=RANDOM_GOAL,
                        median_seconds=measured.median_seconds,
                        samples_seconds=measured.seconds,
                    )
                )
