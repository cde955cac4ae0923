"""Where the end of a sequence has stood in it before, and what followed: n-gram speculation. No torch.

vLLM's rule (vllm/v1/spec_decode/ngram_proposer.py): of the n-grams that end the sequence, shortest to longest of the
settings, the longest that stands in it once more counts, at the first place where it stands. What follows there is
proposed.

    tokens      7 1 2 3 9 4 1 2 3      n-grams of 2 to 3 tokens, 2 drafts
                  ^^^^^ the longest found, ended by place 4: the drafts are 9 4
"""

from __future__ import annotations


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
