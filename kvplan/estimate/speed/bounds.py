"""What no engine beats on a GPU: bytes that must be read at the data sheet's bandwidth, operations at its peak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.estimate.speed.steps.work import ModelWork


@dataclass(frozen=True, slots=True)
class SpeedBounds:
    """Bounds of one instance in one state: the least seconds of a prompt and of a token, the most tokens per second."""

    ttft_seconds: float
    tpot_seconds: float
    e2el_seconds: float
    output_tokens_per_second: float


NO_BOUNDS: Final = SpeedBounds(0.0, 0.0, 0.0, float("inf"))
"""Of a CPU: its profile stands for hosts of many kinds, and is nobody's data sheet."""


def speed_bounds(
    work: ModelWork,
    gpu: GpuProfile,
    kv_bytes: float,
    lengths: tuple[int, int],
    num_users: float,
    num_decoding: float,
    tokens_per_step: float = 1.0,
) -> SpeedBounds:
    """Return the bounds for ``num_users`` requests in progress, of which ``num_decoding`` decode in a step.

    ``lengths``: tokens of a prompt and of its answer. A token takes the weights once and the cache of all that decode
    beside it, a prompt all weights and its own operations, of the head's but one token's. Stages decode one after the
    other, and read different parts of a prompt side by side. ``tokens_per_step``: of one that decodes, above 1 where
    tokens are drafted.
    """
    if gpu.is_cpu:
        return NO_BOUNDS
    input_tokens, output_tokens = lengths
    stages, groups = work.layout.pipeline_parallel_size, work.layout.data_parallel_size
    bandwidth, flops = gpu.memory_bandwidth_bytes_per_second, gpu.flops(work.compute_dtype)
    read, computed = work.stage_bytes(num_decoding, kv_bytes), work.stage_operations(num_decoding)
    tpot = stages * max(read / bandwidth, computed / flops) / tokens_per_step
    head = 2 * (input_tokens - 1) * work.head_parameters / work.layout.tensor_parallel_size
    prompt_seconds = max(work.prompt_operations(input_tokens) - head, 0.0) / (stages * flops)
    ttft = max(prompt_seconds, work.prompt_bytes(1) / bandwidth)
    whole = ttft + (output_tokens - 1) * tpot
    requests = min(num_users / whole, groups / prompt_seconds if prompt_seconds else float("inf"))
    return SpeedBounds(ttft, tpot, whole, requests * output_tokens)
