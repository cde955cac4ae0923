"""What bound a run: what would have to be more for it to go faster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from kvplan.load.client.record import RequestRecord
from kvplan.load.observed.health import ClientHealth
from kvplan.load.observed.monitor import FEWEST_READINGS, INTERVAL_SECONDS, ServerView
from kvplan.metrics.reading import ServerReading

BoundBy = Literal["kv", "seats", "compute", "load", "client"]

# vLLM admits until the pool is full, so a pool that is short stands above this.
FULL_KV: Final = 0.95
# Requests that wait in fewer readings than this are a matter of a step or two.
QUEUE_SHARE: Final = 0.10
# Where the number of seats is not told: so many of the readings with a queue must show the same highest number running.
# Not more, because gauges stand still during a long step: vLLM's show the moment before the batch was filled.
PLATEAU_SHARE: Final = 0.25
# Nobody waits in a closed loop of exactly as many as may run: the seats bind it where they are taken this often.
FULL_SHARE: Final = 0.5
# Beyond this share of failed requests a run shows nothing of what the server can do.
MOST_FAILED: Final = 0.5


@dataclass(frozen=True, slots=True)
class LoadVerdict:
    """bound_by, and the sentence that says by which figures. None: nothing tells."""

    bound_by: BoundBy | None
    sentence: str

    @property
    def text(self) -> str:
        """The sentence as a whole line."""
        if self.bound_by is not None:
            return f"Bound by {self.sentence}"
        return f"Bottleneck unknown: {self.sentence.removeprefix('not known: ')}"


def verdict(health: ClientHealth, server: ServerView, records: Sequence[RequestRecord] = ()) -> LoadVerdict:
    """Judge in this order: failed requests put no load on the server, and a client that was the limit says nothing of
    it.

    records: of the measured requests.
    """
    num_failed = sum(not record.is_served for record in records)
    if num_failed > MOST_FAILED * len(records):
        return LoadVerdict(None, f"not known: {num_failed:,} of {len(records):,} requests failed")
    if health.is_bound:
        return LoadVerdict("client", f"the client: {'; '.join(health.reasons)}")
    if server.readings and not server.within:
        seconds = FEWEST_READINGS * INTERVAL_SECONDS
        needs = f"it needs {FEWEST_READINGS} readings, {seconds:g} s"
        return LoadVerdict(None, f"not known: the run was too short to sample the server's metrics ({needs})")
    readings = [reading for reading in server.within if reading.num_waiting is not None]
    if not readings:
        return LoadVerdict(None, "the server does not tell what bound the run")
    queued = [reading for reading in readings if reading.num_waiting]
    share = len(queued) / len(readings)
    waited = f"requests waited in {100 * share:.0f} % of the readings"
    if share < QUEUE_SHARE:
        return _without_queue(readings, server, records, waited)
    return _by_queue(queued, server, records, waited)


def _without_queue(
    readings: Sequence[ServerReading], server: ServerView, records: Sequence[RequestRecord], waited: str
) -> LoadVerdict:
    """Return the verdict where nobody waited: the seats where all were taken, so that one more request would have to
    wait, else the load."""
    seats = _told_seats(readings, server)
    most = max((reading.num_running or 0.0 for reading in readings), default=0.0)
    # A gauge misses the request whose answer has just ended, so those on their way count, too.
    in_flight = _num_in_flight(records, [reading.seconds for reading in readings])
    taken = [max(reading.num_running or 0.0, count) for reading, count in zip(readings, in_flight, strict=True)]
    if seats is not None:
        share = sum(count >= seats for count in taken) / len(taken)
        if share >= FULL_SHARE:
            full = f"{seats:,} of {seats:,} were taken in {100 * share:.0f} % of the readings"
            return LoadVerdict("seats", f"the seats: {full}, so another request would wait")
        return LoadVerdict("load", f"the load: {waited}, so more would be served")
    always = most > 0 and sum(count >= most for count in taken) >= FULL_SHARE * len(taken)
    unless = f", unless {most:,.0f} at once is the server's max_num_seqs, which it does not tell" if always else ""
    return LoadVerdict("load", f"the load: {waited}, so more would be served{unless}")


def _num_in_flight(records: Sequence[RequestRecord], moments: Sequence[float]) -> list[int]:
    begun = np.searchsorted(np.sort([record.started for record in records]), moments, side="right")
    ended = np.searchsorted(np.sort([record.ended for record in records]), moments, side="right")
    return [int(count) for count in begun - ended]


def _by_queue(
    queued: list[ServerReading], server: ServerView, records: Sequence[RequestRecord], waited: str
) -> LoadVerdict:
    window = server.window
    preemptions = (window.num_preemptions if window is not None else None) or 0.0
    usages = [usage for reading in queued if (usage := reading.kv_cache_usage_highest) is not None]
    fullest = max(usages, default=None)
    if preemptions or (fullest is not None and fullest > FULL_KV):
        lost = f" and running ones were preempted {preemptions:,.0f} times" if preemptions else ""
        full = f" while the KV cache was up to {100 * fullest:.0f} % full" if fullest is not None else ""
        return LoadVerdict("kv", f"the KV cache: {waited}{full}{lost}")
    full = "" if fullest is None else f", with the KV cache {100 * fullest:.0f} % full at most"
    told = _told_seats(queued, server)
    highest = max((count for reading in queued if (count := reading.num_running) is not None), default=None)
    if told is not None and highest is not None and highest >= told:
        return LoadVerdict("seats", f"the seats: {waited} while {highest:,.0f} of {told:,} ran{full}")
    if told is None and highest is not None and _is_plateau(queued, highest):
        return LoadVerdict("seats", f"the seats: {waited} while never more than {highest:,.0f} ran{full}")
    if fullest is None:
        return LoadVerdict(None, f"{waited}, and the server does not tell for what")
    longest = max((record.num_prompt_tokens_asked for record in records), default=0)
    if (1 - fullest) * (queued[-1].cache.kv_cache_size_tokens or math.inf) < longest:
        room = f"with room for fewer than the {longest:,} tokens of the longest prompt"
        return LoadVerdict("kv", f"the KV cache: {waited} while it was up to {100 * fullest:.0f} % full, {room}")
    seats = "the number running changed" if told is None else f"no more than {highest or 0:,.0f} of {told:,} ran"
    return LoadVerdict("compute", f"compute: {waited} although {seats}{full}")


def _told_seats(queued: Sequence[ServerReading], server: ServerView) -> int | None:
    """How many may run, of all data-parallel engines together, where the server says it."""
    if queued[0].max_num_seqs:
        return queued[0].max_num_seqs
    each = server.limits.max_num_seqs
    return None if each is None else each * queued[0].num_engines


def _is_plateau(queued: list[ServerReading], highest: float) -> bool:
    at_highest = sum(reading.num_running == highest for reading in queued)
    return at_highest >= PLATEAU_SHARE * len(queued)
