"""What one engine step is expected to cost: a roofline with an overhead, good enough for time left and time-outs.

A step reads the weights once and multiplies them with every token (whichever takes longer), reads the K and V of every
running sequence, and multiplies the language-model head with the sequences that get a token. The speeds are guesses
by device until a trial has been measured; the runner then scales them by what it measured.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Final

# Sustained, not peak. One core with AVX2 at about 3 GHz peaks at 96 GFLOP/s in float32; small matrices and
# attention leave about half of it. Memory bandwidth of a small virtual machine: 10 to 25 GB/s.
_CPU_FLOPS_PER_CORE: Final = 50e9
_CPU_BANDWIDTH: Final = 14e9
_CPU_STEP_SECONDS: Final = 2e-3
_GPU_FLOPS: Final = 60e12
_GPU_BANDWIDTH: Final = 0.8e12
_GPU_STEP_SECONDS: Final = 5e-3


@dataclass(frozen=True, slots=True)
class StepCost:
    """Coefficients of one model on one device, for one dtype."""

    body_parameters: int
    head_parameters: int
    weight_bytes: int
    kv_bytes_per_token: float
    flops_per_second: float
    bytes_per_second: float
    step_seconds: float
    scale: float = 1.0

    def seconds(self, num_new_tokens: int, num_sampled: int, num_kv_tokens: int) -> float:
        """One step: tokens computed, sequences that get a token, tokens whose K and V are read."""
        operations = 2.0 * (self.body_parameters * num_new_tokens + self.head_parameters * num_sampled)
        linear = max(operations / self.flops_per_second, self.weight_bytes / self.bytes_per_second)
        reading = num_kv_tokens * self.kv_bytes_per_token / self.bytes_per_second
        return self.scale * (linear + reading + self.step_seconds)

    def scaled(self, factor: float) -> StepCost:
        return replace(self, scale=self.scale * factor)


def guess_step_cost(
    device: str, *, body_parameters: int, head_parameters: int, weight_bytes: int, kv_bytes_per_token: float
) -> StepCost:
    """First guess for ``cpu`` (all its cores) or ``cuda``, before anything was measured."""
    on_gpu = device == "cuda"
    return StepCost(
        body_parameters=body_parameters,
        head_parameters=head_parameters,
        weight_bytes=weight_bytes,
        kv_bytes_per_token=kv_bytes_per_token,
        flops_per_second=_GPU_FLOPS if on_gpu else _CPU_FLOPS_PER_CORE * (os.cpu_count() or 1),
        bytes_per_second=_GPU_BANDWIDTH if on_gpu else _CPU_BANDWIDTH,
        step_seconds=_GPU_STEP_SECONDS if on_gpu else _CPU_STEP_SECONDS,
    )
