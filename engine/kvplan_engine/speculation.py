"""Who proposes tokens ahead of the model (``speculative_config``); the next step computes and verifies them.

The step loop asks for proposals behind each step; ``requests.drafts`` says which of them are accepted.

    proposer    the protocol; n-grams of the sequence itself, or places that a drafter fills
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from kvplan_engine.requests.drafts import NgramIndex
from kvplan_engine.requests.request import Sequence
from kvplan_engine.speculative_config import SpeculativeConfig


class Proposer(Protocol):
    """Guesses how sequences go on."""

    def propose(self, sequence: Sequence) -> list[int]:
        """Tokens that may follow the last of ``sequence``; none where nothing suggests any."""
        ...


class NgramProposer:
    """What followed the last tokens where they stood in the sequence before: see ``requests.ngrams``."""

    def __init__(self, config: SpeculativeConfig) -> None:
        self._config = config

    def propose(self, sequence: Sequence) -> list[int]:
        """See Proposer.propose."""
        if sequence.ngrams is None:
            sequence.ngrams = NgramIndex(self._config.prompt_lookup_min, self._config.prompt_lookup_max)
        return sequence.ngrams.propose(sequence.token_ids, self._config.num_speculative_tokens)


class PlaceholderProposer:
    """Keeps ``number`` places behind each sequence, which a draft model fills before the step.

    first: the first drafts, by the numbers of their sequences, where the step before has given them; None: it has not.
    """

    def __init__(self, number: int, first: Mapping[int, int] | None = None) -> None:
        self._number, self._first = number, first

    def propose(self, sequence: Sequence) -> list[int]:
        """See Proposer.propose."""
        if self._first is None:
            return [0] * self._number
        first = self._first.get(sequence.number)
        return [] if first is None else [first] + [0] * (self._number - 1)
