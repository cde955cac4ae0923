"""Paged attention by the compiled CPU kernels."""

from __future__ import annotations

from ctypes import byref

import torch

from kvplan_engine.attention.backend import (
    ALL_OPTIONS,
    AttentionInputs,
    AttentionOptions,
    ChoiceInputs,
    KvSlots,
    Rotation,
    refuse_missing_options,
)
from kvplan_engine.attention.checks import (
    check_attending_heads,
    check_choice,
    check_chosen,
    check_metadata,
    check_written_heads,
)
from kvplan_engine.attention.layer_cache import LayerCache
from kvplan_engine.kernels.arguments import check_vector
from kvplan_engine.kernels.cpu import ops
from kvplan_engine.kernels.cpu.library import KV_STORAGE_CODES, STATUS_BAD_INDEX, STATUS_OK, STORAGE_CODES, CpuKernels
from kvplan_engine.kernels.cpu.structures import AttentionArgs, ChoiceArgs, KvWriteArgs


class CpuBackend:
    """AttentionBackend over csrc/cpu; rows are float32 or bfloat16, the pool either, fp8 (e4m3) or int8 with scales."""

    name = "cpu"
    options = ALL_OPTIONS
    is_capturable = False
    takes_any_values = True
    chooses = True

    def __init__(self, kernels: CpuKernels) -> None:
        self._kernels = kernels

    def write_kv(self, key: torch.Tensor, value: torch.Tensor | None, cache: LayerCache, slots: KvSlots) -> None:
        """See AttentionBackend.write_kv. Raises IndexError for a slot beyond the pool, before anything is written."""
        args = self.write_args(key, value, cache, slots)
        if self._kernels.write_kv(byref(args), torch.get_num_threads()) != STATUS_OK:
            largest = max(int(part.max()) for part in (slots.keys, slots.values) if part is not None)
            raise IndexError(f"slot {largest} lies outside the pool of {cache.num_blocks} blocks of {cache.block_size}")

    def rotate_and_write(self, rotation: Rotation, value: torch.Tensor, cache: LayerCache, slots: KvSlots) -> None:
        """See AttentionBackend.rotate_and_write. Rotates the keys in place too."""
        ops.rope_inplace(rotation.heads, rotation.positions, rotation.cos_sin)
        self.write_kv(rotation.heads[:, -value.shape[1] :], value, cache, slots)

    def write_args(
        self, key: torch.Tensor, value: torch.Tensor | None, cache: LayerCache, slots: KvSlots
    ) -> KvWriteArgs:
        """The checked arguments of ``write_kv`` as the kernel takes them; valid while the tensors are."""
        check_written_heads(key, value, cache, slots)
        return KvWriteArgs(
            key.data_ptr(),
            _pointer(value),
            *key.stride()[:2],
            *((0, 0) if value is None else value.stride()[:2]),
            *(cache.keys.data_ptr(), cache.values.data_ptr(), cache.block_stride, cache.num_blocks),
            *(slots.keys.data_ptr(), _pointer(slots.values)),
            *(key.shape[0], cache.num_kv_heads, cache.head_size, cache.block_size),
            *_storage_codes(key, cache),
            0 if value is None else cache.value_size,
            *(_pointer(cache.key_scales), _pointer(cache.value_scales)),
        )

    def attend(self, inputs: AttentionInputs) -> None:
        """See AttentionBackend.attend. Raises IndexError where lengths and block tables do not fit the pool."""
        args = self.attention_args(inputs)
        raise_for(self._kernels.paged_attention(byref(args), torch.get_num_threads()), inputs.cache.num_blocks)

    def attention_args(self, inputs: AttentionInputs) -> AttentionArgs:
        """The checked arguments of ``attend`` as the kernel takes them; valid while the tensors are."""
        query, out, cache, metadata, options = inputs.query, inputs.out, inputs.cache, inputs.metadata, inputs.options
        refuse_missing_options(self, options)
        check_attending_heads(query, out, cache)
        check_metadata(metadata)
        if options.sinks is not None:
            check_vector("sinks", options.sinks, query.shape[1], torch.float32)
        tables = metadata.block_tables
        num_tokens, num_heads, _ = query.shape
        if options.slopes is not None:
            check_vector("slopes", options.slopes, num_heads, torch.float32)
        num_sequences, table_width = tables.shape
        return AttentionArgs(
            query.data_ptr(),
            out.data_ptr(),
            *query.stride()[:2],
            *out.stride()[:2],
            *(cache.keys.data_ptr(), cache.values.data_ptr(), cache.block_stride, cache.num_blocks),
            *(tables.data_ptr(), tables.stride(0), table_width, _pointer(metadata.value_tables)),
            *(metadata.seq_lens.data_ptr(), metadata.query_starts.data_ptr()),
            *(num_sequences, num_tokens, num_heads, cache.num_kv_heads, cache.head_size, cache.block_size),
            *(options.window or 0, options.scale, options.softcap or 0.0, _pointer(options.sinks)),
            *_storage_codes(query, cache),
            _pointer(options.slopes),
            *(cache.value_size, cache.value_stride),
            *_chosen(inputs),
            *(_pointer(cache.key_scales), _pointer(cache.value_scales)),
        )

    def choose(self, inputs: ChoiceInputs) -> None:
        """See AttentionBackend.choose. Raises IndexError where lengths and block tables do not fit the pool."""
        args = _choice_args(inputs)
        raise_for(self._kernels.choose_tokens(byref(args), torch.get_num_threads()), inputs.index.num_blocks)

    def release_workspace(self) -> None:
        """See AttentionBackend.release_workspace: nothing is kept between steps."""

    def reserve_decode(
        self, cache: LayerCache, dtype: torch.dtype, num_heads: int, max_num_seqs: int, options: AttentionOptions
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


def _chosen(inputs: AttentionInputs) -> tuple[int | None, int]:
    """Pointer and columns of what the query tokens have chosen."""
    chosen = inputs.chosen
    if chosen is None:
        return None, 0
    check_chosen(inputs)
    return chosen.data_ptr(), chosen.shape[1]


def _choice_args(inputs: ChoiceInputs) -> ChoiceArgs:
    query, index, metadata = inputs.query, inputs.index, inputs.metadata
    check_choice(inputs)
    check_metadata(metadata)
    tables = metadata.block_tables
    num_tokens, num_heads, size = query.shape
    return ChoiceArgs(
        *(query.data_ptr(), inputs.weights.data_ptr(), query.stride(0), inputs.weights.stride(0)),
        *(index.keys.data_ptr(), index.block_stride, index.num_blocks),
        *(tables.data_ptr(), tables.stride(0), tables.shape[1]),
        *(metadata.seq_lens.data_ptr(), metadata.query_starts.data_ptr(), tables.shape[0], num_tokens),
        *(num_heads, size, index.block_size, inputs.chosen.data_ptr(), inputs.chosen.shape[1]),
        *_storage_codes(query, index),
    )


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _storage_codes(rows: torch.Tensor, cache: LayerCache) -> tuple[int, int]:
    """The kernels' numbers of both dtypes. ValueError for one that they do not have."""
    if rows.dtype not in STORAGE_CODES or cache.dtype not in KV_STORAGE_CODES:
        raise ValueError(
            f"the CPU kernels take rows of float32 or bfloat16 and a KV pool of these, float8_e4m3fn or int8, "
            f"got {rows.dtype} and {cache.dtype}"
        )
    return STORAGE_CODES[rows.dtype], KV_STORAGE_CODES[cache.dtype]
