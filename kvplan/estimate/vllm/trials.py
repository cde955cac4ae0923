"""What vLLM's profile run takes while it tries out the kernels of recurrent layers.

Their Triton kernels choose blocks and warps by timing (triton.autotune), before the first prompt would do so without
room: ``_warmup_prefill_kernels`` of the gated delta rule (pull request 36599 of vllm-project/vllm) and
``_warmup_ssd_kernels`` of Mamba 2 (39822), both called within the first such layer of the profile run.

* While they are timed Triton holds a buffer of 256 MiB that flushes the L2 cache
  (triton/backends/nvidia/driver.py, get_empty_cache_for_benchmark), beside what the layer has alive.
* Some choices spill their registers, for which the driver keeps memory (``local_memory``).

Read in vLLM 0.25.1, 0.29.0 and 0.33.0 that ran without a GPU (``tools/paper_gpu``), whose kernels were compiled for
each GPU by Triton's own ptxas.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvplan.catalog.devices.device_support import compute_capability
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.catalog.spec import LayerSpec, ModelSpec, StateMixer
from kvplan.estimate.dtypes import element_bytes
from kvplan.settings import FilledSettings
from kvplan.units import MIB

_FLUSH_BYTES = 256 * MIB
_CHUNK_TOKENS = 64
_BLACKWELL = 10
_FLASHINFER_HEAD = 128
"""Elements of a key that FlashInfer's kernel of the gated delta rule wants from Blackwell on."""


def tried_mixer(
    spec: ModelSpec, layers: Iterable[LayerSpec], gpu: GpuProfile, release: VllmRelease
) -> StateMixer | None:
    """Return the mixer whose Triton kernels the profile run times; None where there is none, or FlashInfer's runs.

    AMD's GPUs time them, too (triton/backends/amd/driver.py).
    """
    if gpu.is_cpu:
        return None
    for mixer in (mixer for layer in layers for mixer in layer.mixers):
        if not isinstance(mixer, StateMixer):
            continue
        if mixer.kind == "mamba2" and release.tries_mamba2:
            return mixer
        if mixer.kind == "gated_delta_net" and release.tries_delta_rule and is_qwens(spec):
            return None if _runs_flashinfer(mixer, gpu, release) else mixer
    return None


def inner_width(mixer: StateMixer) -> int:
    """Return the elements of a token's output of a gated delta rule or of Mamba 2, before their last product."""
    heads, rows, columns = mixer.recurrent_shape
    return heads * (columns if mixer.kind == "gated_delta_net" else rows)


def is_qwens(spec: ModelSpec) -> bool:
    """Whether a gated delta rule is that of qwen_gdn_linear_attn.py: OLMo Hybrid's tries nothing out."""
    return spec.architecture.startswith("Qwen")


def _runs_flashinfer(mixer: StateMixer, gpu: GpuProfile, release: VllmRelease) -> bool:
    major = compute_capability(gpu)[0]
    has_size = major < _BLACKWELL or mixer.recurrent_shape[1] == _FLASHINFER_HEAD
    return has_size and major in map(int, release.flashinfer_delta_rule.split())


def trial_bytes(
    spec: ModelSpec, layers: Iterable[LayerSpec], gpu: GpuProfile, settings: FilledSettings, release: VllmRelease
) -> int:
    """Return what is alive while kernels are timed: Triton's buffer, a step's tensors up to them, and their operands.

    Of the step: hidden states before and after their norm, the input's projection, and the output, which is not yet
    filled. The operands are of one chunk, with the state before and after it.
    """
    mixer = tried_mixer(spec, layers, gpu, release)
    if mixer is None:
        return 0
    tp, size = settings.tensor_parallel_size, element_bytes(settings.dtype)
    heads, rows, columns = mixer.recurrent_shape
    inner = inner_width(mixer)
    channels = mixer.conv_channels + mixer.conv_group_channels
    step = 2 * spec.hidden_size + (channels + 2 * inner) // tp
    operands = _CHUNK_TOKENS * (channels + 5 * inner) // tp * size + 2 * heads // tp * rows * columns * 4
    return settings.max_num_batched_tokens * step * size + operands + _FLUSH_BYTES
