"""Products of rows rounded to 8 bits, in every build of the kernels, beside the plain definition of the rounding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from mixture_cases import HIDDEN, MIXTURES, random_rows, random_weights
from quantised_cases import E2M1, KINDS, Kind, random_weight
from torch.nn import functional

from kvplan_engine.kernels import torch_mixture
from kvplan_engine.kernels.cpu.library import CpuKernels
from kvplan_engine.kernels.cpu.mixture import PackedMixture
from kvplan_engine.kernels.cpu.quantised import PackedQuantised
from kvplan_engine.kernels.mixture_weights import ExpertMatrices, MixtureRoom, QuantisedExperts
from kvplan_engine.kernels.quantised_weight import QuantisedWeight, linear_book, rounded_inputs

EVEN_KINDS = [kind for kind in KINDS if random_weight(kind, 1, 1).zero is not None]
ROWS = (1, 2, 3, 6, 7, 13, 40, 200)


def rounding_weight(kind: Kind, outputs: int, num_groups: int) -> QuantisedWeight:
    return replace(random_weight(kind, outputs, num_groups), rounds_inputs=True)


def rows_of(number: int, inputs: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Strided; some of every magnitude that activations have."""
    generator = torch.Generator().manual_seed(number)
    wide = torch.randn(number, inputs + 3, generator=generator)
    return (wide * torch.logspace(-3, 2, number).unsqueeze(1)).to(dtype)[:, :inputs]


def product(packed: PackedQuantised, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape[0], packed.num_result_columns, dtype=x.dtype)
    packed(x, out)
    return out


@pytest.mark.parametrize("kind", EVEN_KINDS, ids=str)
def test_equals_the_product_of_the_rounded_rows(kernels: CpuKernels, kind: Kind) -> None:
    weight = rounding_weight(kind, 130, 3)
    packed, wide = PackedQuantised(kernels, weight), weight.dequantised().double()
    for rows in ROWS:
        for dtype, tolerance in ((torch.float32, 2e-6), (torch.bfloat16, 2**-8)):
            x = rows_of(rows, weight.num_inputs, dtype)
            want = rounded_inputs(x, weight).double() @ wide.t()
            room = x.double().abs() @ wide.abs().t() / 8 + want.abs()
            assert ((product(packed, x).double() - want).abs() <= tolerance * room).all(), (rows, dtype)


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_the_integers_are_exact_in_every_build(kernels: CpuKernels, bits: int) -> None:
    """Codes of all sizes, integers of both signs: with a scale of 1 a group's sum is the whole result."""
    for group in (32, 256):
        kind = Kind("even", linear_book(bits, 2 ** (bits - 1)), group)
        weight = rounding_weight(kind, 70, 1)
        weight = replace(weight, scales=torch.ones_like(weight.scales))
        packed = PackedQuantised(kernels, weight)
        for rows in (1, 5, 13):
            x = rows_of(rows, group)
            largest = x.abs().amax(dim=1, keepdim=True)
            scales, integers = largest / 127, (x * (torch.full_like(largest, 127) / largest)).round()
            want = (integers.double() @ weight.dequantised().double().t()).float() * scales
            assert torch.equal(product(packed, x), want), (group, rows)


@pytest.mark.parametrize("kind", EVEN_KINDS, ids=str)
def test_a_row_does_not_depend_on_its_batch(kernels: CpuKernels, kind: Kind) -> None:
    weight = rounding_weight(kind, 100, 4)
    packed, x = PackedQuantised(kernels, weight), rows_of(210, weight.num_inputs, torch.bfloat16)
    all_rows = product(packed, x)
    for count in (1, 2, 5, 6, 7, 13, 64):
        assert torch.equal(product(packed, x[210 - count :]), all_rows[210 - count :]), count


def test_gate_and_up(kernels: CpuKernels) -> None:
    weight = rounding_weight(EVEN_KINDS[0], 2 * 3 * kernels.packed_outputs(1), 2)
    packed, x = PackedQuantised(kernels, weight, None, "silu_and_mul"), rows_of(9, weight.num_inputs)
    gate, up = (rounded_inputs(x, weight).double() @ weight.dequantised().double().t()).chunk(2, dim=1)
    torch.testing.assert_close(product(packed, x), (functional.silu(gate) * up).float(), rtol=1e-4, atol=1e-4)


def test_rows_that_have_no_scale(kernels: CpuKernels) -> None:
    """Zeros and almost nothing give zeros; what is not finite gives no number, and disturbs no other row."""
    weight = rounding_weight(EVEN_KINDS[0], 70, 2)
    packed, x = PackedQuantised(kernels, weight), rows_of(8, weight.num_inputs)
    clean = product(packed, x)
    x[1] = 0.0
    x[2] *= 1e-36
    x[3, 5], x[4, 40], x[6, 63] = torch.nan, torch.inf, -torch.inf
    result = product(packed, x)
    assert (result[1:3] == 0).all()
    assert result[[3, 4, 6]].isnan().all()
    assert torch.equal(result[[0, 5, 7]], clean[[0, 5, 7]])
    rounded = rounded_inputs(x, weight)
    assert (rounded[1:3] == 0).all()
    assert rounded[3, :32].isnan().all() and rounded[4, 32:].isnan().all()


def test_codes_that_do_not_count_evenly_are_multiplied_as_ever(kernels: CpuKernels) -> None:
    weight = random_weight(Kind("mxfp4", E2M1, 32), 70, 2)
    x = rows_of(7, 64, torch.bfloat16)
    rounding = replace(weight, rounds_inputs=True)
    assert rounded_inputs(x, rounding) is x
    assert torch.equal(product(PackedQuantised(kernels, rounding), x), product(PackedQuantised(kernels, weight), x))


@pytest.mark.parametrize("has_order", [False, True])
def test_experts_round_what_they_multiply(kernels: CpuKernels, has_order: bool) -> None:
    mixture = MIXTURES["gpt-oss"]
    dense = random_weights(mixture, HIDDEN, torch.float32)
    kind = Kind("int4", linear_book(4, 8), 8)

    def held(matrices: ExpertMatrices) -> QuantisedExperts:
        count, outputs, inputs = matrices.shape
        rows = rounding_weight(kind, count * outputs, inputs // kind.group)
        order = torch.cat([torch.randperm(inputs) for _ in range(count)]).int() if has_order else None
        return QuantisedExperts(replace(rows, order=order), count)

    experts = replace(dense.experts, up=held(dense.experts.up), down=held(dense.experts.down))
    weights = replace(dense, experts=experts)
    packed = PackedMixture(kernels, mixture, weights)
    x = random_rows(40, HIDDEN, torch.float32)
    out, want = torch.empty_like(x), torch.empty_like(x)
    ids = torch.empty(len(x), mixture.top_k, dtype=torch.int32)
    packed(x, out, MixtureRoom(ids, torch.empty(ids.shape), torch.empty(len(x) * packed.num_inner_columns)))
    torch_mixture.run_mixture(x, mixture, weights, want)
    # Sums that differ in their last bits may be rounded to neighbouring integers in the second product.
    assert (out - want).abs().max() <= 0.02 * want.abs().max()
    assert (out - want).abs().median() <= 1e-4 * want.abs().max()
