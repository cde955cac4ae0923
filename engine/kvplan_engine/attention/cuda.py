"""Paged attention on CUDA devices: packs arguments and launches, and never waits.

Nothing here synchronises or reads a tensor's contents, so every call may be captured in a graph, once the first call
of each shape has compiled its kernels and ``reserve_decode`` (or that call) has made the buffers large enough.
"""

from __future__ import annotations

import torch

from kvplan_engine.attention.backend import (
    ALL_OPTIONS,
    AttentionInputs,
    AttentionOptions,
    ChoiceInputs,
    KvSlots,
    Rotation,
)
from kvplan_engine.attention.checks import check_attending_heads, check_metadata, check_written_heads
from kvplan_engine.attention.cuda_plan import AttentionPlanner, SharedWork
from kvplan_engine.attention.layer_cache import LayerCache
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.arguments import check_rotation, check_vector
from kvplan_engine.kernels.cuda.attention import AttentionShape, PrefillLaunch
from kvplan_engine.kernels.cuda.checks import VECTOR_BYTES, check_heads, check_rotary_table
from kvplan_engine.kernels.cuda.launching.runtime import BoxedTensor, CudaRuntime, boxed_pages
from kvplan_engine.kernels.cuda.launching.variants import CudaKernelError, write_variant
from kvplan_engine.kernels.cuda.params import AttentionParams, PrefillWgmmaParams, TensorMap, WriteParams
from kvplan_engine.kernels.cuda.step_memory import StepMemory

# Where the CUDA kernels want the scales of a cache in integers.


def check_scales(cache: LayerCache) -> None:
    """Where the pool holds int8: scales right behind a page's integers, and pages at multiples of VECTOR_BYTES.

    CudaKernelError for blocks too small for that, ValueError for scales elsewhere.
    """
    for pages, scales in ((cache.keys, cache.key_scales), (cache.values, cache.value_scales)):
        if scales is None:
            continue
        page_bytes = pages[0].numel() + scales[0].numel() * scales.itemsize
        if page_bytes % VECTOR_BYTES or cache.block_stride % VECTOR_BYTES:
            raise CudaKernelError(
                f"the CUDA kernels read int8 pages that begin at multiples of {VECTOR_BYTES} bytes, and one of "
                f"{cache.num_kv_heads} heads and {cache.block_size} tokens has {page_bytes:,}",
                hint="use block_size=16",
            )
        if scales.data_ptr() != pages.data_ptr() + pages[0].numel():
            raise ValueError(f"the scales of layer {cache.layer} do not lie behind its integers")


_WRITE_THREADS = 128
_MOST_MAPS = 4096  # of keys and values: more than any model has layers


class CudaBackend:
    """AttentionBackend over csrc/cuda. ``runtime`` is the device, or the emulation in tests.

    key_scale, value_scale: what a stored fp8 value is multiplied with to get the value back.
    decode_warps, decode_stages: the decode kernel's shape; None takes what suits the device.
    wgmma: prompts by the kernel of warp groups (prefill_wgmma.cu), where device and model have what it needs.
    shares: decoding sequences whose block tables begin alike attend together to what they share (prefill_shared.cuh):
    on tensor cores, where there are no window, no slopes and no tables of the values' own.
    parts: the workspace's memory for parts of prefill tiles; while nothing is bound to it, the backend takes its own.
    """

    name = "cuda"
    options = ALL_OPTIONS
    is_capturable = True
    takes_any_values = True
    chooses = False

    def __init__(
        self,
        runtime: CudaRuntime,
        key_scale: float = 1.0,
        value_scale: float = 1.0,
        decode_warps: int = 4,
        decode_stages: int | None = None,
        wgmma: bool = False,
        shares: bool = False,
        parts: StepMemory | None = None,
    ) -> None:
        self._runtime = runtime
        self._key_scale = key_scale
        self._value_scale = value_scale
        self._planner = AttentionPlanner(runtime, decode_warps, decode_stages, wgmma, parts or StepMemory(), shares)
        self._maps: dict[BoxedTensor, TensorMap] = {}

    def write_kv(self, key: torch.Tensor, value: torch.Tensor | None, cache: LayerCache, slots: KvSlots) -> None:
        """See AttentionBackend.write_kv."""
        params = self._write_params(key, value, cache, slots)
        self._launch_write(params, key, cache, rotary=0)

    def rotate_and_write(self, rotation: Rotation, value: torch.Tensor, cache: LayerCache, slots: KvSlots) -> None:
        """See AttentionBackend.rotate_and_write. One launch; the keys in ``rotation.heads`` stay unrotated."""
        heads, num_kv_heads = rotation.heads, value.shape[1]
        query, key = heads[:, :-num_kv_heads], heads[:, -num_kv_heads:]
        params = self._write_params(key, value, cache, slots)
        check_rotation(heads, rotation.positions, rotation.cos_sin)
        check_heads("query", query)
        check_rotary_table(rotation.cos_sin)
        params.query = query.data_ptr()
        params.query_stride = query.stride(0)
        params.num_query_heads = query.shape[1]
        params.positions = rotation.positions.data_ptr()
        params.cos_sin = rotation.cos_sin.data_ptr()
        self._launch_write(params, key, cache, rotation.cos_sin.shape[1])

    def _write_params(
        self, key: torch.Tensor, value: torch.Tensor | None, cache: LayerCache, slots: KvSlots
    ) -> WriteParams:
        check_written_heads(key, value, cache, slots)
        check_scales(cache)
        check_heads("key", key)
        if value is not None:
            check_heads("value", value)
        return WriteParams(
            key=key.data_ptr(),
            value=None if value is None else value.data_ptr(),
            kv=cache.keys.data_ptr(),
            slots=slots.keys.data_ptr(),
            value_slots=slots.keys.data_ptr() if slots.values is None else slots.values.data_ptr(),
            key_stride=key.stride(0),
            value_stride=0 if value is None else value.stride(0),
            block_stride=cache.block_stride,
            value_offset=_value_offset(cache),
            num_tokens=key.shape[0],
            num_kv_heads=key.shape[1],
            key_scale=self._key_scale,
            value_scale=self._value_scale,
        )

    def _launch_write(self, params: WriteParams, key: torch.Tensor, cache: LayerCache, rotary: int) -> None:
        value_size = 0 if cache.values_in_keys else cache.value_size
        chosen = write_variant(
            *(key.dtype, cache.dtype, cache.head_size, cache.block_size, rotary),
            value_size=None if value_size == cache.head_size else value_size,
        )
        self._runtime.kernel(chosen)((params.num_tokens, 1), _WRITE_THREADS, 0, params)

    def attend(self, inputs: AttentionInputs) -> None:
        """See AttentionBackend.attend."""
        _check_inputs(inputs)
        query, metadata = inputs.query, inputs.metadata
        if metadata.seq_lens.shape[0] == 0 or query.shape[0] == 0:
            return
        has_value_tables = metadata.value_tables is not None
        shape = _shape_of(inputs.cache, query.dtype, query.shape[1], inputs.options, has_value_tables)
        decode = self._planner.launches_of(shape).decode
        plan = self._planner.plan_of(shape, inputs.options.window or 0, metadata, inputs.cache.layer, query.shape[0])
        params, buffers = self._attention_params(inputs), self._planner.buffers
        if plan.shared is not None:
            self._attend_shared(plan.shared, self._attention_params(inputs))
        for launch, items, num_items, sums, finished in (
            (decode, plan.decode_items, plan.num_decode_items, buffers.partial_sums, buffers.finished),
            (plan.prefill, plan.prefill_items, plan.num_prefill_items, buffers.parts, buffers.finished_parts),
        ):
            if num_items > 0:
                params.items, params.partial_sums = items.data_ptr(), sums.data_ptr()
                params.finished = finished.data_ptr()
                grid = (num_items, launch.blocks_per_item)
                given = params if launch is decode else self._prefill_params(plan.prefill, params, inputs)
                self._runtime.kernel(launch.variant)(grid, launch.threads, launch.shared_bytes, given)

    def _attend_shared(self, work: SharedWork, params: AttentionParams) -> None:
        """Leaves what sequences share in decode's partial results."""
        buffers, launch = self._planner.buffers, work.launch
        params.items, params.first_items = work.items.data_ptr(), work.first_items.data_ptr()
        params.members = work.members.data_ptr()
        params.partial_sums, params.finished = buffers.parts.data_ptr(), buffers.finished_parts.data_ptr()
        params.out = buffers.partial_sums.data_ptr()
        grid = (work.num_items, launch.blocks_per_item)
        self._runtime.kernel(launch.variant)(grid, launch.threads, launch.shared_bytes, params)

    def _prefill_params(
        self, launch: PrefillLaunch, params: AttentionParams, inputs: AttentionInputs
    ) -> AttentionParams | PrefillWgmmaParams:
        """``params``, with maps of the layer's pages where the copy engine brings them."""
        if launch.box_rows == 0:
            return params
        keys, values = (self._map_of(pages, launch.box_rows) for pages in (inputs.cache.keys, inputs.cache.values))
        return PrefillWgmmaParams(keys, values, params)

    def _map_of(self, pages: torch.Tensor, box_rows: int) -> TensorMap:
        """Made once for each layer of a pool."""
        boxed = boxed_pages(pages, box_rows)
        known = self._maps.get(boxed)
        if known is None:
            if len(self._maps) >= _MOST_MAPS:
                self._maps.clear()  # of pools that are gone
            known = self._maps[boxed] = self._runtime.tensor_map(boxed)
        return known

    def choose(self, inputs: ChoiceInputs) -> None:
        """See AttentionBackend.choose."""
        raise EngineError("the cuda attention backend does not choose tokens.", hint="use a model without an index")

    def reserve_decode(
        self, cache: LayerCache, dtype: torch.dtype, num_heads: int, max_num_seqs: int, options: AttentionOptions
    ) -> None:
        """See AttentionBackend.reserve_decode."""
        self._planner.forget_retired()
        shape = _shape_of(cache, dtype, num_heads, options, cache.has_value_tables)
        self._planner.reserve_decode(shape, options.window or 0, max_num_seqs)

    def release_workspace(self) -> None:
        """See AttentionBackend.release_workspace."""
        self._planner.release_workspace()

    def _attention_params(self, inputs: AttentionInputs) -> AttentionParams:
        query, cache, metadata, options = inputs.query, inputs.cache, inputs.metadata, inputs.options
        return AttentionParams(
            query=query.data_ptr(),
            kv=cache.keys.data_ptr(),
            block_tables=metadata.block_tables.data_ptr(),
            value_tables=(metadata.block_tables if metadata.value_tables is None else metadata.value_tables).data_ptr(),
            seq_lens=metadata.seq_lens.data_ptr(),
            query_starts=metadata.query_starts.data_ptr(),
            sinks=None if options.sinks is None else options.sinks.data_ptr(),
            slopes=None if options.slopes is None else options.slopes.data_ptr(),
            partial_stats=self._planner.buffers.partial_stats.data_ptr(),
            out=inputs.out.data_ptr(),
            block_stride=cache.block_stride,
            value_offset=_value_offset(cache),
            query_stride=query.stride(0),
            out_stride=inputs.out.stride(0),
            table_stride=metadata.block_tables.stride(0),
            num_query_heads=query.shape[1],
            window=options.window or 0,
            scale=options.scale,
            softcap=options.softcap or 0.0,
            key_scale=self._key_scale,
            value_scale=self._value_scale,
        )


def _check_inputs(inputs: AttentionInputs) -> None:
    query, metadata, options = inputs.query, inputs.metadata, inputs.options
    check_attending_heads(query, inputs.out, inputs.cache)
    check_scales(inputs.cache)
    check_heads("query", query)
    check_heads("out", inputs.out)
    check_metadata(metadata)
    for name, vector in (("sinks", options.sinks), ("slopes", options.slopes)):
        if vector is not None:
            check_vector(name, vector, query.shape[1], torch.float32)


def _shape_of(
    cache: LayerCache, dtype: torch.dtype, num_heads: int, options: AttentionOptions, has_value_tables: bool
) -> AttentionShape:
    return AttentionShape(
        dtype,
        cache.dtype,
        *(cache.head_size, cache.block_size, num_heads, cache.num_kv_heads),
        has_softcap=options.softcap is not None,
        has_sinks=options.sinks is not None,
        has_slopes=options.slopes is not None,
        has_value_tables=has_value_tables,
        other_value_size=None if cache.value_size == cache.head_size else cache.value_size,
        values_in_keys=cache.values_in_keys and cache.value_size != cache.head_size,
    )


def _value_offset(cache: LayerCache) -> int:
    """Elements from the keys of block 0 to its values, which may lie before them."""
    return (cache.values.data_ptr() - cache.keys.data_ptr()) // cache.dtype.itemsize
