"""What requests saw, by windows of the trace: those that were sent within each. Seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.estimate.speed.queueing.figures import Distribution, PlayedFigures, Statistic
from kvplan.fleet.replicas.fleet import FleetPlay, FleetSample
from kvplan.fleet.replicas.seen import Seen
from kvplan.fleet.requests import FleetRequest


@dataclass(frozen=True, slots=True)
class TraceWindow:
    """Requests sent from ``start`` on for ``seconds``. tpot: None where no answer has two tokens.

    most_waiting, most_kv_usage: the largest of the samples within it. mean_running: requests that run, of all replicas
    together.
    """

    start: float
    seconds: float
    num_requests: int
    num_prompt_tokens: int
    num_hit_tokens: int
    num_output_tokens: int
    num_preemptions: int
    ttft: Distribution
    tpot: Distribution | None
    e2el: Distribution
    most_waiting: int = 0
    most_kv_usage: float = 0.0
    mean_running: float = 0.0

    @property
    def requests_per_second(self) -> float:
        return self.num_requests / self.seconds

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that were found in a prefix cache."""
        return self.num_hit_tokens / max(self.num_prompt_tokens, 1)

    def at(self, name: str, statistic: Statistic) -> float | None:
        """Seconds of the objective ``name``; None where no request has it."""
        found: Distribution | None = getattr(self, name)
        return None if found is None else found.at(statistic)


def window_of(sent: float, seconds: float) -> int:
    """Return the place of the window that a request sent at ``sent`` belongs to."""
    return int(sent / seconds)


def sent_by_window(requests: Sequence[FleetRequest], seconds: float) -> dict[int, int]:
    """Count the requests of each window, by the times that the file gives."""
    counts: dict[int, int] = {}
    for each in requests:
        place = window_of(each.sent, seconds)
        counts[place] = counts.get(place, 0) + 1
    return counts


def windows_of(play: FleetPlay, seconds: float) -> tuple[TraceWindow, ...]:
    """The windows in which requests were sent, in order of time."""
    seen: dict[int, list[Seen]] = {}
    for each in play.seen:
        seen.setdefault(window_of(each.sent, seconds), []).append(each)
    samples: dict[int, list[FleetSample]] = {}
    for sample in play.samples:
        samples.setdefault(window_of(sample.at, seconds), []).append(sample)
    return tuple(_window(place, seconds, seen[place], samples.get(place, [])) for place in sorted(seen))


def _window(place: int, seconds: float, seen: Sequence[Seen], samples: Sequence[FleetSample]) -> TraceWindow:
    tpots = [tpot for each in seen if (tpot := each.tpot_seconds) is not None]
    return TraceWindow(
        start=place * seconds,
        seconds=seconds,
        num_requests=len(seen),
        num_prompt_tokens=sum(each.request.num_prompt_tokens for each in seen),
        num_hit_tokens=sum(each.num_hit_tokens for each in seen),
        num_output_tokens=sum(each.request.num_output_tokens for each in seen),
        num_preemptions=sum(each.num_preemptions for each in seen),
        ttft=Distribution.of([each.ttft_seconds for each in seen]),
        tpot=Distribution.of(tpots) if tpots else None,
        e2el=Distribution.of([each.e2el_seconds for each in seen]),
        most_waiting=max((each.num_waiting for each in samples), default=0),
        most_kv_usage=max((each.kv_usage for each in samples), default=0.0),
        mean_running=sum(each.num_running for each in samples) / max(len(samples), 1),
    )


def figures_of(play: FleetPlay) -> PlayedFigures:
    """What all requests of ``play`` saw; at least one has ended."""
    seen = play.seen
    tpots = [tpot for each in seen if (tpot := each.tpot_seconds) is not None]
    seconds = max(max(each.last for each in seen) - min(each.sent for each in seen), 1e-9)
    return PlayedFigures(
        ttft=Distribution.of([each.ttft_seconds for each in seen]),
        tpot=Distribution.of(tpots) if tpots else None,
        e2el=Distribution.of([each.e2el_seconds for each in seen]),
        output_throughput=sum(each.request.num_output_tokens for each in seen) / seconds,
        request_throughput=len(seen) / seconds,
        seconds=seconds,
        num_preemptions=play.num_preemptions,
        max_running=max((each.num_running for each in play.samples), default=0),
    )
