"""What reading a prompt through gated delta layers costs beside their products: the scan of the state, a convolution.

Such kernels are in no fit: those are of attention. aiconfigurator-core 0.12.0 has them as ``gdn_scan`` and
``gdn_conv1d``, of Qwen3.5-35B-A3B and of Qwen3.5-27B (30 layers of 32 heads, 48 of 48), in ns a token and a layer, both
together:

                                        one prompt of 8,192     four of 2,048
    vLLM 0.24, H100 and H200               62.5 to 66.4          27.4 to 44.9
    vLLM 0.24, B200                        52.4 and 55.6         24.5 and 39.0
    vLLM 0.24, RTX PRO 6000                140.7 and 186.6      138.9 and 191.8
    SGLang 0.5.14, H100 and H200          124.9 to 150.5        123.3 to 140.8
    SGLang 0.5.14, B200                    86.9 and 111.2        73.4 and 98.2
    SGLang 0.5.14, RTX PRO 6000           126.8 and 176.3       125.2 and 181.4

(one of SGLang's, four prompts on an H200, has 271.4 and is left out). A third fewer heads take about as long: one chunk
of a prompt waits for the one before. So ranks, which have their share of the heads, are taken to gain nothing, and the
geometric middle stands for all. In a decode step the recurrence reads and writes the state (``CacheEntry.read_bytes``).
Not known are the kernels of Mamba-2, whose entries are a formula there, and those of other GPUs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvplan.catalog.devices.device_support import compute_capability
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.work import ModelWork

GATED_DELTA: Final = "gated_delta_net"
_TOKEN_SECONDS: Final = {
    ("vllm", 9): 48e-9,
    ("vllm", 10): 41e-9,
    ("vllm", 12): 163e-9,
    ("sglang", 9): 133e-9,
    ("sglang", 10): 91e-9,
    ("sglang", 12): 150e-9,
}
"""Seconds of a token in a layer, by engine and major compute capability."""


def with_state_scans(speed: DeviceSpeed, work: ModelWork, gpu: GpuProfile, engine: str) -> DeviceSpeed:
    """Return ``speed``, of a fit to tables, with the seconds that a token of a prompt takes in all such layers."""
    seconds = _TOKEN_SECONDS.get((engine, compute_capability(gpu)[0]))
    if work.recurrent != GATED_DELTA or seconds is None or speed.engine_version is None:
        return speed
    return replace(speed, speed=replace(speed.speed, scan_seconds=seconds * work.num_recurrent_layers))
