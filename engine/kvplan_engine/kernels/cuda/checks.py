"""What the CUDA attention kernels ask of their arguments: a wrong one is ValueError before anything is launched."""

from __future__ import annotations

import torch


def check_pool(kv: torch.Tensor, layer: int) -> None:
    """The pool is one contiguous tensor and has this layer."""
    if kv.dim() != 6 or kv.shape[2] != 2 or not kv.is_contiguous():
        raise ValueError(f"the KV pool is contiguous [blocks, layers, 2, heads, block size, head size], got {kv.shape}")
    if not 0 <= layer < kv.shape[1]:
        raise ValueError(f"layer {layer} of a pool with {kv.shape[1]} layers")


def check_heads(name: str, tensor: torch.Tensor, dtype: torch.dtype, head_size: int) -> None:
    """[T, heads, head_size], heads side by side, rows at multiples of 16 bytes."""
    if tensor.dim() != 3 or tensor.dtype is not dtype or tensor.shape[2] != head_size:
        raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, wanted {dtype} [T, heads, {head_size}]")
    if tensor.stride(2) != 1 or (tensor.shape[1] > 1 and tensor.stride(1) != head_size):
        raise ValueError(f"{name} has strides {tensor.stride()}; the heads of a token must lie side by side")
    if tensor.data_ptr() % 16 or tensor.stride(0) * tensor.element_size() % 16:
        raise ValueError(f"{name}'s rows do not start at multiples of 16 bytes (strides {tensor.stride()})")


def check_vector(name: str, tensor: torch.Tensor, length: int, dtype: torch.dtype) -> None:
    """Contiguous [length] of ``dtype``."""
    if tensor.dtype is not dtype or tensor.shape != (length,) or not tensor.is_contiguous():
        raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, wanted contiguous {dtype} ({length},)")


def check_rotary(positions: torch.Tensor, cos_sin: torch.Tensor, num_tokens: int, head_size: int) -> int:
    """The rotation's table and positions; returns how many elements of a head rotate."""
    check_vector("positions", positions, num_tokens, torch.int64)
    if cos_sin.dim() != 2 or cos_sin.dtype is not torch.float32 or not cos_sin.is_contiguous():
        raise ValueError(f"cos_sin is {cos_sin.dtype} {tuple(cos_sin.shape)}, wanted contiguous float32 [L, rotary]")
    if cos_sin.data_ptr() % 16:
        raise ValueError("cos_sin does not start at a multiple of 16 bytes")
    if cos_sin.shape[1] > head_size:
        raise ValueError(f"cos_sin rotates {cos_sin.shape[1]} of {head_size} elements")
    return int(cos_sin.shape[1])
