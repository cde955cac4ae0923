"""Layers with a state: one sequence that begins and one that goes on, against ``TorchStates``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from kvplan_engine.description.mixers import State
from kvplan_engine.kernel_checks.case import TOLERANCE, Case, Comparison
from kvplan_engine.kernels.cuda.launching import families
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.states import CudaStates
from kvplan_engine.kernels.states.operations import (
    Convolution,
    DeltaRule,
    DeltaTokens,
    Gating,
    Mamba1,
    Mamba2,
    ScanInputs,
    StateOps,
    TorchStates,
)
from kvplan_engine.kernels.states.rows import StateRows, StateStep

_LENGTHS = (3, 1)
_FIRST_POSITIONS = (0, 9)
_TOKENS = sum(_LENGTHS)
_CHANNELS = 64
_HEADS = 2


@dataclass(frozen=True, slots=True)
class _Side:
    """Kernels or torch. dtype: of tokens there, whose values are those of ``scalar``."""

    ops: StateOps
    device: torch.device
    scalar: torch.dtype
    dtype: torch.dtype

    def tokens(self, seed: int, columns: int) -> torch.Tensor:
        """Random rows of the step."""
        return _random(seed, _TOKENS, columns).to(self.scalar).to(self.dtype).to(self.device)

    def weights(self, seed: int, *shape: int) -> torch.Tensor:
        """Random float32."""
        return _random(seed, *shape).to(self.device)


_Run = Callable[[_Side, StateRows, StateStep], list[torch.Tensor]]
"""One operation; what it gives for each token."""


def state_cases(scalar: torch.dtype, states: tuple[State, ...]) -> Iterator[Case]:
    """Yield cases for each kind of state that the CUDA kernels know."""
    for state in states:
        if state.conv_channels and state.conv_taps is None:
            shape = (state.conv_kernel - 1, _CHANNELS)
            yield _case(scalar, state.conv_dtype, shape, partial(_convolve, state.conv_kernel))
        if not state.recurrent_shape:
            continue
        columns = state.recurrent_shape[-1]
        inner = state.recurrent_shape[1]
        if state.kind in ("gated_delta", "kimi_delta"):
            run = partial(_delta, state.kind == "kimi_delta", columns, inner)
            yield _case(scalar, state.recurrent_dtype, (_HEADS * inner, columns), run)
        elif state.kind == "mamba1":
            yield _case(scalar, state.recurrent_dtype, (_CHANNELS, columns), partial(_mamba1, columns))
        elif state.kind == "mamba2":
            run = partial(_mamba2, inner, columns)
            yield _case(scalar, state.recurrent_dtype, (_HEADS * inner, columns), run)
        if state.kind != "linear_attention":
            yield _case(scalar, None, (1, _CHANNELS), _gate)


def _case(scalar: torch.dtype, dtype: str | None, shape: tuple[int, int], run: _Run) -> Case:
    stored = scalar if dtype is None or dtype == "model" else getattr(torch, dtype)
    return Case((families.STATES,), partial(_compare, scalar, stored, shape, run))


def _compare(
    scalar: torch.dtype, stored: torch.dtype, shape: tuple[int, int], run: _Run, runtime: CudaRuntime
) -> Comparison:
    """The outputs, and the states behind them. torch computes in float32, from the same stored numbers."""
    results: list[list[torch.Tensor]] = []
    for side in (
        _Side(CudaStates(runtime), runtime.device, scalar, scalar),
        _Side(TorchStates(), torch.device("cpu"), scalar, torch.float32),
    ):
        rows, step = _pool(shape, stored, side.device)
        outputs = run(side, rows, step)
        results.append([*outputs, *(rows.load(table).float() for table in step.tables)])
    return Comparison(results[0], results[1], 2 * max(TOLERANCE[scalar], TOLERANCE[stored]))


def _random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _pool(shape: tuple[int, int], dtype: torch.dtype, device: torch.device) -> tuple[StateRows, StateStep]:
    num_rows, columns = shape
    block_bytes = -(-num_rows * columns * dtype.itemsize // 64) * 64
    rows = StateRows(torch.zeros(3, block_bytes, dtype=torch.uint8), dtype, num_rows, columns, slot=0, offset=0)
    tables = torch.tensor([[2], [0]], dtype=torch.int32)
    rows.store(tables[1], _random(7, num_rows, columns) / 2)
    positions = torch.cat([torch.arange(n) + first for n, first in zip(_LENGTHS, _FIRST_POSITIONS, strict=True)])
    starts = torch.tensor([0, *_LENGTHS]).cumsum(0).to(torch.int32)
    there = StateRows(rows.blocks.to(device), dtype, num_rows, columns, slot=0, offset=0)
    return there, StateStep(tables.to(device), starts.to(device), positions.to(device))


def _convolve(taps: int, side: _Side, rows: StateRows, step: StateStep) -> list[torch.Tensor]:
    x = side.tokens(1, _CHANNELS)
    side.ops.convolve(x, x, Convolution(side.weights(2, taps, _CHANNELS), side.weights(3, _CHANNELS)), rows, step)
    return [x]


def _delta(
    of_elements: bool, key_size: int, value_size: int, side: _Side, rows: StateRows, step: StateStep
) -> list[torch.Tensor]:
    decays = _HEADS * key_size if of_elements else _HEADS
    rate, bias = side.weights(1, _HEADS).abs() / 4, side.weights(2, decays)
    rule = DeltaRule(_HEADS, _HEADS, key_size, value_size, rate, bias, key_size**-0.5)
    widths = (_HEADS * key_size, _HEADS * key_size, _HEADS * value_size)
    query, key, value = (side.tokens(3 + seed, width) for seed, width in enumerate(widths))
    side.ops.delta_rule(
        rule, DeltaTokens(query, key, value, value, side.tokens(8, decays), side.tokens(9, _HEADS)), rows, step
    )
    return [value]


def _mamba1(columns: int, side: _Side, rows: StateRows, step: StateStep) -> list[torch.Tensor]:
    mamba = Mamba1(-side.weights(1, _CHANNELS, columns).abs(), side.weights(2, _CHANNELS), side.weights(3, _CHANNELS))
    inputs = ScanInputs(
        *(side.tokens(4 + seed, width) for seed, width in enumerate((_CHANNELS, _CHANNELS, columns, columns)))
    )
    side.ops.scan_mamba1(inputs, inputs.x, mamba, rows, step)
    return [inputs.x]


def _mamba2(inner: int, columns: int, side: _Side, rows: StateRows, step: StateStep) -> list[torch.Tensor]:
    decay, skip, bias = (side.weights(seed, _HEADS) for seed in (1, 2, 3))
    mamba = Mamba2(-decay.abs(), skip, bias, num_rows=inner, num_groups=1)
    widths = (_HEADS * inner, _HEADS, columns, columns)
    inputs = ScanInputs(*(side.tokens(4 + seed, width) for seed, width in enumerate(widths)))
    side.ops.scan_mamba2(inputs, inputs.x, mamba, rows, step)
    return [inputs.x]


def _gate(side: _Side, rows: StateRows, step: StateStep) -> list[torch.Tensor]:
    x, gate = side.tokens(1, _CHANNELS), side.tokens(2, _CHANNELS)
    side.ops.gate_rows(x, gate, Gating(side.weights(3, _CHANNELS).to(side.scalar).to(side.dtype)))
    return [x]
