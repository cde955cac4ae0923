"""One replica in time: who waits, is read and decodes.

The steps are those of ``queueing.play``, over a pool that counts every block. Steps that only decode are taken together
up to the next end, as there; but which request comes next is the fleet's to say. So the steps that are under way are
not taken before they are over, or a request comes that cuts them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

from kvplan.errors import KvplanError
from kvplan.estimate.speed.queueing.admission import next_chunks
from kvplan.estimate.speed.queueing.arrivals import NEVER, Arrivals
from kvplan.estimate.speed.queueing.front_end import FrontEnd
from kvplan.estimate.speed.queueing.instance import Group, Sequence
from kvplan.estimate.speed.queueing.loads import LengthDistribution, PlayedLoad
from kvplan.estimate.speed.queueing.play import DecodeSteps, InstancePlay
from kvplan.fleet.replicas.group import BlockGroup, BlockSequence
from kvplan.fleet.replicas.pool import BlockPool, runs_in_hand
from kvplan.fleet.replicas.seen import Seen
from kvplan.fleet.replicas.setup import ReplicaSetup
from kvplan.fleet.requests import FleetRequest

_NO_LOAD: Final = PlayedLoad(LengthDistribution(1.0), LengthDistribution(1.0), 0)


class StepRecord(NamedTuple):
    """``num_steps`` steps in a row, with so many tokens each, while so many requests ran and waited."""

    begun: float
    num_steps: int
    num_tokens: int
    num_running: int
    num_waiting: int


class _Delivered(Arrivals):
    """Requests that a router handed over, on their way through a replica's front end."""

    def __init__(self, front_end: FrontEnd) -> None:
        super().__init__(_NO_LOAD, front_end)
        self.ended: list[Seen] = []

    def send(self, now: float) -> None:
        """The router does."""

    def deliver(self, sequence: Sequence) -> None:
        front_end, sent = self._front_end, sequence.request.sent
        self._busy_until = max(self._busy_until, sent) + front_end.parsing_seconds / front_end.servers
        self._parsed.append((self._busy_until, sequence))

    @property
    def num_on_their_way(self) -> int:
        return len(self._parsed) + len(self._handed)

    @property
    def on_their_way(self) -> list[Sequence]:
        return [sequence for _, sequence in (*self._parsed, *self._handed)]

    def note_end(self, now: float, sequence: Sequence) -> None:
        assert isinstance(sequence, BlockSequence)
        self.ended.append(sequence.seen)

    def _next_sending(self) -> float:
        return NEVER


class _EnginePlay(InstancePlay):
    """One engine of a replica. now: the end of its last step that was taken."""

    def __init__(self, setup: ReplicaSetup) -> None:
        self._setup = setup
        self.delivered = _Delivered(setup.rules.front_end)
        self._under_way: DecodeSteps | None = None
        self.observer: Callable[[StepRecord], None] | None = None
        super().__init__(_NO_LOAD, setup.rules, setup.clock, self.delivered)

    def _new_groups(self) -> list[Group]:
        rules, pool = self._setup.rules, self._setup.pool
        self.block_groups = [
            BlockGroup(BlockPool(pool, rules.max_num_batched_tokens), rules) for _ in range(rules.num_groups)
        ]
        return list(self.block_groups)

    @property
    def now(self) -> float:
        return self._now

    @property
    def groups(self) -> list[BlockGroup]:
        return self.block_groups

    def deliver(self, sequence: BlockSequence) -> None:
        """Take ``sequence``, which was sent now; steps under way are cut where it could change them."""
        steps, sent = self._under_way, sequence.request.sent
        if steps is not None and self._may_change():
            self._under_way = None
            self._take_steps(self._cut(steps, sent))
        self.delivered.deliver(sequence)

    def _may_change(self) -> bool:
        seats = self._rules.max_num_seqs
        return any(not group.waiting and group.num_running < seats for group in self._groups)

    def advance(self, until: float) -> None:
        """Until then; steps that are under way then are taken later."""
        while True:
            steps = self._under_way
            if steps is not None:
                if self._now + steps.steps * steps.seconds > until:
                    return
                self._under_way = None
                self._take_steps(steps)
                continue
            if self._now >= until:
                return
            if not self._send():
                event = self._arrivals.next_event()
                if event > until:
                    return
                self._now = self._composed_at = max(self._now, event)
                continue
            chunks = [next_chunks(group, self._rules) for group in self._groups]
            if any(chunks):
                self._read(chunks)
            else:
                self._under_way = self._alike_until(self._next_arrival())

    def next_event(self) -> float:
        """The moment before which nothing ends."""
        steps = self._under_way
        if steps is not None:
            return self._now + steps.steps * steps.seconds
        if self._num_in_hand:
            return math.nextafter(self._now, math.inf)
        event = self._arrivals.next_event()
        return event if event == NEVER else math.nextafter(max(event, self._now), math.inf)

    def settle(self, at: float) -> None:
        """Let the steps under way that began before ``at`` take their blocks."""
        steps = self._under_way
        if steps is not None and at > self._now:
            begun = min(math.ceil((at - self._now) / steps.seconds), steps.steps)
            for group in self.block_groups:
                group.passed(begun)

    @property
    def num_in_hand(self) -> int:
        return self._num_in_hand

    def _note_steps(self, steps: int, num_tokens: int) -> None:
        if self.observer is not None:
            running = sum(group.num_running for group in self._groups)
            waiting = sum(len(group.waiting) for group in self._groups)
            self.observer(StepRecord(self._now, steps, num_tokens, running, waiting))


class Replica:
    """One replica of a fleet: an engine, or one for each of its data-parallel groups that share no steps.

    now: until when it was advanced.
    """

    def __init__(self, setup: ReplicaSetup, index: int = 0) -> None:
        self.setup, self.index = setup, index
        self.now = 0.0
        rules = setup.rules
        if rules.num_groups > 1 and not rules.in_step:
            alone = ReplicaSetup(rules.alone(rules.num_groups), setup.clock, setup.pool)
            self._engines = [_EnginePlay(alone) for _ in range(rules.num_groups)]
        else:
            self._engines = [_EnginePlay(setup)]
        self._groups = [group for engine in self._engines for group in engine.groups]
        self._event = NEVER

    def observe_steps(self, observer: Callable[[StepRecord], None]) -> None:
        """Tell ``observer`` of steps when they are taken, of each engine its own."""
        for engine in self._engines:
            engine.observer = observer

    # ---- what routers may look at

    @property
    def num_waiting(self) -> int:
        """Requests that no step has read of, those in the front end among them."""
        on_their_way = sum([engine.delivered.num_on_their_way for engine in self._engines])
        return on_their_way + sum([len(group.waiting) for group in self._groups])

    @property
    def num_running(self) -> int:
        return sum([group.num_running for group in self._groups])

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens in hand that are still to be computed, as far as that is known before they are looked up."""
        tokens = sum(each.known - each.computed for group in self._groups for each in group.reading)
        tokens += sum(each.known for group in self._groups for each in group.waiting)
        return tokens + sum(each.known for engine in self._engines for each in engine.delivered.on_their_way)

    def num_unread_tokens(self) -> int:
        """Prompt tokens in hand that the caches do not have and no step has read."""
        self._settle()
        tokens = sum(each.known - each.computed for group in self._groups for each in group.reading)
        waiting = [each for group in self._groups for each in group.waiting]
        for each in [*waiting, *(each for engine in self._engines for each in engine.delivered.on_their_way)]:
            assert isinstance(each, BlockSequence)
            tokens += each.known - max(group.pool.num_found(each.held.runs, each.known) for group in self._groups)
        return tokens

    @property
    def kv_usage(self) -> float:
        """Share of the blocks that requests hold (``vllm:kv_cache_usage_perc``), of all groups on average."""
        self._settle()
        pools = [group.pool for group in self._groups]
        return sum((pool.num_blocks - pool.queue.num_free) / pool.num_blocks for pool in pools) / len(pools)

    def match(self, request: FleetRequest) -> int:
        """Tokens of the prompt that the pool would find now: the pool of the group that has most of it."""
        self._settle()
        runs, prompt = runs_in_hand(request), request.num_prompt_tokens
        return max(group.pool.num_found(runs, prompt) for group in self._groups)

    def _settle(self) -> None:
        for engine in self._engines:
            engine.settle(self.now)

    # ---- the play

    def deliver(self, request: FleetRequest, at: float, computed_tokens: int = 0) -> None:
        """Hand over ``request`` at ``at``, not before ``now``. computed_tokens: of its prompt, whose KV comes from
        elsewhere: they take blocks, and no step computes them. KvplanError where no pool can hold it."""
        needed = request.num_prompt_tokens + request.num_output_tokens
        if not self._groups[0].pool.could_hold(needed):
            raise KvplanError(
                f"A request of {needed:,} tokens does not fit the KV cache of one replica.",
                hint="use a larger GPU, more ranks, a smaller KV format, or leave long requests out: --ctx-max",
            )
        engine = self._engines[0]
        if len(self._engines) > 1:
            engine = min(self._engines, key=lambda each: each.num_in_hand + each.delivered.num_on_their_way)
        engine.deliver(BlockSequence(Seen(request, self.index, at), computed_tokens, len(self.setup.pool.groups)))
        self._event = min(self._event, engine.next_event())

    def advance(self, until: float) -> None:
        """Play until then. A step that is under way is taken to its end; steps that only decode are cut only where a
        request is delivered."""
        self.now = max(self.now, until)
        if until < self._event:
            return
        for engine in self._engines:
            engine.advance(until)
        self._event = min(engine.next_event() for engine in self._engines)

    def next_event(self) -> float:
        """The moment before which nothing ends and nothing changes."""
        return self._event

    def take_ended(self) -> list[Seen]:
        """Return those that ended since this was asked last."""
        ended: list[Seen] = []
        for engine in self._engines:
            if engine.delivered.ended:
                ended += engine.delivered.ended
                engine.delivered.ended = []
        return ended

    @property
    def num_preemptions(self) -> int:
        return sum(group.num_preemptions for group in self._groups)
