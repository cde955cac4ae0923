"""What bound a run: what would have to be more for it to go faster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from kvplan.load.client.record import RequestRecord
from kvplan.load.observed.health import ClientHealth
from kvplan.load.observed.monitor import ServerView
from kvplan.metrics.reading import ServerReading

BoundBy = Literal["kv", "seats", "compute", "load", "client"]

# vLLM admits until the pool is full, so a pool that is short stands above this.
FULL_KV: Final = 0.95
# Requests that wait in fewer readings than this are a matter of a step or two.
QUEUE_SHARE: Final = 0.10
# Where the number of seats is not told: so many of the readings with a queue must show the same highest number running.
# Not more, because gauges stand still during a long step: vLLM's show the moment before the batch was filled.
PLATEAU_SHARE: Final = 0.25
# Beyond this share of failed requests a run shows nothing of what the server can do.
MOST_FAILED: Final = 0.5


@dataclass(frozen=True, slots=True)
class Verdict:
    """bound_by, and the sentence that says by which figures. None: nothing tells."""

    bound_by: BoundBy | None
    sentence: str


def verdict(health: ClientHealth, server: ServerView, records: Sequence[RequestRecord] = ()) -> Verdict:
    """In this order: failed requests put no load on the server, and a client that was the limit says nothing of it.

    records: of the measured requests.
    """
    num_failed = sum(not record.is_served for record in records)
    if num_failed > MOST_FAILED * len(records):
        return Verdict(None, f"not known: {num_failed:,} of {len(records):,} requests failed")
    if health.is_bound:
        return Verdict("client", f"the client: {'; '.join(health.reasons)}")
    if server.readings and not server.within:
        return Verdict(None, "not known: the run was too short for readings of the server's metrics")
    readings = [reading for reading in server.within if reading.num_waiting is not None]
    if not readings:
        return Verdict(None, "the server does not tell what bound the run")
    queued = [reading for reading in readings if reading.num_waiting]
    share = len(queued) / len(readings)
    waited = f"requests waited in {100 * share:.0f} % of the readings"
    if share < QUEUE_SHARE:
        return Verdict("load", f"the load: {waited}, so more would be served")
    return _by_queue(queued, server, waited)


def _by_queue(queued: list[ServerReading], server: ServerView, waited: str) -> Verdict:
    window = server.window
    preemptions = (window.num_preemptions if window is not None else None) or 0.0
    usages = [usage for reading in queued if (usage := reading.kv_cache_usage_highest) is not None]
    fullest = max(usages, default=None)
    if preemptions or (fullest is not None and fullest > FULL_KV):
        lost = f" and running ones were preempted {preemptions:,.0f} times" if preemptions else ""
        full = f" while the KV cache was up to {100 * fullest:.0f} % full" if fullest is not None else ""
        return Verdict("kv", f"the KV cache: {waited}{full}{lost}")
    full = "" if fullest is None else f", with the KV cache {100 * fullest:.0f} % full at most"
    told = _told_seats(queued, server)
    highest = max((count for reading in queued if (count := reading.num_running) is not None), default=None)
    if told is not None and highest is not None and highest >= told:
        return Verdict("seats", f"the seats: {waited} while {highest:,.0f} of {told:,} ran{full}")
    if told is None and highest is not None and _is_plateau(queued, highest):
        return Verdict("seats", f"the seats: {waited} while never more than {highest:,.0f} ran{full}")
    if fullest is None:
        return Verdict(None, f"{waited}, and the server does not tell for what")
    seats = "the number running changed" if told is None else f"no more than {highest or 0:,.0f} of {told:,} ran"
    return Verdict("compute", f"compute: {waited} although {seats}{full}")


def _told_seats(queued: list[ServerReading], server: ServerView) -> int | None:
    """How many may run, of all data-parallel engines together, where the server says it."""
    if queued[0].max_num_seqs:
        return queued[0].max_num_seqs
    each = server.limits.max_num_seqs
    return None if each is None else each * queued[0].num_engines


def _is_plateau(queued: list[ServerReading], highest: float) -> bool:
    at_highest = sum(reading.num_running == highest for reading in queued)
    return at_highest >= PLATEAU_SHARE * len(queued)
