"""The buffers of a step for an engine's settings: what computes, and what says whose tokens lie where. No torch."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan_engine.blocks.layout import KvLayout
from kvplan_engine.config import EngineConfig
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.memory.breakdown import BufferSpec, sampling_buffers, workspace_buffers
from kvplan_engine.memory.index_buffers import index_buffers


def step_buffers(
    model: ModelDescription,
    dtype: str,
    config: EngineConfig,
    layout: KvLayout,
    max_model_len: int,
    *,
    is_native: bool = True,
    of_kernels: Sequence[BufferSpec] = (),
) -> list[BufferSpec]:
    """All of them, for the largest step that ``config`` allows.

    is_native: the engine's decoder computes the model; otherwise its layers bring buffers of their own. of_kernels:
    what only one device's kernels need.
    """
    index_buffers = step_index_buffers(config, layout, max_model_len)
    if not is_native:
        seqs = min(config.max_num_seqs, config.max_num_batched_tokens)
        return sampling_buffers(model, dtype, max_num_seqs=seqs) + index_buffers + list(of_kernels)
    computing = workspace_buffers(
        model,
        dtype,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        max_model_len=max_model_len,
    )
    return [*computing, *index_buffers, *of_kernels]


def step_index_buffers(config: EngineConfig, layout: KvLayout, max_model_len: int) -> list[BufferSpec]:
    """Those of ``index_buffers`` among them."""
    return index_buffers(
        layout,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=min(config.max_num_seqs, config.max_num_batched_tokens),
        max_model_len=max_model_len,
    )
