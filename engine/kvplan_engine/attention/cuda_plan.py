"""The CUDA attention kernels' work: how they are launched, their work items of a step.

The work items are planned on the device, once for each step: its first layer that needs a plan launches plan.cu, the
layers behind it launch their kernels over the same items. Nothing is read back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from kvplan_engine.attention.cuda_buffers import Buffers
from kvplan_engine.attention.cuda_shared import PLAN_SHARED, PLAN_THREADS, SharedWork, plan_shared, shared_work
from kvplan_engine.attention.metadata import AttentionMetadata
from kvplan_engine.kernels.cuda.attention.launches import (
    decode_launch,
    prefill_launch,
    shared_prefill_launch,
    short_prefill_launch,
)
from kvplan_engine.kernels.cuda.attention.shape import (
    CHUNK_MULTIPLE,
    MIN_CHUNK,
    MIN_PART,
    AttentionShape,
    DecodeLaunch,
    PrefillLaunch,
)
from kvplan_engine.kernels.cuda.launching.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.launching.variants import KernelVariant
from kvplan_engine.kernels.cuda.params.common import PlanParams
from kvplan_engine.kernels.cuda.step_memory import StepMemory

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
