"""What speculative decoding gains over plain decoding, by the data sheet (``queueing.drafting`` has what a step costs).

A step that waits for memory verifies nearly for free; one that is bound by arithmetic, because many sequences are in
it, does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.estimate.speed.latency import Range
from kvplan.estimate.speed.queueing.drafting import DraftWork, expected_tokens
from kvplan.estimate.speed.steps.clocks import BEST, USUAL, Efficiency, Roofline
from kvplan.estimate.speed.steps.work import ModelWork

USUAL_ACCEPTANCE_RATES = (0.5, 0.7, 0.9)
"""Shown where none is given: a rate depends on drafter, task and temperature, and only a run tells it."""


def speculative_speedup(
    work: ModelWork, draft: DraftWork, gpu: GpuProfile, num_users: float, kv_bytes: float, acceptance_rate: float
) -> Range:
    """How many times as many tokens a second ``num_users`` decoding sequences get; below 1 they get fewer.

    ``kv_bytes``: of one sequence's cache in the model, on a rank that holds all layers. By the data sheet; the ends are
    those of what kernels reach. Prompts are not counted: a drafter reads them too, which delays first tokens a little.
    """
    tokens = expected_tokens(acceptance_rate, draft.num_tokens)

    def gain(efficiency: Efficiency) -> float:
        plain = Roofline.of(work, gpu, kv_bytes, efficiency).decode_seconds(num_users)
        return tokens * plain / step_seconds(work, draft, gpu, num_users, kv_bytes, efficiency)

    return _both(gain)


def speculative_step_seconds(
    work: ModelWork, draft: DraftWork, gpu: GpuProfile, num_users: float, kv_bytes: float
) -> Range:
    """One step: all passes of the drafter, and the model over ``num_tokens`` + 1 rows of each sequence."""
    return _both(lambda efficiency: step_seconds(work, draft, gpu, num_users, kv_bytes, efficiency))


def _both(figure: Callable[[Efficiency], float]) -> Range:
    low, high = sorted((figure(BEST), figure(USUAL)))
    return Range(low, high)


def step_seconds(
    work: ModelWork, draft: DraftWork, gpu: GpuProfile, num_users: float, kv_bytes: float, efficiency: Efficiency
) -> float:
    """Return what ``speculative_step_seconds`` does, at one end of what kernels reach."""
    rows = draft.num_tokens + 1
    # The rows of a sequence read its cache once, so each counts as a sequence with its share of the cache.
    verify = Roofline.of(work, gpu, kv_bytes / rows, efficiency).decode_seconds(rows * num_users)
    if draft.work is None:
        return verify
    # Passes follow one another within a step: what a step costs on top is paid once.
    on_its_own = Roofline.of(draft.work, gpu, draft.kv_bytes, replace(efficiency, step_seconds=0.0))
    return verify + draft.num_passes * on_its_own.decode_seconds(num_users)
