"""What speculative decoding gains: tokens per step by the acceptance rate, and what drafting and verifying cost.

With a share ``a`` of draft tokens accepted, each independently, a step with k draft tokens yields on average

    (1 - a^(k+1)) / (1 - a)      tokens (Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative
                                 Decoding, 2023, arXiv:2211.17192, equation 1)

and costs k passes of the drafter (one where it drafts all at once, none where tokens are looked up) and one step of the
model over k + 1 rows for each sequence. A step that waits for memory verifies nearly for free; one that is bound by
arithmetic, because many sequences are in it, does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.estimate.speed.latency import Range
from kvplan.estimate.speed.steps.clocks import BEST, USUAL, Efficiency, Roofline
from kvplan.estimate.speed.steps.work import ModelWork

USUAL_ACCEPTANCE_RATES = (0.5, 0.7, 0.9)
"""Shown where none is given: a rate depends on drafter, task and temperature, and only a run tells it."""


def expected_tokens(acceptance_rate: float, num_tokens: int) -> float:
    """Tokens that a step yields on average with ``num_tokens`` draft tokens: from 1 to ``num_tokens`` + 1."""
    return sum(acceptance_rate**accepted for accepted in range(num_tokens + 1))


@dataclass(frozen=True, slots=True)
class DraftWork:
    """A drafter's passes in one step. ``kv_bytes``: of one sequence in its own cache, on a rank that holds it all.

    ``work`` is None where tokens are looked up.
    """

    num_tokens: int
    num_passes: int = 0
    work: ModelWork | None = None
    kv_bytes: float = 0.0


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
    """As ``speculative_step_seconds``, at one end of what kernels reach."""
    rows = draft.num_tokens + 1
    # The rows of a sequence read its cache once, so each counts as a sequence with its share of the cache.
    verify = Roofline.of(work, gpu, kv_bytes / rows, efficiency).decode_seconds(rows * num_users)
    if draft.work is None:
        return verify
    # Passes follow one another within a step: what a step costs on top is paid once.
    on_its_own = Roofline.of(draft.work, gpu, draft.kv_bytes, replace(efficiency, step_seconds=0.0))
    return verify + draft.num_passes * on_its_own.decode_seconds(num_users)
