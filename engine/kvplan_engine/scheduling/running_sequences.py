"""The running sequences: an ordered set with its sums, so that no step has to go through all of them to know these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from kvplan_engine.blocks.transfers import TransferLog
from kvplan_engine.requests.request import Request, Sequence
from kvplan_engine.scheduling.persistent_batch import PersistentBatch


class RunningSequences:
    """Sequences that hold blocks, oldest first; leaving from the middle costs O(1).

    decoding: those that compute one token per step; others: all the rest, in order. A sequence enters among the others.
    num_tokens: their computed tokens. shared_tails: those whose last block is shared: it must be replaced by one of
    their own before they write to it. A sequence from which samples will fork keeps seats for them.
    num_needing_details, num_not_plainly_greedy, num_needing_values: how many belong to a request with
    ``needs_token_details``, without ``is_plainly_greedy``, with ``needs_values``. stop_ids: the tokens that may end one
    of them.
    """

    def __init__(self, max_num_seqs: int, block_size: int) -> None:
        self.max_num_seqs = max_num_seqs
        self.decoding = PersistentBatch(block_size)
        self.others: dict[Sequence, None] = {}
        self.num_tokens = 0
        self.shared_tails: set[Sequence] = set()
        self.num_needing_details = 0
        self.num_not_plainly_greedy = 0
        self.num_needing_values = 0
        self.stop_ids: frozenset[int] = frozenset()
        self._stop_sets: Counter[frozenset[int]] = Counter()
        self._sequences: dict[Sequence, None] = {}
        self._num_seats_kept = 0

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def newest(self) -> Sequence:
        return next(reversed(self._sequences))

    def has_seat(self, sequence: Sequence) -> bool:
        """Whether ``sequence``, with the samples that will fork from it, may run beside the others."""
        return len(self._sequences) + self._num_seats_kept + 1 + num_forks(sequence) <= self.max_num_seqs

    def enter(self, sequence: Sequence) -> None:
        self._sequences[sequence] = self.others[sequence] = None
        self.num_tokens += sequence.num_computed_tokens
        self._num_seats_kept += num_forks(sequence)
        self._tally(sequence.request, 1)

    def leave(self, sequence: Sequence) -> None:
        del self._sequences[sequence]
        if sequence.row >= 0:
            self.decoding.leave(sequence)
        else:
            del self.others[sequence]
        self.num_tokens -= sequence.num_computed_tokens
        self._num_seats_kept -= num_forks(sequence)
        self._tally(sequence.request, -1)
        self.own_tail(sequence)

    def _tally(self, request: Request, change: int) -> None:
        self.num_needing_details += change * request.needs_token_details
        self.num_not_plainly_greedy += change * (not request.is_plainly_greedy)
        self.num_needing_values += change * request.needs_values
        number = self._stop_sets[request.stop_ids]
        self._stop_sets[request.stop_ids] += change
        if not number or not number + change:
            self._stop_sets = +self._stop_sets
            self.stop_ids = frozenset().union(*self._stop_sets)

    # ---- decoding and not

    def start_decoding(self, sequence: Sequence) -> None:
        """``sequence`` decodes from here on."""
        del self.others[sequence]
        self.decoding.enter(sequence)

    def stop_decoding(self, sequence: Sequence) -> None:
        """``sequence`` runs on, but does not decode any more."""
        self.decoding.leave(sequence)
        self.others[sequence] = None

    def newest_decoding(self, number: int) -> list[Sequence]:
        """The newest ``number`` of the decoding sequences."""
        return list(islice((sequence for sequence in reversed(self._sequences) if sequence.row >= 0), number))

    # ---- forks

    def fork(self, sequence: Sequence, index: int) -> Sequence:
        """A sibling beside ``sequence``, on the same blocks. It takes no kept seat: see ``use_kept_seat``."""
        child = sequence.fork(index)
        self._sequences[child] = self.others[child] = None
        self.num_tokens += child.num_computed_tokens
        self._tally(child.request, 1)
        self.shared_tails.update((sequence, child))
        return child

    def use_kept_seat(self) -> None:
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
        assert self._num_seats_kept == sum(num_forks(sequence) for sequence in self), "kept seats"
        assert self.num_tokens == sum(sequence.num_computed_tokens for sequence in self), "running tokens"
        assert self.shared_tails == {sequence for sequence in self if sequence.has_shared_tail}, "shared tails"
        assert {*self.decoding.sequences, *self.others} == set(self), "neither decoding nor not"
        assert len(self.decoding) + len(self.others) == len(self), "decoding and not"
        requests = [sequence.request for sequence in self]
        assert self.num_needing_details == sum(request.needs_token_details for request in requests), "watched"
        assert self.num_not_plainly_greedy == sum(not request.is_plainly_greedy for request in requests), "choosy"
        assert self.num_needing_values == sum(request.needs_values for request in requests), "bound to values"
        assert self.stop_ids == frozenset().union(*(request.stop_ids for request in requests)), "stop tokens"
        self.decoding.check()


class Reservation:
    """Takes the blocks that the next tokens of a sequence are written to.

    reserves_all: contiguous reservation, where a sequence gets room for ``max_model_len`` tokens when it enters.
    A shared block that would be written is replaced by a copy, which goes to ``log``.
    """

    def __init__(self, running: RunningSequences, log: TransferLog, *, max_model_len: int, reserves_all: bool) -> None:
        self.reserves_all = reserves_all
        self._running = running
        self._log = log
        self._max_model_len = max_model_len

    def num_tokens_held(self, num_tokens: int) -> int:
        """How many tokens a sequence of ``num_tokens`` holds room for."""
        return self._max_model_len if self.reserves_all else num_tokens

    def take(self, sequence: Sequence, num_new_tokens: int) -> None:
        """Blocks for the next ``num_new_tokens`` of ``sequence``. NoFreeBlocks when the pool has too few."""
        first = sequence.num_computed_tokens
        copy = sequence.table.reserve(first, self.num_tokens_held(first + num_new_tokens))
        self._running.own_tail(sequence)
        if copy is not None:
            self._log.add(copy)


def num_forks(sequence: Sequence) -> int:
    """Samples that will fork from ``sequence`` when its prompt is computed."""
    return sequence.request.num_pending_forks if sequence.index == 0 else 0
