"""Paged attention on CUDA devices: packs arguments, plans the work once per step, launches, and never waits.

Nothing here synchronises or reads a tensor's contents, so every call may be captured in a graph, once the first call
of each shape has compiled its kernels and ``reserve`` (or that call) has made the buffers large enough.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from kvplan_engine.attention.cuda_checks import check_metadata
from kvplan_engine.attention.metadata import AttentionMetadata
from kvplan_engine.kernels.cuda.attention import (
    CHUNK_MULTIPLE,
    MIN_CHUNK,
    AttentionShape,
    DecodeLaunch,
    PrefillLaunch,
    decode_launch,
    prefill_launch,
)
from kvplan_engine.kernels.cuda.checks import check_heads, check_pool, check_rotary, check_vector
from kvplan_engine.kernels.cuda.params import AttentionParams, PlanParams, WriteParams
from kvplan_engine.kernels.cuda.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.variants import KernelVariant, write_variant

_PLAN = KernelVariant("plan.cu", "plan_attention")
_PLAN_THREADS = 256
_WRITE_THREADS = 128
_DECODE_ITEM_INTS = 8
_PREFILL_ITEM_INTS = 2


@dataclass(frozen=True, slots=True)
class _Launches:
    """Both kernels of one shape, with their sizes."""

    decode: DecodeLaunch
    prefill: PrefillLaunch


@dataclass(slots=True)
class _Plan:
    """The work items of the current step for one (shape, window)."""

    decode_items: torch.Tensor
    """[max items, 8] int32"""
    prefill_items: torch.Tensor
    """[max items, 2] int32"""
    num_decode_items: int
    num_prefill_items: int


@dataclass(slots=True)
class _Buffers:
    """Memory that only the kernels read and write; grows, never shrinks.

    What is outgrown stays in ``retired``: a captured graph may still use it.
    """

    partial_sums: torch.Tensor
    """float32, room for [items, query heads, head size]"""
    partial_stats: torch.Tensor
    """float32, room for [items, query heads, 2]"""
    finished: torch.Tensor
    """int32, room for [sequences, decode grid y]; all zero between launches"""
    retired: list[torch.Tensor] = field(default_factory=list)


@dataclass(slots=True)
class _Step:
    """Which step the plans belong to."""

    metadata: AttentionMetadata | None = None
    layer: int = -1
    plans: dict[tuple[AttentionShape, int], _Plan] = field(default_factory=dict)


class CudaBackend:
    """AttentionBackend over csrc/cuda. ``runtime`` is the device, or the emulation in tests.

    key_scale, value_scale: what a stored fp8 value is multiplied with to get the value back.
    decode_warps, decode_stages: the decode kernel's shape; None takes what suits the device.
    """

    name = "cuda"

    def __init__(
        self,
        runtime: CudaRuntime | None = None,
        key_scale: float = 1.0,
        value_scale: float = 1.0,
        decode_warps: int = 4,
        decode_stages: int | None = None,
    ) -> None:
        if runtime is None:
            from kvplan_engine.kernels.cuda.driver import current_runtime

            runtime = current_runtime()
        self._runtime = runtime
        self._key_scale = key_scale
        self._value_scale = value_scale
        self._decode_warps = decode_warps
        self._decode_stages = decode_stages
        self._launches: dict[AttentionShape, _Launches] = {}
        self._item_memory: dict[tuple[AttentionShape, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self._buffers = _Buffers(self._floats(0), self._floats(0), self._zeros(0))
        self._step = _Step()

    # ---- writing ---------------------------------------------------------------------------------------------------

    def write_kv(
        self, key: torch.Tensor, value: torch.Tensor, kv: torch.Tensor, layer: int, slots: torch.Tensor
    ) -> None:
        """See AttentionBackend.write_kv."""
        params = self._write_params(key, value, kv, layer, slots)
        self._launch_write(params, key, kv, rotary=0)

    def rotate_and_write_kv(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
        kv: torch.Tensor,
        layer: int,
        slots: torch.Tensor,
    ) -> None:
        """write_kv of the rotated ``key``, and ``query`` [T, hq, d] rotated in place, in one pass.

        ``key`` itself stays unrotated. ``positions`` [T] int64, ``cos_sin`` [L, r] float32 as for ops.rope_inplace.
        """
        params = self._write_params(key, value, kv, layer, slots)
        check_heads("query", query, key.dtype, key.shape[2])
        rotary = check_rotary(positions, cos_sin, key.shape[0], key.shape[2])
        params.query = query.data_ptr()
        params.query_stride = query.stride(0)
        params.num_query_heads = query.shape[1]
        params.positions = positions.data_ptr()
        params.cos_sin = cos_sin.data_ptr()
        self._launch_write(params, key, kv, rotary)

    def _write_params(
        self, key: torch.Tensor, value: torch.Tensor, kv: torch.Tensor, layer: int, slots: torch.Tensor
    ) -> WriteParams:
        check_pool(kv, layer)
        num_tokens, num_kv_heads, head_size = key.shape
        check_heads("key", key, key.dtype, head_size)
        check_heads("value", value, key.dtype, head_size)
        if (num_kv_heads, head_size) != (kv.shape[3], kv.shape[5]) or value.shape != key.shape:
            raise ValueError(
                f"key {tuple(key.shape)} and value {tuple(value.shape)} do not fit the pool {tuple(kv.shape)}"
            )
        check_vector("slots", slots, num_tokens, torch.int64)
        return WriteParams(
            key=key.data_ptr(),
            value=value.data_ptr(),
            kv=_layer_pointer(kv, layer),
            slots=slots.data_ptr(),
            key_stride=key.stride(0),
            value_stride=value.stride(0),
            block_stride=kv.stride(0),
            value_offset=kv.stride(2),
            num_tokens=num_tokens,
            num_kv_heads=num_kv_heads,
            key_scale=self._key_scale,
            value_scale=self._value_scale,
        )

    def _launch_write(self, params: WriteParams, key: torch.Tensor, kv: torch.Tensor, rotary: int) -> None:
        chosen = write_variant(key.dtype, kv.dtype, kv.shape[5], kv.shape[4], rotary)
        self._runtime.kernel(chosen)((params.num_tokens, 1), _WRITE_THREADS, 0, params)

    # ---- attending -------------------------------------------------------------------------------------------------

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
        sinks: torch.Tensor | None = None,
    ) -> None:
        """See AttentionBackend.attend. ``sinks`` [hq] float32: a logit per head that takes weight but has no value."""
        check_pool(kv, layer)
        check_heads("query", query, query.dtype, kv.shape[5])
        check_heads("out", out, query.dtype, kv.shape[5])
        num_sequences = metadata.seq_lens.shape[0]
        if num_sequences == 0 or query.shape[0] == 0:
            return
        check_metadata(metadata)
        shape = _shape_of(query, kv, softcap, sinks)
        launches = self._launches_of(shape)
        plan = self._plan_of(shape, launches, metadata, layer, window or 0, query.shape[0])
        self._grow_buffers(shape, launches, plan.num_decode_items, num_sequences)
        params = self._attention_params(query, kv, layer, metadata, out, scale, window, softcap, sinks)
        decode, prefill = launches.decode, launches.prefill
        params.items = plan.decode_items.data_ptr()
        self._runtime.kernel(decode.variant)(
            (plan.num_decode_items, decode.blocks_per_item), decode.threads, decode.shared_bytes, params
        )
        if plan.num_prefill_items > 0:
            params.items = plan.prefill_items.data_ptr()
            self._runtime.kernel(prefill.variant)(
                (plan.num_prefill_items, prefill.blocks_per_item), prefill.threads, prefill.shared_bytes, params
            )

    def reserve(
        self,
        scalar: torch.dtype,
        kv: torch.Tensor,
        num_query_heads: int,
        max_num_seqs: int,
        windows: tuple[int | None, ...] = (None,),
        softcap: bool = False,
        sinks: bool = False,
    ) -> None:
        """Compile the kernels and make the buffers of decode steps of ``max_num_seqs``, before a graph capture.

        ``windows``: every window that the model's layers attend with.
        """
        shape = AttentionShape(scalar, kv.dtype, kv.shape[5], kv.shape[4], num_query_heads, kv.shape[3], softcap, sinks)
        launches = self._launches_of(shape)
        for chosen in (_PLAN, launches.decode.variant, launches.prefill.variant):
            self._runtime.kernel(chosen)
        num_items = launches.decode.max_items(max_num_seqs)
        for window in windows:
            self._items_of((shape, window or 0), num_items, 0)
        self._grow_buffers(shape, launches, num_items, max_num_seqs)

    def forget_retired(self) -> None:
        """Give outgrown buffers back: no graph captured until now is replayed any more."""
        self._buffers.retired.clear()

    def _launches_of(self, shape: AttentionShape) -> _Launches:
        launches = self._launches.get(shape)
        if launches is None:
            properties = self._runtime.properties
            decode = decode_launch(shape, properties, self._decode_warps, self._decode_stages)
            launches = _Launches(decode, prefill_launch(shape, properties))
            self._launches[shape] = launches
        return launches

    def _plan_of(
        self,
        shape: AttentionShape,
        launches: _Launches,
        metadata: AttentionMetadata,
        layer: int,
        window: int,
        num_tokens: int,
    ) -> _Plan:
        """This step's plan; made on the device by the step's first layer that needs it.

        A new metadata object or a layer number that does not grow means a new step.
        """
        step = self._step
        if step.metadata is not metadata or layer <= step.layer:
            step.metadata = metadata
            step.plans = {}
        step.layer = layer
        key = (shape, window)
        if key not in step.plans:
            step.plans[key] = self._make_plan(key, launches, metadata, num_tokens)
        return step.plans[key]

    def _make_plan(
        self, key: tuple[AttentionShape, int], launches: _Launches, metadata: AttentionMetadata, num_tokens: int
    ) -> _Plan:
        shape, window = key
        num_sequences = metadata.seq_lens.shape[0]
        decode_items = launches.decode.max_items(num_sequences)
        prefill_items = 0
        if metadata.max_query_len > 1:
            prefill_items = launches.prefill.max_items(num_sequences, num_tokens, shape.group)
        decode_memory, prefill_memory = self._items_of(key, decode_items, prefill_items)
        params = PlanParams(
            seq_lens=metadata.seq_lens.data_ptr(),
            query_starts=metadata.query_starts.data_ptr(),
            decode_items=decode_memory.data_ptr(),
            prefill_items=prefill_memory.data_ptr(),
            num_sequences=num_sequences,
            max_decode_items=decode_items,
            max_prefill_items=prefill_items,
            window=window,
            target_chunks=launches.decode.target_chunks,
            min_chunk=MIN_CHUNK,
            chunk_multiple=CHUNK_MULTIPLE,
            group=shape.group,
            tile_rows=launches.prefill.tile_rows,
        )
        self._runtime.kernel(_PLAN)((1, 1), _PLAN_THREADS, 0, params)
        return _Plan(decode_memory, prefill_memory, decode_items, prefill_items)

    def _attention_params(
        self,
        query: torch.Tensor,
        kv: torch.Tensor,
        layer: int,
        metadata: AttentionMetadata,
        out: torch.Tensor,
        scale: float,
        window: int | None,
        softcap: float | None,
        sinks: torch.Tensor | None,
    ) -> AttentionParams:
        buffers = self._buffers
        return AttentionParams(
            query=query.data_ptr(),
            kv=_layer_pointer(kv, layer),
            block_tables=metadata.block_tables.data_ptr(),
            seq_lens=metadata.seq_lens.data_ptr(),
            query_starts=metadata.query_starts.data_ptr(),
            sinks=None if sinks is None else sinks.data_ptr(),
            partial_sums=buffers.partial_sums.data_ptr(),
            partial_stats=buffers.partial_stats.data_ptr(),
            finished=buffers.finished.data_ptr(),
            out=out.data_ptr(),
            block_stride=kv.stride(0),
            value_offset=kv.stride(2),
            query_stride=query.stride(0),
            out_stride=out.stride(0),
            table_stride=metadata.block_tables.stride(0),
            num_query_heads=query.shape[1],
            window=window or 0,
            scale=scale,
            softcap=softcap or 0.0,
            key_scale=self._key_scale,
            value_scale=self._value_scale,
        )

    # ---- memory ----------------------------------------------------------------------------------------------------

    def _floats(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.float32, device=self._runtime.device)

    def _zeros(self, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.int32, device=self._runtime.device)

    def _items_of(
        self, key: tuple[AttentionShape, int], decode_items: int, prefill_items: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        decode, prefill = self._item_memory.get(key) or (self._zeros(0), self._zeros(0))
        decode = self._grown(decode, decode_items * _DECODE_ITEM_INTS)
        prefill = self._grown(prefill, prefill_items * _PREFILL_ITEM_INTS)
        self._item_memory[key] = (decode, prefill)
        return decode, prefill

    def _grown(self, tensor: torch.Tensor, count: int) -> torch.Tensor:
        """``tensor`` if it has room for ``count`` elements, else a zeroed one that has."""
        if tensor.numel() >= count:
            return tensor
        self._buffers.retired.append(tensor)
        return torch.zeros(count, dtype=tensor.dtype, device=tensor.device)

    def _grow_buffers(self, shape: AttentionShape, launches: _Launches, num_items: int, num_sequences: int) -> None:
        buffers = self._buffers
        rows = num_items * shape.num_query_heads
        buffers.partial_sums = self._grown(buffers.partial_sums, rows * shape.head_size)
        buffers.partial_stats = self._grown(buffers.partial_stats, rows * 2)
        buffers.finished = self._grown(buffers.finished, num_sequences * launches.decode.blocks_per_item)


def _shape_of(
    query: torch.Tensor, kv: torch.Tensor, softcap: float | None, sinks: torch.Tensor | None
) -> AttentionShape:
    has_softcap = softcap is not None and softcap > 0
    return AttentionShape(
        query.dtype, kv.dtype, kv.shape[5], kv.shape[4], query.shape[1], kv.shape[3], has_softcap, sinks is not None
    )


def _layer_pointer(kv: torch.Tensor, layer: int) -> int:
    return kv.data_ptr() + layer * kv.stride(1) * kv.element_size()
