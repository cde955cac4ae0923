"""What one rank of a deployment does in a step, for the step times that a fit looks at.

As ``estimate.speed.clocks.MeasuredClock`` takes a profile's coefficients, so that plans mean the same by them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from kvplan.calibrate.observations import Loads, Observation
from kvplan.calibrate.results.deployment import Deployed
from kvplan.estimate.speed.clocks import USUAL
from kvplan.estimate.speed.collectives import collective_cost
from kvplan.estimate.speed.step_time import Speed, StepShape, StepTimes

Number = TypeVar("Number", float, np.ndarray)


def rank_seconds(of: Deployed, loads: Loads, speed: Speed, *, is_forward_only: bool) -> np.ndarray:
    """Seconds of every step [N]. is_forward_only: without what a step and its sequences cost the host."""
    if is_forward_only:
        speed = replace(speed, step_seconds=0.0, sequence_seconds=0.0)
    extra = expert_bytes(of, loads.tokens) / speed.bandwidth
    empty = np.empty(0)
    steps = Observation(rank_shape(of), loads, empty, empty, empty, empty)
    return steps.seconds(speed) + extra + exchange_seconds(of, loads.tokens)


class RankClock:
    """The steps of one rank: the clock of a simulation."""

    def __init__(self, of: Deployed, speed: Speed) -> None:
        self._of, self._times = of, StepTimes(rank_shape(of), speed)

    def seconds(
        self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv_tokens: int, num_pairs: float
    ) -> float:
        """See ``simulation.StepClock``."""
        seconds = self._times.seconds(num_tokens, num_sequences, num_sampled, num_kv_tokens, num_pairs)
        seconds += expert_bytes(self._of, float(num_tokens)) / self._times.speed.bandwidth
        return seconds + exchange_seconds(self._of, float(num_tokens))


def rank_shape(of: Deployed) -> StepShape:
    """Without the routed experts' bytes, which depend on the step."""
    work, tp = of.work, of.work.layout.tensor_parallel_size
    head_share = min(work.head_parameters / max(work.active_parameters, 1), 1.0)
    head_bytes = work.dense_bytes * head_share
    return StepShape(
        num_layers=work.num_layers,
        body_parameters=work.active_parameters * (1 - head_share) / tp,
        head_parameters=work.active_parameters * head_share / tp,
        body_bytes=work.dense_bytes - head_bytes,
        head_bytes=head_bytes,
        kv_bytes_per_token=of.kv_bytes_per_token,
        attention_width=sum(span.width_per_token for span in work.attention) / tp,
        activation_bytes_per_token=work.step_activation_bytes / tp,
    )


def expert_bytes(of: Deployed, tokens: Number) -> Number:
    """Of the experts that a step of so many tokens is routed to."""
    work = of.work
    if not work.num_experts:
        return 0.0 * tokens
    return work.expert_bytes * (1.0 - (1.0 - work.experts_per_token / work.num_experts) ** tokens)


def exchange_seconds(of: Deployed, tokens: Number) -> Number:
    """What the ranks send each other in a step of so many tokens: not fitted, since a load hardly tells it apart."""
    cost = collective_cost(of.work, of.gpu, USUAL.links)
    return cost.fixed_seconds + tokens * cost.seconds_per_row
