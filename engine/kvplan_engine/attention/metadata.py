"""What one step's attention knows of its batch: the sequences, and where their keys and values lie."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class KvSlots:
    """Where the keys and values of T new tokens are written.

    keys [T] int64: block * block_size + offset; -1 marks padding, for which nothing is written. values: the same, None
    where keys and values lie in the same blocks.
    """

    keys: torch.Tensor
    values: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """Views into the workspace of one step, for S sequences with T new tokens in all.

    The new tokens of sequence s are the rows ``query_starts[s] : query_starts[s + 1]`` of the step's hidden states.
    Its token at position p lies in block ``block_tables[s, p // block_size]`` at offset ``p % block_size``::

        block_tables[s]   [ 7 | 2 | 9 | - ]          seq_lens[s] = 10, block_size = 4
        pool              7: p0 p1 p2 p3   2: p4 p5 p6 p7   9: p8 p9 . .

    Entries of ``block_tables`` beyond the blocks that ``seq_lens`` asks for are never read. Rows of the hidden states
    from ``query_starts[S]`` on are padding: attention does not write their output.
    """

    slots: KvSlots
    """Where each new token's key and value are written."""
    block_tables: torch.Tensor
    """[S, B] int32: the blocks of each sequence's keys, in the order of its tokens."""
    seq_lens: torch.Tensor
    """[S] int32: tokens of each sequence in the cache, the step's new ones included."""
    query_starts: torch.Tensor
    """[S + 1] int32: where each sequence's new tokens begin; query_starts[0] is 0."""
    max_query_len: int
    """The most new tokens that any one sequence has in this step."""
    value_tables: torch.Tensor | None = None
    """As ``block_tables``, of the values; None where keys and values lie in the same blocks."""
