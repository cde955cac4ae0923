"""The host's side of a step's index buffers: filled by the batch builder, padded, and brought to the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvplan_engine.attention.layer_cache import TablePlace
from kvplan_engine.blocks.layout import KvLayout
from kvplan_engine.execution.inputs.group_tables import padding_values, state_tables_name
from kvplan_engine.execution.inputs.staging import Extent, InputStage
from kvplan_engine.memory.step_buffers import TOKEN_BUFFERS, lengths_name
from kvplan_engine.memory.workspace import Workspace
from kvplan_engine.models.step_batch import GraphSize

# The index arrays of one step, cut to what it fills: what another rank needs to run the same batch.


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


SAMPLED_ROWS, SAMPLED_STARTS = "sampled_rows", "sampled_starts"
"""What a step with prompts has beside its index buffers: see StepBatch, and the starts of its sampled_attention."""


def sampled_buffers(num_rows: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Room for both on the device: a stage's targets beside the index buffers."""
    return {
        SAMPLED_ROWS: torch.zeros(num_rows, dtype=torch.int64, device=device),
        SAMPLED_STARTS: torch.zeros(num_rows + 1, dtype=torch.int32, device=device),
    }


class StepInputs:
    """The index buffers ``names`` where the host fills them: the workspace's own, or twins behind a ``stage``.

    arrays: numpy views of them, by name; to assign to these is several times faster than to tensors. token_buffers,
    seq_buffers: the names of those with a row for each token, and of the others.
    """

    def __init__(
        self,
        workspace: Workspace,
        layout: KvLayout,
        names: Sequence[str],
        places: Sequence[TablePlace],
        stage: InputStage | None,
    ) -> None:
        self.stage = stage
        self.host = {
            name: workspace[name] if stage is None else torch.zeros_like(workspace[name], device="cpu")
            for name in names
        }
        self.arrays = {name: buffer.numpy() for name, buffer in self.host.items()}
        self.token_buffers = tuple(name for name in names if name in TOKEN_BUFFERS or name.startswith("slots"))
        self.seq_buffers = tuple(name for name in names if name not in self.token_buffers)
        self._lengths_of_tables = {name: lengths_of_tables(name) for name in names}
        self._padding = padding_values(places, state_tables_name(layout))
        self._block_size = layout.block_size

    def sizes(self, num_tokens: int, num_seqs: int) -> dict[str, int]:
        """How many elements of each index buffer a step of so many tokens and sequences fills."""
        sizes = dict.fromkeys(self.token_buffers, num_tokens) | dict.fromkeys(self.seq_buffers, num_seqs)
        return sizes | {"query_starts": num_seqs + 1}

    def filled(self, num_tokens: int, num_seqs: int) -> dict[str, np.ndarray]:
        """What a step of so many tokens and sequences fills of each buffer."""
        found = {}
        for name, count in self.sizes(num_tokens, num_seqs).items():
            columns, rows = self._columns_read(name, num_seqs), self.arrays[name][:count]
            found[name] = rows if columns is None else rows[:, :columns]
        return found

    def send(
        self, num_tokens: int, num_seqs: int, graph: GraphSize | None, of_sampled: Mapping[str, np.ndarray]
    ) -> dict[str, torch.Tensor]:
        """Bring what the host has filled to the device, padded to ``graph``; returns ``of_sampled`` there."""
        if self.stage is None:
            return {name: torch.from_numpy(values) for name, values in of_sampled.items()}
        sent = dict(of_sampled)
        if graph is not None:
            self._pad(num_tokens, num_seqs, graph)
            sent = {name: np.pad(values, (0, graph.num_seqs - len(values))) for name, values in of_sampled.items()}
        filled = self.sizes(num_tokens, num_seqs) if graph is None else self.sizes(graph.num_tokens, graph.num_seqs)
        extents = {name: Extent(count, self._columns_read(name, num_seqs)) for name, count in filled.items()}
        extents |= {name: Extent(len(values)) for name, values in sent.items()}
        self.stage.upload({**self.arrays, **sent}, extents)
        return {name: self.stage.targets[name][: len(values)] for name, values in of_sampled.items()}

    def _pad(self, num_tokens: int, num_seqs: int, size: GraphSize) -> None:
        """Fill what lies behind a step's last token and sequence, up to ``size``: see ``graphs``."""
        for name, value in self._padding.items():
            of_tokens = name in self.token_buffers
            self.arrays[name][slice(num_tokens, size.num_tokens) if of_tokens else slice(num_seqs, size.num_seqs)] = (
                value
            )
        self.arrays["query_starts"][num_seqs : size.num_seqs + 1] = num_tokens

    def _columns_read(self, name: str, num_seqs: int) -> int | None:
        """How many columns a step reads: for 128k tokens block tables have thousands, most of them unused."""
        array, lengths = self.arrays[name], self._lengths_of_tables[name]
        if array.ndim == 1:
            return None
        if lengths not in self.arrays:
            return array.shape[1]
        return -(-int(self.arrays[lengths][:num_seqs].max()) // self._block_size)
