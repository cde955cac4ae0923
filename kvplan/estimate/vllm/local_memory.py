"""Local memory: what the driver keeps for registers that kernels spill, outside PyTorch and inside vLLM's budget.

It is one allocation for a context, as large as the kernel that spills most needs it for every thread that the GPU can
hold at once (multiprocessors x threads x bytes), and grows with the first launch of such a kernel for good
(forums.developer.nvidia.com/t/local-memory-management/289339). A context begins with 1 KiB for a thread, the default of
cudaLimitStackSize: 216 MiB on an A100 (issue 13 of arcs-skku/EMDC_llvm).

``profiles/local_memory.json`` has what compilers left on the stack. Two kinds of kernels spill more than that 1 KiB:

* those of the gated delta rule, among which Triton chooses by timing (``trials``). How much a choice spills is the
  compiler's whim: 11.7 KiB on an A100 with one or two heads of values for each of keys, which are 2.2 GiB, less than 1
  with three or four. So one page has
  2.1 GiB less than predicted without it for Qwen3.5-0.8B and 0.04 for Qwen3.8-27B, on one A100 under vLLM 0.28 (X011,
  X012 and X013 of tests/data/vllm_startups.csv, at which nothing was fitted);
* CUTLASS's products of 8-bit weights with 8-bit activations on Ada, with a scale for each tensor or channel
  (csrc/quantization/w8a8/cutlass/scaled_mm_c2x_sm89_fp8_dispatch.cuh of vLLM): 192 MiB on an RTX 4090.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.quantization.formats import QuantizationSpec
from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.catalog.spec import LayerSpec, ModelSpec
from kvplan.estimate.vllm.trials import tried_mixer
from kvplan.estimate.vllm.weights import stored_formats
from kvplan.paths import read_shipped
from kvplan.settings import FilledSettings
from kvplan.units import KIB

_CONTEXT_BYTES = KIB
"""Of a thread, from a context's start."""
_COMPILED_STATE: Final = (128, 128)


@dataclass(frozen=True, slots=True)
class LocalMemory:
    """Bytes by which the driver's local memory grows over the profile run.

    ``possible_bytes``: the most by which kernels for this GPU of this compiler grew it, where the model's own were not
    compiled; 0 where they were.
    """

    grown_bytes: int = 0
    possible_bytes: int = 0


NO_GROWTH: Final = LocalMemory()


def local_memory(
    spec: ModelSpec, layers: Iterable[LayerSpec], gpu: GpuProfile, settings: FilledSettings, release: VllmRelease
) -> LocalMemory:
    """Return what the kernels of a rank with ``layers`` add to the memory that a context has."""
    capability, table = gpu.compute_capability, _compiled_kernels()
    if gpu.vendor != "nvidia" or not release.counts_non_torch or capability not in table.threads:
        return NO_GROWTH
    threads = gpu.multiprocessors * table.threads[capability]
    product = _product_stack(spec, settings, table.products.get(capability))
    trial, possible = _trial_stacks(layers, gpu, release, table)
    grown = max(trial, product)
    return LocalMemory(_growth(grown, threads), _growth(possible, threads) if possible > grown else 0)


def _growth(stack_bytes: int, threads: int) -> int:
    return max(stack_bytes - _CONTEXT_BYTES, 0) * threads


def _trial_stacks(
    layers: Iterable[LayerSpec], gpu: GpuProfile, release: VllmRelease, table: _CompiledKernels
) -> tuple[int, int]:
    """Bytes of a thread of the gated delta rule's kernels, and the most that it can be where that is not known."""
    mixer = tried_mixer(layers, gpu, release)
    compiled = table.delta_rule.get((release.triton, gpu.compute_capability), {})
    if mixer is None or mixer.kind != "gated_delta_net" or not compiled:
        return 0, 0
    values, rows, columns = mixer.recurrent_shape
    keys = (mixer.conv_channels - values * columns) // (2 * rows)
    found = compiled.get(values / keys) if (rows, columns) == _COMPILED_STATE else None
    return (0, max(compiled.values())) if found is None else (found, 0)


def _product_stack(spec: ModelSpec, settings: FilledSettings, compiled: Mapping[str, int] | None) -> int:
    """Bytes of a thread of CUTLASS's products, where one of the model's matrices is multiplied by them."""
    formats = stored_formats(spec, settings.quantization)
    if compiled is None or formats.quantization is None:
        return 0
    for index, layer in enumerate(spec.layers):
        tensors = layer.all_tensors
        if any(tensor.role == "linear" and _has_coarse_scales(formats.of(tensor, index)) for tensor in tensors):
            return compiled["bias" if any(tensor.role == "bias" for tensor in tensors) else "plain"]
    return 0


def _has_coarse_scales(stored: QuantizationSpec | None) -> bool:
    """Whether 8-bit weights have float32 scales of a tensor or of channels: those of packed ones are in 16 bits."""
    if stored is None or stored.bits != 8 or stored.scale_dtype != "float32":
        return False
    return stored.granularity in ("channel", "tensor")


@dataclass(frozen=True, slots=True)
class _CompiledKernels:
    """Bytes of a thread. ``delta_rule``: by (release of Triton, compute capability), then by values for a head of keys.

    ``products``: by compute capability, then with a bias or without. ``threads``: what a multiprocessor holds at once.
    """

    delta_rule: Mapping[tuple[str, str], Mapping[float, int]]
    products: Mapping[str, Mapping[str, int]]
    threads: Mapping[str, int]

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> _CompiledKernels:
        found = dict[tuple[str, str], Mapping[float, int]]()
        for row in document["gated_delta_rule"]:
            stacks = {float(ratio): int(stack) for ratio, stack in row["stacks"].items()}
            found |= {(row["triton"], capability): stacks for capability in row["capabilities"]}
        return cls(found, document["products"], document["threads"])


@cache
def _compiled_kernels() -> _CompiledKernels:
    return read_shipped("local_memory.json", _CompiledKernels.from_json)
