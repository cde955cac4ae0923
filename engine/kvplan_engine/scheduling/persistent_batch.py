"""The decoding sequences: one clock advances them all, so that a step visits only those that need something. No torch.

A decoding sequence computes one token in every step and gets one. So all of them advance in step, and when something
will happen to one of them is known as soon as it enters:

    phase   the ticks, modulo the block size, at which its last block is full and it needs another. With 256 sequences
            and blocks of 16 tokens, a step finds about 16 of them in the phase of its tick.
    ending  the tick at which it reaches its longest length.

These sequences have the first rows of the batch. When a row becomes empty, the last one moves there.
"""

from __future__ import annotations

from kvplan_engine.requests.request import STOPPED_CLOCK, Sequence, StepClock


class PersistentBatch:
    """Sequences that each compute exactly one token per step, in rows without gaps.

    sequences, token_ids: by row; token_ids are the sequences' own lists. fresh: rows that hold a different sequence
    than in the last step.
    """

    def __init__(self, block_size: int) -> None:
        self.clock = StepClock()
        self.sequences: list[Sequence] = []
        self.token_ids: list[list[int]] = []
        self.fresh: set[int] = set()
        self._block_size = block_size
        self._phases: list[dict[Sequence, None]] = [{} for _ in range(block_size)]
        self._endings: dict[int, dict[Sequence, None]] = {}

    def __len__(self) -> int:
        return len(self.sequences)

    def enter(self, sequence: Sequence) -> None:
        """Give ``sequence``, which has one token to compute and shares no last block, the next row."""
        sequence.row = len(self.sequences)
        self.sequences.append(sequence)
        self.token_ids.append(sequence.token_ids)
        self.fresh.add(sequence.row)
        self._phases[self._phase(sequence)][sequence] = None
        self._endings.setdefault(self._ending(sequence), {})[sequence] = None
        sequence.follow(self.clock)

    def leave(self, sequence: Sequence) -> None:
        """Empty the row of ``sequence``; the last row moves there."""
        sequence.follow(STOPPED_CLOCK)
        row, last, last_token_ids = sequence.row, self.sequences.pop(), self.token_ids.pop()
        self.fresh.discard(last.row)
        if last is not sequence:
            self.sequences[row], self.token_ids[row], last.row = last, last_token_ids, row
            self.fresh.add(row)
        sequence.row = -1
        sequence.last_token_seconds = self.clock.token_seconds
        del self._phases[self._phase(sequence)][sequence]
        ending = self._ending(sequence)
        del self._endings[ending][sequence]
        if not self._endings[ending]:
            del self._endings[ending]

    def take_fresh(self) -> list[int]:
        """The fresh rows, in order; from here on none is fresh."""
        fresh = sorted(self.fresh)
        self.fresh.clear()
        return fresh

    @property
    def at_border(self) -> list[Sequence]:
        """Sequences whose computed tokens fill whole blocks, so that they need another."""
        return list(self._phases[self.clock.ticks % self._block_size])

    @property
    def at_end(self) -> list[Sequence]:
        """Sequences that have reached their longest length, tokens on their way included."""
        return list(self._endings.get(self.clock.ticks, ()))

    def _phase(self, sequence: Sequence) -> int:
        """The ticks, modulo the block size, at which ``sequence`` (in a row or not) stands at a block's border."""
        return (self.clock.ticks - sequence.num_computed_tokens) % self._block_size

    def _ending(self, sequence: Sequence) -> int:
        return self.clock.ticks + sequence.max_num_tokens - sequence.num_tokens

    def check(self) -> None:
        """Assert that every sequence is in its row, phase and ending."""
        assert len(self.token_ids) == len(self.sequences), "rows"
        assert all(row < len(self) for row in self.fresh), "a fresh row does not exist"
        for row, sequence in enumerate(self.sequences):
            assert sequence.row == row, "a sequence is in another row"
            assert self.token_ids[row] is sequence.token_ids, "somebody else's tokens"
            assert sequence in self._phases[self._phase(sequence)], "a sequence is out of phase"
            assert sequence in self._endings[self._ending(sequence)], "a sequence would end at another time"
            assert sequence.num_tokens - sequence.num_computed_tokens == 1, "a row does not have one token to compute"
        assert sum(map(len, self._phases)) == len(self), "phases"
        assert sum(map(len, self._endings.values())) == len(self), "endings"
