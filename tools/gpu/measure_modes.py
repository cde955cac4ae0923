"""Measurements of a decode step in other ways: launched, captured and one ahead, and with tokens drawn at random."""

from __future__ import annotations

from measure_engine import STEP_BATCHES, STEP_CONTEXT, STEP_COUNT, decode_steps, length_limit, make_engine
from measure_support import Bench, Row

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


def measure_ladder(bench: Bench) -> None:
    """What graphs, overlap and early launches each bring to a step of a small model, where launching costs most."""
    name, context, steps = ("tiny", 20, 3) if bench.dry else ("qwen3-0.6b", STEP_CONTEXT, STEP_COUNT)
    batches = (2,) if bench.dry else STEP_BATCHES
    eager: dict[int, float] = {}
    with make_engine(bench, name, max(batches), length_limit(bench, batches, context, steps)) as engine:
        for mode, settings in LADDER_MODES.items():
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
