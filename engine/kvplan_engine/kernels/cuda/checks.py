"""What the CUDA kernels ask of their arguments beyond ``kernels.arguments``: neighbouring heads and aligned rows."""

from __future__ import annotations

import torch

VECTOR_BYTES = 16
"""What a thread loads and stores at once."""


def rows_are_aligned(tensor: torch.Tensor) -> bool:
    """Whether every row starts at a multiple of VECTOR_BYTES."""
    row_bytes = tensor.stride(0) * tensor.element_size()
    return tensor.data_ptr() % VECTOR_BYTES == 0 and (tensor.shape[0] == 1 or row_bytes % VECTOR_BYTES == 0)


def check_heads(name: str, tensor: torch.Tensor) -> None:
    """[T, heads, head_size] with the heads of a token side by side and aligned rows; ValueError where it is not so."""
    if tensor.shape[1] > 1 and tensor.stride(1) != tensor.shape[2]:
        raise ValueError(f"{name} has strides {tensor.stride()}; the heads of a token must lie side by side")
    if not rows_are_aligned(tensor):
        raise ValueError(f"{name}'s rows do not start at multiples of 16 bytes (strides {tensor.stride()})")


def check_rotary_table(cos_sin: torch.Tensor) -> None:
    """ValueError where the table does not start at a multiple of VECTOR_BYTES."""
    if cos_sin.data_ptr() % VECTOR_BYTES:
        raise ValueError("cos_sin does not start at a multiple of 16 bytes")
