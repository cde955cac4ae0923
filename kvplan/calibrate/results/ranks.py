"""What one rank of a deployment does in each step, in the coefficients that plans use too.

``estimate.speed.steps.measured_clock`` and ``rank_step`` define both; here the steps of a whole load stand in arrays.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from kvplan.calibrate.observations import Loads
from kvplan.calibrate.results.deployment import Deployed
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.collectives import collective_cost
from kvplan.estimate.speed.steps.measured_clock import MeasuredClock, link_efficiency, rank_step
from kvplan.estimate.speed.steps.rank_step import KernelSpeed, RankStep, step_seconds
from kvplan.estimate.speed.steps.step_time import Speed, padded_rows

_CONTEXT: Final = 1.0
"""K and V are counted by the token."""


def rank_clock(of: Deployed, speed: Speed) -> MeasuredClock:
    """The clock of a simulation."""
    device = DeviceSpeed(_kernels(of, speed), "calibrated", of.device.dtype, "", {})
    return MeasuredClock(of.work, of.gpu, of.kv_bytes_per_token, device, _CONTEXT)


def rank_steps(of: Deployed, loads: Loads) -> RankStep:
    """Every step of ``loads``: a RankStep of arrays [N]."""
    row_step = 1.0 if of.kernels is None else of.kernels.base.row_step
    columns = (loads.tokens, loads.sequences, loads.sampled, loads.kv_tokens, loads.pairs)
    steps = [
        rank_step(
            of.work,
            tokens=tokens,
            rows=padded_rows(tokens, row_step),
            sequences=sequences,
            sampled=sampled,
            kv_bytes=kv_tokens * of.kv_bytes_per_token,
            pairs=pairs,
            kv_tokens=kv_tokens,
            expert_tokens=tokens,
        )
        for tokens, sequences, sampled, kv_tokens, pairs in zip(*(column.tolist() for column in columns), strict=True)
    ]
    return RankStep(**{name: np.array([getattr(step, name) for step in steps]) for name in RankStep._fields})


def rank_seconds(of: Deployed, steps: RankStep, speed: Speed, *, is_forward_only: bool) -> np.ndarray:
    """Seconds of every step [N], without what ranks send each other.

    is_forward_only: without what a step and its sequences cost the host.
    """
    if is_forward_only:
        speed = replace(speed, step_seconds=0.0, sequence_seconds=0.0)
    return np.asarray(step_seconds(_kernels(of, speed), steps))


def exchange_seconds(of: Deployed, tokens: np.ndarray) -> np.ndarray:
    """What the ranks send each other in each step [N]: not fitted, since a load hardly tells it apart."""
    cost = collective_cost(of.work, of.gpu, link_efficiency(_kernels(of, _ANY_SPEED), of.work, of.gpu))
    return cost.fixed_seconds + tokens * (cost.seconds_per_row + cost.seconds_per_met)


_ANY_SPEED: Final = Speed(0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0)


def _kernels(of: Deployed, speed: Speed) -> KernelSpeed:
    """``speed`` with what is believed of mixtures, latent attention and links."""
    return KernelSpeed(speed) if of.kernels is None else replace(of.kernels, base=speed)
