"""The running sequences: an ordered set with its sums, so that no step has to go through all of them to know these."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan_engine.request import Sequence


class RunningSequences:
    """Sequences that hold blocks, oldest first; one in the middle leaves in O(1).

    num_tokens: their computed tokens. shared_tails: those that must not write to their last block before they have
    one of their own. A sequence whose samples fork from it later keeps seats for them.
    """

    def __init__(self, max_num_seqs: int) -> None:
        self.max_num_seqs = max_num_seqs
        self.num_tokens = 0
        self.shared_tails: set[Sequence] = set()
        self._sequences: dict[Sequence, None] = {}
        self._num_seats_kept = 0

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def newest(self) -> Sequence:
        return next(reversed(self._sequences))

    @property
    def keeps_seats(self) -> bool:
        """Whether samples are still to fork from some sequence."""
        return self._num_seats_kept > 0

    def has_seat(self, sequence: Sequence) -> bool:
        """Whether ``sequence``, with the samples that will fork from it, may run beside the others."""
        return len(self._sequences) + self._num_seats_kept + 1 + _num_forks(sequence) <= self.max_num_seqs

    def enter(self, sequence: Sequence) -> None:
        self._sequences[sequence] = None
        self.num_tokens += sequence.num_computed_tokens
        self._num_seats_kept += _num_forks(sequence)

    def leave(self, sequence: Sequence) -> None:
        del self._sequences[sequence]
        self.num_tokens -= sequence.num_computed_tokens
        self._num_seats_kept -= _num_forks(sequence)
        sequence.free_until = 0
        self.own_tail(sequence)

    def fork(self, sequence: Sequence, index: int) -> Sequence:
        """A sibling beside ``sequence``, on the same blocks. It takes no kept seat: see ``take_kept_seat``."""
        child = sequence.fork(index)
        self._sequences[child] = None
        self.num_tokens += child.num_computed_tokens
        self.shared_tails.update((sequence, child))
        return child

    def take_kept_seat(self) -> None:
        """A sample that a seat was kept for has come."""
        self._num_seats_kept -= 1

    def own_tail(self, sequence: Sequence) -> None:
        """The last block of ``sequence`` is its own from here on, or no longer its."""
        if sequence.has_shared_tail:
            sequence.has_shared_tail = False
            self.shared_tails.discard(sequence)

    def check(self) -> None:
        """Assert that the sums are right."""
        assert len(self) + self._num_seats_kept <= self.max_num_seqs, "more sequences run than max_num_seqs"
        assert self._num_seats_kept == sum(_num_forks(sequence) for sequence in self), "kept seats"
        assert self.num_tokens == sum(sequence.num_computed_tokens for sequence in self), "running tokens"
        assert self.shared_tails == {sequence for sequence in self if sequence.has_shared_tail}, "shared tails"


def _num_forks(sequence: Sequence) -> int:
    return sequence.request.num_pending_forks if sequence.index == 0 else 0
