"""The convolution of layers with a state, in every build: against its definition and against torch over whole texts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from state_cases import assert_only_rows_changed, random_rows, rows_of_sequences, state_case
from torch.nn import functional

from kvplan_engine.blocks.layout import plan_layout
from kvplan_engine.description.kept_units import KeptUnit
from kvplan_engine.description.mixers import FULL, STATE
from kvplan_engine.kernels.build import NATIVE
from kvplan_engine.kernels.cpu.library import load_kernels
from kvplan_engine.kernels.cpu.states import CpuStates
from kvplan_engine.kernels.states.operations import Convolution, TorchStates, make_convolution
from kvplan_engine.kernels.states.rows import StateRows, StateStep


def convolution_of(channels: int, taps: int, *, bias: bool, silu: bool) -> Convolution:
    generator = torch.Generator().manual_seed(taps)
    weight = torch.randn(channels, taps, generator=generator)
    return make_convolution(weight, torch.randn(channels, generator=generator) if bias else None, silu=silu)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("channels", "taps", "bias"), [(1, 2, True), (24, 4, False), (37, 3, True), (300, 4, True), (517, 8, False)]
)
def test_equals_the_definition(kernels: CpuStates, channels: int, taps: int, bias: bool, dtype: torch.dtype) -> None:
    case = state_case(taps - 1, channels, dtype)
    other = case.again()
    convolution = convolution_of(channels, taps, bias=bias, silu=channels > 30)
    x = random_rows(channels, dtype, seed=1)
    want, out = torch.zeros(x.shape), torch.zeros(x.shape, dtype=dtype)
    TorchStates().convolve(x.float(), want, convolution, other.rows, other.step)
    kernels.convolve(x, out, convolution, case.rows, case.step)
    assert torch.allclose(out.float(), want, rtol=0, atol=2e-5) or dtype == torch.bfloat16
    assert ((out.float() - want).abs() <= 2**-7 * (1 + want.abs())).all()
    for found, expected in zip(case.states(), other.states(), strict=True):
        assert torch.equal(found.nan_to_num(99.0), expected.nan_to_num(99.0))
    assert_only_rows_changed(case)
    in_place = case.again()
    kernels.convolve(x, x, convolution, in_place.rows, in_place.step)
    mine = rows_of_sequences()
    assert torch.equal(x[mine], out[mine])


def test_states_of_another_dtype(kernels: CpuStates) -> None:
    case = state_case(3, 40, torch.float32)
    other = case.again()
    convolution = convolution_of(40, 4, bias=True, silu=True)
    x = random_rows(40, torch.bfloat16, seed=2)
    want, out = torch.zeros(x.shape), torch.zeros(x.shape, dtype=torch.bfloat16)
    TorchStates().convolve(x.float(), want, convolution, other.rows, other.step)
    kernels.convolve(x, out, convolution, case.rows, case.step)
    assert ((out.float() - want).abs() <= 2**-7 * (1 + want.abs())).all()


@pytest.mark.parametrize("ops", ["cpu", "torch"])
def test_pieces_of_a_text_give_what_all_of_it_gives(ops: str) -> None:
    channels, taps = 48, 4
    states = CpuStates(load_kernels(NATIVE)) if ops == "cpu" else TorchStates()
    convolution = convolution_of(channels, taps, bias=True, silu=True)
    x = torch.randn(60, channels, generator=torch.Generator().manual_seed(4))
    padded = functional.pad(x, (0, 0, taps - 1, 0)).t()[None]
    weight = convolution.weight.t()[:, None]
    want = functional.silu(functional.conv1d(padded, weight, convolution.bias, groups=channels))[0].t()
    case = state_case(taps - 1, channels, torch.float32)
    found, begin = torch.zeros_like(x), 0
    for length in (1, 1, 20, 2, 1, 17, 18):
        step = StateStep(
            case.step.tables[1:2], torch.tensor([0, length], dtype=torch.int32), torch.arange(begin, begin + length)
        )
        piece = slice(begin, begin + length)
        states.convolve(x[piece], found[piece], convolution, case.rows, step)
        begin += length
    assert begin == len(x)
    assert torch.allclose(found, want, rtol=0, atol=2e-5)


def test_threads_give_the_same_numbers(kernels: CpuStates) -> None:
    convolution = convolution_of(600, 4, bias=True, silu=True)
    x = random_rows(600, torch.float32, seed=5)
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            case, out = state_case(3, 600, torch.float32), torch.zeros(x.shape)
            kernels.convolve(x, out, convolution, case.rows, case.step)
            results.append((out, case.rows.blocks))
    finally:
        torch.set_num_threads(before)
    for out, blocks in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(blocks, results[0][1])


def test_what_lies_outside_of_the_pool_is_an_error(kernels: CpuStates) -> None:
    convolution = convolution_of(8, 4, bias=False, silu=False)
    x = random_rows(8, torch.float32, seed=6)
    case = state_case(3, 8, torch.float32)
    case.step.tables[1, 1] = len(case.rows.blocks)
    with pytest.raises(IndexError, match="outside of its pool"):
        kernels.convolve(x, torch.empty(x.shape), convolution, case.rows, case.step)
    assert torch.equal(case.rows.blocks, case.before)
    narrow = replace(case.step, tables=case.step.tables[:, :1])
    with pytest.raises(IndexError, match="outside of its pool"):
        kernels.convolve(x, torch.empty(x.shape), convolution, case.rows, narrow)


_UNITS = [
    KeptUnit(0, "conv", STATE, 10, num_rows=3, dtype="bfloat16"),
    KeptUnit(0, "recurrent", STATE, 6, num_rows=11, dtype="float32"),
    KeptUnit(1, "keys", FULL, 12),
    KeptUnit(1, "values", FULL, 12),
    KeptUnit(2, "conv", STATE, 10, num_rows=3, dtype="bfloat16"),
    KeptUnit(2, "recurrent", STATE, 6, num_rows=11, dtype="float32"),
]


def rows_of_all_parts() -> tuple[torch.Tensor, list[StateRows], int]:
    """A pool of zeros, the states that lie in it, and the blocks of a bundle."""
    layout = plan_layout(_UNITS, 4, lambda name: {"bfloat16": 2}.get(name, 4))
    states = layout.groups[-1]
    blocks = torch.zeros(3 * states.width, layout.block_bytes, dtype=torch.uint8)
    rows = []
    for unit in _UNITS:
        if unit.kept == STATE:
            place = states.places[unit.layer, unit.part]
            dtype = getattr(torch, unit.dtype)
            rows.append(StateRows(blocks, dtype, unit.num_rows, unit.row_elements, place.slot, place.offset))
    return blocks, rows, states.width


def test_parts_keep_what_is_stored_and_do_not_touch_each_other() -> None:
    blocks, parts, width = rows_of_all_parts()
    assert width > 1
    bundles = torch.randperm(2 * width, generator=torch.Generator().manual_seed(0)).to(torch.int32).view(2, width)
    stored = {}
    for sequence, bundle in enumerate(bundles):
        for index, part in enumerate(parts):
            state = torch.randn(part.num_rows, part.row_elements).to(part.dtype)
            part.store(bundle, state)
            stored[sequence, index] = state
    for (sequence, index), state in stored.items():
        assert torch.equal(parts[index].load(bundles[sequence]), state)
    assert not blocks[2 * width :].any()  # blocks of nobody


def test_a_row_never_straddles_two_blocks() -> None:
    blocks, parts, width = rows_of_all_parts()
    bundle = torch.arange(width, dtype=torch.int32)
    for part in parts:
        for row in range(part.num_rows):
            blocks.zero_()
            state = torch.zeros(part.num_rows, part.row_elements)
            state[row] = 1.0
            part.store(bundle, state)
            assert blocks.any(dim=1).sum() == 1


def test_which_sequences_have_tokens_and_which_are_new() -> None:
    step = StateStep(
        tables=torch.tensor([[4, 5], [0, 1], [-1, 7], [2, 3]], dtype=torch.int32),
        query_starts=torch.tensor([0, 2, 2, 3, 6], dtype=torch.int32),
        positions=torch.tensor([0, 1, 0, 7, 8, 9]),
    )
    assert step.sequences() == [(0, 0, 2), (3, 3, 6)]
    assert [step.is_new(first) for _, first, _ in step.sequences()] == [True, False]
    assert (step.num_seqs, step.num_tokens) == (4, 6)


def test_a_sequence_that_lacks_a_block_is_an_error() -> None:
    _, parts, width = rows_of_all_parts()
    with pytest.raises(IndexError):
        parts[-1].load(torch.arange(width - 1, dtype=torch.int32))
