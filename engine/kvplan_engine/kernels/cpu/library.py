"""The compiled CPU kernels as typed ctypes functions (csrc/include/kvplan_cpu.h is the other side)."""

from __future__ import annotations

import ctypes
import logging
import platform
from ctypes import POINTER, c_char_p, c_int, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from kvplan_engine.kernels.build import NATIVE, BuildVariant, KernelBuildError, built_libraries
from kvplan_engine.kernels.cpu.structures import (
    AttentionArgs,
    ChoiceArgs,
    ConvolutionArgs,
    DeltaRuleArgs,
    GatedRowsArgs,
    HeadProductsArgs,
    KvWriteArgs,
    LayersArgs,
    Mamba1Args,
    Mamba2Args,
    MixtureArgs,
    NormArgs,
    PackedLinearArgs,
    WeightFormatArgs,
    check_structures,
)

log = logging.getLogger(__name__)

STORAGE_CODES = {torch.float32: 0, torch.bfloat16: 1}
"""The dtypes that the kernels read and write, with their number on the C side."""
KV_STORAGE_CODES = STORAGE_CODES | {torch.float8_e4m3fn: 2, torch.int8: 3}
"""The same for the KV pool."""

STATUS_OK = 0
STATUS_BAD_INDEX = 1


LAYER_OPERATIONS = ("qkv", "rope", "write_kv", "attention", "output", "norms", "up", "down", "mixture")
"""enum kvplan_layer_operation: the order of LayersArgs.operation_seconds."""


class CpuKernels:
    """One loaded library. Its methods are the C functions: they return a status, and check indices only.

    OSError or AttributeError for a file that is no library of ours, KernelStructureError for one of other structures.
    """

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        check_structures(self._function("kvplan_structure_bytes", c_char_p, result=c_int64))
        self.lanes: int = self._function("kvplan_lanes")()
        self.paged_attention = self._function("kvplan_paged_attention", POINTER(AttentionArgs), c_int)
        self.tokens_read_once = self._function("kvplan_tokens_read_once", POINTER(AttentionArgs), result=c_int64)
        self.choose_tokens = self._function("kvplan_choose_tokens", POINTER(ChoiceArgs), c_int)
        self.write_kv = self._function("kvplan_write_kv", POINTER(KvWriteArgs), c_int)
        self.rms_norm = self._function("kvplan_rms_norm", POINTER(NormArgs), c_int)
        self.layer_norm = self._function("kvplan_layer_norm", POINTER(NormArgs), c_int)
        rows = (c_void_p, c_int64, c_int64, c_int64, c_int, c_int)
        self.gelu_tanh = self._function("kvplan_gelu_tanh", *rows)
        self.gelu_erf = self._function("kvplan_gelu_erf", *rows)
        self.silu_and_mul = self._function("kvplan_silu_and_mul", c_void_p, c_int64, *rows)
        self.argmax_rows = self._function(
            "kvplan_argmax_rows", c_void_p, c_int64, c_void_p, c_int64, c_int64, c_int, c_int
        )
        self.rope = self._function(
            "kvplan_rope", *(c_void_p, c_int64, c_int64, c_void_p, c_void_p), *(c_int64,) * 4, c_int, c_int
        )
        self.copy_blocks = self._function(
            "kvplan_copy_blocks", c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_int64, c_int64, c_int
        )
        self.run_layers = self._function("kvplan_run_layers", POINTER(LayersArgs), c_int)
        self.exp = self._function("kvplan_exp", c_void_p, c_void_p, c_int64)
        self.tanh = self._function("kvplan_tanh", c_void_p, c_void_p, c_int64)
        self._declare_products()
        self._declare_mixtures_and_states()

    def instruction_set(self, dtype: torch.dtype) -> str:
        """The widest instructions that products and attention in ``dtype`` run in: amx, avx512, avx2, sse2 or neon."""
        if dtype is torch.bfloat16 and self.has_tiles:
            return "amx"
        narrow = "sse2" if platform.machine() in ("x86_64", "AMD64") else "neon"
        return {16: "avx512", 8: "avx2"}.get(self.lanes, narrow)

    @property
    def has_tiles(self) -> bool:
        """Whether products and attention in bfloat16 run in AMX's tiles."""
        return bool(self.use_tiles(-1))

    def _declare_products(self) -> None:
        self.use_tiles = self._function("kvplan_use_tiles", c_int)
        self.linear = self._function(
            "kvplan_linear",
            *(c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_int64),
            *(c_int64, c_int64, c_int64, c_int, c_int),
        )
        self.packed_outputs = self._function("kvplan_packed_outputs", c_int64, result=c_int64)
        self.packed_inputs = self._function("kvplan_packed_inputs", c_int64, c_int, result=c_int64)
        self.pack_weight = self._function(
            "kvplan_pack_weight", *(c_void_p, c_void_p, c_int64, c_int64), *(c_int, c_int, c_int)
        )
        self.multiply_packed = self._function("kvplan_multiply_packed", POINTER(PackedLinearArgs), c_int)
        quantised = POINTER(WeightFormatArgs)
        self.quantised_bytes = self._function(
            "kvplan_quantised_bytes", quantised, c_int64, c_int64, c_int, result=c_int64
        )
        self.pack_quantised = self._function(
            "kvplan_pack_quantised", quantised, *(c_void_p,) * 5, c_int64, c_int64, c_int, c_int
        )
        self.unpack_quantised_rows = self._function(
            "kvplan_unpack_quantised_rows", quantised, *(c_void_p,) * 3, *(c_int64,) * 4, c_int, c_int
        )
        self.multiply_heads = self._function("kvplan_multiply_heads", POINTER(HeadProductsArgs), c_int)
        self.correct = self._function("kvplan_correct", POINTER(PackedLinearArgs), c_int)
        self.unpack_rows = self._function("kvplan_unpack_rows", *(c_void_p,) * 3, *(c_int64,) * 4, c_int, c_int)

    def _declare_mixtures_and_states(self) -> None:
        self.packed_expert_elements = self._function(
            "kvplan_packed_expert_elements", c_int64, c_int64, c_int, c_int, result=c_int64
        )
        self.pack_expert = self._function(
            "kvplan_pack_expert", *(c_void_p, c_void_p, c_int64, c_int64), *(c_int, c_int, c_int)
        )
        self.route = self._function("kvplan_route", POINTER(MixtureArgs), c_int)
        self.run_mixture = self._function("kvplan_run_mixture", POINTER(MixtureArgs), c_int)
        self.convolve = self._function("kvplan_convolve", POINTER(ConvolutionArgs), c_int)
        self.scan_mamba1 = self._function("kvplan_mamba1_scan", POINTER(Mamba1Args), c_int)
        self.scan_mamba2 = self._function("kvplan_mamba2_scan", POINTER(Mamba2Args), c_int)
        self.gate_rows = self._function("kvplan_gate_rows", POINTER(GatedRowsArgs), c_int)
        self.run_delta_rule = self._function("kvplan_run_delta_rule", POINTER(DeltaRuleArgs), c_int)

    def _function(self, name: str, *argument_types: type, result: type = c_int) -> ctypes._NamedFuncPointer:
        function = getattr(self._library, name)
        function.argtypes = argument_types
        function.restype = result
        return function


@dataclass(frozen=True, slots=True)
class LoadedKernels:
    """A loaded library. notice: where it lies, and why, if that is not the user's cache."""

    kernels: CpuKernels
    notice: str | None


@cache
def loaded_kernels(variant: BuildVariant) -> LoadedKernels:
    """The library of ``variant``, built where needed, from the first folder that has one. Raises KernelBuildError."""
    failures: dict[Path, Exception] = {}
    try:
        for built in built_libraries(variant):
            try:
                kernels = CpuKernels(built.path)
            except (OSError, AttributeError) as error:
                failures[built.path] = error
                continue
            notice = f"the CPU kernels lie in {built.path.parent}, because {'; '.join(built.refusals)}"
            return LoadedKernels(kernels, notice if built.refusals else None)
    except KernelBuildError as error:
        for path, failure in failures.items():
            raise KernelBuildError(
                f"the compiled kernels cannot be loaded: {failure}", hint=f"delete {path}"
            ) from error
        raise
    raise AssertionError("built_libraries ends in an error")


def load_kernels(variant: BuildVariant = NATIVE) -> CpuKernels:
    """Build where needed and load. Raises KernelBuildError."""
    return loaded_kernels(variant).kernels


@dataclass(frozen=True, slots=True)
class KernelState:
    """What the CPU kernels are here. absence: why there are none. notice: as in LoadedKernels."""

    kernels: CpuKernels | None
    absence: KernelBuildError | None = None
    notice: str | None = None


@cache
def kernel_state() -> KernelState:
    """The kernels for this machine, or why there are none. Whatever is not as usual is logged once, as a warning."""
    try:
        loaded = loaded_kernels(NATIVE)
    except KernelBuildError as error:
        hint = f" (hint: {error.hint})" if error.hint else ""
        log.warning("CPU kernels not available, running on plain torch, which is slower: %s%s", error.message, hint)
        return KernelState(None, absence=error)
    if loaded.notice is not None:
        log.warning("%s", loaded.notice)
    return KernelState(loaded.kernels, notice=loaded.notice)


@cache
def cpu_kernels() -> CpuKernels | None:
    """The kernels for this machine; None, with one warning, where they cannot be built."""
    return kernel_state().kernels
