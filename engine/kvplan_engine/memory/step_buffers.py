"""The buffers of a step for an engine's settings: what computes, and what says whose tokens lie where. No torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kvplan_engine.blocks.layout import KvGroup, KvLayout
from kvplan_engine.config import EngineConfig
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.kernels.workspace_sizes import PARTS_BYTES, ROWS_OF_A_GROUP, most_groups
from kvplan_engine.memory.breakdown import LOGITS, BufferSpec, sampling_buffers, workspace_buffers

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


# The index buffers of a step: block tables, slots and lengths of each group of layers. No torch.
#
#     one full group of width 1    block_tables, slots, seq_lens
#     further blocks of a bundle   block_tables.0.1, slots.0.1, ...
#     further groups               block_tables.1.0, slots.1.0, seq_lens.1, ...
#     a group of states            block_tables.2: the blocks of each sequence's state
#
# How large they are is part of the KV layout's rule (ARCHITECTURE.md).


TOKEN_BUFFERS = ("token_ids", "positions")


def tables_name(group: int, slot: int) -> str:
    """The block tables of the ``slot``-th blocks of the bundles of ``group``."""
    return f"block_tables{_suffix(group, slot)}"


def slots_name(group: int, slot: int) -> str:
    """Where the step's tokens are written in these blocks."""
    return f"slots{_suffix(group, slot)}"


def lengths_name(group: int) -> str:
    """Tokens of each sequence in ``group``, from the first one on that it holds."""
    return f"seq_lens.{group}" if group else "seq_lens"


def _suffix(group: int, slot: int) -> str:
    return f".{group}.{slot}" if group or slot else ""


def index_buffers(
    layout: KvLayout, *, max_num_batched_tokens: int, max_num_seqs: int, max_model_len: int
) -> list[BufferSpec]:
    """Everything that tells a step's kernels whose tokens lie where. max_num_seqs: of one step."""
    tokens, seqs = max_num_batched_tokens, max_num_seqs
    bundles = layout.most_bundles(max_model_len, min(tokens, max_model_len))
    buffers = [BufferSpec(name, (tokens,), "int64") for name in TOKEN_BUFFERS]
    for index, (group, columns) in enumerate(zip(layout.groups, bundles, strict=True)):
        buffers += _of_group(index, group, columns, tokens, seqs)
    return [*buffers, BufferSpec("query_starts", (seqs + 1,), "int32")]


def _of_group(index: int, group: KvGroup, columns: int, tokens: int, seqs: int) -> list[BufferSpec]:
    if group.is_state:
        return [BufferSpec(tables_name(index, 0), (seqs, group.width), "int32")]
    slots = [BufferSpec(slots_name(index, slot), (tokens,), "int64") for slot in range(group.width)]
    tables = [BufferSpec(tables_name(index, slot), (seqs, columns), "int32") for slot in range(group.width)]
    return [*slots, *tables, BufferSpec(lengths_name(index), (seqs,), "int32")]


# Buffers of the workspace that only CUDA kernels need. No torch.
#
# widened         rows of a weight in few bits, before a product of many rows; inputs in the order of such a weight
# lora_inner      x A^T of some groups of rows, before B
# lora_rows       numbers of the rows in each group of rows with one adapter
# lora_slots      the slot of each group
# draws           how the token of each sequence is chosen: a DrawRow of csrc/cuda/sampling for each
# token_counts    what the sequences whose logits change know of each token: 16 bits of it
# attention_parts what blocks of attention leave of parts of a tile of queries, where its tokens are cut


WIDENED, LORA_INNER, LORA_ROWS, LORA_SLOTS = "widened", "lora_inner", "lora_rows", "lora_slots"
DRAWS, TOKEN_COUNTS = "draws", "token_counts"
_DRAW_BYTES = 64
_COUNTS_MULTIPLE = 8  # a row of counts is a multiple of 16 bytes
ATTENTION_PARTS = "attention_parts"
_WIDENED_BYTES = 64 * 1024**2
_LORA_INNER_BYTES = 16 * 1024**2


def draw_buffers(config: EngineConfig, model: ModelDescription) -> list[BufferSpec]:
    """What choosing tokens takes. Samples of one prompt may be more than a step's tokens: a row for each sequence."""
    columns = -(-model.vocab_size // _COUNTS_MULTIPLE) * _COUNTS_MULTIPLE
    return [
        BufferSpec(DRAWS, (config.max_num_seqs, _DRAW_BYTES), "uint8"),
        BufferSpec(TOKEN_COUNTS, (config.max_num_seqs, columns), "int16"),
    ]


def cuda_buffers(config: EngineConfig, model: ModelDescription, *, holds_few_bits: bool) -> list[BufferSpec]:
    """List the buffers for the largest step that ``config`` allows. holds_few_bits: some weight of ``model`` is."""
    buffers = [BufferSpec(ATTENTION_PARTS, (PARTS_BYTES,), "uint8"), *draw_buffers(config, model)]
    if holds_few_bits:
        buffers.append(BufferSpec(WIDENED, (_WIDENED_BYTES,), "uint8"))
    if config.enable_lora:
        groups = most_groups(config.max_num_batched_tokens, config.max_loras)
        buffers += [
            BufferSpec(LORA_INNER, (_LORA_INNER_BYTES,), "uint8"),
            BufferSpec(LORA_ROWS, (groups, ROWS_OF_A_GROUP), "int32"),
            BufferSpec(LORA_SLOTS, (groups,), "int32"),
        ]
    return buffers
