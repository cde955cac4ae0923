"""Paged attention by the compiled CPU kernels."""

from __future__ import annotations

from ctypes import byref

import torch

from kvplan_engine.attention.metadata import AttentionMetadata
from kvplan_engine.kernels.cpu.library import (
    KV_STORAGE_CODES,
    STATUS_BAD_INDEX,
    STATUS_OK,
    STORAGE_CODES,
    AttentionArgs,
    CpuKernels,
    KvWriteArgs,
)


class CpuBackend:
    """See AttentionBackend for what the methods do; rows are float32 or bfloat16, the pool that or fp8 (e4m3)."""

    name = "cpu"

    def __init__(self, kernels: CpuKernels) -> None:
        self._kernels = kernels

    def write_kv(
        self, key: torch.Tensor, value: torch.Tensor, kv: torch.Tensor, layer: int, slots: torch.Tensor
    ) -> None:
        """See AttentionBackend.write_kv. Raises IndexError for a slot beyond the pool, before anything is written."""
        args = self.write_args(key, value, kv, layer, slots)
        if self._kernels.write_kv(byref(args), torch.get_num_threads()) != STATUS_OK:
            raise IndexError(f"slot {int(slots.max())} lies outside the pool of {kv.shape[0]} blocks of {kv.shape[4]}")

    def write_args(
        self, key: torch.Tensor, value: torch.Tensor, kv: torch.Tensor, layer: int, slots: torch.Tensor
    ) -> KvWriteArgs:
        """The checked arguments of ``write_kv`` as the kernel takes them; valid while the tensors are."""
        num_blocks, _, _, num_kv_heads, block_size, head_size = _pool_shape(kv, layer)
        tokens = key.shape[0]
        _check_heads("key", key, (tokens, num_kv_heads, head_size), key.dtype)
        _check_heads("value", value, (tokens, num_kv_heads, head_size), key.dtype)
        _check_indices("slots", slots, (tokens,), torch.int64)
        block_stride, layer_stride, values_offset = kv.stride()[:3]
        keys_at = kv.data_ptr() + layer * layer_stride * kv.itemsize
        return KvWriteArgs(
            key.data_ptr(),
            value.data_ptr(),
            *key.stride()[:2],
            *value.stride()[:2],
            keys_at,
            keys_at + values_offset * kv.itemsize,
            *(block_stride, num_blocks, slots.data_ptr(), tokens, num_kv_heads, head_size, block_size),
            STORAGE_CODES[key.dtype],
            KV_STORAGE_CODES[kv.dtype],
        )

    def attend(
        self,
        query: torch.Tensor,
        kv: torch.Tensor,
        layer: int,
        metadata: AttentionMetadata,
        out: torch.Tensor,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> None:
        """See AttentionBackend.attend. Raises IndexError where lengths and block tables do not fit the pool."""
        args = self.attention_args(query, kv, layer, metadata, out, scale, window, softcap)
        raise_for(self._kernels.paged_attention(byref(args), torch.get_num_threads()), kv.shape[0])

    def attention_args(
        self,
        query: torch.Tensor,
        kv: torch.Tensor,
        layer: int,
        metadata: AttentionMetadata,
        out: torch.Tensor,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> AttentionArgs:
        """The checked arguments of ``attend`` as the kernel takes them; valid while the tensors are."""
        num_blocks, _, _, num_kv_heads, block_size, head_size = _pool_shape(kv, layer)
        tokens, num_heads, _ = query.shape
        _check_heads("query", query, (tokens, num_heads, head_size), query.dtype)
        _check_heads("out", out, (tokens, num_heads, head_size), query.dtype)
        if num_heads % num_kv_heads:
            raise ValueError(f"{num_heads} query heads cannot share {num_kv_heads} KV heads evenly")
        if (window is not None and window < 1) or (softcap is not None and softcap <= 0.0):
            raise ValueError(f"window and softcap are positive or None, got {window} and {softcap}")
        sequences, table_width = _check_batch(metadata)
        block_stride, layer_stride, values_offset = kv.stride()[:3]
        keys_at = kv.data_ptr() + layer * layer_stride * kv.itemsize
        return AttentionArgs(
            query.data_ptr(),
            out.data_ptr(),
            *query.stride()[:2],
            *out.stride()[:2],
            keys_at,
            keys_at + values_offset * kv.itemsize,
            *(block_stride, num_blocks),
            metadata.block_tables.data_ptr(),
            *(metadata.block_tables.stride(0), table_width),
            metadata.seq_lens.data_ptr(),
            metadata.query_starts.data_ptr(),
            *(sequences, tokens, num_heads, num_kv_heads, head_size, block_size),
            *(window or 0, scale, softcap or 0.0),
            STORAGE_CODES[query.dtype],
            KV_STORAGE_CODES[kv.dtype],
        )


def raise_for(status: int, num_blocks: int) -> None:
    """The exception that a kernel's status stands for, if any."""
    if status == STATUS_BAD_INDEX:
        raise IndexError(
            "query_starts, seq_lens and block_tables do not fit each other, "
            f"the query or the pool of {num_blocks} blocks"
        )
    if status != STATUS_OK:
        raise RuntimeError("can't allocate memory for the attention kernel's scratch")


def _pool_shape(kv: torch.Tensor, layer: int) -> tuple[int, ...]:
    shape = tuple(kv.shape)
    if len(shape) != 6 or shape[2] != 2 or not kv.is_contiguous() or kv.dtype not in KV_STORAGE_CODES:
        raise ValueError(
            f"the KV pool is {kv.dtype} {shape}, wanted a contiguous float32, bfloat16 or float8_e4m3fn "
            "[num_blocks, num_layers, 2, num_kv_heads, block_size, head_size]"
        )
    if not 0 <= layer < shape[1]:
        raise IndexError(f"layer {layer} of a pool of {shape[1]} layers")
    return shape


def _check_heads(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tensor.shape != shape or tensor.dtype is not dtype or tensor.stride(2) != 1 or dtype not in STORAGE_CODES:
        raise ValueError(
            f"{name} is {tensor.dtype} {tuple(tensor.shape)} with strides {tensor.stride()}, "
            f"wanted {shape} with a contiguous last dimension, float32 or bfloat16 like the others"
        )


def _check_indices(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tensor.shape != shape or tensor.dtype is not dtype or not tensor.is_contiguous():
        raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, wanted contiguous {dtype} {shape}")


def _check_batch(metadata: AttentionMetadata) -> tuple[int, ...]:
    """The shape of the block tables: sequences, and blocks that a row has room for."""
    shape = tuple(metadata.block_tables.shape)
    if len(shape) != 2 or metadata.block_tables.dtype is not torch.int32 or metadata.block_tables.stride(1) != 1:
        raise ValueError(f"block_tables is {metadata.block_tables.dtype} {shape}, wanted int32 [sequences, blocks]")
    _check_indices("seq_lens", metadata.seq_lens, (shape[0],), torch.int32)
    _check_indices("query_starts", metadata.query_starts, (shape[0] + 1,), torch.int32)
    return shape
