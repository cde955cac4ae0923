"""A proposer that knows the answers, and is right as often as it is told to be."""

from __future__ import annotations

import random
from typing import Any

from engine_answers import ragged_prompts

from kvplan_engine import LLM
from kvplan_engine.requests.request import Sequence

LIMITS: dict[str, Any] = {"max_num_seqs": 8, "max_model_len": 96, "max_num_batched_tokens": 256}
"""Of engines that speculate."""
NGRAM = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "prompt_lookup_max": 3}


def prompts() -> list[list[int]]:
    return [prompt[:length] for prompt, length in zip(ragged_prompts()[3:], (28, 41, 25), strict=True)]


class Guesses:
    """Proposes how a plain engine goes on, up to a random length, each token right with probability ``share``.

    texts: whole sequences, prompts and answers, by whose beginnings a sequence is recognised.
    """

    def __init__(self, texts: list[list[int]], vocab_size: int, *, share: float, most: int = 4, seed: int = 0) -> None:
        self._texts, self._vocab_size, self._share, self._most = texts, vocab_size, share, most
        self._rng = random.Random(seed)

    def propose(self, sequence: Sequence) -> list[int]:
        tokens, rng = sequence.token_ids, self._rng
        text = next((each for each in self._texts if each[: len(tokens)] == tokens), [])
        following = text[len(tokens) : len(tokens) + rng.randint(0, self._most)]
        return [each if rng.random() < self._share else rng.randrange(self._vocab_size) for each in following]


def let_guess(llm: LLM, guesses: Guesses) -> None:
    """Proposals of ``llm``, which speculates, come from ``guesses`` until it is reconfigured."""
    llm.engine.serving.loop._proposer = guesses
