"""Local memory: what the driver keeps for registers that kernels spill, outside PyTorch and inside vLLM's budget.

It is one allocation for a context, as large as the kernel that spills most needs it for every thread that the GPU can
hold at once (multiprocessors x threads x bytes), and grows with the first launch of such a kernel for good
(forums.developer.nvidia.com/t/local-memory-management/289339). A context begins with 1 KiB for a thread, the default of
cudaLimitStackSize: 216 MiB on an A100 (issue 13 of arcs-skku/EMDC_llvm).

``profiles/local_memory.json`` has what compilers left on the stack. Two kinds of kernels spill more than that 1 KiB:

* those of the gated delta rule, among which Triton chooses by timing (``trials``). How much a choice spills is the
  compiler's whim: 11.7 KiB a thread on an A100 with one or two heads of values for each head of keys, 2.2 GiB in all;
  less than 1 KiB with three or four. So one page has 2.1 GiB less than predicted without it for Qwen3.5-0.8B and 0.04
  less for Qwen3.8-27B, on one A100 under vLLM 0.28 (X011, X012 and X013 of tests/data/vllm_startups.csv, at which
  nothing was fitted);
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
"""Local memory of a thread that a context has from its start."""
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
    trial, possible = _trial_stacks(spec, layers, gpu, release, table)
    grown = max(trial, product)
    return LocalMemory(_growth(grown, threads), _growth(possible, threads) if possible > grown else 0)


def _growth(stack_bytes: int, threads: int) -> int:
    return max(stack_bytes - _CONTEXT_BYTES, 0) * threads


def _trial_stacks(
    spec: ModelSpec, layers: Iterable[LayerSpec], gpu: GpuProfile, release: VllmRelease, table: _CompiledKernels
) -> tuple[int, int]:
    """Bytes of a thread of the gated delta rule's kernels, and the most that it can be where that is not known."""
    mixer = tried_mixer(spec, layers, gpu, release)
    if mixer is None or mixer.kind != "gated_delta_net":
        return 0, 0
    compiled = table.delta_rule.get((release.triton, gpu.compute_capability))
    if compiled is None:
        return 0, table.most_of(gpu.compute_capability)
    values, rows, columns = mixer.recurrent_shape
    keys = (mixer.conv_channels - values * columns) // (2 * rows)
    found = compiled.get(values / keys) if (rows, columns) == _COMPILED_STATE else None
    return (0, max(compiled.values())) if found is None else (found, 0)


def _product_stack(spec: ModelSpec, settings: FilledSettings, compiled: Mapping[str, int] | None) -> int:
    """Bytes of a thread of CUTLASS's products, where one of the model's matrices is multiplied by them."""
    formats = stored_formats(spec, settings.quantization)
    if compiled is None or formats.quantization is None or settings.max_num_batched_tokens <= _SMALL_STEP:
        return 0
    for index, layer in enumerate(spec.layers):
        tensors = layer.all_tensors
        names = {each.name for each in tensors if each.role == "linear" and _is_product(formats.of(each, index))}
        if names:
            biases = {each.name.removesuffix(".bias") for each in tensors if each.role == "bias"}
            return compiled["bias" if any(name.removesuffix(".weight") in biases for name in names) else "plain"]
    return 0


_SMALL_STEP = 256
"""Tokens up to which other tiles are taken, whose stacks were not listed."""
_PRODUCT_METHODS = ("fp8", "fbgemm_fp8", "compressed-tensors", "modelopt", "quark")


def _is_product(stored: QuantizationSpec | None) -> bool:
    """Whether weights in ``stored`` are multiplied by CUTLASS: 8 bits with a float32 scale of a tensor or of channels.

    Scales of packed ones, which are widened, are in 16 bits. Floats with 16-bit activations are not told apart.
    """
    if stored is None or stored.bits != 8 or stored.scale_dtype != "float32":
        return False
    return stored.method in _PRODUCT_METHODS and stored.granularity in ("channel", "tensor")


@dataclass(frozen=True, slots=True)
class _CompiledKernels:
    """Bytes of a thread. ``delta_rule``: by (release of Triton, compute capability), then by values for a head of keys.

    ``products``: by compute capability, then with a bias or without. ``threads``: what a multiprocessor holds at once.
    """

    delta_rule: Mapping[tuple[str, str], Mapping[float, int]]
    products: Mapping[str, Mapping[str, int]]
    threads: Mapping[str, int]

    def most_of(self, capability: str) -> int:
        """Return the most of any release of Triton on GPUs of ``capability``, or else of its first number."""
        major = capability.split(".")[0]
        same = [max(each.values()) for (_, name), each in self.delta_rule.items() if name == capability]
        alike = [max(each.values()) for (_, name), each in self.delta_rule.items() if name.split(".")[0] == major]
        return max(same or alike, default=0)

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
