"""From the device's memory to a number of KV blocks, or to an error that says what is missing. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvplan_engine.blocks.layout import KvLayout, plan_layout
from kvplan_engine.config import SCALED_DTYPES, EngineConfig
from kvplan_engine.description.kept_units import KeptUnit, kept_units
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.errors import ContextTooLong, EngineError, OutOfDeviceMemory
from kvplan_engine.memory.breakdown import DTYPE_BYTES, MemoryBreakdown

# What a device's memory is before weights, workspace and KV pool, and what is kept of it. No torch.


@dataclass(frozen=True, slots=True)
class Reserve:
    """total_bytes: of the device. overhead_bytes: kept for what is no tensor; graph_bytes: for captured steps.

    Of several ranks: of the smallest device, and the most that one of them needs.
    """

    total_bytes: int
    overhead_bytes: int
    graph_bytes: int


_GIB = 1024**3
_MOST_BLOCKS = 2**31 - 1
"""Tables of blocks hold 32-bit numbers."""
_OTHER_UNITS = {
    "latent": "latents",
    "index": "index keys",
    "index_tail": "keys of an unfinished pool",
    "compressed": "compressed latents",
    "compressed_index": "compressed index keys",
    "cross": "an encoder's tokens",
}


def resolve_max_model_len(config: EngineConfig, model: ModelDescription) -> int:
    """The context length to serve, in tokens; ContextTooLong when it exceeds the model's positions.

    EngineError where neither the settings nor the model say one.
    """
    limit = model.max_position_embeddings
    if config.max_model_len is None:
        if limit is None:
            raise EngineError("the config of this model gives no maximum length.", hint="give one: max_model_len=4096")
        return limit
    if limit is not None and config.max_model_len > limit:
        raise ContextTooLong(
            f"max_model_len {config.max_model_len:,} is more than the {limit:,} positions this model has.",
            requested_tokens=config.max_model_len,
            largest_tokens=limit,
            limited_by="model",
            hint=f"use max_model_len={limit} or less",
        )
    return config.max_model_len


def kv_layout(
    config: EngineConfig,
    model: ModelDescription,
    dtype: str,
    max_model_len: int,
    drafter: ModelDescription | None = None,
) -> KvLayout:
    """How the KV of ``model``, which runs in ``dtype``, lies in the blocks of the pool.

    max_model_len: also how many tokens an encoder gives where neither the architecture nor the config limits them.
    drafter: a model whose layers are laid behind. EngineError for a part of the model that cannot be kept in the KV
    cache's dtype.
    """
    has_scales = config.kv_dtype(dtype) in SCALED_DTYPES
    names = {"kv": config.kv_dtype(dtype), "model": dtype}
    units = kept_units(model, encoder_tokens=max_model_len)
    if drafter is not None:
        further = kept_units(drafter, encoder_tokens=max_model_len)
        units += [replace(unit, layer=model.num_layers + unit.layer) for unit in further]
    if has_scales:
        _refuse_without_scales(units, config.kv_cache_dtype)
    dtype_bytes = {name: DTYPE_BYTES[names.get(name, name)] for name in {unit.dtype for unit in units}}
    return plan_layout(units, config.block_size, dtype_bytes.__getitem__, has_scales=has_scales)


def _refuse_without_scales(units: list[KeptUnit], kv_cache_dtype: str) -> None:
    """EngineError for the first unit in the KV cache's dtype, or of an index, that is not of heads."""
    for unit in units:
        if (unit.dtype == "kv" or unit.part.startswith("index")) and not unit.num_scales:
            raise EngineError(
                f"kv_cache_dtype {kv_cache_dtype} is for keys and values of KV heads, and layer {unit.layer} keeps "
                f"{_OTHER_UNITS[unit.part]}.",
                hint="use kv_cache_dtype='fp8'",
            )


def plan_memory(
    config: EngineConfig,
    layout: KvLayout,
    max_model_len: int,
    *,
    device_total_bytes: int,
    weight_bytes: int,
    workspace_bytes: int,
    overhead_bytes: int,
    graph_bytes: int = 0,
) -> MemoryBreakdown:
    """Give the KV pool what is left of the budget; OutOfDeviceMemory or ContextTooLong when that is too little."""
    budget = int(device_total_bytes * config.gpu_memory_utilization)
    if weight_bytes > budget:
        raise OutOfDeviceMemory(
            f"the weights take {weight_bytes / _GIB:.2f} GiB, more than the budget of {budget / _GIB:.2f} GiB "
            f"(gpu_memory_utilization {config.gpu_memory_utilization:g} of {device_total_bytes / _GIB:.2f} GiB).",
            phase="weights",
            requested_bytes=weight_bytes,
            free_bytes=budget,
            hint="raise gpu_memory_utilization, use a larger device or a smaller dtype",
        )
    pool_bytes = budget - weight_bytes - workspace_bytes - overhead_bytes - graph_bytes
    num_blocks = pool_bytes // layout.block_bytes
    if num_blocks > _MOST_BLOCKS:
        raise EngineError(
            f"a KV pool of {num_blocks:,} blocks is more than the {_MOST_BLOCKS:,} that can be numbered.",
            hint="lower device_memory, or raise block_size",
        )
    if num_blocks < layout.blocks_for(1):
        raise OutOfDeviceMemory(
            f"nothing is left for the KV pool: of {budget / _GIB:.2f} GiB, weights take {weight_bytes / _GIB:.2f}, the "
            f"workspace {workspace_bytes / _GIB:.2f} and overhead {(overhead_bytes + graph_bytes) / _GIB:.2f} GiB.",
            phase="kv_init",
            requested_bytes=layout.blocks_for(1) * layout.block_bytes,
            free_bytes=max(pool_bytes, 0),
            hint="raise gpu_memory_utilization, or lower max_num_batched_tokens or max_num_seqs",
        )
    largest = layout.largest_sequence(num_blocks, max_model_len, config.max_num_batched_tokens)
    if largest < max_model_len:
        raise ContextTooLong(
            f"one sequence of max_model_len {max_model_len:,} tokens does not fit the KV pool of {largest:,} tokens.",
            requested_tokens=max_model_len,
            largest_tokens=largest,
            hint=f"use max_model_len={largest} or less, or raise gpu_memory_utilization",
        )
    return MemoryBreakdown(
        device_total_bytes=device_total_bytes,
        budget_bytes=budget,
        weight_bytes=weight_bytes,
        activation_bytes=workspace_bytes,
        activation_peak_bytes=0,
        overhead_bytes=overhead_bytes,
        kv_pool_bytes=pool_bytes,
        block_bytes=layout.block_bytes,
        num_blocks=num_blocks,
        block_size=layout.block_size,
        graph_bytes=graph_bytes,
    )


# From what each of several ranks needs to one number of blocks for all of them. No torch.


@dataclass(frozen=True, slots=True)
class Needs:
    """What a rank takes of its device, and of that each block, in bytes. total_bytes: of a device of its own."""

    weight_bytes: int
    workspace_bytes: int
    overhead_bytes: int
    block_bytes: int
    total_bytes: int | None = None

    def num_blocks(self, budget_bytes: int) -> int:
        """How many it has room for."""
        taken = self.weight_bytes + self.workspace_bytes + self.overhead_bytes
        return max(budget_bytes - taken, 0) // self.block_bytes


def plan_ranks(
    config: EngineConfig,
    layout: KvLayout,
    max_model_len: int,
    needs: Sequence[Needs],
    *,
    device_total_bytes: int,
    graph_bytes: int = 0,
) -> MemoryBreakdown:
    """Plan as ``plan_memory`` does for the first of the ranks with ``needs``: all have the blocks of the one with the
    least room.

    graph_bytes: of each rank. layout: of the first rank; in stages of unlike depth those of the others have blocks of
    other sizes.
    """
    own, budget = needs[0], int(device_total_bytes * config.gpu_memory_utilization)
    room = budget - graph_bytes
    lacking = max(own.num_blocks(room) - each.num_blocks(room) for each in needs)
    memory = plan_memory(
        config,
        layout,
        max_model_len,
        device_total_bytes=device_total_bytes,
        weight_bytes=own.weight_bytes,
        workspace_bytes=own.workspace_bytes,
        # as if this rank had no room for the blocks that another one has none for
        overhead_bytes=own.overhead_bytes + lacking * own.block_bytes,
        graph_bytes=graph_bytes,
    )
    return replace(memory, overhead_bytes=own.overhead_bytes)
