"""The index arrays of one step, cut to what it fills: what another rank needs to run the same batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvplan_engine.memory.index_buffers import lengths_name


@dataclass(frozen=True, slots=True)
class StepIndices:
    """buffers: by the workspace's names. sampled_rows: as StepBatch's. sampled_starts: the query starts of its
    ``sampled_attention``, None where it has none.
    """

    num_tokens: int
    num_seqs: int
    max_query_len: int
    buffers: Mapping[str, np.ndarray]
    sampled_rows: np.ndarray
    sampled_starts: np.ndarray | None


def cut_tables(name: str, rows: np.ndarray, lengths: Mapping[str, np.ndarray], block_size: int) -> np.ndarray:
    """``rows`` of buffer ``name`` without the columns of a block table that no sequence has reached.

    lengths: tokens of the step's sequences in each group, by the names of their buffers.
    """
    if not name.startswith("block_tables"):
        return rows
    _, _, place = name.partition(".")
    of_group = lengths.get(lengths_name(int(place.split(".")[0]) if place else 0))
    if of_group is None:  # a group of states: all of a row is one sequence's
        return rows
    return rows[:, : -(-int(of_group.max()) // block_size)]
