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

# Where the end of a sequence has stood in it before, and what followed: n-gram speculation. No torch.
#
# vLLM's rule (vllm/v1/spec_decode/ngram_proposer.py): of the n-grams that end the sequence, shortest to longest of the
# settings, the longest that stands in it once more counts, at the first place where it stands. What follows there is
# proposed.
#
#     tokens      7 1 2 3 9 4 1 2 3      n-grams of 2 to 3 tokens, 2 drafts
#                   ^^^^^ the longest found, ended by place 4: the drafts are 9 4


class NgramIndex:
    """The first place behind each n-gram of one sequence, ``shortest`` to ``longest`` tokens long.

    Kept with the sequence, so that the cost of a step depends on the number of new tokens, not on the length.
    """

    __slots__ = ("_num_indexed", "_places")

    def __init__(self, shortest: int, longest: int) -> None:
        # by length, the longest first: the n-grams that end before the last token, and where the first of them ends
        self._places: dict[int, dict[tuple[int, ...], int]] = {n: {} for n in range(longest, shortest - 1, -1)}
        self._num_indexed = 0

    def propose(self, token_ids: list[int], number: int) -> list[int]:
        """Up to ``number`` tokens that may follow ``token_ids``, the sequence's as far as they are known."""
        length = len(token_ids)
        for n, places in self._places.items():
            for end in range(max(self._num_indexed + 1, n), length):
                places.setdefault(tuple(token_ids[end - n : end]), end)
        self._num_indexed = max(length - 1, 0)
        for n, places in self._places.items():
            if n < length and (place := places.get(tuple(token_ids[-n:]))) is not None:
                return token_ids[place : place + number]
        return []


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
