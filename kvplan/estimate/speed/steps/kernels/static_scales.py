"""Dense products in 8-bit floats whose activations have their scale in the checkpoint (NVIDIA's ModelOpt, for one).

The fits are of products that find a scale for each batch first: a kernel more before each. aiconfigurator-core 0.12.0
has both (``fp8`` and ``fp8_static``). A layer of Llama 3.1 8B, Qwen3-32B or Llama 3.1 70B with 1 to 256 sequences on 1
to 8 ranks is shorter by, in us in the median:

                     H100, H200    B200, B300, GB200    L40S    RTX PRO 6000
    TensorRT-LLM     33.5, 32.7     39.2, 39.9, 39.6    27.1            31.5
    SGLang           15.9, 15.4     15.1, 15.4, 15.7    10.5            13.0
    vLLM              8.9,  8.7      8.9,  8.4,  9.4     7.0             7.3

and hardly more with more sequences. A prompt of 8,192 tokens takes 1 to 10 % less, which is left out. A mixture's dense
products are those of attention, half of a dense layer's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvplan.catalog.devices.device_support import compute_capability
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.engines import EngineChoice
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.work import ModelWork

_LAYER_SECONDS: Final = {
    ("trtllm", 9): 33e-6,
    ("trtllm", 10): 39.6e-6,
    ("trtllm", 8): 27.1e-6,
    ("trtllm", 12): 31.5e-6,
    ("sglang", 9): 15.7e-6,
    ("sglang", 10): 15.4e-6,
    ("sglang", 8): 10.5e-6,
    ("sglang", 12): 13.0e-6,
    ("vllm", 9): 8.8e-6,
    ("vllm", 10): 8.9e-6,
    ("vllm", 8): 7.0e-6,
    ("vllm", 12): 7.3e-6,
}
"""Seconds that a layer saves, by engine and major compute capability. 8 is Ada: Ampere has no such products."""


def with_static_scales(speed: DeviceSpeed, work: ModelWork, gpu: GpuProfile, engine: EngineChoice) -> DeviceSpeed:
    """Return ``speed``, of a fit to products with scales found on the way, without what finding them takes."""
    is_fit = speed.engine == engine.name and speed.engine_version is not None and speed.dtype == "fp8"
    saved = _LAYER_SECONDS.get((engine.name, compute_capability(gpu)[0]), 0.0)
    if not (is_fit and work.has_static_scales and work.speed_format == "fp8"):
        return speed
    base = speed.speed.base
    layer_seconds = max(base.layer_seconds - saved / (2 if work.num_experts else 1), 0.0)
    return replace(speed, speed=replace(speed.speed, base=replace(base, layer_seconds=layer_seconds)))
