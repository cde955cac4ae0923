"""vLLM's block pool and scheduler, one block and one step at a time: the slow twin of ``kvplan.fleet.replicas``.

Written from vllm/v1/core (block_pool.py, single_type_kv_cache_manager.py, kv_cache_coordinator.py, kv_cache_manager.py,
sched/scheduler.py) of 0.33.0, as plainly as they go: every group has blocks of its own, every block is an object.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from math import lcm

from kvplan.fleet.replicas.setup import CacheGroup, PoolLayout
from kvplan.fleet.requests import FleetRequest

Name = tuple[int, int, int]
"""A group, a key, and a block's place: what its hash stands for."""


@dataclass(eq=False)
class Block:
    references: int = 0
    name: Name | None = None


@dataclass(eq=False)
class Table:
    """One request's blocks in one group; None where it has none any more."""

    blocks: list[Block | None] = field(default_factory=list)
    num_named: int = 0


@dataclass(eq=False)
class Going:
    request: FleetRequest
    num_tokens: int
    computed: int = 0
    tables: list[Table] = field(default_factory=list)
    junction: int = 0
    first: int = 0
    last: int = 0
    hit: int | None = None
    num_preemptions: int = 0

    def key(self, token: int) -> int:
        for run in self.request.runs:
            if token < run.end:
                return run.key
        own = self.request.answer_key
        return -1 - self.request.number if own is None else own


class SlowReplica:
    """One second is one step."""

    def __init__(self, layout: PoolLayout, max_num_seqs: int, budget: int) -> None:
        self.layout, self.max_num_seqs, self.budget = layout, max_num_seqs, budget
        self.groups = [group for group in layout.groups for _ in range(group.count)]
        self.alignment = lcm(*(group.block_size for group in self.groups))
        self.free: list[Block] = [Block() for _ in range(layout.num_blocks)]
        self.named: dict[Name, list[Block]] = {}
        self.waiting: deque[Going] = deque()
        self.running: list[Going] = []
        self.step_tokens: list[int] = []
        self.fresh: set[Name] = set()

    # ---- blocks

    def take(self, count: int) -> list[Block]:
        taken, self.free = self.free[:count], self.free[count:]
        for block in taken:
            if block.name is not None:
                self.named[block.name].remove(block)
                block.name = None
            block.references = 1
        return taken

    def let_go(self, blocks: list[Block]) -> None:
        first, last = [], []
        for block in blocks:
            block.references -= 1
            if not block.references:
                (first if block.name is None else last).append(block)
        self.free = first + self.free + last

    def touch(self, block: Block) -> None:
        if not block.references:
            self.free.remove(block)
        block.references += 1

    def find(self, group: int, going: Going, place: int) -> Block | None:
        size = self.groups[group].block_size
        alike = self.named.get((group, going.key((place + 1) * size - 1), place))
        return alike[0] if alike else None

    # ---- looking up

    def accepted(self, number: int, going: Going, limit: int) -> int:
        group = self.groups[number]
        size = group.block_size
        most = limit // size
        there = [self.find(number, going, place) is not None for place in range(most)]
        if group.kind == "full":
            length = there.index(False) if False in there else most
            return length * size // self.alignment * self.alignment
        if group.kind == "chunked":
            place = limit // (group.window_tokens or 0) * (group.window_tokens or 0) // size
            while place < most and there[place]:
                place += 1
            return place * size
        needed = 1 if group.kind == "state" else -(-((group.window_tokens or 0) - 1) // size)
        for length in range(most, 0, -1):
            if length * size % self.alignment:
                continue
            begin = max(length - needed, 0)
            if all(there[begin:length]) and (group.kind == "sliding" or there[length - 1]):
                return length * size
        return 0

    def look_up(self, going: Going) -> tuple[int, int]:
        if not self.layout.caches_prefixes:
            return 0, 0
        limit, longest = going.num_tokens - 1, 0
        order = sorted(range(len(self.groups)), key=lambda number: self.groups[number].kind != "full")
        while True:
            length = limit
            for number in order:
                length = self.accepted(number, going, length)
                longest = max(longest, length)
            if length >= limit or not length:
                return length, longest
            limit = length

    def skipped(self, group: CacheGroup, computed: int) -> int:
        window = group.window_tokens or 0
        if group.kind == "sliding":
            return max(computed - window + 1, 0) // group.block_size
        if group.kind == "chunked":
            return computed // window * window // group.block_size
        return max(computed - 1, 0) // group.block_size if group.kind == "state" else 0

    # ---- slots

    def needed(self, number: int, going: Going, hit: int, tokens: int, *, is_new: bool, is_whole: bool = False) -> int:
        group = self.groups[number]
        size = group.block_size
        required = -(-tokens // size)
        if is_whole and group.kind == "sliding":
            required = min(required, -(-((group.window_tokens or 0) - 1 + self.budget) // size) + 1)
        if is_whole and group.kind == "chunked":
            required = min(required, -(-((group.window_tokens or 0) + self.budget) // size))
        if not is_new:
            count = max(required - len(going.tables[number].blocks), 0)
            return (
                min(count, 1 + self.exports(number, going, going.computed, tokens)) if group.kind == "state" else count
            )
        skipped = self.skipped(group, hit)
        count = max(required - max(skipped, hit // size), 0)
        if group.kind == "state":
            count = min(count, 1 + self.exports(number, going, hit, tokens))
        found = [self.find(number, going, place) for place in range(skipped, hit // size)]
        if group.kind == "state" and found and found[-1] is not None and found[-1].name in self.fresh:
            return self.layout.num_blocks + 1
        return count + sum(block is not None and not block.references for block in found)

    def exports(self, number: int, going: Going, begun: int, tokens: int) -> bool:
        """_needs_internal_checkpoint: a step writes the state behind its last whole block, too."""
        size, prefill_end = self.groups[number].block_size, max(going.request.num_prompt_tokens, going.num_tokens - 1)
        place = -(-tokens // size) - 2
        if not self.layout.exports_states or not self.layout.caches_prefixes:
            return False
        if self.layout.retention_interval == 0 and not begun < prefill_end <= tokens:
            return False
        if begun % size or place <= (begun - 1) // size:
            return False
        blocks = going.tables[number].blocks if going.tables else []
        return place >= len(blocks) or blocks[place] is None

    def allocate(self, going: Going, hit: int, count: int) -> bool:
        is_new = not going.tables
        computed = hit if is_new else going.computed
        tokens = computed + count
        if is_new:
            whole = sum(
                self.needed(number, going, hit, going.num_tokens, is_new=True, is_whole=True)
                for number in range(len(self.groups))
            )
            if whole > len(self.free):
                return False
        else:
            for number, group in enumerate(self.groups):
                self.remove_skipped(going.tables[number], self.skipped(group, computed))
        wanted = sum(self.needed(number, going, hit, tokens, is_new=is_new) for number in range(len(self.groups)))
        if wanted > len(self.free):
            return False
        if is_new:
            self.adopt(going, hit)
        for number in range(len(self.groups)):
            self.extend(number, going, computed, tokens)
        if self.layout.caches_prefixes:
            for number in range(len(self.groups)):
                self.name_full(number, going, tokens)
        return True

    def adopt(self, going: Going, hit: int) -> None:
        for number, group in enumerate(self.groups):
            table, skipped = Table(), self.skipped(group, hit)
            table.blocks = [None] * skipped
            for place in range(skipped, hit // group.block_size):
                block = self.find(number, going, place)
                assert block is not None
                self.touch(block)
                table.blocks.append(block)
            table.num_named = len(table.blocks)
            going.tables.append(table)

    def extend(self, number: int, going: Going, computed: int, tokens: int) -> None:
        table = going.tables[number]
        required = -(-tokens // self.groups[number].block_size)
        missing = required - len(table.blocks)
        if missing <= 0:
            return
        if self.groups[number].kind == "state":
            taken = 1 + self.exports(number, going, computed, tokens)
            table.blocks += [None] * (missing - taken)
            missing = taken
        table.blocks += self.take(missing)

    def name_full(self, number: int, going: Going, tokens: int) -> None:
        table, size = going.tables[number], self.groups[number].block_size
        full = min(tokens, going.num_tokens) // self.alignment * self.alignment // size
        for place in range(table.num_named, full):
            block = table.blocks[place]
            if block is None or not self.is_kept(number, going, place):
                continue
            if self.groups[number].kind == "state" and place != tokens // size - 1 and block is table.blocks[-1]:
                continue  # its state is not that after a whole block
            if block.name is None:
                name = (number, going.key((place + 1) * size - 1), place)
                block.name = name
                self.named.setdefault(name, []).append(block)
                if self.groups[number].kind == "state":
                    self.fresh.add(name)
        table.num_named = max(table.num_named, full)

    def is_kept(self, number: int, going: Going, place: int) -> bool:
        """reachable_block_mask of the two managers that have one."""
        group, interval = self.groups[number], self.layout.retention_interval
        size = group.block_size
        if group.kind not in ("sliding", "state"):
            return True
        if group.kind == "state" and interval is None:
            return True
        needed = 1 if group.kind == "state" else -(-((group.window_tokens or 0) - 1) // size)
        segment = self.alignment if interval is None else interval
        if segment and (needed >= segment // size or place % (segment // size) >= segment // size - needed):
            return True
        boundaries = [going.request.num_prompt_tokens - 1, going.junction]
        ends = [tokens // self.alignment * self.alignment // size for tokens in boundaries]
        return interval is not None and any(end - needed <= place < end for end in ends)

    def remove_skipped(self, table: Table, skipped: int) -> None:
        gone = []
        for place in range(min(skipped, len(table.blocks)) - 1, -1, -1):
            block = table.blocks[place]
            if block is not None:
                gone.append(block)
                table.blocks[place] = None
        self.let_go(gone)

    def release(self, going: Going) -> None:
        for table in going.tables:
            self.let_go([block for block in reversed(table.blocks) if block is not None])
        going.tables = []

    # ---- steps

    def chunk(self, going: Going, begun: int, count: int) -> int:
        """_mamba_block_aligned_split."""
        sizes = [group.block_size for group in self.groups if group.kind == "state"]
        prefill_end = max(going.request.num_prompt_tokens, going.num_tokens - 1)
        if not sizes or not self.layout.caches_prefixes or begun >= prefill_end:
            return count
        size, end = sizes[0], begun + count
        if end < prefill_end:
            aligned = end // size * size
            if aligned > begun or size <= self.budget:
                end = aligned
        stops = [(going.num_tokens - 1) // size * size]
        if begun % size:
            stops.append((begun // size + 1) * size)
        elif self.layout.exports_states and end >= prefill_end:
            stops = []
        if begun < going.junction < end:
            stops.append(begun + (going.junction - begun) // size * size)
        return max(min([stop for stop in stops if begun < stop < end], default=end) - begun, 0)

    def step(self, now: int) -> None:
        budget, scheduled, preempted, place = self.budget, [], False, 0
        self.fresh.clear()
        while place < len(self.running) and budget > 0:
            going = self.running[place]
            count = self.chunk(going, going.computed, min(going.num_tokens - going.computed, budget))
            if not count:
                place += 1
                continue
            while not self.allocate(going, 0, count):
                victim = self.running.pop()
                preempted = True
                self.release(victim)
                victim.computed, victim.num_preemptions = 0, victim.num_preemptions + 1
                self.waiting.appendleft(victim)
                if victim is going:
                    break
            else:
                scheduled.append((going, count))
                budget -= count
                place += 1
                continue
            break
        while not preempted and self.waiting and budget > 0 and len(self.running) < self.max_num_seqs:
            going = self.waiting[0]
            hit, longest = self.look_up(going)
            going.junction = longest if longest > hit and self.layout.pins_shared_prefixes else 0
            count = self.chunk(going, hit, min(going.num_tokens - hit, budget))
            if not count or not self.allocate(going, hit, count):
                break
            self.waiting.popleft()
            if going.hit is None:
                going.hit = hit
            going.computed = hit
            self.running.append(going)
            scheduled.append((going, count))
            budget -= count
        self.step_tokens.append(sum(count for _, count in scheduled))
        for going, count in scheduled:
            going.computed += count
        for going, _ in scheduled:
            if going.computed == going.num_tokens:
                going.num_tokens += 1
                going.first = going.first or now + 1
                if going.num_tokens == going.request.num_prompt_tokens + going.request.num_output_tokens:
                    going.last = now + 1
                    self.running.remove(going)
                    self.release(going)

    def play(self, requests: list[FleetRequest]) -> list[Going]:
        """Each is sent at a whole second."""
        coming = deque(Going(each, each.num_prompt_tokens) for each in requests)
        everything, now = list(coming), 0
        while coming or self.waiting or self.running:
            while coming and coming[0].request.sent <= now:
                self.waiting.append(coming.popleft())
            if self.waiting or self.running:
                self.step(now)
                now += 1
            else:
                now = max(now, int(coming[0].request.sent))
        return everything
