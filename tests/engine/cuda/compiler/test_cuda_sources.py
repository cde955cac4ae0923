"""CUDA sources as compilers read them: fields where ctypes puts them, accesses of 16 bytes, digests of includes."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from kernel_matrix import LLAMA, LLAMA_GATED, LLAMA_PLAIN, every_kernel, properties_of

from kvplan_engine.kernels.build import find_compiler
from kvplan_engine.kernels.cuda import params as cuda_params
from kvplan_engine.kernels.cuda.attention import prefill_launch
from kvplan_engine.kernels.cuda.launching.nvrtc import load_nvrtc
from kvplan_engine.kernels.cuda.launching.variants import (
    CudaKernelError,
    KernelVariant,
    source_digest,
    variant,
    with_includes,
    write_variant,
)
from kvplan_engine.kernels.cuda.products.skinny import SkinnyShape, skinny_launch
from kvplan_engine.kernels.cuda.sampling import sample_variant
from kvplan_engine.paths import source_dir

STRUCTURE_OF_SOURCE = {
    "attention/plan/plan.cu": cuda_params.PlanParams,
    "attention/plan/shared_prefix.cu": cuda_params.PlanParams,
    "attention/decode/decode_mma.cu": cuda_params.AttentionParams,
    "attention/decode/decode_simple.cu": cuda_params.AttentionParams,
    "attention/prefill/prefill_mma.cu": cuda_params.AttentionParams,
    "attention/prefill/prefill_simple.cu": cuda_params.AttentionParams,
    "attention/prefill/prefill_wgmma.cu": cuda_params.PrefillWgmmaParams,
    "attention/latent_mma.cu": cuda_params.AttentionParams,
    "attention/cache/write_kv.cu": cuda_params.WriteParams,
    "attention/cache/copy_blocks.cu": cuda_params.CopyParams,
    "collectives/all_reduce.cu": cuda_params.AllReduceParams,
    "layers/copy_inputs.cu": cuda_params.InputParams,
    "layers/norm.cu": cuda_params.NormParams,
    "layers/activation.cu": cuda_params.ActivationParams,
    "layers/argmax.cu": cuda_params.ArgmaxParams,
    "sampling/sample.cu": cuda_params.SampleParams,
    "states/state_convolution.cu": cuda_params.ConvolutionParams,
    "states/state_delta.cu": cuda_params.DeltaParams,
    "states/state_mamba1.cu": cuda_params.Mamba1Params,
    "states/state_mamba2.cu": cuda_params.Mamba2Params,
    "states/gated_rows.cu": cuda_params.GateParams,
    "mixtures/mixture_mma.cu": cuda_params.ProductParams,
    "mixtures/mixture_simple.cu": cuda_params.ProductParams,
    "mixtures/mixture_route.cu": cuda_params.RouteParams,
    "mixtures/mixture_sort.cu": cuda_params.SortParams,
    "mixtures/mixture_sum.cu": cuda_params.SumParams,
    "products/quantised_simple.cu": cuda_params.QuantisedParams,
    "products/quantised_mma.cu": cuda_params.QuantisedParams,
    "products/quantised_widen.cu": cuda_params.WidenParams,
    "products/float8_mma.cu": cuda_params.Float8Params,
    "products/quantise_rows.cu": cuda_params.QuantiseParams,
    "products/skinny_mma.cu": cuda_params.SkinnyParams,
    "products/lora_shrink.cu": cuda_params.LoraParams,
    "products/lora_expand.cu": cuda_params.LoraParams,
}


def layout_claims(structure: type[ctypes.Structure]) -> str:
    """C++ that compiles only where the structure of this name has ctypes' offsets and sizes; _fields are fillers."""
    name = structure.__name__
    claims = [f'static_assert(sizeof({name}) == {ctypes.sizeof(structure)}, "{name}");']
    for field in (name for name, _ in structure._fields_ if not name.startswith("_")):
        place = getattr(structure, field)
        claims.append(f'static_assert(__builtin_offsetof({name}, {field}) == {place.offset}, "{name}.{field}");')
        claims.append(f'static_assert(sizeof({name}::{field}) == {place.size}, "{name}.{field}");')
    return "\n".join(claims)


def compile_errors(variant: KernelVariant, claims: str) -> str:
    folder = source_dir() / "cuda"
    command = [*find_compiler(), "-std=c++17", "-fsyntax-only", "-w", f"-I{folder}", *variant.flags(), "-x", "c++", "-"]
    text = f'#include "{variant.source}"\n{claims}\n'
    result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    return result.stderr


@pytest.mark.parametrize("variant", {one.source: one for one in every_kernel((9, 0))}.values(), ids=lambda v: v.source)
def test_fields_lie_where_ctypes_puts_them(variant: KernelVariant) -> None:
    assert compile_errors(variant, layout_claims(STRUCTURE_OF_SOURCE[variant.source])) == ""


@pytest.mark.parametrize("structure", [cuda_params.DrawRow, cuda_params.Listed])
def test_what_lies_in_memory_is_read_as_it_was_written(structure: type[ctypes.Structure]) -> None:
    """The host writes rows of these, which numpy lays out as ctypes does."""
    chosen = sample_variant(torch.float32, 384, vectors=True)
    assert compile_errors(chosen, layout_claims(structure)) == ""
    types = np.dtype(structure)
    assert {name: types.fields[name][1] for name in types.names} == {
        name: getattr(structure, name).offset for name, _ in structure._fields_
    }


def test_a_field_in_another_place_is_found() -> None:
    class CopyParams(ctypes.Structure):
        _fields_ = (
            ("target", ctypes.c_void_p),
            ("source", ctypes.c_void_p),
            ("pairs", ctypes.c_void_p),
            ("block_vectors", ctypes.c_longlong),
        )

    assert "CopyParams.target" in compile_errors(
        KernelVariant("attention/cache/copy_blocks.cu", "copy_blocks"), layout_claims(CopyParams)
    )


BF16, F16 = torch.bfloat16, torch.float16
NORM = {"width": 4096, "threads": 512, "delta": 1, "vectors": 1}
# What is read in smaller pieces: block numbers, lengths, slots, positions, sinks.
_INDEX_READS = {"ld.global.u32", "ld.global.u64", "ld.global.s32", "ld.global.b32", "ld.global.b64"}
# Prefill reads a work item too; what a block leaves for the others of its tile lies a warp's 128 bytes side by side.
_OF_PARTS = {"ld.global.v2.u32", "ld.global.cg.f32", "st.global.f32"}
_VECTOR = re.compile(r"(ld|st)\.global\.v4\.[buf]32")
VARIANTS = [
    variant("layers/norm.cu", "rms_norm", scalar=BF16, **NORM),
    variant("layers/norm.cu", "layer_norm", scalar=F16, **NORM),
    variant("layers/activation.cu", "silu_and_mul", scalar=BF16, vectors=1),
    variant("layers/activation.cu", "gelu_tanh", scalar=F16, vectors=1),
    variant("attention/cache/copy_blocks.cu", "copy_blocks"),
    write_variant(BF16, BF16, 128, 16, 128),
    write_variant(F16, F16, 64, 16, 0),
    prefill_launch(LLAMA, properties_of((9, 0))).variant,
]


def ptx_of(chosen: KernelVariant) -> str:
    try:
        nvrtc = load_nvrtc()
    except CudaKernelError:
        pytest.skip("no NVRTC on this machine: pip install nvidia-cuda-nvrtc-cu12")
    return nvrtc.compile(chosen, "compute_90").image.decode()


@pytest.mark.slow
@pytest.mark.parametrize("chosen", VARIANTS, ids=KernelVariant.label)
def test_rows_move_16_bytes_at_a_time(chosen: KernelVariant) -> None:
    ptx = ptx_of(chosen)
    first_access = re.search(r"(ld|st|red|atom|prefetch)\.global|cp\.async", ptx)
    assert first_access is not None
    assert 0 < ptx.find("griddepcontrol.wait;") < first_access.start()
    assert ptx.find("griddepcontrol.launch_dependents;") > ptx.find("griddepcontrol.wait;")
    accesses = set(re.findall(r"(?:ld|st)\.global[.\w]*", ptx))
    assert any(_VECTOR.fullmatch(access) for access in accesses if access.startswith("st"))
    smaller = _INDEX_READS | (_OF_PARTS if chosen.kernel == "prefill_attention" else set())
    assert {access for access in accesses if not _VECTOR.fullmatch(access)} <= smaller


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "rows"), [(LLAMA_GATED, 8), (LLAMA_PLAIN, 16)], ids=["gated", "plain"])
def test_a_product_asks_for_weights_alone_before_it_waits(shape: SkinnyShape, rows: int) -> None:
    """All of them 16 bytes at a time, or a row's beginning into the second-level cache."""
    ptx = ptx_of(skinny_launch(shape, rows, properties_of((9, 0))).variant)
    before, after = ptx.split("griddepcontrol.wait;")
    copies = re.compile(r"cp\.async\.(?!commit|wait)\S+")
    assert set(copies.findall(before)) == {"cp.async.cg.shared.global.L2::128B", "cp.async.bulk.prefetch.L2.global"}
    assert re.search(r"\b(ld|st|red|atom)\.global", before) is None
    assert set(copies.findall(after)) == {"cp.async.cg.shared.global.L2::128B"}
    assert "griddepcontrol.launch_dependents;" in after
    assert re.search(r"ld\.global\.v4\.[buf]32", after) is not None, "rows of x"


SOURCES = sorted((source_dir() / "cuda").rglob("*.cu"))


def as_the_compiler_finds_them(source: Path) -> set[Path]:
    """The files that a compiler reads for ``source``, without those of the system."""
    command = [*find_compiler(), "-x", "c++", "-MM", str(source)]
    rule = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {Path(name).resolve() for name in rule.replace("\\\n", " ").split()[1:]}


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_includes_are_those_that_the_compiler_reads(source: Path) -> None:
    assert set(with_includes(source)) == as_the_compiler_finds_them(source)


def test_a_digest_changes_with_what_is_included_and_with_nothing_else(tmp_path: Path) -> None:
    cuda = shutil.copytree(source_dir() / "cuda", tmp_path / "cuda")
    shutil.copytree(source_dir() / "cuda_host", tmp_path / "cuda_host")
    source = cuda / "layers" / "norm.cu"
    before = source_digest(source)
    assert before == source_digest("layers/norm.cu")
    (cuda / "attention" / "attention.cuh").write_text("something else\n")
    assert source_digest(source) == before
    with (tmp_path / "cuda_host" / "cuda_words.hpp").open("a") as file:
        file.write("\n")
    assert source_digest(source) != before
