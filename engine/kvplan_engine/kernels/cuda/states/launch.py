"""How the kernels of layers with a state are compiled for their sizes: pure arithmetic."""

from __future__ import annotations

import torch

from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError, KernelVariant, variant
from kvplan_engine.kernels.states.delta import DeltaRule
from kvplan_engine.kernels.states.gating import Gating

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
