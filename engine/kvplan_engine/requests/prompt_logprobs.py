"""Log-probabilities of a prompt's own tokens, gathered chunk by chunk as the prompt is computed. No torch."""

from __future__ import annotations

from typing import NamedTuple


class PromptTokenLogprob(NamedTuple):
    """What the tokens before it said of a token of the prompt.

    rank: how many tokens of the vocabulary are as likely as it, itself included: 1 for the likeliest. top: the
    likeliest tokens and their natural log-probabilities, best first.
    """

    logprob: float
    rank: int
    top: dict[int, float]


class PromptLogprobs:
    """Log-probabilities of a prompt of ``num_prompt_tokens``, with ``num_top`` alternatives each.

    tokens[i] is for the prompt's token i + 1: nothing comes before the first one. They are kept through preemptions, so
    that what is computed again is not asked again.
    """

    def __init__(self, num_prompt_tokens: int, num_top: int) -> None:
        self.num_top = num_top
        self.tokens: list[PromptTokenLogprob] = []
        self._number = num_prompt_tokens - 1

    @property
    def is_complete(self) -> bool:
        return len(self.tokens) >= self._number

    def missing(self, first: int, number: int) -> range:
        """Positions from ``first`` to ``first + number`` - 1 whose next token is one still to be gathered."""
        return range(max(first, len(self.tokens)), min(first + number, self._number))

    def by_token(self, prompt_token_ids: list[int]) -> list[dict[int, float] | None]:
        """Return, as vLLM does, None for the first token; for others its log-probability and its alternatives'."""
        own = zip(prompt_token_ids[1:], self.tokens, strict=False)
        return [None, *({token: each.logprob} | each.top for token, each in own)]
