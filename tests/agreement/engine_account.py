"""What the engine's own arithmetic gives for a config and settings, with nothing allocated."""

from __future__ import annotations

from typing import Any

from kvplan_engine import ContextTooLong, EngineConfig, OutOfDeviceMemory
from kvplan_engine.checkpoints.loaders import read_config
from kvplan_engine.checkpoints.weights import num_parameters
from kvplan_engine.description.division import rank_model
from kvplan_engine.device.overhead import CPU_OVERHEAD_BYTES
from kvplan_engine.memory.breakdown import DTYPE_BYTES
from kvplan_engine.memory.plan import kv_layout, plan_memory, resolve_max_model_len
from kvplan_engine.memory.step_buffers import step_buffers


def engine_outcome(config: EngineConfig, dtype: str, device_bytes: int) -> dict[str, Any]:
    """Outcome and, where it starts, the figures of its memory. EngineError for a config that the engine refuses."""
    model = rank_model(read_config(config.model), config.tensor_parallel_size)
    try:
        max_model_len = resolve_max_model_len(config, model)
        layout = kv_layout(config, model, dtype, max_model_len)
        buffers = step_buffers(model, dtype, config, layout, max_model_len)
        memory = plan_memory(
            config,
            layout,
            max_model_len,
            device_total_bytes=device_bytes,
            weight_bytes=num_parameters(model) * DTYPE_BYTES[dtype],
            workspace_bytes=sum(buffer.num_bytes for buffer in buffers),
            overhead_bytes=CPU_OVERHEAD_BYTES,
        )
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
