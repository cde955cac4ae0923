"""The operations of ``StateOps`` on CUDA (csrc/cuda/states): float32, float16 and bfloat16 tokens and states.

Nothing waits for the device and nothing is read back, so the numbers of blocks are not checked.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kvplan_engine.kernels.arguments import check_rows, check_vector
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError, KernelVariant, variant
from kvplan_engine.kernels.cuda.params import (
    ConvolutionParams,
    DeltaParams,
    GateParams,
    Mamba1Params,
    Mamba2Params,
    StatePlace,
)
from kvplan_engine.kernels.states.operations import (
    Convolution,
    DeltaRule,
    DeltaTokens,
    Gating,
    Mamba1,
    Mamba2,
    ScanInputs,
    check_delta,
    check_scan,
)
from kvplan_engine.kernels.states.rows import StateRows, StateStep

# How the kernels of layers with a state are compiled for their sizes: pure arithmetic.


MOST_KEY_SIZE = 512
"""state_heads.cuh: elements of a row, 16 in each lane of a warp."""
MOST_MAMBA1_SIZE = 32
"""state_mamba1.cu: a row and its decays lie in one thread's registers."""
MOST_TAPS = 8
"""state_convolution.cu: a channel's inputs and weights lie in one thread's registers."""

_WARPS = 4
_TEAM_ROWS = 2


def head_tiles(key_size: int, value_size: int) -> int:
    """Blocks that share a head's rows (state_heads.cuh: TILES)."""
    team = next(lanes for lanes in (4, 8, 16, 32) if key_size <= 16 * lanes)
    return -(-value_size // (_WARPS * (32 // team) * _TEAM_ROWS))


def convolution_variant(scalar: torch.dtype, state: torch.dtype, taps: int, silu: bool) -> KernelVariant:
    """The convolution of ``taps`` inputs. CudaKernelError for more than MOST_TAPS, or fewer than 2."""
    _refuse(not 2 <= taps <= MOST_TAPS, f"convolutions of {taps} inputs")
    return variant("states/state_convolution.cu", "convolve", scalar=scalar, state=state, taps=taps, silu=int(silu))


def delta_variant(scalar: torch.dtype, state: torch.dtype, rule: DeltaRule, *, has_strength: bool) -> KernelVariant:
    """The delta rule of these sizes. CudaKernelError for keys larger than MOST_KEY_SIZE."""
    _refuse(rule.key_size > MOST_KEY_SIZE, f"delta rules with keys of {rule.key_size}")
    return variant(
        "states/state_delta.cu",
        "delta_rule",
        scalar=scalar,
        state=state,
        key_size=rule.key_size,
        value_size=rule.value_size,
        strength=int(has_strength),
        decay=int(rule.decay_bias is not None),
        element_decays=int(rule.has_element_decays),
    )


def mamba2_variant(scalar: torch.dtype, state: torch.dtype, row_elements: int, num_rows: int) -> KernelVariant:
    """Mamba 2 with ``num_rows`` rows of a head. CudaKernelError for rows larger than MOST_KEY_SIZE."""
    _refuse(row_elements > MOST_KEY_SIZE, f"Mamba 2 with rows of {row_elements}")
    return variant(
        "states/state_mamba2.cu", "scan_mamba2", scalar=scalar, state=state, key_size=row_elements, value_size=num_rows
    )


def mamba1_variant(scalar: torch.dtype, state: torch.dtype, row_elements: int) -> KernelVariant:
    """Mamba with rows of that size. CudaKernelError for more than MOST_MAMBA1_SIZE."""
    _refuse(row_elements > MOST_MAMBA1_SIZE, f"Mamba with rows of {row_elements}")
    return variant("states/state_mamba1.cu", "scan_mamba1", scalar=scalar, state=state, size=row_elements)


def gate_variant(scalar: torch.dtype, gating: Gating) -> KernelVariant:
    """The gate, with its norm."""
    return variant(
        "states/gated_rows.cu",
        "gate_rows",
        scalar=scalar,
        weight=scalar if gating.weight is None else gating.weight.dtype,
        activation=gating.activation,
        norm=int(gating.weight is not None),
        norm_first=int(gating.norm_first),
    )


def _refuse(is_too_large: bool, what: str) -> None:
    if is_too_large:
        raise CudaKernelError(
            f"the CUDA kernels do not compute {what}", hint="attention_backend='reference' does, slowly"
        )


_THREADS = 128


class CudaStates:
    """The operations on one device; ``runtime`` is the driver's, or the emulation in tests."""

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime

    def convolve(self, x: Tensor, out: Tensor, convolution: Convolution, rows: StateRows, step: StateStep) -> None:
        """See StateOps.convolve."""
        shape, bias = (step.num_tokens, convolution.num_channels), convolution.bias
        check_rows("x", x, shape, x.dtype)
        check_rows("out", out, shape, x.dtype)
        _check_state(rows, convolution.num_taps - 1, convolution.num_channels)
        params = ConvolutionParams(
            state=_place(rows, step),
            x=x.data_ptr(),
            out=out.data_ptr(),
            weight=convolution.weight.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            x_stride=x.stride(0),
            out_stride=out.stride(0),
            channels=convolution.num_channels,
        )
        chosen = convolution_variant(x.dtype, rows.dtype, convolution.num_taps, convolution.silu)
        grid = (step.num_seqs, -(-convolution.num_channels // _THREADS))
        self._runtime.kernel(chosen)(grid, _THREADS, 0, params)

    def delta_rule(self, rule: DeltaRule, tokens: DeltaTokens, rows: StateRows, step: StateStep) -> None:
        """See StateOps.delta_rule."""
        check_delta(rule, tokens, step.num_tokens)
        _check_state(rows, rule.num_heads * rule.value_size, rule.key_size)
        names = ("query", "key", "value", "out", "decay", "strength")
        given = {name: getattr(tokens, name) for name in names}
        params = DeltaParams(
            state=_place(rows, step),
            **{name: None if each is None else each.data_ptr() for name, each in given.items()},
            **{f"{name}_stride": 0 if each is None else each.stride(0) for name, each in given.items()},
            rate=rule.rate.data_ptr(),
            decay_bias=None if rule.decay_bias is None else rule.decay_bias.data_ptr(),
            heads=rule.num_heads,
            key_heads=rule.key_heads,
            scale=rule.scale,
            strength_scale=rule.strength_scale,
        )
        chosen = delta_variant(tokens.value.dtype, rows.dtype, rule, has_strength=tokens.strength is not None)
        grid = (step.num_seqs, rule.num_heads * head_tiles(rule.key_size, rule.value_size))
        self._runtime.kernel(chosen)(grid, _THREADS, 0, params)

    def scan_mamba1(self, inputs: ScanInputs, out: Tensor, mamba: Mamba1, rows: StateRows, step: StateStep) -> None:
        """See StateOps.scan_mamba1."""
        channels, size = mamba.decay.shape
        check_scan(inputs, out, mamba, step.num_tokens, (channels, channels, size))
        _check_state(rows, channels, size)
        params = Mamba1Params(
            state=_place(rows, step), **_scanned(inputs, out), **_recurrence(mamba), channels=channels
        )
        kernel = self._runtime.kernel(mamba1_variant(out.dtype, rows.dtype, size))
        kernel((step.num_seqs, -(-channels // _THREADS)), _THREADS, 0, params)

    def scan_mamba2(self, inputs: ScanInputs, out: Tensor, mamba: Mamba2, rows: StateRows, step: StateStep) -> None:
        """See StateOps.scan_mamba2."""
        heads, size = mamba.num_heads, rows.row_elements
        widths = (heads * mamba.num_rows, heads, mamba.num_groups * size)
        check_scan(inputs, out, mamba, step.num_tokens, widths)
        _check_state(rows, heads * mamba.num_rows, size)
        params = Mamba2Params(
            state=_place(rows, step),
            **_scanned(inputs, out),
            **_recurrence(mamba),
            heads=heads,
            groups=mamba.num_groups,
            least_step=mamba.least_step,
            most_step=mamba.most_step,
        )
        kernel = self._runtime.kernel(mamba2_variant(out.dtype, rows.dtype, size, mamba.num_rows))
        kernel((step.num_seqs, heads * head_tiles(size, mamba.num_rows)), _THREADS, 0, params)

    def gate_rows(self, x: Tensor, gate: Tensor, gating: Gating) -> None:
        """See StateOps.gate_rows."""
        check_rows("x", x, tuple(x.shape), x.dtype)
        check_rows("gate", gate, tuple(x.shape), x.dtype)
        weight, groups = gating.weight, gating.num_groups
        width = x.shape[1] // groups
        if width * groups != x.shape[1]:
            raise ValueError(f"{x.shape[1]} columns are no {groups} equal groups")
        is_shared = weight is not None and weight.shape[0] == width
        if weight is not None:
            check_vector("weight", weight, width if is_shared else width * groups, weight.dtype)
        params = GateParams(
            x=x.data_ptr(),
            gate=gate.data_ptr(),
            weight=None if weight is None else weight.data_ptr(),
            x_stride=x.stride(0),
            gate_stride=gate.stride(0),
            width=width,
            weight_stride=0 if is_shared else width,
            epsilon=gating.eps,
        )
        self._runtime.kernel(gate_variant(x.dtype, gating))((x.shape[0], groups), _THREADS, 0, params)


def _place(rows: StateRows, step: StateStep) -> StatePlace:
    """Where the kernels find a state, and the tokens that go through it."""
    block_bytes = rows.blocks.shape[1]
    return StatePlace(
        blocks=rows.blocks.data_ptr(),
        tables=step.tables.data_ptr(),
        query_starts=step.query_starts.data_ptr(),
        positions=step.positions.data_ptr(),
        block_bytes=block_bytes,
        table_stride=step.tables.stride(0),
        slot=rows.slot,
        offset=rows.offset,
        first_rows=(block_bytes - rows.offset) // rows.row_bytes,
        rows_each=max(1, block_bytes // rows.row_bytes),
    )


def _scanned(inputs: ScanInputs, out: Tensor) -> dict[str, int]:
    tensors = {"x": inputs.x, "steps": inputs.steps, "b": inputs.b, "c": inputs.c, "out": out}
    addresses = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    return addresses | {f"{name}_stride": tensor.stride(0) for name, tensor in tensors.items()}


def _recurrence(mamba: Mamba1 | Mamba2) -> dict[str, int]:
    return {name: getattr(mamba, name).data_ptr() for name in ("decay", "skip", "step_bias")}


def _check_state(rows: StateRows, num_rows: int, row_elements: int) -> None:
    if (rows.num_rows, rows.row_elements) != (num_rows, row_elements):
        raise ValueError(f"a state of {rows.num_rows} x {rows.row_elements}, wanted {num_rows} x {row_elements}")
