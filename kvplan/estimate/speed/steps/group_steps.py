"""What the clocks of steps have in common: a step of one group is one in which nobody else's tokens meet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

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

    @abstractmethod
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
