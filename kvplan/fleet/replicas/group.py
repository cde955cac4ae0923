"""The sequences of one group of a replica between two steps, over a pool that counts every block.

Sequences that decode take a block each time they have filled one. In which of every so many steps a sequence does is
its *phase*; the sum over phases says how many blocks any number of steps takes, so that steps need not be taken one by
one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Final

from kvplan.estimate.speed.queueing.instance import Group, Sequence
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.fleet.replicas.lanes import Lane
from kvplan.fleet.replicas.pool import BlockPool, Held, Match
from kvplan.fleet.replicas.seen import Seen

_BOUNDLESS: Final = 1 << 60


class BlockSequence(Sequence):
    """A request in a pool. given: tokens of its prompt whose KV comes from elsewhere. match: what was found of it when
    it was looked up last. order: who was admitted before whom."""

    __slots__ = ("given", "held", "is_new", "match", "order", "seen")

    def __init__(self, seen: Seen, given: int, num_lanes: int) -> None:
        request = seen.request
        super().__init__(seen, request.number, request.num_prompt_tokens, num_left=request.num_output_tokens)
        self.seen, self.given = seen, given
        self.held = Held(request, num_lanes)
        self.match: Match | None = None
        self.order = 0
        self.is_new = True


class BlockGroup(Group):
    """``pool``: of this group."""

    def __init__(self, pool: BlockPool, rules: SchedulingRules) -> None:
        late = int(rules.streams_late > 0)
        super().__init__(pool.num_blocks, 0, late, None, rules.rows_per_sequence, rules.tokens_per_step)
        self.pool, self._rules = pool, rules
        self._taken_ticks = 0
        self._even = rules.tokens_per_step == 1 and rules.rows_per_sequence == 1
        sizes = {lane.size for lane in pool.lanes if lane.kind != "fixed"}
        self._phases: dict[int, Counter[int]] = {size: Counter() for size in sizes}
        self._weights = {size: sum(lane.weight for lane in pool.lanes if lane.size == size) for size in sizes}
        self._passing = [lane for lane in pool.lanes if lane.kind in ("sliding", "chunked", "state")]
        self._in_order = any(lane.leaves_blanks for lane in pool.lanes)
        self._decoding: dict[BlockSequence, None] = {}
        self._num_started = 0
        self._drafted: dict[BlockSequence, int] = {}
        #: of those that are read, where the next step has its blocks already (``_compose_in_order``)
        self._chunks: dict[Sequence, int] | None = None

    # ---- admission

    def look_up(self, sequence: Sequence) -> None:
        """What the pool has of ``sequence``, which waits."""
        assert isinstance(sequence, BlockSequence)
        match = self.pool.find(sequence.held.runs, sequence.known)
        sequence.match = match
        sequence.found = max(match.num_tokens, min(sequence.given, sequence.known - 1))

    def next_chunk(self, sequence: Sequence, budget: int) -> int:
        """See ``Group``; where the step was composed in order already, what was taken then."""
        return super().next_chunk(sequence, budget) if self._chunks is None else self._chunks[sequence]

    def clipped(self, sequence: Sequence, begun: int, number: int) -> int:
        """See ``Group``: models with states read prompts up to places whose state is kept."""
        size = self.pool.state_tokens
        if not size or not number:
            return number
        assert isinstance(sequence, BlockSequence)
        return _whole_states(sequence, begun, number, size, self._rules.max_num_batched_tokens, self.pool)

    def has_room(self, rules: SchedulingRules, sequence: Sequence, num_new: int) -> bool:
        """See ``Group``; the pool holds the longest request alone."""
        assert isinstance(sequence, BlockSequence) and sequence.match is not None
        begun = sequence.found
        if rules.reserves:
            to_come = int(rules.reserves * (self.num_to_come + sequence.num_left))
            known = sequence.known + to_come
        else:
            known = sequence.known
        return self.pool.is_room(sequence.held, sequence.match, begun, begun + num_new, known)

    def start(self, sequence: Sequence) -> None:
        """See ``Group``."""
        assert isinstance(sequence, BlockSequence) and sequence.match is not None
        super().start(sequence)
        self.pool.start(sequence.held, sequence.match)
        self._num_started += 1
        sequence.order = self._num_started
        if sequence.is_new:
            sequence.seen.num_hit_tokens = sequence.match.num_tokens
            sequence.is_new = False
        sequence.match = None

    def reserve(self, sequence: Sequence, number: int) -> None:
        """See ``Group``."""
        assert isinstance(sequence, BlockSequence)
        if self._chunks is None or sequence not in self._chunks:
            self.pool.grow(sequence.held, sequence.computed, sequence.computed + number)

    def compose(self) -> None:
        """Compose a step: those that decode are before prompts, and take their blocks first."""
        if self._chunks is None:
            self._take_until(self.ticks + 1)
            self.pool.begin_step()

    # ---- decoding

    def decode(self, ticks: int) -> None:
        """See ``Group``."""
        self._take_until(self.ticks + ticks)
        super().decode(ticks)

    def passed(self, ticks: int) -> None:
        """``ticks`` of the steps under way have begun: take the blocks of these."""
        self._take_until(self.ticks + ticks)

    def _take_until(self, tick: int) -> None:
        """Blocks that decoding takes in the steps before ``tick``, and lets go behind windows."""
        begun = self._taken_ticks
        if tick <= begun or not self._decoding:
            return
        self._taken_ticks = tick
        if self._in_order:
            self._take_in_order(begun, tick)
            return
        self.pool.queue.take(self._blocks_between(begun, tick))
        if self._passing:
            self._let_pass(begun, tick)

    def _take_in_order(self, begun: int, tick: int) -> None:
        """What decoding lets go and takes, in the order in which steps do: some of the former is taken first."""
        events: list[tuple[int, int, int, BlockSequence, int, int]] = []
        taking = len(self._passing)
        for sequence in self._decoding:
            since = max(begun, sequence.start_tick)
            for number, lane in enumerate(self._passing):
                events.extend(self._passes(sequence, number, lane, since, tick))
            events.extend(self._takes(sequence, taking, since, tick))
        events.sort(key=lambda event: event[:3])
        for _, _, number, sequence, first, computed in events:
            if number == taking:
                self.pool.queue.take(first)
            else:
                self.pool.pass_block(sequence.held, self._passing[number], first, computed)

    def _takes(
        self, sequence: BlockSequence, number: int, begun: int, tick: int
    ) -> Iterator[tuple[int, int, int, BlockSequence, int, int]]:
        """The blocks that ``sequence`` takes in the steps from ``begun`` to before ``tick``."""
        before = self._tokens_at(sequence, begun) if self._even else self._drafted[sequence]
        after = self._tokens_at(sequence, tick - 1) + self._rows
        for size, weight in self._weights.items():
            for block in range(-(-before // size), -(-after // size)):
                ahead = block * size + 1 - self._rows - sequence.known
                at = sequence.start_tick + math.ceil(ahead / self._tokens_per_step)
                yield max(at, begun), sequence.order, number, sequence, weight, 0
        if not self._even:
            self._drafted[sequence] = max(before, after)

    def _blocks_between(self, begun: int, tick: int) -> int:
        if not self._even:
            return self._drafted_blocks(tick)
        blocks = 0
        for size, phases in self._phases.items():
            cycles, rest = divmod(tick - begun, size)
            count = cycles * len(self._decoding)
            if rest:
                first = begun % size
                last = first + rest
                if last <= size:
                    count += sum(number for phase, number in phases.items() if first <= phase < last)
                else:
                    last -= size
                    count += sum(number for phase, number in phases.items() if phase >= first or phase < last)
            blocks += count * self._weights[size]
        return blocks

    def _drafted_blocks(self, tick: int) -> int:
        """With several tokens in a step: blocks for what is drafted, too."""
        blocks = 0
        for sequence in self._decoding:
            before, after = self._drafted[sequence], self._tokens_at(sequence, tick - 1) + self._rows
            if after > before:
                blocks += sum(
                    weight * (-(-after // size) - -(-before // size)) for size, weight in self._weights.items()
                )
                self._drafted[sequence] = after
        return blocks

    def _tokens_at(self, sequence: BlockSequence, tick: int) -> int:
        """Tokens of ``sequence`` in the pool before the decode step of ``tick``."""
        return sequence.known + int(self._tokens_per_step * (tick - sequence.start_tick))

    def _let_pass(self, begun: int, tick: int) -> None:
        """Blocks behind windows, and states, in the order in which steps let them go."""
        events: list[tuple[int, int, int, BlockSequence, int, int]] = []
        for sequence in self._decoding:
            for number, lane in enumerate(self._passing):
                events.extend(self._passes(sequence, number, lane, max(begun, sequence.start_tick), tick))
        events.sort(key=lambda event: event[:3])
        for _, _, number, sequence, first, computed in events:
            self.pool.pass_block(sequence.held, self._passing[number], first, computed)

    def _passes(
        self, sequence: BlockSequence, number: int, lane: Lane, begun: int, tick: int
    ) -> list[tuple[int, int, int, BlockSequence, int, int]]:
        """Each block that ``sequence`` lets go in the steps from ``begun`` to before ``tick``."""
        holding = sequence.held.holdings[self.pool.lanes.index(lane)]
        last = self._tokens_at(sequence, tick - 1)
        found = []
        at_once = lane.first_needed(self._tokens_at(sequence, begun))
        if at_once > holding.first + 1 and (lane.kind != "state" or at_once < holding.num_blocks):
            computed = self._tokens_at(sequence, begun)
            found.append((begun, sequence.order, number, sequence, at_once, computed))
        else:
            at_once = holding.first
        first = at_once
        while first < lane.first_needed(last):
            needs = lane.tokens_that_need(first + 1)
            first = lane.first_needed(needs)
            at = sequence.start_tick + math.ceil((needs - sequence.known) / self._tokens_per_step)
            found.append((max(at, begun), sequence.order, number, sequence, first, needs))
        return found

    def steps_that_fit(self) -> int:
        """See ``Group``. What steps let go meanwhile is not counted, so that there may be more."""
        total = sum(self._weights.values()) * len(self._decoding)
        if not total:
            return _BOUNDLESS
        if self.waiting and not self.may_admit:
            return 1  # what was preempted may come back in the step after that
        free, begun = self.pool.queue.num_free, self._taken_ticks
        if not self._even:
            tokens = (free // total - 1) * min(self._weights) - self._rows
            return max(int(tokens / self._tokens_per_step), 1)
        low = max((free // total - 1) * min(self._weights), 0)
        high = min(self.steps_to_next_end, (free // total + 1) * max(self._weights))
        if self._passing and self.waiting:
            high = min(high, self._next_passing() - begun)
            low = min(low, high)
        while low < high:
            middle = (low + high + 1) // 2
            if self._blocks_between(begun, begun + middle) <= free:
                low = middle
            else:
                high = middle - 1
        return max(low + begun - self.ticks, 1)

    def _next_passing(self) -> int:
        """The tick of the first step that lets go a block, which may be enough for one that waits."""
        found = _BOUNDLESS
        for sequence in self._decoding:
            for lane in self._passing:
                first = sequence.held.holdings[self.pool.lanes.index(lane)].first + 1
                tokens = lane.tokens_that_need(first) - sequence.known
                at = sequence.start_tick + math.ceil(tokens / self._tokens_per_step)
                found = min(found, max(at, self._taken_ticks))
        return found

    def first_token(self, sequence: Sequence) -> None:
        """See ``Group``."""
        assert isinstance(sequence, BlockSequence)
        super().first_token(sequence)
        self._taken_ticks = max(self._taken_ticks, self.ticks)
        self._decoding[sequence] = None
        if not self._even:
            self._drafted[sequence] = sequence.known
        for size, phases in self._phases.items():
            phases[(sequence.start_tick - sequence.known) % size] += 1
        ahead = self._taken_ticks - self.ticks
        if ahead:  # the next step's blocks were taken before it began to decode
            self.pool.queue.take(sum(weight for size, weight in self._weights.items() if sequence.known % size == 0))

    # ---- leaving

    def take_ended(self, streamed: float) -> list[Sequence]:
        """See ``Group``."""
        if not self._ends or self._ends[0][0] > self.ticks:
            return []
        ended = super().take_ended(streamed)
        for sequence in ended:
            assert isinstance(sequence, BlockSequence)
            request = sequence.seen.request
            taken = self._stop_decoding(sequence)
            held = request.num_prompt_tokens + request.num_output_tokens - 1
            asked = request.answer_key is not None
            self.pool.release(sequence.held, held, max(taken, held), may_be_found=asked)
        return ended

    def _stop_decoding(self, sequence: BlockSequence) -> int:
        """Return the tokens for which it has taken blocks."""
        del self._decoding[sequence]
        for size, phases in self._phases.items():
            phase = (sequence.start_tick - sequence.known) % size
            phases[phase] -= 1
            if not phases[phase]:
                del phases[phase]
        if not self._even:
            return self._drafted.pop(sequence)
        return sequence.known + self._taken_ticks - sequence.start_tick

    def make_room(self) -> None:
        """The newest are preempted while the next step's blocks are more than are free, and nobody joins it.

        Sequences let go and take their blocks in the order in which they were admitted (vllm/v1/core/sched/
        scheduler.py). That is done one by one only where it shows: where blocks are short, or a prompt that is read
        stands before a sequence that decodes.
        """
        self.may_admit, self._chunks = True, None
        if self._reads_amid() or self._next_blocks() > self.pool.queue.num_free:
            self._compose_in_order()

    def _reads_amid(self) -> bool:
        """Whether others were admitted behind a prompt that is read in whole states, and decode already."""
        if not self.pool.state_tokens or not self.reading:
            return False
        first = self.reading[0]
        assert isinstance(first, BlockSequence)
        return any(each.order > first.order for each in self._decoding)

    def _compose_in_order(self) -> None:
        order = self._order = [each for each in self._order if each.is_running]
        self.pool.begin_step()
        self._chunks, place, budget = {}, 0, self._rules.max_num_batched_tokens
        while place < len(order):
            sequence = order[place]
            assert isinstance(sequence, BlockSequence)
            number = self._coming_tokens(sequence, budget)
            if number:
                self._leave_behind(sequence)
            while self._blocks_of(sequence, number) > self.pool.queue.num_free:
                self._preempt(order[-1])
                self.may_admit = False
                if order.pop() is sequence:
                    break
            else:
                self._take(sequence, number)
                budget -= number
                place += 1
        if self._decoding:
            self._taken_ticks = self.ticks + 1

    def _coming_tokens(self, sequence: BlockSequence, budget: int) -> int:
        """What the next step computes of ``sequence``."""
        if sequence in self._decoding:
            return self._rows
        missing = min(sequence.known - sequence.computed, budget)
        return max(self.clipped(sequence, sequence.computed, missing), 0)

    def _take(self, sequence: BlockSequence, number: int) -> None:
        """The blocks of the next step."""
        if sequence not in self._decoding:
            assert self._chunks is not None
            self._chunks[sequence] = number
            if number:
                self.pool.grow(sequence.held, sequence.computed, sequence.computed + number)
        elif self._taken_ticks <= self.ticks:
            takes = self._takes(sequence, 0, self.ticks, self.ticks + 1)
            self.pool.queue.take(sum(weight for *_, weight, _ in takes))

    def _leave_behind(self, sequence: Sequence) -> None:
        assert isinstance(sequence, BlockSequence)
        if sequence not in self._decoding:
            self.pool.leave_behind(sequence.held, sequence.computed)
            return
        for number, lane in enumerate(self._passing):
            for _, _, _, _, first, computed in self._passes(sequence, number, lane, self.ticks, self.ticks + 1):
                self.pool.pass_block(sequence.held, lane, first, computed)

    def _next_blocks(self) -> int:
        ahead = self._taken_ticks > self.ticks
        needed = 0 if ahead or not self._decoding else self._peeked(self.ticks + 1)
        budget = self._rules.max_num_batched_tokens - self._rows * self.num_decoding
        for sequence in self.reading:
            assert isinstance(sequence, BlockSequence)
            number = self._coming_tokens(sequence, budget)
            needed += self._blocks_of(sequence, number)
            budget -= number
        return needed

    def _peeked(self, tick: int) -> int:
        if self._even:
            return self._blocks_between(self._taken_ticks, tick)
        return sum(self._blocks_of(sequence, self._rows) for sequence in self._decoding)

    def _blocks_of(self, sequence: BlockSequence, number: int) -> int:
        """What the next step takes for it, which computes ``number`` tokens of it."""
        if sequence not in self._decoding:
            return self.pool.needed(sequence.held, sequence.computed, sequence.computed + number)
        if self._taken_ticks > self.ticks:
            return 0
        if self._even:
            tokens = self._tokens_at(sequence, self.ticks)
            return sum(weight for size, weight in self._weights.items() if tokens % size == 0)
        before, after = self._drafted[sequence], self._tokens_at(sequence, self.ticks) + self._rows
        return sum(weight * max(-(-after // size) - -(-before // size), 0) for size, weight in self._weights.items())

    def _preempt(self, sequence: Sequence) -> None:
        assert isinstance(sequence, BlockSequence)
        tokens = taken = sequence.computed
        if sequence in self._decoding:
            tokens = self._tokens_at(sequence, self.ticks)
            taken = self._stop_decoding(sequence)
        super()._preempt(sequence)
        self.pool.release(sequence.held, tokens, max(taken, tokens), may_be_found=True)
        sequence.held = Held(sequence.seen.request, len(self.pool.lanes), sequence.known)
        sequence.given = 0
        sequence.seen.num_preemptions += 1


def _whole_states(
    sequence: BlockSequence, begun: int, number: int, size: int, chunk_tokens: int, pool: BlockPool
) -> int:
    """Tokens that a chunk of ``number`` has so that it ends where a state is kept, 0 where the budget is too small
    (vllm/v1/core/sched/scheduler.py, _mamba_block_aligned_split). What begins within a block is cut in any case, as no
    kernel writes a state on its way then (vllm/v1/kv_cache_interface.py, is_mamba_prefill_checkpoint_valid)."""
    request = sequence.seen.request
    prefill_end = max(request.num_prompt_tokens, sequence.known - 1)
    if begun >= prefill_end:
        return number
    last_kept = (sequence.known - 1) // size * size
    if pool.layout.drops_a_block:
        last_kept = max(sequence.known // size - 1, 0) * size
    end = begun + number
    exports = (
        pool.layout.exports_states and end >= prefill_end and not begun % size and (end - 1) // size * size > begun
    )
    if end < prefill_end:
        aligned = end // size * size
        if aligned > begun or size <= chunk_tokens:
            end = aligned
    match = sequence.match
    junction = sequence.held.junction
    if match is not None and pool.layout.pins_shared_prefixes and match.longest > match.num_tokens:
        junction = match.longest
    floored = begun + (junction - begun) // size * size
    stops = (
        (begun // size + 1) * size if begun % size and not exports else 0,
        0 if exports else last_kept,
        floored if begun < junction < end else 0,
    )
    return max(min((stop for stop in stops if begun < stop < end), default=end) - begun, 0)
