"""Experts in few bits, in every build of the kernels: against float64 over the widened weights, whatever the batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from kernel_builds import BUILDS
from mixture_cases import HIDDEN, MIXTURES, clear_rows, random_rows, random_weights
from quantised_cases import E2M1, E4M3, UNEVEN, Kind, random_weight

from kvplan_engine.kernels import torch_mixture
from kvplan_engine.kernels.cpu.library import CpuKernels, load_kernels
from kvplan_engine.kernels.cpu.mixture import PackedMixture
from kvplan_engine.kernels.mixture_weights import ExpertMatrices, MixtureWeights, QuantisedExperts
from kvplan_engine.kernels.quantised_weight import linear_book

KINDS = [
    Kind("int4", linear_book(4, 8), 8),
    Kind("mxfp4", E2M1, 8, torch.uint8),
    Kind("act order", linear_book(4, 0), 8, torch.float32, has_minimums=True, has_order=True),
    Kind("minimums", linear_book(8, 0), 8, torch.float16, has_minimums=True),
    Kind("fp8", E4M3, 8, torch.float32),
    Kind("nf4", UNEVEN, 8, torch.float32),
]


@pytest.fixture(scope="module", params=BUILDS, ids=lambda variant: variant.name)
def kernels(request: pytest.FixtureRequest) -> CpuKernels:
    return load_kernels(request.param)


def _in_few_bits(matrices: ExpertMatrices, kind: Kind, seed: int) -> QuantisedExperts:
    """Others of the same shape."""
    count, outputs, inputs = matrices.shape
    rows = random_weight(kind, count * outputs, inputs // kind.group, seed)
    if kind.has_order:
        orders = [torch.randperm(inputs, generator=torch.Generator().manual_seed(index)) for index in range(count)]
        rows = replace(rows, order=torch.cat(orders).int())
    return QuantisedExperts(rows, count)


def _weights(name: str, kind: Kind, dtype: torch.dtype) -> MixtureWeights:
    """The experts in few bits; of a shared one the first matrix, so that dense ones are beside it."""
    dense = random_weights(MIXTURES[name], HIDDEN, dtype)
    experts = replace(
        dense.experts, up=_in_few_bits(dense.experts.up, kind, 1), down=_in_few_bits(dense.experts.down, kind, 2)
    )
    shared = None if dense.shared is None else replace(dense.shared, up=_in_few_bits(dense.shared.up, kind, 3))
    return replace(dense, experts=experts, shared=shared)


def _result(packed: PackedMixture, x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(x.shape, dtype=x.dtype)
    ids = torch.empty(len(x), packed.mixture.top_k, dtype=torch.int32)
    packed.run(x, out, ids, torch.empty(ids.shape), torch.empty(len(x) * packed.num_inner_columns, dtype=x.dtype))
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", ["gpt-oss", "shared with a gate"])
def test_equals_the_definition(kernels: CpuKernels, name: str, kind: Kind, dtype: torch.dtype) -> None:
    mixture, weights = MIXTURES[name], _weights(name, kind, dtype)
    packed = PackedMixture(kernels, mixture, weights)
    for rows in (1, 3, 150):
        x = random_rows(rows, HIDDEN, dtype)
        clear = clear_rows(x, mixture, weights)
        want = torch.empty(x.shape, dtype=torch.float64)
        torch_mixture.run_mixture(x.double(), mixture, weights, want)
        error = (_result(packed, x).double() - want).abs()[clear]
        limit = (2e-5 if dtype == torch.float32 else 2**-6) * (1 + want.abs())[clear]
        assert (error <= limit).all(), (rows, float((error / limit).max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", [KINDS[1], KINDS[2]], ids=str)
def test_a_row_does_not_depend_on_its_batch(kernels: CpuKernels, kind: Kind, dtype: torch.dtype) -> None:
    mixture = MIXTURES["gpt-oss"]
    packed = PackedMixture(kernels, mixture, _weights("gpt-oss", kind, dtype))
    x = random_rows(401, HIDDEN, dtype)
    all_rows = _result(packed, x)
    for count in (1, 2, 5, 64):
        assert torch.equal(_result(packed, x[401 - count :]), all_rows[401 - count :]), count


def test_all_powers_of_two(kernels: CpuKernels) -> None:
    """Each scale there is, the subnormal one too: with a code for 1, the result is the scale."""
    from kvplan_engine.kernels.cpu.quantised import PackedQuantised
    from kvplan_engine.kernels.quantised_weight import QuantisedWeight

    exponents = torch.arange(255, dtype=torch.uint8).unsqueeze(1)
    codes = torch.zeros(255, 4, dtype=torch.uint8)
    codes[:, 0] = 2  # 1.0 for the first input, 0 for the other seven
    packed = PackedQuantised(kernels, QuantisedWeight(codes, exponents, None, E2M1))
    x = torch.zeros(1, 8)
    x[0, 0] = 1.0
    out = torch.empty(1, 255)
    packed.multiply(x, out)
    wanted = torch.ldexp(torch.ones(255), torch.arange(-127, 128))
    assert torch.equal(out[0, 1:], wanted[1:])
    assert out[0, 0] in (0.0, wanted[0])  # processors may flush what is subnormal
