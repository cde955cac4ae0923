"""Mixtures, states, products, adapters and draws on a real device: against their definitions and twins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import test_cuda_lora
import test_cuda_quantised
import test_cuda_skinny
import torch
from draw_twin import distances, limit, waits, winner
from quantised_cases import KINDS, Kind
from state_cases import StateCase, random_rows, rows_of_sequences, state_case
from test_cuda_mixture import GPT_OSS, PLAIN, SHARED, UNGATED, check
from test_cuda_sampling import EXACT_CASES, NARROWED, rows_of, weighted

from kvplan_engine.description.feed_forward import Mixture
from kvplan_engine.kernels.cuda.launching.driver import current_runtime
from kvplan_engine.kernels.cuda.products.float8 import multiplies_float8
from kvplan_engine.kernels.cuda.sampling import CudaDraws, StepTokens
from kvplan_engine.kernels.cuda.states import CudaStates
from kvplan_engine.kernels.states.operations import (
    DeltaRule,
    DeltaTokens,
    Mamba2,
    ScanInputs,
    TorchStates,
    make_convolution,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
MINE = rows_of_sequences()
BOUND = 2**-6


@pytest.mark.parametrize("mixture", [PLAIN, SHARED, GPT_OSS, UNGATED], ids=["plain", "shared", "gpt-oss", "no gate"])
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("num_rows", [1, 4, 23, 150, 2000])
def test_mixtures(mixture: Mixture, dtype: torch.dtype, num_rows: int) -> None:
    """More rows than one block sorts, and every size of tiles."""
    check(mixture, dtype, num_rows, current_runtime())


def on_gpu(case: StateCase) -> StateCase:
    step = case.step
    moved = replace(
        step, tables=step.tables.cuda(), query_starts=step.query_starts.cuda(), positions=step.positions.cuda()
    )
    return replace(case, rows=replace(case.rows, blocks=case.rows.blocks.cuda()), step=moved)


def check_states(found: torch.Tensor, want: torch.Tensor, moved: StateCase, case: StateCase) -> None:
    assert ((found.cpu() - want).abs()[MINE] <= BOUND * (1 + want.abs()[MINE])).all()
    for one, other in zip(moved.states(), case.states(), strict=True):
        assert (((one.cpu() - other).abs() <= BOUND * (1 + other.abs())) | other.isnan()).all()


def test_a_convolution() -> None:
    convolution = make_convolution(torch.randn(300, 4))
    on_device = replace(convolution, weight=convolution.weight.cuda())
    x, case = random_rows(300, BF16, seed=1), state_case(3, 300, F32)
    moved, want = on_gpu(case), torch.zeros(x.shape)
    TorchStates().convolve(x.float(), want, convolution, case.rows, case.step)
    found = x.cuda()
    CudaStates(current_runtime()).convolve(found, found, on_device, moved.rows, moved.step)
    check_states(found, want, moved, case)


def test_a_delta_rule() -> None:
    rule = DeltaRule(4, 2, 128, 128, torch.rand(4), torch.randn(4), 128**-0.5)
    widths = (256, 256, 512, 512, 4, 4)
    tokens = [random_rows(width, BF16, seed=seed) for seed, width in enumerate(widths)]
    case = state_case(512, 128, F32, rows_per_block=64)
    moved, want = on_gpu(case), torch.zeros(tokens[2].shape)
    wide = [each.float() for each in tokens]
    TorchStates().delta_rule(rule, DeltaTokens(*wide[:3], want, *wide[4:]), case.rows, case.step)
    there = [each.cuda() for each in tokens]
    on_device = replace(rule, rate=rule.rate.cuda(), decay_bias=torch.as_tensor(rule.decay_bias).cuda())
    states = CudaStates(current_runtime())
    states.delta_rule(on_device, DeltaTokens(*there[:3], there[2], *there[4:]), moved.rows, moved.step)
    check_states(there[2], want, moved, case)


def test_mamba_2() -> None:
    mamba = Mamba2(-torch.rand(4).exp(), torch.randn(4), torch.randn(4), num_rows=64, num_groups=2)
    inputs = [random_rows(width, BF16, seed=seed) for seed, width in enumerate((256, 4, 256, 256))]
    case = state_case(256, 128, F32, rows_per_block=64)
    moved, want = on_gpu(case), torch.zeros(inputs[0].shape)
    TorchStates().scan_mamba2(ScanInputs(*(each.float() for each in inputs)), want, mamba, case.rows, case.step)
    there = [each.cuda() for each in inputs]
    weights = {name: getattr(mamba, name).cuda() for name in ("decay", "skip", "step_bias")}
    states = CudaStates(current_runtime())
    states.scan_mamba2(ScanInputs(*there), there[0], replace(mamba, **weights), moved.rows, moved.step)
    check_states(there[0], want, moved, case)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("num_rows", [1, 2, 4, 7, 16, 100])
def test_quantised_products(kind: Kind, dtype: torch.dtype, num_rows: int) -> None:
    for outputs, groups in ((21, 3), (4096, 8)):
        test_cuda_quantised.check(kind, dtype, num_rows, outputs=outputs, groups=groups, runtime=current_runtime())


def test_a_product_in_float8() -> None:
    runtime = current_runtime()
    if not multiplies_float8(test_cuda_quantised.float8_weight(), BF16, runtime.properties):
        pytest.skip("needs compute capability 8.9")
    test_cuda_quantised.check_float8(runtime)


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize(("rows", "outputs"), [(17, 144), (70, 80), (600, 7168)])
def test_blocks_in_float8(dtype: torch.dtype, rows: int, outputs: int) -> None:
    runtime = current_runtime()
    if runtime.properties.capability < (8, 9):
        pytest.skip("needs compute capability 8.9")
    test_cuda_quantised.check_blocks(rows, outputs, dtype, runtime)


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("counts", [[1, 1, 1], [300, 20, 7]])
def test_adapters(dtype: torch.dtype, counts: list[int]) -> None:
    weights = test_cuda_lora.weights_of(4096, (4096, 1024, 1024), dtype)
    rows = test_cuda_lora.groups_of([0, -1, 2], counts)
    test_cuda_lora.check(weights, rows, sum(counts), runtime=current_runtime())


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("num_rows", [1, 8, 9, 16])
@pytest.mark.parametrize("follows", [{}, {"activation": "silu_and_mul"}, {"has_residual": True}], ids=str)
def test_products_of_few_rows(dtype: torch.dtype, num_rows: int, follows: dict[str, Any]) -> None:
    """One whose inputs blocks share, and one of Llama's size. Tensor cores add without rounding to nearest."""
    runtime = current_runtime()
    if not runtime.properties.has_tensor_kernels:
        pytest.skip("needs compute capability 8.0")
    for outputs, inputs in ((1001, 8192), (4096, 4096)):
        case = test_cuda_skinny.Case(num_rows, outputs, inputs, dtype, has_bias=True, **follows)
        test_cuda_skinny.check(case, runtime, slack=2e-3)


DEVICE = "cuda"
VOCABULARY = 128256


def draw(logits: torch.Tensor, rows: np.ndarray, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A token from row i of ``logits`` for row i of ``rows``, and how far from the likeliest it might have been."""
    number = len(rows)
    counts = torch.zeros(1, -(-logits.shape[1] // 8) * 8, dtype=torch.int16, device=DEVICE)
    out, limits = torch.full((number,), -1, device=DEVICE), torch.full((number,), -1.0, device=DEVICE)
    memory = torch.from_numpy(rows.view(np.uint8).reshape(number, -1)).to(DEVICE)
    CudaDraws(current_runtime())(logits.to(DEVICE), memory, counts, StepTokens(positions.to(DEVICE)), out, limits)
    return out.cpu(), limits.cpu()


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_tokens_and_sets_are_the_twins(dtype: torch.dtype) -> None:
    """A device's exp2 differs from a host's in the last bits: a set may end one token earlier or later."""
    generator, number = torch.Generator().manual_seed(3), len(NARROWED)
    logits = (torch.randn(number, VOCABULARY, generator=generator) * 3).to(dtype)
    rows = np.concatenate([rows_of(1, **fields) for fields in NARROWED])
    tokens, limits = draw(logits, rows, torch.arange(number))
    for index, row in enumerate(rows):
        away = distances(logits[index].float().numpy(), 1.0)
        nearer, farther = sorted([limit(away, row), float(limits[index])])
        assert len(np.unique(away[(away > nearer) & (away <= farther)])) <= 1
        token, ahead = winner(away, row, index)
        assert ahead < 1e-3 or int(tokens[index]) == token


def test_sums_are_exact() -> None:
    for weights, fields, wanted in EXACT_CASES:
        _, limits = draw(weighted(weights, 384)[None], rows_of(1, **fields), torch.zeros(1, dtype=torch.int64))
        assert limits.tolist() == [wanted], (weights, fields)


def test_waits_are_exponential() -> None:
    """Of tokens that are all alike the winner is the one that waits least: the twin's."""
    number = 256
    rows = rows_of(number)
    tokens, _ = draw(torch.zeros(number, VOCABULARY, dtype=BF16), rows, torch.arange(number))
    wanted = [int(waits(int(row["key"]), position, VOCABULARY).argmin()) for position, row in enumerate(rows)]
    assert sum(token == one for token, one in zip(tokens.tolist(), wanted, strict=True)) >= number - 2


def test_a_replay_follows_what_rows_ask_for() -> None:
    kernel, number = CudaDraws(current_runtime()), 8
    logits = torch.randn(number, VOCABULARY, device=DEVICE).to(BF16)
    counts = torch.zeros(1, VOCABULARY, dtype=torch.int16, device=DEVICE)
    memory = torch.zeros(number, 64, dtype=torch.uint8, device=DEVICE)
    positions, out = torch.arange(number, device=DEVICE), torch.zeros(number, dtype=torch.int64, device=DEVICE)
    kernel(logits, memory, counts, StepTokens(positions), out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(logits, memory, counts, StepTokens(positions), out)
    graph.replay()
    assert out.tolist() == logits.argmax(-1).tolist()
    rows = rows_of(number, top_p=0.95)
    memory.copy_(torch.from_numpy(rows.view(np.uint8).reshape(number, -1)))
    graph.replay()
    replayed = out.tolist()
    kernel(logits, memory, counts, StepTokens(positions), out)
    assert out.tolist() == replayed != logits.argmax(-1).tolist()
