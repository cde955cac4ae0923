"""The CUDA attention kernels' work: how they are launched, their work items of a step.

The work items are planned on the device, once for each step: its first layer that needs a plan launches plan.cu, the
layers behind it launch their kernels over the same items. Nothing is read back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from kvplan_engine.attention.backend import AttentionMetadata
from kvplan_engine.kernels.cuda.attention import (
    CHUNK_MULTIPLE,
    MIN_CHUNK,
    MIN_PART,
    MIN_SHARED,
    AttentionShape,
    DecodeLaunch,
    PrefillLaunch,
    decode_launch,
    prefill_launch,
    shared_prefill_launch,
    short_prefill_launch,
)
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant
from kvplan_engine.kernels.cuda.params import PlanParams
from kvplan_engine.kernels.cuda.step_memory import StepMemory
from kvplan_engine.kernels.workspace_sizes import PARTS_BYTES

# Memory that only the CUDA attention kernels read and write: results of pieces of work, until they are merged.


class Buffers:
    """The buffers of all layers of one device; they grow, and never shrink.

    partial_sums: float32, room for [decode items, query heads, value size]. partial_stats: float32, room for [decode
    items, query heads, 2]. finished: int32, room for [sequences, decode grid y], all zero between launches. parts:
    float32, what blocks leave of parts of prefill tiles. finished_parts: int32, room for [parts, prefill grid y], all
    zero between launches. What is outgrown stays in ``retired``: a captured graph may still use it.
    """

    def __init__(self, device: torch.device, parts: StepMemory) -> None:
        """parts: the workspace's memory for them; where none is bound to it yet when they are needed, it gets some."""
        self._device = device
        self._parts = parts
        none = torch.empty(0, dtype=torch.float32, device=device)
        self.partial_sums = self.partial_stats = self.parts = none
        self.no_ints = torch.empty(0, dtype=torch.int32, device=device)
        self.finished = self.finished_parts = self.no_ints
        self.retired: list[torch.Tensor] = []

    def grown(self, tensor: torch.Tensor, count: int) -> torch.Tensor:
        """``tensor`` if it has room for ``count`` elements, else a zeroed one that has."""
        if tensor.numel() >= count:
            return tensor
        self.retired.append(tensor)
        return torch.zeros(count, dtype=tensor.dtype, device=tensor.device)

    def reserve_decode(self, shape: AttentionShape, launch: DecodeLaunch, num_items: int, num_sequences: int) -> None:
        """Make room for so many items of decode."""
        rows = num_items * shape.num_query_heads
        self.partial_sums = self.grown(self.partial_sums, rows * shape.value_size)
        self.partial_stats = self.grown(self.partial_stats, rows * 2)
        self.finished = self.grown(self.finished, num_sequences * launch.blocks_per_item)

    def release_parts(self) -> None:
        """Let go of the memory for parts of tiles; it is taken again when it is needed."""
        self.parts = torch.empty(0, dtype=torch.float32, device=self._device)

    def reserve_parts(self, launch: PrefillLaunch) -> int:
        """Take the memory for parts of tiles as it is bound now; how many parts fit it."""
        if not self._parts.is_bound:
            self._parts.bind(torch.empty(PARTS_BYTES, dtype=torch.uint8, device=self._device))
        self.parts = self._parts.vector(torch.float32)
        num_slots = launch.num_slots(self.parts.numel())
        self.finished_parts = self.grown(self.finished_parts, num_slots * launch.blocks_per_item)
        return num_slots


_PLAN = KernelVariant("attention/plan/plan.cu", "plan_attention")
_DECODE_ITEM_INTS = 8
_PREFILL_ITEM_INTS = 8

_PlanKey = tuple[AttentionShape, int]
"""A shape of kernels and a window, 0 for none: what one plan serves."""


@dataclass(frozen=True, slots=True)
class Launches:
    """The kernels of one shape, with their sizes. short: of prompts, where no sequence has more rows than its tile.

    shared: of prefixes that decoding sequences share; None where they are not looked for.
    """

    decode: DecodeLaunch
    prefill: PrefillLaunch
    short: PrefillLaunch | None
    shared: PrefillLaunch | None

    def prefill_of(self, most_rows: int) -> PrefillLaunch:
        """Return the launch for a step in which no sequence has more than ``most_rows`` rows."""
        return self.prefill if self.short is None or most_rows > self.short.tile_rows else self.short


@dataclass(frozen=True, slots=True)
class Plan:
    """The work items of the current step for one (shape, window)."""

    decode_items: torch.Tensor
    """[max items, 8] int32"""
    prefill_items: torch.Tensor
    """[max items, 8] int32"""
    num_decode_items: int
    num_prefill_items: int
    prefill: PrefillLaunch
    """The kernel that the prefill items are for."""
    shared: SharedWork | None
    """What decoding sequences share; None where that is not looked for."""


@dataclass(slots=True)
class _Step:
    """Which step the plans belong to."""

    layer: int = -1
    plans: dict[_PlanKey, tuple[AttentionMetadata, Plan]] = field(default_factory=dict)
    """The latest plan of each kind of layer, and what it was made for."""


class AttentionPlanner:
    """Launch sizes, plans and buffers on one device.

    decode_warps, decode_stages: the decode kernel's shape; None takes what suits the device. wgmma: prompts by
    prefill_wgmma.cu where it has their shape, short ones too. shares: decoding sequences attend together to what
    they share. parts: the memory for parts of prefill tiles, in which nothing need stay between steps.
    """

    def __init__(
        self,
        runtime: CudaRuntime,
        decode_warps: int,
        decode_stages: int | None,
        wgmma: bool,
        parts: StepMemory,
        shares: bool = False,
    ) -> None:
        self._runtime = runtime
        self._wgmma = wgmma
        self._shares = shares
        self._decode_warps = decode_warps
        self._decode_stages = decode_stages
        self._launches: dict[AttentionShape, Launches] = {}
        self._item_memory: dict[_PlanKey, tuple[torch.Tensor, torch.Tensor]] = {}
        self._shared_memory: dict[_PlanKey, torch.Tensor] = {}
        self._step = _Step()
        self.buffers = Buffers(runtime.device, parts)

    def launches_of(self, shape: AttentionShape) -> Launches:
        """The kernels of ``shape``; CudaKernelError where there are none."""
        launches = self._launches.get(shape)
        if launches is None:
            properties = self._runtime.properties
            decode = decode_launch(shape, properties, self._decode_warps, self._decode_stages)
            prefill = prefill_launch(shape, properties, self._wgmma)
            short = None if prefill.box_rows else short_prefill_launch(shape, properties)
            shared = shared_prefill_launch(shape, properties) if self._shares else None
            launches = self._launches[shape] = Launches(decode, prefill, short, shared)
        return launches

    def plan_of(
        self, shape: AttentionShape, window: int, metadata: AttentionMetadata, layer: int, num_tokens: int
    ) -> Plan:
        """This step's plan, with buffers that have room for it; launches plan.cu where the step has none yet.

        A layer number that does not grow means a new step. Within one, groups of layers have metadata of their own.
        """
        step, launches = self._step, self.launches_of(shape)
        if layer <= step.layer:
            step.plans = {}
        step.layer = layer
        key = (shape, window)
        known = step.plans.get(key)
        if known is not None and known[0] is metadata:
            plan = known[1]
        else:
            plan = self._make_plan(key, metadata, num_tokens)
            step.plans[key] = (metadata, plan)
        self.buffers.reserve_decode(shape, launches.decode, plan.num_decode_items, metadata.seq_lens.shape[0])
        return plan

    def reserve_decode(self, shape: AttentionShape, window: int, max_num_seqs: int) -> None:
        """Compile the kernels, and make the buffers of decode steps of ``max_num_seqs`` sequences."""
        launches = self.launches_of(shape)
        prefill = [launch for launch in (launches.prefill, launches.short, launches.shared) if launch is not None]
        plans = (_PLAN,) if launches.shared is None else (_PLAN, PLAN_SHARED)
        for chosen in (*plans, launches.decode.variant, *(launch.variant for launch in prefill)):
            self._runtime.kernel(chosen)
        work = self._shared_work((shape, window), max_num_seqs)
        num_items = launches.decode.max_items(max_num_seqs, shares=work is not None)
        self._items_of((shape, window), num_items, 0)
        self.buffers.reserve_decode(shape, launches.decode, num_items, max_num_seqs)

    def forget_retired(self) -> None:
        """Give outgrown buffers back: no graph captured until now is replayed any more."""
        self.buffers.retired.clear()

    def release_workspace(self) -> None:
        """Let go of the latest plans, whose metadata lies in a workspace, and of the memory for parts, a part of it."""
        self.forget_retired()
        self._step = _Step()
        self.buffers.release_parts()

    def _make_plan(self, key: _PlanKey, metadata: AttentionMetadata, num_tokens: int) -> Plan:
        shape, window = key
        launches = self.launches_of(shape)
        prefill = launches.prefill_of(metadata.max_query_len * shape.group)
        num_sequences = metadata.seq_lens.shape[0]
        work = self._shared_work(key, num_sequences)
        if work is not None:
            plan_shared(self._runtime, work, shape, metadata)
        decode_items = launches.decode.max_items(num_sequences, shares=work is not None)
        prefill_items = num_slots = 0
        if metadata.max_query_len > 1:
            num_slots = self.buffers.reserve_parts(prefill)
            prefill_items = prefill.max_items(num_sequences, num_tokens, shape.group, num_slots)
        decode_memory, prefill_memory = self._items_of(key, decode_items, prefill_items)
        params = PlanParams(
            seq_lens=metadata.seq_lens.data_ptr(),
            query_starts=metadata.query_starts.data_ptr(),
            decode_items=decode_memory.data_ptr(),
            prefill_items=prefill_memory.data_ptr(),
            shared=None if work is None else work.shared.data_ptr(),
            first_items=None if work is None else work.first_items.data_ptr(),
            num_sequences=num_sequences,
            max_decode_items=decode_items,
            max_prefill_items=prefill_items,
            window=window,
            target_chunks=launches.decode.target_chunks,
            min_chunk=MIN_CHUNK,
            chunk_multiple=CHUNK_MULTIPLE,
            group=shape.group,
            tile_rows=prefill.tile_rows,
            target_tiles=prefill.target_items,
            num_slots=num_slots,
            min_part=MIN_PART,
        )
        self._runtime.kernel(_PLAN)((1, 1), PLAN_THREADS, 0, params)
        return Plan(decode_memory, prefill_memory, decode_items, prefill_items, prefill, work)

    def _shared_work(self, key: _PlanKey, num_sequences: int) -> SharedWork | None:
        """Memory for what so many sequences may share; None behind a window, which differs for each."""
        shape, window = key
        launch = self.launches_of(shape).shared
        if launch is None or window > 0 or num_sequences < 2:
            return None
        memory = self._shared_memory.get(key, self.buffers.no_ints)
        self._shared_memory[key], work = shared_work(memory, self.buffers, launch, shape, num_sequences)
        return work

    def _items_of(self, key: _PlanKey, decode_items: int, prefill_items: int) -> tuple[torch.Tensor, torch.Tensor]:
        none = self.buffers.no_ints
        decode, prefill = self._item_memory.get(key) or (none, none)
        decode = self.buffers.grown(decode, decode_items * _DECODE_ITEM_INTS)
        prefill = self.buffers.grown(prefill, prefill_items * _PREFILL_ITEM_INTS)
        self._item_memory[key] = (decode, prefill)
        return decode, prefill


# Work items of prefixes that decoding sequences share: found and planned on the device, as all of a step's work is.


PLAN_SHARED = KernelVariant("attention/plan/shared_prefix.cu", "plan_shared_prefixes")
PLAN_THREADS = 256
_ITEM_INTS = 8
_SEQUENCE_INTS = 5  # three rows of PlanParams.shared, one of members, one of first_items


@dataclass(frozen=True, slots=True)
class SharedWork:
    """What S sequences of a step share, as plan_shared_prefixes writes it."""

    launch: PrefillLaunch
    shared: torch.Tensor
    """[3, S] int32: PlanParams.shared."""
    members: torch.Tensor
    """[S] int32: sequences, those of a group side by side."""
    first_items: torch.Tensor
    """[S] int32: each sequence's first item of decode, which plan_attention writes."""
    items: torch.Tensor
    """[num_items, 8] int32"""
    num_items: int
    num_slots: int
    """Parts of tiles that there is memory for."""


def shared_work(
    memory: torch.Tensor, buffers: Buffers, launch: PrefillLaunch, shape: AttentionShape, num_sequences: int
) -> tuple[torch.Tensor, SharedWork]:
    """``memory``, or a larger one, and its parts for so many sequences; makes room for parts of tiles too."""
    num_slots = buffers.reserve_parts(launch)
    num_items = launch.max_items(num_sequences // 2, num_sequences, shape.group, num_slots)
    own = _SEQUENCE_INTS * num_sequences
    first = -(-own // _ITEM_INTS) * _ITEM_INTS  # items are loaded as vectors
    memory = buffers.grown(memory, first + num_items * _ITEM_INTS)
    items = memory[first : first + num_items * _ITEM_INTS].view(num_items, _ITEM_INTS)
    of_sequences = memory[:own].view(_SEQUENCE_INTS, num_sequences)
    found, members, first_items = of_sequences[:3], of_sequences[3], of_sequences[4]
    return memory, SharedWork(launch, found, members, first_items, items, num_items, num_slots)


def plan_shared(runtime: CudaRuntime, work: SharedWork, shape: AttentionShape, metadata: AttentionMetadata) -> None:
    """Find the groups of the step and cut their work."""
    params = PlanParams(
        seq_lens=metadata.seq_lens.data_ptr(),
        query_starts=metadata.query_starts.data_ptr(),
        prefill_items=work.items.data_ptr(),
        block_tables=metadata.block_tables.data_ptr(),
        shared=work.shared.data_ptr(),
        members=work.members.data_ptr(),
        num_sequences=metadata.seq_lens.shape[0],
        max_prefill_items=work.num_items,
        chunk_multiple=CHUNK_MULTIPLE,
        group=shape.group,
        tile_rows=work.launch.tile_rows,
        target_tiles=work.launch.target_items,
        num_slots=work.num_slots,
        min_part=MIN_PART,
        table_stride=metadata.block_tables.stride(0),
        block_size=shape.block_size,
        min_shared=MIN_SHARED,
    )
    runtime.kernel(PLAN_SHARED)((1, 1), PLAN_THREADS, 0, params)
