"""The buffers that a step's hidden states go through, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.kernels.interface import Ops
from kvplan_engine.layers.norm import Norm
from kvplan_engine.layers.projection import Projection
from kvplan_engine.models.step_batch import StepBatch


@dataclass(slots=True)
class ResidualStream:
    """Views of the workspace, [T, H] each.

    hidden: the residual stream. normed: its normalised copy. delta: the output of a block, added to hidden in the next
    norm. source: what the next block reads, ``normed``, or ``hidden`` where no norm stands before the block. rows: of
    the step's tokens those that are left, None for all. is_added: whether a block has added its output to hidden
    itself, so that delta means nothing.
    """

    hidden: torch.Tensor
    normed: torch.Tensor
    delta: torch.Tensor
    source: torch.Tensor
    rows: torch.Tensor | None = None
    is_added: bool = False

    def add_delta(self) -> None:
        """The block's output is part of ``hidden`` from here on."""
        if not self.is_added:
            self.hidden += self.delta
        self.is_added = False

    def take_rows(self, rows: torch.Tensor, room: torch.Tensor, *, with_delta: bool) -> None:
        """Go on with ``rows`` alone, which are at most half of all; ``room`` [len(rows), H] is for hidden.

        with_delta: delta has a block's output, of which only these rows are kept; what normed had is lost then, and
        otherwise delta's rows are.
        """
        number = rows.shape[0]
        kept, other = (self.delta, self.normed) if with_delta else (self.normed, self.delta)
        reads_hidden = self.source is self.hidden
        # the kept rows go where the other buffer was, which then goes where they were
        torch.index_select(kept, 0, rows, out=other[:number])
        kept, other = other[:number], kept[:number]
        self.normed, self.delta = (other, kept) if with_delta else (kept, other)
        self.hidden = torch.index_select(self.hidden, 0, rows, out=room)
        self.source = self.hidden if reads_hidden else self.normed
        self.rows = rows


# From token ids to the residual stream: embedding, its scale, learned positions, a norm.


class Embedding:
    """head: what gives the embedding's rows back, being the output head too, quantised or divided; None for a table."""

    def __init__(self, model: ModelDescription, weights: Weights, head: Projection | None, ops: Ops) -> None:
        self._head = head
        self._table = None if head is not None else weights["embedding.weight"]
        self._positions = None
        if model.learned_positions is not None:
            self._positions = weights["positions.weight"][model.position_offset :]
        self._norm = Norm(weights, "embedding_norm", "layer", model.norm.eps, ops) if model.embedding_norm else None
        self._scale = model.embedding_scale

    def __call__(self, batch: StepBatch, hidden: torch.Tensor, scratch: torch.Tensor) -> None:
        """The first residual stream into ``hidden`` [T, H]; ``scratch`` [T, H] is overwritten."""
        if self._head is not None:
            self._head.rows(batch.token_ids, hidden)
        elif self._table is not None:
            torch.index_select(self._table, 0, batch.token_ids, out=hidden)
        if self._scale != 1.0:
            hidden.mul_(self._rounded_scale(hidden.dtype))
        if self._positions is not None:
            torch.index_select(self._positions, 0, batch.positions, out=scratch)
            hidden += scratch
        if self._norm is not None:
            self._norm(hidden, hidden)

    def _rounded_scale(self, dtype: torch.dtype) -> float:
        """Return the scale, rounded as a weight of the model's dtype would be: Gemma's published code rounds it so."""
        return float(torch.tensor(self._scale, dtype=dtype))
