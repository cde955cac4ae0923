"""What an engine has to do already, in the terms in which the router compares engines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """num_sequences: in flight, of which ``num_queued_sequences`` no step has scheduled yet. queued_tokens: what those
    have to compute, as far as their prompts are not cached. num_seats: sequences that a step takes. free_tokens: slots
    of free blocks, after the last step.
    """

    num_sequences: int
    num_queued_sequences: int
    queued_tokens: int
    num_seats: int
    free_tokens: int

    def has_room(self, num_sequences: int, num_tokens: int) -> bool:
        """Whether ``num_sequences`` more, of ``num_tokens`` to compute, can run beside all that are here."""
        return (
            self.num_sequences + num_sequences <= self.num_seats and self.queued_tokens + num_tokens <= self.free_tokens
        )
