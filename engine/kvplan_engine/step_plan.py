"""What one step does: which sequences compute which tokens, and which blocks change place before. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvplan_engine.offload.transfers import Transfer
from kvplan_engine.request import ScheduledSequence, Sequence


@dataclass(slots=True)
class StepPlan:
    """scheduled: the sequences with their tokens. transfers: carried out in this order before the step writes."""

    scheduled: list[ScheduledSequence] = field(default_factory=list)
    transfers: list[Transfer] = field(default_factory=list)
    num_tokens: int = 0
    num_preempted: int = 0

    def add(self, sequence: Sequence, num_new_tokens: int) -> None:
        reaches_end = sequence.num_computed_tokens + num_new_tokens == len(sequence.token_ids)
        if num_new_tokens == 1 and reaches_end:
            self.scheduled.append(sequence.decode_item)
        else:
            self.scheduled.append(ScheduledSequence(sequence, num_new_tokens, reaches_end))
        self.num_tokens += num_new_tokens
