"""What the layers of each group read of a step, as views of its index buffers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from kvplan_engine.attention.layer_cache import TablePlace
from kvplan_engine.attention.metadata import AttentionMetadata, KvSlots
from kvplan_engine.blocks.layout import KvLayout
from kvplan_engine.kernels.states.rows import StateStep
from kvplan_engine.memory.index_buffers import lengths_name, slots_name, tables_name


def metadata_of(
    place: TablePlace, tokens: Mapping[str, torch.Tensor], seqs: Mapping[str, torch.Tensor], max_query_len: int
) -> AttentionMetadata:
    """What the layers at ``place`` read. tokens, seqs: the index buffers, cut to the step's."""
    group, keys, values = place.group, place.key_slot, place.value_slot
    is_apart = keys != values
    return AttentionMetadata(
        slots=KvSlots(tokens[slots_name(group, keys)], tokens[slots_name(group, values)] if is_apart else None),
        block_tables=seqs[tables_name(group, keys)],
        value_tables=seqs[tables_name(group, values)] if is_apart else None,
        seq_lens=seqs[lengths_name(group)],
        query_starts=seqs["query_starts"],
        max_query_len=max_query_len,
    )


def state_tables_name(layout: KvLayout) -> str | None:
    """The buffer with the blocks of each sequence's states; None where no layer has one."""
    return next((tables_name(index, 0) for index, group in enumerate(layout.groups) if group.is_state), None)


def states_of(
    name: str | None, tokens: Mapping[str, torch.Tensor], seqs: Mapping[str, torch.Tensor]
) -> StateStep | None:
    """What the layers with a state read. name: of their block tables; tokens, seqs: as for ``metadata_of``."""
    return None if name is None else StateStep(seqs[name], seqs["query_starts"], tokens["positions"])


def padding_values(places: Iterable[TablePlace], state_tables: str | None) -> dict[str, int]:
    """What the index buffers hold behind a step's last token and sequence, where a larger captured step computes it.

    A valid token and position, no slot to write to, length 0, no state. state_tables: see ``states_of``.
    """
    values = {"token_ids": 0, "positions": 0}
    for place in places:
        for slot in (place.key_slot, place.value_slot):
            values[slots_name(place.group, slot)] = -1
        values[lengths_name(place.group)] = 0
    return values if state_tables is None else values | {state_tables: -1}
