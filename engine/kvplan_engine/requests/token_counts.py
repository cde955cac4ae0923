"""How often each token occurs in a sequence: what penalties are computed from. No torch."""

from __future__ import annotations


class TokenCounts:
    """The tokens of a sequence's prompt, and how often each token occurs in its answer; extended as tokens arrive.

    Kept with the sequence, so that the cost of a step depends on the number of distinct tokens, not on the length.
    """

    __slots__ = ("_num_counted", "in_prompt", "of_output")

    def __init__(self, prompt_token_ids: list[int]) -> None:
        self.in_prompt = set(prompt_token_ids)
        self.of_output: dict[int, int] = {}
        self._num_counted = len(prompt_token_ids)

    def extend(self, token_ids: list[int]) -> None:
        """Count the tokens of ``token_ids`` (prompt and answer) that are new since the last call."""
        for token in token_ids[self._num_counted :]:
            self.of_output[token] = self.of_output.get(token, 0) + 1
        self._num_counted = len(token_ids)
