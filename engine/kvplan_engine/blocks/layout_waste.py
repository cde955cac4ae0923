"""What the layout of blocks costs: bytes that sequences hold, beside those that the layers keep of them. No torch.

Counted over whole logical blocks: empty slots at the end of a sequence are paging's waste, not the layout's. What is
left is padding (parts that do not fill a block), tokens that have left a window and are given back only with the next
block, and a second state that a sequence holds for a step.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvplan_engine.blocks.block_table import BlockTable
from kvplan_engine.blocks.layout import KvGroup, KvLayout


def held_bytes(table: BlockTable, layout: KvLayout) -> int:
    """Bytes of all blocks in ``table``; what it shares counts as its own."""
    return layout.block_bytes * sum(each.group.width * len(each.bundles) for each in table.groups)


def needed_bytes(layout: KvLayout, num_computed_tokens: int, num_slots: int) -> float:
    """Bytes that the architecture keeps of ``num_slots`` tokens, when ``num_computed_tokens`` have been computed."""
    return sum(_group_bytes(group, layout.block_size, num_computed_tokens, num_slots) for group in layout.groups)


def _group_bytes(group: KvGroup, block_size: int, num_computed_tokens: int, num_slots: int) -> float:
    if group.is_state:
        return group.unit_bytes
    return group.unit_bytes * (num_slots - group.first_kept_token(num_computed_tokens)) / block_size


def layout_waste_pct(layout: KvLayout, tables: Iterable[tuple[BlockTable, int]]) -> float | None:
    """Bytes held beyond those that are needed, in percent of the latter; None where nothing is held.

    tables: each sequence's, with how many of its tokens had been computed when its blocks were taken.
    """
    held, needed = 0, 0.0
    for table, num_computed_tokens in tables:
        held += held_bytes(table, layout)
        needed += needed_bytes(layout, num_computed_tokens, len(table) * layout.block_size)
    return 100 * (held / needed - 1) if needed else None
