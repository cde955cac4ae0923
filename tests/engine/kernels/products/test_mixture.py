"""A mixture of experts, also in few bits, in every build: against float64, and the same whatever the batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from mixture_cases import HIDDEN, MIXTURES, clear_rows, random_rows, random_weights
from quantised_cases import E2M1, E4M3, UNEVEN, Kind, random_weight

from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.kernels import torch_mixture
from kvplan_engine.kernels.cpu.library import CpuKernels
from kvplan_engine.kernels.cpu.mixture import PackedMixture
from kvplan_engine.kernels.cpu.quantised import PackedQuantised
from kvplan_engine.kernels.mixture_weights import (
    ExpertMatrices,
    ExpertWeights,
    MixtureRoom,
    MixtureWeights,
    QuantisedExperts,
)
from kvplan_engine.kernels.quantised_weight import QuantisedWeight, linear_book


def _choice(packed: PackedMixture, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.empty(len(x), packed.mixture.top_k, dtype=torch.int32)
    weights = torch.empty(len(x), packed.mixture.top_k)
    packed.choose(x, ids, weights)
    return ids, weights


def _result(packed: PackedMixture, x: torch.Tensor) -> torch.Tensor:
    """The mixture of x, into strided rows with something behind each that must stay."""
    rows, hidden = x.shape
    room = torch.full((rows, hidden + 3), 7.0, dtype=x.dtype)
    ids = torch.empty(rows, packed.mixture.top_k, dtype=torch.int32)
    inner = torch.empty(rows * packed.num_inner_columns, dtype=x.dtype)
    packed(x, room[:, :hidden], MixtureRoom(ids, torch.empty(ids.shape), inner))
    assert (room[:, hidden:] == 7.0).all()
    return room[:, :hidden]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MIXTURES)
def test_equals_the_definition(kernels: CpuKernels, name: str, dtype: torch.dtype) -> None:
    mixture = MIXTURES[name]
    weights = random_weights(mixture, HIDDEN, dtype)
    packed = PackedMixture(kernels, mixture, weights)
    for rows in (1, 2, 5, 261):
        x = random_rows(rows, HIDDEN, dtype)
        clear = clear_rows(x, mixture, weights)
        assert clear.double().mean() > 0.9 or rows < 10
        want_ids, want_weights = torch_mixture.route(
            torch_mixture.router_logits(x.double(), weights), mixture, weights.correction
        )
        ids, shares = _choice(packed, x)
        assert torch.equal(ids[clear].long(), want_ids[clear])
        assert torch.allclose(shares[clear].double(), want_weights[clear], rtol=1e-4, atol=1e-6)
        want = torch.empty(x.shape, dtype=torch.float64)
        torch_mixture.run_mixture(x.double(), mixture, weights, want)
        error = (_result(packed, x).double() - want).abs()[clear]
        limit = (2e-5 if dtype == torch.float32 else 2**-6) * (1 + want.abs())[clear]
        assert (error <= limit).all(), (rows, float((error / limit).max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["groups", "shared with a gate", "gpt-oss"])
def test_a_row_does_not_depend_on_its_batch(kernels: CpuKernels, name: str, dtype: torch.dtype) -> None:
    mixture = MIXTURES[name]
    packed = PackedMixture(kernels, mixture, random_weights(mixture, HIDDEN, dtype))
    x = random_rows(701, HIDDEN, dtype)
    all_rows = _result(packed, x)
    for count in (1, 2, 3, 5, 8, 64, 350):
        assert torch.equal(_result(packed, x[701 - count :]), all_rows[701 - count :]), count


def test_threads_give_the_same_numbers(kernels: CpuKernels) -> None:
    mixture = MIXTURES["groups"]
    packed = PackedMixture(kernels, mixture, random_weights(mixture, HIDDEN, torch.float32))
    before = torch.get_num_threads()
    try:
        for rows in (1, 3, 90):
            x = random_rows(rows, HIDDEN, torch.float32)
            results = []
            for threads in (1, 2, 5):
                torch.set_num_threads(threads)
                results.append(_result(packed, x))
            assert all(torch.equal(result, results[0]) for result in results)
    finally:
        torch.set_num_threads(before)


def test_many_rows_in_several_passes(kernels: CpuKernels) -> None:
    """A wide model's sums of all rows do not fit at once: 32 MiB of them are 1024 rows."""
    mixture = Mixture(3, 1, Mlp(16, "silu"))
    packed = PackedMixture(kernels, mixture, random_weights(mixture, 8192, torch.float32))
    x = random_rows(1500, 8192, torch.float32)
    assert torch.equal(_result(packed, x)[1400:], _result(packed, x[1400:]))


def test_no_rows_at_all(kernels: CpuKernels) -> None:
    packed = PackedMixture(kernels, MIXTURES["plain"], random_weights(MIXTURES["plain"], HIDDEN, torch.float32))
    assert _result(packed, torch.empty(0, HIDDEN)).shape == (0, HIDDEN)
    assert _choice(packed, torch.empty(0, HIDDEN))[0].shape == (0, 2)


def test_what_no_router_can_choose_is_refused(kernels: CpuKernels) -> None:
    x = random_rows(2, HIDDEN, torch.float32)
    for mixture in (
        Mixture(4, 5, Mlp(8, "silu")),
        Mixture(8, 3, Mlp(8, "silu"), num_groups=4, top_groups=1),
        Mixture(8, 3, Mlp(8, "silu"), num_groups=3, top_groups=3),
    ):
        packed = PackedMixture(kernels, mixture, random_weights(mixture, HIDDEN, torch.float32))
        with pytest.raises(ValueError, match="can be chosen"):
            _choice(packed, x)


def test_the_parts_of_ranks_that_have_whole_experts_add_up() -> None:
    """The definition: what two ranks hold gives, together, what one that holds all of them does."""
    mixture = MIXTURES["gpt-oss"]
    weights, x = random_weights(mixture, HIDDEN, torch.float64), random_rows(9, HIDDEN, torch.float64)
    outs = []
    for held in (range(8), range(3), range(3, 8)):
        part = slice(held.start, held.stop)
        given = weights.experts
        assert isinstance(given.up, torch.Tensor) and isinstance(given.down, torch.Tensor)
        assert given.up_bias is not None and given.down_bias is not None
        own = ExpertWeights(given.up[part], given.down[part], given.up_bias[part], given.down_bias[part])
        outs.append(torch.empty(9, HIDDEN, dtype=torch.float64))
        torch_mixture.run_mixture(x, replace(mixture, held=held), replace(weights, experts=own), outs[-1])
    assert torch.allclose(outs[1] + outs[2], outs[0], rtol=1e-12)
    assert outs[1].abs().max() > 0.1 and outs[2].abs().max() > 0.1


def test_wrong_operands_are_named(kernels: CpuKernels) -> None:
    mixture = MIXTURES["plain"]
    weights = random_weights(mixture, HIDDEN, torch.float32)
    with pytest.raises(ValueError, match=r"experts.up is .*, wanted contiguous \(8, 100, 72\)"):
        PackedMixture(kernels, Mixture(8, 2, Mlp(50, "silu")), weights)
    with pytest.raises(ValueError, match="correction is None"):
        PackedMixture(kernels, Mixture(8, 2, Mlp(48, "silu"), correction=True), weights)
    with pytest.raises(ValueError, match="shared expert"):
        PackedMixture(kernels, Mixture(8, 2, Mlp(48, "silu"), shared=Mlp(8, "silu")), weights)
    with pytest.raises(ValueError, match="do not compute"):
        PackedMixture(kernels, Mixture(8, 2, Mlp(48, "xielu")), weights)
    packed = PackedMixture(kernels, mixture, weights)
    ids, shares = torch.empty(2, 2, dtype=torch.int32), torch.empty(2, 2)
    x = random_rows(2, HIDDEN, torch.float32)
    with pytest.raises(ValueError, match="ids is"):
        packed.choose(x, ids.long(), shares)
    with pytest.raises(ValueError, match="inner is"):
        packed(x, torch.empty(2, HIDDEN), MixtureRoom(ids, shares, torch.empty(3)))


def test_scores_of_the_definition() -> None:
    logits = torch.tensor([[0.5, -1.0, 2.0, 0.1]], dtype=torch.float64)
    ids, weights = torch_mixture.route(logits, Mixture(4, 2, Mlp(8, "silu"), "sqrt_softplus", normalised=False))
    assert ids.tolist() == [[2, 0]]
    assert torch.allclose(weights, torch.log1p(logits[:, [2, 0]].exp()).sqrt())
    ids, weights = torch_mixture.route(logits, Mixture(4, 2, Mlp(8, "silu"), "sparse_mixer", normalised=False))
    assert ids.tolist() == [[2, 0]]
    assert weights.tolist() == [[1.0, 1.0]]  # nothing else comes close


@pytest.mark.parametrize("name", ["plain", "groups", "gpt-oss", "some of the experts"])
def test_what_a_gpu_computes_is_the_definition(name: str) -> None:
    """Every expert over all rows gives what each gives over the rows that chose it."""
    mixture = MIXTURES[name]
    weights = random_weights(mixture, HIDDEN, torch.float32)
    x = random_rows(9, HIDDEN, torch.float32).double()
    ids, shares = torch_mixture.route(torch_mixture.router_logits(x, weights), mixture, weights.correction)
    given = (x, mixture, weights.experts, ids, shares)
    assert torch.allclose(torch_mixture._all_rows(*given), torch_mixture._chosen_rows(*given))


KINDS = [
    Kind("int4", linear_book(4, 8), 8),
    Kind("mxfp4", E2M1, 8, torch.uint8),
    Kind("act order", linear_book(4, 0), 8, torch.float32, has_minimums=True, has_order=True),
    Kind("minimums", linear_book(8, 0), 8, torch.float16, has_minimums=True),
    Kind("fp8", E4M3, 8, torch.float32),
    Kind("nf4", UNEVEN, 8, torch.float32),
]


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("name", ["gpt-oss", "shared with a gate"])
def test_experts_in_few_bits_equal_the_definition(
    kernels: CpuKernels, name: str, kind: Kind, dtype: torch.dtype
) -> None:
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
def test_a_row_of_experts_in_few_bits_does_not_depend_on_its_batch(
    kernels: CpuKernels, kind: Kind, dtype: torch.dtype
) -> None:
    mixture = MIXTURES["gpt-oss"]
    packed = PackedMixture(kernels, mixture, _weights("gpt-oss", kind, dtype))
    x = random_rows(401, HIDDEN, dtype)
    all_rows = _result(packed, x)
    for count in (1, 2, 5, 64):
        assert torch.equal(_result(packed, x[401 - count :]), all_rows[401 - count :]), count


def test_all_powers_of_two(kernels: CpuKernels) -> None:
    """Each scale there is, the subnormal one too: with a code for 1, the result is the scale."""
    exponents = torch.arange(255, dtype=torch.uint8).unsqueeze(1)
    codes = torch.zeros(255, 4, dtype=torch.uint8)
    codes[:, 0] = 2  # 1.0 for the first input, 0 for the other seven
    packed = PackedQuantised(kernels, QuantisedWeight(codes, exponents, None, E2M1))
    x = torch.zeros(1, 8)
    x[0, 0] = 1.0
    out = torch.empty(1, 255)
    packed(x, out)
    wanted = torch.ldexp(torch.ones(255), torch.arange(-127, 128))
    assert torch.equal(out[0, 1:], wanted[1:])
    assert out[0, 0] in (0.0, wanted[0])  # processors may flush what is subnormal
