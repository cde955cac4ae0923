"""Kernels that move rows 16 bytes at a time do so in the compiler's output too, which may take vectors apart.

And none of them touches global memory before it has waited for the kernel before it, but for weights of products.
"""

from __future__ import annotations

import re

import pytest
import torch
from kernel_matrix import LLAMA, LLAMA_GATED, LLAMA_PLAIN, properties_of

from kvplan_engine.kernels.cuda.attention.launches import prefill_launch
from kvplan_engine.kernels.cuda.launching.nvrtc import load_nvrtc
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError, KernelVariant, variant, write_variant
from kvplan_engine.kernels.cuda.products.skinny_launch import SkinnyShape, skinny_launch

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
