"""The index arrays of one step, cut to what it fills: what another rank needs to run the same batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kvplan_engine.memory.index_buffers import lengths_name
from kvplan_engine.models.step_batch import GraphSize


@dataclass(frozen=True, slots=True)
class StepIndices:
    """buffers: by the workspace's names. sampled_rows: as StepBatch's. sampled_starts: the query starts of its
    ``sampled_attention``, None where it has none. graph: as StepBatch's.
    """

    num_tokens: int
    num_seqs: int
    max_query_len: int
    buffers: Mapping[str, np.ndarray]
    sampled_rows: np.ndarray
    sampled_starts: np.ndarray | None
    graph: GraphSize | None = None


def lengths_of_tables(name: str) -> str | None:
    """The buffer with the lengths of the sequences in block tables ``name``; None where ``name`` is something else.

    A group of states has no such buffer: all of a row is one sequence's.
    """
    if not name.startswith("block_tables"):
        return None
    _, _, place = name.partition(".")
    return lengths_name(int(place.split(".")[0]) if place else 0)
