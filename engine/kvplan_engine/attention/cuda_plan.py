"""The CUDA attention kernels' work: how they are launched, their work items of a step.

The work items are planned on the device, once for each step: its first layer that needs a plan launches plan.cu, the
layers behind it launch their kernels over the same items. Nothing is read back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from kvplan_engine.attention.cuda_buffers import Buffers
from kvplan_engine.attention.metadata import AttentionMetadata
from kvplan_engine.kernels.cuda.attention import decode_launch, prefill_launch, short_prefill_launch
from kvplan_engine.kernels.cuda.attention_shape import (
    CHUNK_MULTIPLE,
    MIN_CHUNK,
    MIN_PART,
    AttentionShape,
    DecodeLaunch,
    PrefillLaunch,
)
from kvplan_engine.kernels.cuda.params import PlanParams
from kvplan_engine.kernels.cuda.runtime import CudaRuntime
from kvplan_engine.kernels.cuda.step_memory import StepMemory
from kvplan_engine.kernels.cuda.variants import KernelVariant

_PLAN = KernelVariant("attention/plan/plan.cu", "plan_attention")
_PLAN_THREADS = 256
_DECODE_ITEM_INTS = 8
_PREFILL_ITEM_INTS = 8

_PlanKey = tuple[AttentionShape, int]
"""A shape of kernels and a window, 0 for none: what one plan serves."""


@dataclass(frozen=True, slots=True)
class Launches:
    """The kernels of one shape, with their sizes. short: of prompts, where no sequence has more rows than its tile."""

    decode: DecodeLaunch
    prefill: PrefillLaunch
    short: PrefillLaunch | None

    def prefill_of(self, most_rows: int) -> PrefillLaunch:
        """For a step in which no sequence has more than ``most_rows`` rows."""
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


@dataclass(slots=True)
class _Step:
    """Which step the plans belong to."""

    layer: int = -1
    plans: dict[_PlanKey, tuple[AttentionMetadata, Plan]] = field(default_factory=dict)
    """The latest plan of each kind of layer, and what it was made for."""


class AttentionPlanner:
    """Launch sizes, plans and buffers on one device.

    decode_warps, decode_stages: the decode kernel's shape; None takes what suits the device. wgmma: prompts by
    prefill_wgmma.cu where it has their shape, short ones too. parts: the memory for parts of prefill tiles, in which
    nothing need stay between steps.
    """

    def __init__(
        self, runtime: CudaRuntime, decode_warps: int, decode_stages: int | None, wgmma: bool, parts: StepMemory
    ) -> None:
        self._runtime = runtime
        self._wgmma = wgmma
        self._decode_warps = decode_warps
        self._decode_stages = decode_stages
        self._launches: dict[AttentionShape, Launches] = {}
        self._item_memory: dict[_PlanKey, tuple[torch.Tensor, torch.Tensor]] = {}
        self._step = _Step()
        self.buffers = Buffers(runtime.device, parts)

    def launches_of(self, shape: AttentionShape) -> Launches:
        """The kernels of ``shape``; CudaKernelError where there are none."""
        launches = self._launches.get(shape)
        if launches is None:
            properties = self._runtime.properties
            decode = decode_launch(shape, properties, self._decode_warps, self._decode_stages)
            prefill = prefill_launch(shape, properties, self._wgmma)
            short = None if self._wgmma else short_prefill_launch(shape, properties)
            launches = self._launches[shape] = Launches(decode, prefill, short)
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
        prefill = [launch.variant for launch in (launches.prefill, launches.short) if launch is not None]
        for chosen in (_PLAN, launches.decode.variant, *prefill):
            self._runtime.kernel(chosen)
        num_items = launches.decode.max_items(max_num_seqs)
        self._items_of((shape, window), num_items, 0)
        self.buffers.reserve_decode(shape, launches.decode, num_items, max_num_seqs)

    def forget_retired(self) -> None:
        """Give outgrown buffers back: no graph captured until now is replayed any more."""
        self.buffers.retired.clear()

    def _make_plan(self, key: _PlanKey, metadata: AttentionMetadata, num_tokens: int) -> Plan:
        shape, window = key
        launches = self.launches_of(shape)
        prefill = launches.prefill_of(metadata.max_query_len * shape.group)
        num_sequences = metadata.seq_lens.shape[0]
        decode_items = launches.decode.max_items(num_sequences)
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
        self._runtime.kernel(_PLAN)((1, 1), _PLAN_THREADS, 0, params)
        return Plan(decode_memory, prefill_memory, decode_items, prefill_items, prefill)

    def _items_of(self, key: _PlanKey, decode_items: int, prefill_items: int) -> tuple[torch.Tensor, torch.Tensor]:
        none = self.buffers.no_ints
        decode, prefill = self._item_memory.get(key) or (none, none)
        decode = self.buffers.grown(decode, decode_items * _DECODE_ITEM_INTS)
        prefill = self.buffers.grown(prefill, prefill_items * _PREFILL_ITEM_INTS)
        self._item_memory[key] = (decode, prefill)
        return decode, prefill
