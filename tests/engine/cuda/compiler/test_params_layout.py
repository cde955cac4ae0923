"""Every field of a kernel's argument structure lies where ctypes puts it: a launch passes bytes, not names."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest
import torch
from kernel_matrix import every_kernel

from kvplan_engine.kernels.build import find_compiler
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant
from kvplan_engine.kernels.cuda.params import common as cuda_params
from kvplan_engine.kernels.cuda.params import draws as draw_params
from kvplan_engine.kernels.cuda.params import parts as part_params
from kvplan_engine.kernels.cuda.params import products as product_params
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
    "layers/copy_inputs.cu": cuda_params.InputParams,
    "layers/norm.cu": cuda_params.NormParams,
    "layers/activation.cu": cuda_params.ActivationParams,
    "layers/argmax.cu": cuda_params.ArgmaxParams,
    "sampling/sample.cu": draw_params.SampleParams,
    "states/state_convolution.cu": part_params.ConvolutionParams,
    "states/state_delta.cu": part_params.DeltaParams,
    "states/state_mamba1.cu": part_params.Mamba1Params,
    "states/state_mamba2.cu": part_params.Mamba2Params,
    "states/gated_rows.cu": part_params.GateParams,
    "mixtures/mixture_mma.cu": part_params.ProductParams,
    "mixtures/mixture_simple.cu": part_params.ProductParams,
    "mixtures/mixture_route.cu": part_params.RouteParams,
    "mixtures/mixture_sort.cu": part_params.SortParams,
    "mixtures/mixture_sum.cu": part_params.SumParams,
    "products/quantised_simple.cu": product_params.QuantisedParams,
    "products/quantised_mma.cu": product_params.QuantisedParams,
    "products/quantised_widen.cu": product_params.WidenParams,
    "products/quantise_rows.cu": product_params.QuantiseParams,
    "products/skinny_mma.cu": product_params.SkinnyParams,
    "products/lora_shrink.cu": product_params.LoraParams,
    "products/lora_expand.cu": product_params.LoraParams,
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


@pytest.mark.parametrize("structure", [draw_params.DrawRow, draw_params.Listed])
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
