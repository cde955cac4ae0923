"""What the clocks of steps have in common: a step of one group is one in which nobody else's tokens meet.

A play asks for many steps that differ in nothing but how much they attend to. What follows from the number of tokens
and sequences is computed once for all of these (``step_of``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

AttendingStep = Callable[[float, float], float]
"""Seconds of a step, all else of which is known, by its num_kv_tokens and num_pairs (``simulation.GroupClock``)."""

_ROUNDING: Final = 1e-9


def reads_prompts(num_tokens: float, num_sequences: float, rows: int = 1) -> bool:
    """Whether a step has more tokens than ``rows`` of each sequence, which are those of a sequence that decodes."""
    return num_tokens > (num_sequences if rows == 1 else rows * num_sequences * (1 + _ROUNDING))


class GroupSteps(ABC):
    """Is a ``simulation.GroupClock``, and so a ``simulation.StepClock`` too."""

    __slots__ = ()

    def seconds(
        self, num_tokens: float, num_sequences: float, num_sampled: float, num_kv_tokens: float, num_pairs: float
    ) -> float:
        """One step of one group, see ``simulation.StepClock``."""
        return self.seconds_beside(num_tokens, num_tokens, num_sequences, num_sampled, num_kv_tokens, num_pairs)

    def seconds_beside(
        self,
        num_met: float,
        num_tokens: float,
        num_sequences: float,
        num_sampled: float,
        num_kv_tokens: float,
        num_pairs: float,
    ) -> float:
        """See ``simulation.GroupClock``."""
        return self.step_of(num_met, num_tokens, num_sequences, num_sampled)(num_kv_tokens, num_pairs)

    @abstractmethod
    def step_of(self, num_met: float, num_tokens: float, num_sequences: float, num_sampled: float) -> AttendingStep:
        """Return the seconds of steps that compute so much, by what they attend to."""
