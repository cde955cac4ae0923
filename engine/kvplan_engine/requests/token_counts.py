"""The tokens a sequence has, counted as they come in: what penalties are worked out from. No torch."""

from __future__ import annotations


class TokenCounts:
    """How often each token stands in a sequence's answer, and which stand in its prompt; extended as tokens come in.

    Kept with the sequence, so that a step costs the number of different tokens and not the length of the sequence.
    """

    __slots__ = ("_num_counted", "in_prompt", "of_output")

    def __init__(self, prompt_token_ids: list[int]) -> None:
        self.in_prompt = set(prompt_token_ids)
        self.of_output: dict[int, int] = {}
        self._num_counted = len(prompt_token_ids)

    def extend(self, token_ids: list[int]) -> None:
        """Count the tokens of ``token_ids`` (prompt and answer) that came since the last call."""
        for token in token_ids[self._num_counted :]:
            self.of_output[token] = self.of_output.get(token, 0) + 1
        self._num_counted = len(token_ids)
