"""What a step costs on a device that was never calibrated: estimates good enough for time left and time-outs.

The runner scales them by what its first trials took; ``kvplan calibrate`` replaces them for good. A guessed speed of a
CPU is shown to nobody: it depends on units (AVX2, AVX512-BF16, AMX), clock and memory, of which it knows nothing.
"""

from __future__ import annotations

from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.estimate.speed.steps.step_time import Speed
from kvplan.machine.host import usable_cores

# Sustained, not peak. One core with AVX2 at about 3 GHz peaks at 96 GFLOP/s in float32; small matrices reach two thirds
# of that. Memory bandwidth of a small virtual machine: 10 to 25 GB/s.
_CPU_FLOPS_PER_CORE: Final = 60e9
_CPU_ATTENTION_FLOPS_PER_CORE: Final = 30e9
_CPU_BANDWIDTH: Final = 18e9
_CPU_KV_BANDWIDTH: Final = 13e9
# A GPU the catalog does not know: about an A10G's.
_GPU_FLOPS: Final = 120e12
_GPU_BANDWIDTH: Final = 0.6e12
_GPU_BANDWIDTH_SHARE: Final = 0.7
_GPU_FLOPS_SHARE: Final = 0.5
_GPU_ATTENTION_SHARE: Final = 0.2


# Scheduling, counting and drawing random tokens for a few dozen sequences, on one busy core.
_COUNTED_STEP_SECONDS: Final = 5e-4


class CountedStep:
    """The clock of a trial that computes nothing: a step takes what the scheduler takes."""

    def seconds(
        self, num_tokens: int, num_sequences: int, num_sampled: int, num_kv_tokens: int, num_pairs: float
    ) -> float:
        """See StepClock.seconds."""
        return _COUNTED_STEP_SECONDS


def guess_speed(device: str, gpu: GpuProfile | None = None, dtype: str = "bfloat16") -> Speed:
    """A first estimate for ``cpu`` (all its cores) or ``cuda``, from ``gpu``'s data sheet if it is known."""
    if device != "cuda":
        cores = usable_cores()
        return Speed(
            step_seconds=1e-3,
            layer_seconds=2e-4,
            sequence_seconds=1e-4,
            bandwidth=_CPU_BANDWIDTH,
            flops=_CPU_FLOPS_PER_CORE * cores,
            kv_bandwidth=_CPU_KV_BANDWIDTH,
            attention_flops=_CPU_ATTENTION_FLOPS_PER_CORE * cores,
            sharpness=1.0,
        )
    bandwidth = gpu.memory_bandwidth_bytes_per_second if gpu else _GPU_BANDWIDTH
    flops = gpu.flops(dtype) if gpu else _GPU_FLOPS
    return Speed(
        step_seconds=1e-3,
        layer_seconds=1e-4,
        sequence_seconds=1e-5,
        bandwidth=_GPU_BANDWIDTH_SHARE * bandwidth,
        flops=_GPU_FLOPS_SHARE * flops,
        kv_bandwidth=_GPU_BANDWIDTH_SHARE * bandwidth,
        attention_flops=_GPU_ATTENTION_SHARE * flops,
        sharpness=4.0,
    )
