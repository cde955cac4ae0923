"""Compiled corrections by adapters are those of torch, and a product for each head is the same in every batch."""

from __future__ import annotations

from ctypes import pointer
from functools import partial

import pytest
import torch
from kernel_builds import OTHER_BUILDS
from quantised_cases import KINDS, random_weight

from kvplan_engine.adapters.step_rows import StepRows
from kvplan_engine.kernels import lora
from kvplan_engine.kernels.build import NATIVE, BuildVariant, build_library
from kvplan_engine.kernels.cpu import lora as cpu_lora
from kvplan_engine.kernels.cpu.library import CpuKernels, load_kernels
from kvplan_engine.kernels.cpu.packed import PackedHeads
from kvplan_engine.kernels.cpu.quantised import PackedQuantised
from kvplan_engine.kernels.lora import LoraWeights
from kvplan_engine.layers.head_products import PanelHeads, TorchHeads, make_head_products

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_SLOTS, RANK = 3, 5


def weights_of(inputs: int, segments: tuple[int, ...], dtype: torch.dtype) -> LoraWeights:
    generator = torch.Generator().manual_seed(inputs)
    down = torch.randn(NUM_SLOTS, len(segments) * RANK, inputs, generator=generator)
    up = torch.randn(NUM_SLOTS, RANK, sum(segments), generator=generator)
    return LoraWeights(down.to(dtype), up.to(dtype), segments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inputs", [1, 7, 16, 67, 576])
@pytest.mark.parametrize("segments", [(3,), (32, 16, 16), (40, 23)])
def test_the_kernel_is_its_definition(dtype: torch.dtype, inputs: int, segments: tuple[int, ...]) -> None:
    weights = weights_of(inputs, segments, dtype)
    step = StepRows(torch.device("cpu"))
    step.fill([0, -1, 2, 0, 1, 2], [1, 4, 11, 3, 8, 2], [True] * 6)
    assert step.rows is not None
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(30, inputs + 3, generator=generator).to(dtype)[:29, :inputs]
    before = torch.randn(30, sum(segments) + 5, generator=generator).to(dtype)[:29, : sum(segments)]
    want, found = before.float(), before.clone()
    wide = LoraWeights(weights.down.float(), weights.up.float(), segments)
    lora.correct(x.float(), want, wide, step.rows)
    partial(cpu_lora.correct, load_kernels())(x, found, weights, step.rows)
    scale = want.abs().max()
    bound = 1e-5 if dtype is torch.float32 else 1e-2
    assert (found.float() - want).abs().max() <= bound * scale
    assert torch.equal(found[1:5], before[1:5])  # rows without an adapter


def test_rows_are_grouped_by_slot() -> None:
    step = StepRows(torch.device("cpu"))
    step.fill([1, -1, 1, 0], [2, 3, 8, 1], [True, True, False, True])
    rows, sampled = step.among(14), step.among(3)
    assert rows is not None and sampled is not None
    assert rows.slots.tolist() == [0, 1, 1]
    assert rows.rows[0].tolist() == [13, *[-1] * 7]
    assert rows.rows[1:].flatten().tolist() == [0, 1, *range(5, 13), *[-1] * 6]
    assert sampled.slots.tolist() == [0, 1]
    assert sampled.rows[:, :2].tolist() == [[2, -1], [0, -1]]
    assert {rows.rows.dtype, rows.slots.dtype} == {torch.int32}


def test_nothing_is_sampled_with_an_adapter() -> None:
    step = StepRows(torch.device("cpu"))
    step.fill([1, -1], [4, 1], [False, True])
    assert step.among(5) is not None and step.among(1) is None
    step.clear()
    assert step.among(5) is None


def test_tensors_that_do_not_fit_are_refused() -> None:
    weights = weights_of(16, (8,), torch.float32)
    step = StepRows(torch.device("cpu"))
    step.fill([0], [2], [True])
    assert step.rows is not None
    with pytest.raises(ValueError, match="x is"):
        cpu_lora.correct(load_kernels(), torch.zeros(2, 15), torch.zeros(2, 8), weights, step.rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_quantised_product_is_corrected(dtype: torch.dtype) -> None:
    """x in an order of its own, sums of groups, several rows of an adapter: as of the product and ``correct`` apart."""
    kind = next(kind for kind in KINDS if kind.has_order)
    packed = PackedQuantised(load_kernels(), random_weight(kind, 96, 1))
    step = StepRows(torch.device("cpu"))
    step.fill([0, -1, 2], [9, 2, 3], [True] * 3)
    rows = step.among(14)
    assert rows is not None
    weights = weights_of(kind.group, (64, 32), dtype)
    x = torch.randn(14, kind.group, generator=torch.Generator().manual_seed(2)).to(dtype)
    apart, found = torch.empty(14, 96, dtype=dtype), torch.empty(14, 96, dtype=dtype)
    packed(x, apart)
    uncorrected = apart.clone()
    cpu_lora.correct(load_kernels(), x, apart, weights, rows)
    slots, corrected = cpu_lora.slots_args(weights), cpu_lora.rows_args(rows)
    packed.layer_args.slots, packed.layer_args.corrected = pointer(slots), pointer(corrected)
    packed(x, found)
    bound = 1e-5 if dtype is torch.float32 else 1e-2
    assert (found.float() - apart.float()).abs().max() <= bound * apart.float().abs().max()
    assert (found.float() - uncorrected.float()).abs().max() > 1
    assert torch.equal(found[9:11], uncorrected[9:11])


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
