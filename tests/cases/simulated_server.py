"""A server in simulated time whose bound follows from its configuration, as a load sees it: readings and records.

Steps of one length: every running sequence gets a token, and waiting ones are admitted, first come first served, while
there is a seat, room in the KV pool for prompt and answer, and room for their prompts in the step's tokens. So it never
preempts; it queues for exactly one reason at a time.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, replace

from kvplan.load.client.record import RequestRecord
from kvplan.load.observed.health import ClientHealth, ProcessSample, client_health
from kvplan.load.observed.monitor import INTERVAL_SECONDS, ServerView
from kvplan.load.observed.verdict import LoadVerdict, verdict
from kvplan.metrics.limits import ServerLimits
from kvplan.metrics.reading import CacheConfig, ServerReading


@dataclass(frozen=True)
class Simulated:
    """seats: max_num_seqs. pool_tokens: of the KV cache. prompts_per_step: prompt tokens that one step takes.

    in_flight: a closed loop of so many; 0 for arrivals at ``rate`` per second. late_seconds: how late the client sends.
    tells_seats: whether the server says max_num_seqs, as vLLM outside its development mode does not.
    """

    seats: int = 64
    pool_tokens: int = 1_000_000
    prompts_per_step: int = 100_000
    prompt: int = 200
    answer: int = 40
    step_seconds: float = 0.02
    in_flight: int = 0
    rate: float = 0.0
    seconds: float = 12.0
    late_seconds: float = 0.0
    tells_seats: bool = True

    def verdict(self) -> LoadVerdict:
        """What the load of this server says bound it."""
        records, readings = _play(self)
        limits = ServerLimits(max_num_seqs=self.seats if self.tells_seats else None)
        server = ServerView(tuple(readings), limits).of_run(0.0, self.seconds)
        return verdict(self._health(records), server, records)

    def _health(self, records: list[RequestRecord]) -> ClientHealth:
        sample = ProcessSample((0.001,), 0.2 * self.seconds, self.seconds)
        return client_health(records, [sample], is_open=not self.in_flight)


@dataclass
class _Sequence:
    record: RequestRecord
    num_left: int


def _play(server: Simulated) -> tuple[list[RequestRecord], list[ServerReading]]:
    """Every request that came within the time, answered to its end, and a reading each quarter of a second."""
    draw = random.Random(7)
    records: list[RequestRecord] = []
    waiting: deque[_Sequence] = deque()
    running: list[_Sequence] = []
    readings = [_reading(server, -0.1, 0, 0)]
    now, next_arrival = 0.0, 0.0
    while now < server.seconds or running or waiting:
        while now < server.seconds and _is_due(server, next_arrival, now, len(running) + len(waiting)):
            due = next_arrival if server.rate else now
            records.append(RequestRecord(len(records), due, due, server.prompt, server.answer))
            records[-1].started = due + server.late_seconds
            waiting.append(_Sequence(records[-1], server.answer))
            next_arrival += draw.expovariate(server.rate) if server.rate else 0.0
        _admit(server, waiting, running)
        now += server.step_seconds
        for each in running:
            each.num_left -= 1
            each.record.times.append(now)
            each.record.counts.append(1)
            each.record.ended = now
        running = [each for each in running if each.num_left]
        if now - readings[-1].seconds >= INTERVAL_SECONDS:
            readings.append(_reading(server, now, len(running), len(waiting)))
    for record in records:
        record.num_output_tokens, record.token_source = server.answer, "continuous_usage"
    return records, readings


def _is_due(server: Simulated, next_arrival: float, now: float, num_inside: int) -> bool:
    return next_arrival <= now if server.rate else num_inside < server.in_flight


def _admit(server: Simulated, waiting: deque[_Sequence], running: list[_Sequence]) -> None:
    each, left = server.prompt + server.answer, server.prompts_per_step
    while waiting and len(running) < server.seats and left >= server.prompt:
        if (len(running) + 1) * each > server.pool_tokens:
            return
        left -= server.prompt
        running.append(waiting.popleft())


def _reading(server: Simulated, seconds: float, num_running: int, num_waiting: int) -> ServerReading:
    usage = num_running * (server.prompt + server.answer) / server.pool_tokens
    bare = ServerReading("vllm", seconds, num_running=num_running, num_waiting=num_waiting, num_preemptions=0.0)
    cache = CacheConfig(kv_cache_size_tokens=server.pool_tokens)
    return replace(bare, kv_cache_usage=usage, kv_cache_usage_highest=usage, cache=cache)
