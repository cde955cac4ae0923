"""Which drafts of a sequence are accepted, and how many were: vLLM's ``SpecDecodingStats``. No torch.

A step computes a sequence's last token and the drafts behind it, and draws a token after each:

    computed    t   d1  d2  d3      d: drafts
    drawn       a   b   c   e       a = d1, b = d2, c != d3: a, b and c are the sequence's; e was drawn behind d3, and
                                    is dropped

A draft is certain of itself, so that to accept d with the probability p(d), and else to draw from p without d
(Leviathan et al., 2023), is to draw from p and to see whether that is d. What is drawn at a position does not depend on
the drafts: a request gets the same tokens with and without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from operator import eq


def num_accepted(drafts: Sequence[int], drawn: Sequence[int]) -> int:
    """How many of ``drafts`` are what was drawn in their places."""
    return sum(takewhile(bool, map(eq, drafts, drawn)))


class DraftCounts:
    """Drafts since the pool was made, by the rules of vLLM's metrics.

    num_drafts: verifications of a sequence's drafts, of num_draft_tokens in all. accepted_per_position: how many of the
    first, second ... drafts were accepted, whether their sequence went on to use them or had ended.
    """

    def __init__(self, most_drafts: int) -> None:
        self.num_drafts = 0
        self.num_draft_tokens = 0
        self.accepted_per_position = [0] * most_drafts

    @property
    def num_accepted_tokens(self) -> int:
        """Accepted drafts of all positions."""
        return sum(self.accepted_per_position)

    def add(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Count one verification."""
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        for position in range(num_accepted_tokens):
            self.accepted_per_position[position] += 1
