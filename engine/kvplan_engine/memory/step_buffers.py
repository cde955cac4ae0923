"""The buffers of a step for an engine's settings: what computes, and what says whose tokens lie where. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvplan_engine.blocks.layout import KvLayout
from kvplan_engine.config import EngineConfig
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.memory.breakdown import LOGITS, BufferSpec, sampling_buffers, workspace_buffers
from kvplan_engine.memory.index_buffers import index_buffers

DRAFT_PREFIX = "draft."
HANDED_ON = "handed_on"
"""The workspace's buffer of hidden states that a layer for multi-token prediction reads for a sequence's next draft."""
_ROW_MULTIPLE = 8  # of 16 bits are the 16 bytes that a kernel reads at once


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
    found = _own_buffers(model, dtype, config, layout, max_model_len, is_native=is_native)
    if of_kernels and config.num_ranks == 1:  # other ranks send each other their logits, as one piece of memory
        found = [_with_aligned_rows(each) if each.name == LOGITS else each for each in found]
    return [*found, *of_kernels]


def _own_buffers(
    model: ModelDescription,
    dtype: str,
    config: EngineConfig,
    layout: KvLayout,
    max_model_len: int,
    *,
    is_native: bool,
) -> list[BufferSpec]:
    index_buffers = step_index_buffers(config, layout, max_model_len)
    if not is_native:
        return sampling_buffers(model, dtype, num_rows=config.most_sampled_rows) + index_buffers
    computing = workspace_buffers(
        model,
        dtype,
        max_num_batched_tokens=config.max_num_batched_tokens,
        num_sampled_rows=config.most_sampled_rows,
        max_model_len=max_model_len,
    )
    return [*computing, *index_buffers]


def draft_buffers(
    drafter: ModelDescription, dtype: str, config: EngineConfig, layout: KvLayout, max_model_len: int
) -> list[BufferSpec]:
    """What the passes of a draft model write to, beside the step's own; their names begin with DRAFT_PREFIX.

    They compute no more tokens than a step has, draw for each sequence once, and take the likeliest tokens.
    """
    computing = workspace_buffers(
        drafter,
        dtype,
        max_num_batched_tokens=config.max_num_batched_tokens,
        num_sampled_rows=min(config.max_num_seqs, config.max_num_batched_tokens),
        max_model_len=max_model_len,
    )
    buffers = [
        *(each for each in computing if each.name != "sampler"),
        *step_index_buffers(config, layout, max_model_len),
    ]
    if drafter.joined is not None:
        buffers.append(BufferSpec(HANDED_ON, (config.max_num_seqs, drafter.hidden_size), dtype))
    return [replace(each, name=DRAFT_PREFIX + each.name) for each in buffers]


def _with_aligned_rows(matrix: BufferSpec) -> BufferSpec:
    """Each row begins at a multiple of the kernels' vectors: one of 50,257 logits would be read value by value."""
    columns = matrix.shape[-1]
    return replace(matrix, row_elements=-(-columns // _ROW_MULTIPLE) * _ROW_MULTIPLE)


def step_index_buffers(config: EngineConfig, layout: KvLayout, max_model_len: int) -> list[BufferSpec]:
    """List those of ``index_buffers`` among them."""
    return index_buffers(
        layout,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=min(config.max_num_seqs, config.max_num_batched_tokens),
        max_model_len=max_model_len,
    )
