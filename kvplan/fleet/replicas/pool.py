"""The blocks of a replica's KV cache: who holds them, what is found again, what is evicted.

vLLM's rules, block for block, read in 0.32.0 and 0.33.0 (vllm/v1/core: block_pool.py, kv_cache_manager.py,
kv_cache_coordinator.py, single_type_kv_cache_manager.py), which differ in one of these: behind a junction, 0.33.0 alone
keeps windows for drafters that drop a block.

* A request looks up all its tokens but the last, and holds what it finds. Kinds of layers agree on a length of which
  all their blocks are parts (find_longest_cache_hit).
* It is admitted where all of its prompt would fit, blocks that it finds and nobody holds among them; then it takes
  blocks for the chunk it reads (allocate_slots, full_sequence_must_fit).
* Blocks are found by others as soon as a step is composed that fills them (cache_blocks), by two requests that fill
  the same ones each has its own, of which the first is found (BlockHashToBlockMap).
* A request that ends lets go its blocks one kind of layer after the other, deepest first; those that are not full are
  taken first, and those of windows and states that are not kept (see ``kept``), the others when all before them are
  (free_blocks).

Two things are simpler: blocks that answers fill are found by others when the answer has ended, not while it goes on;
and of several groups of one kind that have copies of a block, the others follow the first group in which one is held.
"""

from __future__ import annotations

from kvplan.fleet.replicas.extents import FreeQueue, LaneHolding
from kvplan.fleet.replicas.kept import resumed_at
from kvplan.fleet.replicas.lanes import ENDLESS, Lane, Piece
from kvplan.fleet.replicas.setup import PoolLayout
from kvplan.fleet.requests import FleetRequest, TokenRun


class Held:
    """One request in a pool. runs: of its prompt and of its answer. holdings: one for each lane. prefill_end: tokens
    that are read as a prompt is; of one that was preempted what it had of its answer, too."""

    __slots__ = ("holdings", "is_asked_again", "junction", "num_prompt_tokens", "prefill_end", "runs")

    def __init__(self, request: FleetRequest, num_lanes: int, num_known: int = 0) -> None:
        self.runs = runs_in_hand(request)
        self.num_prompt_tokens = request.num_prompt_tokens
        self.prefill_end = max(request.num_prompt_tokens, num_known - 1)
        self.is_asked_again = request.answer_key is not None
        self.junction = 0
        self.holdings = [LaneHolding() for _ in range(num_lanes)]


class Match:
    """What was found of a request: tokens, and the pieces of each lane. longest: what one of the lanes has of it."""

    __slots__ = ("longest", "num_tokens", "pieces")

    def __init__(self, num_tokens: int, longest: int, pieces: list[list[Piece]]) -> None:
        self.num_tokens, self.longest, self.pieces = num_tokens, longest, pieces


class BlockPool:
    """The blocks of one data-parallel group. chunk_tokens: of a prompt in a step, at most.

    state_tokens: of a block whose state is kept, where there are any: prompts are read in whole ones then.
    """

    def __init__(self, layout: PoolLayout, chunk_tokens: int) -> None:
        self.layout = layout
        self.num_blocks = layout.num_blocks
        self.queue = FreeQueue(layout.num_blocks)
        self._alignment = layout.hit_tokens
        self.lanes = [Lane(group, self._alignment, self.queue, layout.retention_interval) for group in layout.groups]
        self._full_first = sorted(self.lanes, key=lambda lane: lane.kind != "full")
        self._chunk_tokens = chunk_tokens
        sizes = [lane.size for lane in self.lanes if lane.kind == "state"]
        self.state_tokens = max(sizes, default=0) if layout.caches_prefixes else 0

    def could_hold(self, num_tokens: int) -> bool:
        """Whether the pool, empty, has room for a request of so many tokens."""
        return self.blocks_for(num_tokens) <= self.num_blocks

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that admit a request of so many tokens to an empty pool."""
        return sum(self._new_blocks(lane, 0, num_tokens, is_whole=True) * lane.weight for lane in self.lanes)

    # ---- looking up

    def find(self, runs: list[TokenRun], num_tokens: int) -> Match:
        """What is there of ``num_tokens`` whose runs are ``runs``; the last one is always computed."""
        length, longest = self._agreed(runs, num_tokens - 1)
        if not length:
            return Match(0, longest, [[] for _ in self.lanes])
        pieces = [
            [] if lane.kind == "fixed" else lane.pieces(runs, lane.first_needed(length), length // lane.size)
            for lane in self.lanes
        ]
        return Match(length, longest, pieces)

    def num_found(self, runs: list[TokenRun], num_tokens: int) -> int:
        """The tokens alone."""
        return self._agreed(runs, num_tokens - 1)[0]

    def _agreed(self, runs: list[TokenRun], limit: int) -> tuple[int, int]:
        """(a length that all lanes can begin with, the longest that one of them could)."""
        if not self.layout.caches_prefixes or limit < self._alignment:
            return 0, 0
        longest = 0
        while True:
            length = limit
            for lane in self._full_first:
                length = lane.longest(runs, length)
                longest = max(longest, length)
            if length >= limit or not length:
                return length, longest
            limit = length

    # ---- room

    def is_room(self, held: Held, match: Match, num_computed: int, num_tokens: int, num_known: int) -> bool:
        """Whether a request fits that holds nothing yet: all of its ``num_known`` tokens, and those that the next step
        takes it to from ``num_computed`` on, beside what is found."""
        revived = whole = chunk = 0
        for lane, holding, pieces in zip(self.lanes, held.holdings, match.pieces, strict=True):
            if lane.kind == "state" and lane.is_fresh(pieces):
                return False
            revived += lane.weight * sum(end - begin for extent, begin, end in pieces if extent.is_free)
            begun = max(lane.first_needed(num_computed), match.num_tokens // lane.size)
            whole += lane.weight * self._new_blocks(lane, begun, num_known, is_whole=True)
            chunk += lane.weight * self._new_blocks(lane, begun, num_tokens)
            if lane.kind == "state":
                whole += lane.weight * (self._exported(lane, held, holding, num_computed, num_known) is not None)
                chunk += lane.weight * (self._exported(lane, held, holding, num_computed, num_tokens) is not None)
        return max(whole, chunk) + revived <= self.queue.num_free

    def _new_blocks(self, lane: Lane, num_before: int, num_tokens: int, *, is_whole: bool = False) -> int:
        if lane.kind == "fixed":
            return 1
        if lane.kind == "state":
            return min(max(-(-num_tokens // lane.size) - num_before, 0), 1)
        count = -(-num_tokens // lane.size)
        if is_whole and lane.kind == "sliding":
            count = min(count, -(-(lane.window - 1 + self._chunk_tokens) // lane.size) + 1)
        elif is_whole and lane.kind == "chunked":
            count = min(count, -(-(lane.window + self._chunk_tokens) // lane.size))
        return max(count - num_before, 0)

    def needed(self, held: Held, num_computed: int, num_tokens: int) -> int:
        """Blocks that a request takes to go on from ``num_computed`` to ``num_tokens``."""
        needed = 0
        for lane, holding in zip(self.lanes, held.holdings, strict=True):
            if lane.kind == "fixed":
                more = 1 - holding.num_blocks
            else:
                more = max(-(-num_tokens // lane.size) - holding.num_blocks, 0)
            if lane.kind == "state":
                more = min(more, 1) + (self._exported(lane, held, holding, num_computed, num_tokens) is not None)
            needed += more * lane.weight
        return needed

    def _exported(self, lane: Lane, held: Held, holding: LaneHolding, num_computed: int, num_tokens: int) -> int | None:
        """The block whose state a chunk writes on its way: the chunk that ends a prompt, or each one where states are
        kept elsewhere too (get_num_blocks_to_allocate of kv_cache_coordinator.py). It has to begin at an earlier
        block's end (vllm/v1/kv_cache_interface.py, is_mamba_prefill_checkpoint_valid)."""
        block = (num_tokens - 1) // lane.size - 1
        if num_computed % lane.size or block <= (num_computed - 1) // lane.size:
            return None
        ends = self.layout.retention_interval != 0 or num_computed < held.prefill_end <= num_tokens
        exports = self.layout.exports_states and self.layout.caches_prefixes and ends
        return block if exports and block >= holding.num_blocks else None

    # ---- a request's way

    def begin_step(self) -> None:
        """Another step is composed."""
        for lane in self.lanes:
            lane.fresh.clear()

    def start(self, held: Held, match: Match) -> None:
        """Hold what was found."""
        if match.longest > match.num_tokens and self.layout.pins_shared_prefixes:
            held.junction = match.longest
        for lane, holding, pieces in zip(self.lanes, held.holdings, match.pieces, strict=True):
            if lane.kind != "fixed":
                lane.hold(holding, pieces)
                holding.num_blocks = holding.num_full = match.num_tokens // lane.size
                holding.first = lane.first_needed(match.num_tokens)
            holding.places = self._places(lane, held)

    def _places(self, lane: Lane, held: Held) -> tuple[int, ...]:
        """Tokens at which others can go on from what ``held`` leaves. Where a drafter drops a block, those that went on
        differently do one block before the junction."""
        ends = resumed_at(held.num_prompt_tokens, self._alignment, drops_a_block=self.layout.drops_a_block)
        if not held.junction:
            return ends
        return (*ends, held.junction, held.junction - lane.size) if lane.drops else (*ends, held.junction)

    def grow(self, held: Held, num_computed: int, num_tokens: int) -> None:
        """A step is composed that takes ``held`` from ``num_computed`` to ``num_tokens``: blocks that these do not see
        are free before, those that are full can be found."""
        self.leave_behind(held, num_computed)
        self.queue.take(self.needed(held, num_computed, num_tokens))
        for lane, holding in zip(self.lanes, held.holdings, strict=True):
            if lane.kind == "fixed":
                holding.num_blocks = 1
            elif lane.kind == "state":
                self._grow_state(lane, held, num_computed, num_tokens)
            else:
                holding.num_blocks = max(holding.num_blocks, -(-num_tokens // lane.size))
                self._fill(lane, held, holding, num_tokens)

    def _fill(self, lane: Lane, held: Held, holding: LaneHolding, num_tokens: int) -> None:
        """What ``num_tokens`` fill can be found from now on."""
        full = lane.num_findable(num_tokens) if self.layout.caches_prefixes else 0
        if full > holding.num_full:
            lane.add(holding, held.runs, max(holding.num_full, holding.first), full)
            holding.num_full = full

    def _grow_state(self, lane: Lane, held: Held, num_computed: int, num_tokens: int) -> None:
        holding = held.holdings[self.lanes.index(lane)]
        exported = self._exported(lane, held, holding, num_computed, num_tokens)
        if exported is not None and lane.kept.has(exported, holding.places):
            lane.add(holding, held.runs, exported, exported + 1)
        elif exported is not None:
            holding.states.append(exported)  # what a request that comes back writes, where nobody goes on
        count = -(-num_tokens // lane.size)
        if count > holding.num_blocks:
            holding.num_blocks = count
            holding.states.append(count - 1)
        if num_tokens % lane.size == 0 and count - 1 in holding.states:
            self._keep_state(lane, held, holding, count - 1)

    def _keep_state(self, lane: Lane, held: Held, holding: LaneHolding, block: int) -> None:
        """The state after the whole of ``block`` is there."""
        if self.layout.caches_prefixes and lane.kept.has(block, holding.places):
            holding.states.remove(block)
            lane.add(holding, held.runs, block, block + 1)

    def leave_behind(self, held: Held, num_computed: int) -> None:
        """Let go what no token after ``num_computed`` others sees."""
        for lane, holding in zip(self.lanes, held.holdings, strict=True):
            if lane.kind in ("full", "fixed"):
                continue
            first = min(lane.first_needed(num_computed), holding.num_blocks)
            if first > holding.first:
                self._let_go_before(lane, holding, first)

    def pass_block(self, held: Held, lane: Lane, first: int, num_computed: int) -> None:
        """A request that decodes has ``num_computed`` tokens, and needs no block before ``first`` any more."""
        holding = held.holdings[self.lanes.index(lane)]
        if lane.kind == "state":
            for block in [block for block in holding.states if block < first]:
                self._keep_state(lane, held, holding, block)
            if first >= holding.num_blocks:
                holding.states.append(first)
                holding.num_blocks = first + 1
            self._let_go_before(lane, holding, first)
            return
        self._fill(lane, held, holding, num_computed)
        self._let_go_before(lane, holding, first)

    def _let_go_before(self, lane: Lane, holding: LaneHolding, first: int) -> None:
        gone, extents = [], holding.extents
        while extents and extents[0].first < first:
            extent = extents[0]
            if extent.last > first:
                lane.split(extent, first)
            gone.append(extents.pop(0))
        count = lane.let_go(holding, gone[::-1])
        if lane.kind == "state":
            left = [block for block in holding.states if block >= first]
            self.queue.free_blank((len(holding.states) - len(left)) * lane.weight)
            holding.states = left
        else:
            self.queue.free_blank((first - holding.first - count) * lane.weight)
        holding.first = first

    def release(self, held: Held, num_tokens: int, num_taken: int, *, may_be_found: bool) -> None:
        """A request with ``num_tokens`` in the pool leaves, which had taken blocks for ``num_taken``. may_be_found:
        somebody may ask for what its answer filled."""
        for lane, holding in zip(self.lanes, held.holdings, strict=True):
            if lane.kind == "fixed":
                self.queue.free_blank(holding.num_blocks * lane.weight)
            elif lane.kind == "state":
                self._release_state(lane, held, holding, num_tokens, num_taken, may_be_found=may_be_found)
            else:
                self._release(lane, held, holding, num_tokens, num_taken, may_be_found=may_be_found)

    def _release(
        self, lane: Lane, held: Held, holding: LaneHolding, num_tokens: int, num_taken: int, *, may_be_found: bool
    ) -> None:
        taken = max(-(-num_taken // lane.size), holding.num_blocks)
        full = lane.num_findable(num_tokens) if self.layout.caches_prefixes else 0
        begin = max(holding.num_full, holding.first)
        junk = 0
        if full > begin:
            if may_be_found:
                lane.add(holding, held.runs, begin, full)
            else:
                junk = lane.num_kept(holding, begin, full)
        count = sum(extent.last - extent.first for extent in holding.extents)
        self.queue.free_blank((taken - holding.first - count - junk) * lane.weight)
        if junk:
            self.queue.free_junk(junk * lane.weight)
        lane.let_go(holding, holding.extents[::-1])
        holding.extents.clear()

    def _release_state(
        self, lane: Lane, held: Held, holding: LaneHolding, num_tokens: int, num_taken: int, *, may_be_found: bool
    ) -> None:
        just_begun = max(-(-num_taken // lane.size) - holding.num_blocks, 0)
        blank = len(holding.states) + just_begun
        for block in holding.states:
            is_kept = self.layout.caches_prefixes and lane.kept.has(block, holding.places)
            if is_kept and (block + 1) * lane.size <= num_tokens:
                blank -= 1
                if may_be_found:
                    lane.add(holding, held.runs, block, block + 1)
                else:
                    self.queue.free_junk(lane.weight)
        self.queue.free_blank(blank * lane.weight)
        lane.let_go(holding, holding.extents[::-1])
        holding.extents.clear()


def runs_in_hand(request: FleetRequest) -> list[TokenRun]:
    """The runs of a request's prompt and answer. What nobody else has is one run to its end."""
    own = -1 - request.number if request.answer_key is None else request.answer_key
    runs = list(request.runs)
    if runs and runs[-1].key == own:
        runs.pop()
    return [*runs, TokenRun(own, ENDLESS)]
