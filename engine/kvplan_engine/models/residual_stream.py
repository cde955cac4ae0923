"""The buffers that a step's hidden states go through, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

import torch


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
