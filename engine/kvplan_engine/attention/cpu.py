"""Paged attention by the compiled CPU kernels."""

from __future__ import annotations

from ctypes import byref

import torch

from kvplan_engine.attention.backend import AttentionInputs, AttentionOptions, Rotation, refuse_missing_options
from kvplan_engine.kernels.arguments import (
    check_attending_heads,
    check_pool,
    check_tables,
    check_vector,
    check_written_heads,
)
from kvplan_engine.kernels.cpu import ops
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
    """AttentionBackend over csrc/cpu; rows are float32 or bfloat16, the pool either of them or fp8 (e4m3)."""

    name = "cpu"
    options = frozenset({"window", "softcap", "slopes"})
    is_capturable = False

    def __init__(self, kernels: CpuKernels) -> None:
        self._kernels = kernels

    def write_kv(
        self, key: torch.Tensor, value: torch.Tensor, kv: torch.Tensor, layer: int, slots: torch.Tensor
    ) -> None:
        """See AttentionBackend.write_kv. Raises IndexError for a slot beyond the pool, before anything is written."""
        args = self.write_args(key, value, kv, layer, slots)
        if self._kernels.write_kv(byref(args), torch.get_num_threads()) != STATUS_OK:
            raise IndexError(f"slot {int(slots.max())} lies outside the pool of {kv.shape[0]} blocks of {kv.shape[4]}")

    def rotate_and_write(
        self, rotation: Rotation, value: torch.Tensor, kv: torch.Tensor, layer: int, slots: torch.Tensor
    ) -> None:
        """See AttentionBackend.rotate_and_write. Rotates the keys in place too."""
        ops.rope_inplace(rotation.heads, rotation.positions, rotation.cos_sin)
        self.write_kv(rotation.heads[:, -value.shape[1] :], value, kv, layer, slots)

    def write_args(
        self, key: torch.Tensor, value: torch.Tensor, kv: torch.Tensor, layer: int, slots: torch.Tensor
    ) -> KvWriteArgs:
        """The checked arguments of ``write_kv`` as the kernel takes them; valid while the tensors are."""
        check_pool(kv, layer)
        check_written_heads(key, value, kv, slots)
        num_blocks, _, _, num_kv_heads, block_size, head_size = kv.shape
        return KvWriteArgs(
            key.data_ptr(),
            value.data_ptr(),
            *key.stride()[:2],
            *value.stride()[:2],
            *(*_layer_in_pool(kv, layer), num_blocks),
            *(slots.data_ptr(), key.shape[0], num_kv_heads, head_size, block_size),
            *_storage_codes(key, kv),
        )

    def attend(self, inputs: AttentionInputs) -> None:
        """See AttentionBackend.attend. Raises IndexError where lengths and block tables do not fit the pool."""
        args = self.attention_args(inputs)
        raise_for(self._kernels.paged_attention(byref(args), torch.get_num_threads()), inputs.kv.shape[0])

    def attention_args(self, inputs: AttentionInputs) -> AttentionArgs:
        """The checked arguments of ``attend`` as the kernel takes them; valid while the tensors are."""
        query, out, kv, metadata, options = inputs.query, inputs.out, inputs.kv, inputs.metadata, inputs.options
        refuse_missing_options(self, options)
        check_pool(kv, inputs.layer)
        check_attending_heads(query, out, kv)
        tables = metadata.block_tables
        check_tables(tables, metadata.seq_lens, metadata.query_starts)
        num_blocks, _, _, num_kv_heads, block_size, head_size = kv.shape
        num_tokens, num_heads, _ = query.shape
        if options.slopes is not None:
            check_vector("slopes", options.slopes, num_heads, torch.float32)
        num_sequences, table_width = tables.shape
        return AttentionArgs(
            query.data_ptr(),
            out.data_ptr(),
            *query.stride()[:2],
            *out.stride()[:2],
            *(*_layer_in_pool(kv, inputs.layer), num_blocks),
            *(tables.data_ptr(), tables.stride(0), table_width),
            *(metadata.seq_lens.data_ptr(), metadata.query_starts.data_ptr()),
            *(num_sequences, num_tokens, num_heads, num_kv_heads, head_size, block_size),
            *(options.window or 0, options.scale, options.softcap or 0.0),
            *_storage_codes(query, kv),
            None if options.slopes is None else options.slopes.data_ptr(),
        )

    def reserve_decode(
        self, kv: torch.Tensor, dtype: torch.dtype, num_heads: int, max_num_seqs: int, options: AttentionOptions
    ) -> None:
        """Nothing is captured on the CPU."""


def raise_for(status: int, num_blocks: int) -> None:
    """The exception that a kernel's status stands for, if any."""
    if status == STATUS_BAD_INDEX:
        raise IndexError(
            "query_starts, seq_lens and block_tables do not fit each other, "
            f"the query or the pool of {num_blocks} blocks"
        )
    if status != STATUS_OK:
        raise RuntimeError("can't allocate memory for the attention kernel's scratch")


def _layer_in_pool(kv: torch.Tensor, layer: int) -> tuple[int, int, int]:
    """Where the layer's keys and values of block 0 lie, and how many elements further those of block 1."""
    block_stride, layer_stride, values_offset, *_ = kv.stride()
    itemsize = kv.itemsize
    keys_at = kv.data_ptr() + layer * layer_stride * itemsize
    return keys_at, keys_at + values_offset * itemsize, block_stride


def _storage_codes(rows: torch.Tensor, kv: torch.Tensor) -> tuple[int, int]:
    """The kernels' numbers of both dtypes. ValueError for one that they do not have."""
    if rows.dtype not in STORAGE_CODES or kv.dtype not in KV_STORAGE_CODES:
        raise ValueError(
            f"the CPU kernels take rows of float32 or bfloat16 and a KV pool of these or float8_e4m3fn, "
            f"got {rows.dtype} and {kv.dtype}"
        )
    return STORAGE_CODES[rows.dtype], KV_STORAGE_CODES[kv.dtype]
