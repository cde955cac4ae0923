"""A product for each head: as torch's in float64, whatever the sizes and strides, and the same in every batch."""

from __future__ import annotations

import pytest
import torch
from kernel_builds import OTHER_BUILDS

from kvplan_engine.kernels.build import NATIVE, BuildVariant, build_library
from kvplan_engine.kernels.cpu.library import CpuKernels, load_kernels
from kvplan_engine.kernels.cpu.packed import PackedHeads
from kvplan_engine.layers.head_products import PanelHeads, TorchHeads, make_head_products

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPES = [(3, 5, 7), (4, 24, 12), (16, 512, 128), (2, 128, 512), (5, 33, 129)]
ROWS = [1, 2, 7, 200]


def inputs_of(shape: tuple[int, int, int], rows: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights, and x as a view into wider rows."""
    heads, outputs, inputs = shape
    torch.manual_seed(rows)
    weights = torch.randn(heads, outputs, inputs).to(dtype)
    return weights, torch.randn(rows, heads, inputs + 9).to(dtype)[..., 4 : 4 + inputs]


def check(kernels: CpuKernels, shape: tuple[int, int, int], rows: int, dtype: torch.dtype) -> None:
    weights, x = inputs_of(shape, rows, dtype)
    wide = torch.full((rows, shape[0], shape[1] + 3), 7.0, dtype=dtype)
    PackedHeads(kernels, weights).multiply(x, wide[..., : shape[1]])
    exact = torch.einsum("thi,hoi->tho", x.double(), weights.double())
    allowed = 4e-7 * shape[2] ** 0.5 * float(exact.abs().max()) + (exact.abs() * 2.0**-8 if dtype.itemsize == 2 else 0)
    assert bool(((wide[..., : shape[1]].double() - exact).abs() <= allowed).all())
    assert bool((wide[..., shape[1] :] == 7.0).all()), "wrote beyond the outputs"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_as_defined(shape: tuple[int, int, int], rows: int, dtype: torch.dtype) -> None:
    check(load_kernels(), shape, rows, dtype)


@pytest.mark.parametrize("variant", OTHER_BUILDS, ids=lambda variant: variant.name)
def test_every_build_is_as_defined(variant: BuildVariant) -> None:
    kernels = CpuKernels(build_library(variant))
    for dtype in (torch.float32, torch.bfloat16):
        for shape in SHAPES:
            check(kernels, shape, 7, dtype)


def test_a_row_does_not_depend_on_its_batch() -> None:
    weights, x = inputs_of(SHAPES[2], 200, torch.bfloat16)
    packed = PackedHeads(load_kernels(NATIVE), weights)
    together, alone = (torch.empty(rows, *weights.shape[:2], dtype=x.dtype) for rows in (200, 1))
    packed.multiply(x, together)
    packed.multiply(x[150:151], alone)
    assert torch.equal(alone[0], together[150])


def test_torch_computes_what_the_kernel_lacks() -> None:
    weights, x = inputs_of((3, 5, 7), 4, torch.float64)
    products = make_head_products((PanelHeads(load_kernels()), TorchHeads), weights)
    assert isinstance(products, TorchHeads)
    out = torch.empty(4, 3, 5, dtype=torch.float64)
    products.multiply(x, out)
    assert torch.allclose(out, torch.einsum("thi,hoi->tho", x, weights))


def test_what_does_not_fit_is_refused() -> None:
    weights, x = inputs_of((3, 5, 7), 4, torch.float32)
    with pytest.raises(ValueError, match="packed heads are float32 or bfloat16"):
        PackedHeads(load_kernels(), weights.half())
    with pytest.raises(ValueError, match="out is"):
        PackedHeads(load_kernels(), weights).multiply(x, torch.empty(4, 3, 6))
