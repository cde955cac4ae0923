"""What the engine's own arithmetic gives for a config and settings, with nothing allocated."""

from __future__ import annotations

from typing import Any

from kvplan_engine import ContextTooLong, EngineConfig, OutOfDeviceMemory
from kvplan_engine.checkpoints.families.multi_token import multi_token_model
from kvplan_engine.checkpoints.loaders import read_config
from kvplan_engine.checkpoints.weights import num_parameters
from kvplan_engine.description.division import Rank, part_of
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.device.allocation import CPU_OVERHEAD_BYTES
from kvplan_engine.memory.breakdown import DTYPE_BYTES
from kvplan_engine.memory.plan import Needs, kv_layout, plan_ranks, resolve_max_model_len
from kvplan_engine.memory.step_buffers import draft_buffers, step_buffers


def engine_outcome(config: EngineConfig, dtype: str, device_bytes: int) -> dict[str, Any]:
    """Outcome and, where it starts, the figures of its memory. EngineError for a config that the engine refuses."""
    whole = read_config(config.model, whole_experts=config.enable_expert_parallel)
    ranks = (config.tensor_parallel_size, config.pipeline_parallel_size)
    parts = [part_of(whole, rank) for rank in Rank.all_of(*ranks)]
    try:
        max_model_len = resolve_max_model_len(config, whole)
        drafter = _drafter(config)
        layout = kv_layout(config, parts[0], dtype, max_model_len, drafter)
        needs = [_needs(config, part, dtype, max_model_len, drafter) for part in parts]
        memory = plan_ranks(config, layout, max_model_len, needs, device_total_bytes=device_bytes)
    except (OutOfDeviceMemory, ContextTooLong) as refusal:
        return {"outcome": refusal.status}
    return {
        "outcome": "ok",
        "block_bytes": memory.block_bytes,
        "num_blocks": memory.num_blocks,
        "weight_bytes": memory.weight_bytes,
        "activation_bytes": memory.activation_bytes,
        "kv_pool_bytes": memory.kv_pool_bytes,
    }


def _drafter(config: EngineConfig) -> ModelDescription | None:
    """What drafts, where it has layers."""
    if config.speculative_config is None or not config.drafts_with_model:
        return None
    if config.drafts_with_own_layer:
        return multi_token_model(read_config(config.model))
    return read_config(config.speculative_config.model)


def _needs(
    config: EngineConfig, part: ModelDescription, dtype: str, max_model_len: int, drafter: ModelDescription | None
) -> Needs:
    layout = kv_layout(config, part, dtype, max_model_len, drafter)
    buffers = step_buffers(part, dtype, config, layout, max_model_len)
    parameters = num_parameters(part)
    if drafter is not None:
        buffers += draft_buffers(drafter, dtype, config, layout, max_model_len)
        parameters += num_parameters(drafter)
    return Needs(
        parameters * DTYPE_BYTES[dtype],
        sum(buffer.num_bytes for buffer in buffers),
        CPU_OVERHEAD_BYTES,
        layout.block_bytes,
    )
