"""How the layout of kvplan's own engine is printed: what lies in a block, and how many blocks each group takes."""

from __future__ import annotations

from kvplan.estimate.kv_groups import Kept, KvGroup
from kvplan.estimate.kvplan.layout import KvLayout
from kvplan.units import format_bytes


def layout_lines(layout: KvLayout, context_tokens: int) -> list[str]:
    """A line for the block and, where layers keep different tokens, one for each group: bundles x their width.

    blocks of 327,680 B = 320.00 KiB, in bundles for 16 tokens:
      all tokens:         8,192 x 4 blocks  0.0 % empty
      last 1,024 tokens:  65 x 21 blocks    1.0 % empty
    """
    block = f"blocks of {layout.block_bytes:,} B = {format_bytes(layout.block_bytes)}"
    if layout.is_uniform:
        return [f"{block}: all layers of {_tokens(layout.block_size)}"]
    rows = [_cells(layout, group, context_tokens) for group in layout.groups]
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(size) for cell, size in zip(row, sizes, strict=True)).rstrip() for row in rows]
    state = ", or for a state" if layout.has_states else ""
    return [f"{block}, in bundles for {_tokens(layout.block_size)}{state}:", *(f"  {line}" for line in lines)]


def _cells(layout: KvLayout, group: KvGroup, context_tokens: int) -> tuple[str, ...]:
    bundles = group.most_bundles(context_tokens, 1, layout.block_size)
    empty = 100 * (group.width * layout.block_bytes / group.unit_bytes - 1)
    return (
        f"{kept_name(group.kept)}:",
        f"{bundles:,} x {group.width:,} block{'s' if group.width != 1 else ''}",
        f"{empty:.1f} % empty",
    )


def kept_name(kept: Kept) -> str:
    """``all tokens``, ``last 1,024 tokens``, ``chunk of 8,192 tokens``, ``states``."""
    if kept.tokens is None:
        return "states" if kept.kind == "state" else "all tokens"
    return f"{'last' if kept.kind == 'window' else 'chunk of'} {kept.tokens:,} tokens"


def _tokens(number: int) -> str:
    return f"{number} token" + ("s" if number != 1 else "")
