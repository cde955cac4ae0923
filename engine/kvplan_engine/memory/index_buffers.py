"""The index buffers of a step: block tables, slots and lengths of each group of layers. No torch.

    one full group of width 1    block_tables, slots, seq_lens
    further blocks of a bundle   block_tables.0.1, slots.0.1, ...
    further groups               block_tables.1.0, slots.1.0, seq_lens.1, ...
    a group of states            block_tables.2: the blocks of each sequence's state

How large they are is part of the KV layout's rule (ARCHITECTURE.md).
"""

from __future__ import annotations

from kvplan_engine.blocks.layout import KvGroup, KvLayout
from kvplan_engine.memory.breakdown import BufferSpec

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
