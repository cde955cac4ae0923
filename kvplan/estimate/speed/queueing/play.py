"""Continuous batching played on lengths alone, coarsely enough for hundreds of deployments in a plan.

``batching`` counts every block of every sequence; here sequences that decode are one sum of tokens and a queue of the
steps in which they end, and steps between two events (an end, an arrival, a full pool) are taken together, each as
long as the middle one. The rules are ``SchedulingRules``'.

    ticks    decode steps so far: a sequence that starts to decode at tick t with r tokens to come ends at tick t + r
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass
from typing import Final

from kvplan.estimate.speed.queueing.figures import PlayedFigures, PlayedRequest, played_figures
from kvplan.estimate.speed.queueing.loads import PlayedLoad
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.speed.simulation import StepClock

_NEVER: Final = math.inf


@dataclass(slots=True, eq=False)
class _Sequence:
    """computed: tokens in the pool. known: tokens to be computed before the next is sampled. end_tick: while it
    decodes, when it gets its last token; 0 otherwise."""

    request: PlayedRequest
    number: int
    known: int
    computed: int = 0
    found: int = 0
    num_left: int = 0
    end_tick: int = 0
    is_running: bool = False


class _Play:
    def __init__(self, load: PlayedLoad, rules: SchedulingRules, clock: StepClock) -> None:
        self._load, self._rules, self._clock = load, rules, clock
        self._in_flight_limit = load.max_concurrency or load.num_requests
        self._num_sent = 0
        self._num_ended = 0
        self._num_counted = 0
        self._now = 0.0
        self._composed_at = 0.0
        self._ticks = 0
        self._entering: deque[tuple[float, _Sequence]] = deque()
        self._arriving: deque[_Sequence] = deque()
        self._entered_at = 0.0
        self._waiting: deque[_Sequence] = deque()
        self._reading: list[_Sequence] = []
        self._ends: list[tuple[int, int, _Sequence]] = []
        self._order: list[_Sequence] = []
        self._freed: deque[float] = deque()
        self._end_ticks = 0
        self._may_admit = True
        self._num_decoding = 0
        self._decoding_tokens = 0
        self._reading_tokens = 0
        self.requests: list[PlayedRequest] = []
        self.num_preemptions = 0
        self.max_running = 0

    def run(self) -> None:
        load = self._load
        if load.starts_running:
            self._start_in_progress()
        last = load.num_requests - load.num_cooldowns
        while self._num_counted < last:
            self._send()
            if not (self._waiting or self._reading or self._num_decoding):
                self._now = self._composed_at = self._next_event()
                continue
            chunks = self._chunks()
            if chunks:
                self._read(chunks)
            else:
                self._decode()

    def _start_in_progress(self) -> None:
        """The warm-ups decode already, at places of their answers that are evenly spaced."""
        number = self._load.num_warmups
        for index in range(min(number, self._rules.max_num_seqs)):
            prompt, answer = self._load.lengths[index]
            done = min(max(round(answer * (index + 0.5) / number), 1), max(answer - 1, 1))
            request = PlayedRequest(prompt, answer, 0.0)
            self.requests.append(request)
            sequence = _Sequence(request, index, prompt + done - 1, num_left=answer - done + 1, is_running=True)
            sequence.computed = sequence.known
            self._reading.append(sequence)
            self._reading_tokens += sequence.computed
            self._order.append(sequence)
            self._first_token(sequence)
            self._num_sent += 1
        self._make_room()

    # ---- requests in

    def _send(self) -> None:
        """Clients send what is ready; the engine takes in what came before the coming step was composed."""
        load, rules = self._load, self._rules
        while (sent := self._next_sending()) <= self._now:
            number = self._num_sent
            if self._is_held_back(number):
                self._freed.popleft()
            prompt, answer = load.lengths[number]
            request = PlayedRequest(prompt, answer, sent)
            self.requests.append(request)
            found = min(load.cached_tokens, prompt - 1) if number else 0
            self._entered_at = max(self._entered_at, sent) + rules.front_end.seconds(prompt)
            self._arriving.append(_Sequence(request, number, prompt, found=found, num_left=answer))
            self._num_sent += 1
            if self._next_sending() != sent:
                self._hand_over()
        is_busy = self._num_running > 0 or bool(self._waiting)
        until = self._composed_at if rules.schedules_ahead and is_busy else self._now
        while self._entering and self._entering[0][0] <= until:
            self._waiting.append(self._entering.popleft()[1])

    def _hand_over(self) -> None:
        """Those that were sent at one moment take turns in the server's event loop, so they are through together."""
        while self._arriving:
            self._entering.append((self._entered_at, self._arriving.popleft()))

    def _is_held_back(self, number: int) -> bool:
        """The first of those that may be in flight are sent when they are ready, others when one has ended."""
        return number >= self._in_flight_limit

    def _next_sending(self) -> float:
        """When the next request is sent; never where none is left, or as many are in flight as may be."""
        if self._num_sent >= self._load.num_requests or self._num_sent - self._num_ended >= self._in_flight_limit:
            return _NEVER
        ready = self._load.arrivals[self._num_sent]
        return max(ready, self._freed[0]) if self._is_held_back(self._num_sent) else ready

    # ---- which prompts the next step reads

    def _chunks(self) -> list[tuple[_Sequence, int]]:
        rules = self._rules
        if not self._reading and not self._waiting:
            return []
        budget = rules.max_num_batched_tokens - (0 if rules.prompts_first else self._num_decoding)
        found: list[tuple[_Sequence, int]] = []
        for sequence in self._reading:
            number = min(sequence.known - sequence.computed, budget)
            if number > 0:
                found.append((sequence, number))
                budget -= number
        while self._waiting and budget > 0 and self._may_admit and self._num_running < rules.max_num_seqs:
            sequence = self._waiting[0]
            missing = sequence.known - sequence.found
            if missing > budget and not rules.chunks_prompts and (found or missing <= rules.max_num_batched_tokens):
                break
            number = min(missing, budget) if rules.chunks_prompts else missing
            if not self._has_room(sequence, number):
                break
            self._waiting.popleft()
            sequence.computed = sequence.found
            sequence.is_running = True
            self._reading.append(sequence)
            self._order.append(sequence)
            found.append((sequence, number))
            budget -= number
        return found

    @property
    def _num_running(self) -> int:
        return self._num_decoding + len(self._reading)

    def _has_room(self, sequence: _Sequence, num_new: int) -> bool:
        if not self._num_running:
            return True
        rules = self._rules
        if rules.reserves:
            to_come = rules.reserves * (self._tokens_to_come() + sequence.num_left)
            return self._num_held + sequence.known + to_come <= rules.pool_tokens
        missing_of_others = sum(each.known - each.computed for each in self._reading)
        return self._num_held + missing_of_others + num_new <= rules.pool_tokens

    def _tokens_to_come(self) -> float:
        """Of the answers of those that run."""
        decoding = self._end_ticks - self._num_decoding * self._ticks
        return decoding + sum(each.known - each.computed + each.num_left for each in self._reading)

    @property
    def _num_held(self) -> int:
        """Tokens in the pool; a prefix that sequences share is held once."""
        shared = max(self._num_decoding - 1, 0) * self._load.cached_tokens
        return self._decoding_tokens + self._reading_tokens - shared

    # ---- steps

    def _read(self, chunks: list[tuple[_Sequence, int]]) -> None:
        """One step that reads ``chunks``, and decodes beside them where the rules mix both."""
        decoding = 0 if self._rules.prompts_first else self._num_decoding
        self.max_running = max(self.max_running, self._num_running)
        num_tokens, kv_tokens = decoding, self._decoding_tokens + decoding if decoding else 0
        pairs, done = float(kv_tokens), []
        for sequence, number in chunks:
            pairs += number * (sequence.computed + (number + 1) / 2)
            sequence.computed += number
            num_tokens += number
            kv_tokens += sequence.computed
            self._reading_tokens += number
            if sequence.computed >= sequence.known:
                done.append(sequence)
        seconds = self._clock.seconds(num_tokens, decoding + len(chunks), decoding + len(done), kv_tokens, pairs)
        self._pass(seconds, 1 if decoding else 0)
        for sequence in done:
            self._first_token(sequence)
        self._end_due()
        self._make_room()

    def _decode(self) -> None:
        """As many decode steps as differ in lengths only."""
        count, tokens = self._num_decoding, self._decoding_tokens
        self.max_running = max(self.max_running, count)
        steps = self._ends[0][0] - self._ticks
        room = self._rules.pool_tokens - self._num_held
        steps = max(min(steps, int(room / count) if room > count else 1), 1)
        middle = tokens + count * (steps + 1) // 2
        seconds = self._clock.seconds(count, count, count, middle, float(middle))
        arrival = self._next_arrival()
        if self._now + steps * seconds > arrival:
            steps = max(min(steps, math.ceil((arrival - self._now) / seconds)), 1)
            middle = tokens + count * (steps + 1) // 2
            seconds = self._clock.seconds(count, count, count, middle, float(middle))
        self._pass(seconds, steps)
        self._end_due()
        self._make_room()

    def _next_event(self) -> float:
        """When a client sends the next request, or the engine is handed one."""
        entering = self._entering[0][0] if self._entering else _NEVER
        return min(entering, self._next_sending())

    def _next_arrival(self) -> float:
        """The next event that could change who runs; never where all seats are taken."""
        if self._waiting or self._num_running >= self._rules.max_num_seqs:
            return _NEVER
        return self._next_event()

    def _pass(self, seconds: float, ticks: int) -> None:
        """``ticks`` steps of ``seconds`` each; none is a step in which nothing decodes."""
        self._composed_at = self._now + seconds * max(ticks - 1, 0)
        self._now += seconds * max(ticks, 1)
        self._ticks += ticks
        self._decoding_tokens += ticks * self._num_decoding

    def _first_token(self, sequence: _Sequence) -> None:
        """A prompt has been read: its sequence has a token more and decodes from now on."""
        request = sequence.request
        self._reading.remove(sequence)
        self._reading_tokens -= sequence.computed - sequence.found
        if not request.first:
            request.first = max(self._now, self._entered_at)
        sequence.num_left -= 1
        sequence.end_tick = self._ticks + sequence.num_left
        self._num_decoding += 1
        self._decoding_tokens += sequence.known
        self._end_ticks += sequence.end_tick
        heapq.heappush(self._ends, (sequence.end_tick, sequence.number, sequence))

    def _end_due(self) -> None:
        """Those that got their last token leave."""
        while self._ends and self._ends[0][0] <= self._ticks:
            _, _, sequence = heapq.heappop(self._ends)
            request = sequence.request
            request.last = max(self._now, request.first)
            self._leave_decoding(sequence, request.num_prompt_tokens + request.num_output_tokens - 1)
            self._num_ended += 1
            self._num_counted += sequence.number < self._load.num_requests - self._load.num_cooldowns
            self._freed.append(self._now)
        if len(self._order) > 2 * self._num_running + 32:
            self._order = [each for each in self._order if each.is_running]

    def _leave_decoding(self, sequence: _Sequence, num_tokens: int) -> None:
        sequence.is_running = False
        self._num_decoding -= 1
        self._decoding_tokens -= num_tokens
        self._end_ticks -= sequence.end_tick

    def _make_room(self) -> None:
        """The newest sequences lose their tokens while the next step would not fit the pool, and nobody joins it."""
        rules = self._rules
        self._may_admit = True
        while self._num_running > 1 and self._num_held + self._num_decoding > rules.pool_tokens:
            newest = self._order.pop()
            if newest.is_running:
                self._preempt(newest)
                self._may_admit = False

    def _preempt(self, sequence: _Sequence) -> None:
        self.num_preemptions += 1
        request = sequence.request
        if sequence in self._reading:
            sequence.is_running = False
            self._reading.remove(sequence)
            self._reading_tokens -= sequence.computed - sequence.found
        else:
            left = sequence.end_tick - self._ticks
            known = request.num_prompt_tokens + request.num_output_tokens - left
            self._ends.remove((sequence.end_tick, sequence.number, sequence))
            heapq.heapify(self._ends)
            self._leave_decoding(sequence, known - 1)
            sequence.known, sequence.num_left, sequence.end_tick = known, left, 0
        sequence.computed = 0
        self._waiting.appendleft(sequence)


def play(load: PlayedLoad, rules: SchedulingRules, clock: StepClock) -> PlayedFigures:
    """What ``load`` sees of one instance. The pool holds the longest request alone."""
    played = _Play(load, rules, clock)
    played.run()
    counted = played.requests[load.num_warmups : load.num_requests - load.num_cooldowns]
    return played_figures(counted, played.num_preemptions, played.max_running)
