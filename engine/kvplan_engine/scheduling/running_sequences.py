"""The running sequences. No torch.

An ordered set that keeps its own sums, so that a step needs to visit only the sequences that have something to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from kvplan_engine.config import EngineConfig
from kvplan_engine.requests.request import AdapterKey, Request, Sequence
from kvplan_engine.scheduling.persistent_batch import PersistentBatch


class RunningSequences:
    """Sequences that hold blocks, oldest first; leaving from the middle costs O(1).

    decoding: those that compute one token per step; others: all the rest, in order. A sequence enters among the others.
    num_tokens: their computed tokens. shared_tails: those whose last block, or state, is shared: they need one of their
    own before they write to it. A sequence from which samples will fork keeps seats for them.
    num_needing_details, num_with_stop_strings, num_not_plainly_greedy, num_needing_values, num_penalised: how many
    belong to a request with ``needs_token_details``, with stop strings, without ``is_plainly_greedy``, with
    ``needs_values``, with penalties. stop_ids: the tokens that may end one of them.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.decoding = PersistentBatch(config.block_size)
        self.others: dict[Sequence, None] = {}
        self.num_tokens = 0
        self.shared_tails: set[Sequence] = set()
        self.num_needing_details = 0
        self.num_with_stop_strings = 0
        self.num_not_plainly_greedy = 0
        self.num_needing_values = 0
        self.num_penalised = 0
        self.stop_ids: frozenset[int] = frozenset()
        self._max_num_seqs = config.max_num_seqs
        self._max_loras = config.max_loras
        self._adapters: Counter[AdapterKey] = Counter()
        self._stop_sets: Counter[frozenset[int]] = Counter()
        self._sequences: dict[Sequence, None] = {}
        self._num_kept_seats = 0

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def newest(self) -> Sequence:
        return next(reversed(self._sequences))

    def has_seat(self, sequence: Sequence) -> bool:
        """Whether ``sequence``, with the samples that will fork from it, may run beside the others."""
        return len(self._sequences) + self._num_kept_seats + 1 + num_forks(sequence) <= self._max_num_seqs

    @property
    def has_adapters(self) -> bool:
        """Whether some of the sequences have an adapter."""
        return bool(self._adapters)

    def has_slot(self, request: Request) -> bool:
        """Whether the adapter of ``request`` has a slot beside those of the running sequences."""
        adapter = request.adapter
        return adapter is None or adapter in self._adapters or len(self._adapters) < self._max_loras

    def enter(self, sequence: Sequence) -> None:
        self._sequences[sequence] = self.others[sequence] = None
        self.num_tokens += sequence.num_computed_tokens
        self._num_kept_seats += num_forks(sequence)
        self._count(sequence.request, 1)

    def leave(self, sequence: Sequence) -> None:
        del self._sequences[sequence]
        if sequence.row >= 0:
            self.decoding.leave(sequence)
        else:
            del self.others[sequence]
        self.num_tokens -= sequence.num_computed_tokens
        self._num_kept_seats -= num_forks(sequence)
        self._count(sequence.request, -1)
        self.end_tail_sharing(sequence)

    def _count(self, request: Request, change: int) -> None:
        self.num_needing_details += change * request.needs_token_details
        self.num_with_stop_strings += change * request.has_stop_strings
        self.num_not_plainly_greedy += change * (not request.is_plainly_greedy)
        self.num_needing_values += change * request.needs_values
        self.num_penalised += change * request.params.has_penalties
        if request.adapter is not None:
            self._count_adapter(request.adapter, change)
        number = self._stop_sets[request.stop_ids]
        self._stop_sets[request.stop_ids] += change
        if not number or not number + change:
            self._stop_sets = +self._stop_sets
            self.stop_ids = frozenset().union(*self._stop_sets)

    def _count_adapter(self, adapter: AdapterKey, change: int) -> None:
        self._adapters[adapter] += change
        if not self._adapters[adapter]:
            del self._adapters[adapter]

    # ---- decoding or not

    def start_decoding(self, sequence: Sequence) -> None:
        """``sequence`` computes one token per step from here on."""
        del self.others[sequence]
        self.decoding.enter(sequence)

    def stop_decoding(self, sequence: Sequence) -> None:
        """``sequence`` keeps running, but among the others."""
        self.decoding.leave(sequence)
        self.others[sequence] = None

    def newest_decoding(self, number: int) -> list[Sequence]:
        """The newest ``number`` of the decoding sequences."""
        return list(islice((sequence for sequence in reversed(self._sequences) if sequence.row >= 0), number))

    # ---- forks

    def fork(self, sequence: Sequence, index: int) -> Sequence:
        """A sibling of ``sequence`` on the same blocks. It does not use up a kept seat: see ``use_kept_seat``."""
        child = sequence.fork(index)
        self._sequences[child] = self.others[child] = None
        self.num_tokens += child.num_computed_tokens
        self._count(child.request, 1)
        self.shared_tails.update((sequence, child))
        return child

    def use_kept_seat(self) -> None:
        """A sample that a seat was kept for now runs."""
        self._num_kept_seats -= 1

    def begin_tail_sharing(self, sequence: Sequence) -> None:
        """Others, or the prefix cache, need what ``sequence`` would write to next."""
        sequence.has_shared_tail = True
        self.shared_tails.add(sequence)

    def end_tail_sharing(self, sequence: Sequence) -> None:
        """``sequence`` now owns what it writes to, or has given it back."""
        if sequence.has_shared_tail:
            sequence.has_shared_tail = False
            self.shared_tails.discard(sequence)

    def check(self) -> None:
        """Assert that the sums are right."""
        assert len(self) + self._num_kept_seats <= self._max_num_seqs, "more sequences run than max_num_seqs"
        assert self._num_kept_seats == sum(num_forks(sequence) for sequence in self), "kept seats"
        assert self.num_tokens == sum(sequence.num_computed_tokens for sequence in self), "running tokens"
        assert self.shared_tails == {sequence for sequence in self if sequence.has_shared_tail}, "shared tails"
        assert {*self.decoding.sequences, *self.others} == set(self), "a sequence neither decodes nor is another"
        assert len(self.decoding) + len(self.others) == len(self), "a sequence decodes and is among the others"
        requests = [sequence.request for sequence in self]
        assert self.num_needing_details == sum(request.needs_token_details for request in requests), "needing details"
        assert self.num_with_stop_strings == sum(request.has_stop_strings for request in requests), "stop strings"
        assert self.num_not_plainly_greedy == sum(not r.is_plainly_greedy for r in requests), "not plainly greedy"
        assert self.num_needing_values == sum(request.needs_values for request in requests), "needing values"
        assert self.num_penalised == sum(request.params.has_penalties for request in requests), "penalised"
        adapters = Counter(request.adapter for request in requests if request.adapter is not None)
        assert self._adapters == adapters and len(adapters) <= self._max_loras, "adapters of running sequences"
        assert self.stop_ids == frozenset().union(*(request.stop_ids for request in requests)), "stop tokens"
        self.decoding.check()


def num_forks(sequence: Sequence) -> int:
    """Samples that will fork from ``sequence`` when its prompt is computed."""
    return sequence.request.num_pending_forks if sequence.index == 0 else 0
