"""A trace that is played as it is: which file, and by which windows its service level is kept, with what else is asked
of its fleet: prefill and decode apart, replicas that come and go."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from kvplan.errors import KvplanError, UsageError, check
from kvplan.fleet.apart.rules import HAND_OVERS
from kvplan.fleet.routers.named import check_router
from kvplan.fleet.shapes import MOST_REQUESTS
from kvplan.setting_values import parse_share
from kvplan.units import plural
from kvplan.workload.files import span_text, survey_file
from kvplan.workload.part import WHOLE_FILE, FilePart, parse_moment


@dataclass(frozen=True, slots=True)
class PolicyBounds:
    """What a user says of a replica policy. max_replicas: None for those of the fixed fleet, which is large enough at
    any time; cold_start_seconds: None for what is assumed."""

    min_replicas: int = 1
    max_replicas: int | None = None
    cold_start_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class FleetWishes:
    """hand_over: whose rules pools of prefill and decode follow, None where these are not asked for. scaling: None
    where the fleet is fixed."""

    hand_over: str | None = None
    scaling: PolicyBounds | None = None


def fleet_wishes(
    *,
    disaggregate: bool = False,
    hand_over: str | None = None,
    autoscale: bool = False,
    min_replicas: int | None = None,
    max_replicas: int | None = None,
    cold_start: str | None = None,
) -> FleetWishes:
    """Return what options of ``kvplan plan`` ask. UsageError for what cannot be, and for one without its purpose."""
    check(disaggregate or hand_over is None, "--hand-over needs --disaggregate", "it says whose rules pools follow")
    engine = (hand_over or "vllm").strip().casefold()
    if engine not in HAND_OVERS:
        raise UsageError(f"Unknown --hand-over '{hand_over}'.", hint="one of " + ", ".join(HAND_OVERS))
    given = {"--min-replicas": min_replicas, "--max-replicas": max_replicas, "--cold-start": cold_start}
    first = next((option for option, value in given.items() if value is not None), None)
    check(autoscale or first is None, f"{first} needs --autoscale", "a fleet has a fixed size otherwise")
    least = 1 if min_replicas is None else min_replicas
    check(least >= 1, f"--min-replicas must be at least 1, got {least}", "loading a model takes minutes")
    is_ordered = max_replicas is None or max_replicas >= least
    check(is_ordered, f"--max-replicas {max_replicas} is below --min-replicas {least}", f"use {least} or more")
    bounds = PolicyBounds(least, max_replicas, parse_moment("--cold-start", cold_start))
    return FleetWishes(engine if disaggregate else None, bounds if autoscale else None)


DEFAULT_WINDOW_SECONDS: Final = 300.0
SHORTEST_WINDOW_SECONDS: Final = 10.0
SHORTEST_TRACE_SECONDS: Final = 5.0
LONGEST_TRACE_SECONDS: Final = 14 * 86_400.0


@dataclass(frozen=True, slots=True)
class TraceQuestion:
    """The fleet that a trace needs. share_of_windows: that keep the service level, 1 for all. router: by name; None to
    choose one. shape: a file that says how the load changes over a day, which the trace is stretched over. wishes: what
    else the fleet is held against."""

    path: Path
    part: FilePart = WHOLE_FILE
    window_seconds: float = DEFAULT_WINDOW_SECONDS
    share_of_windows: float = 1.0
    router: str | None = None
    shape: Path | None = None
    wishes: FleetWishes = FleetWishes()


@dataclass(frozen=True, slots=True)
class TraceWords:
    """What options of ``kvplan plan`` say of a trace, as people write them.

    plays_trace: a file with times, beside which no other load is given, is played as it is.
    """

    plays_trace: bool = False
    window: str | None = None
    share_of_windows: str | None = None
    router: str | None = None
    load_shape: Path | None = None
    disaggregate: bool = False
    hand_over: str | None = None
    autoscale: bool = False
    min_replicas: int | None = None
    max_replicas: int | None = None
    cold_start: str | None = None

    @staticmethod
    def taken_from(options: dict[str, Any]) -> TraceWords:
        """Take those that are about a trace out of ``options``. UsageError for one without its purpose."""
        own = {each.name for each in fields(TraceWords)} & options.keys()
        found = TraceWords(**{name: options.pop(name) for name in own})
        found._wishes()
        return found

    def refuse(self) -> None:
        """UsageError for an option that only a trace gives a meaning."""
        given = {
            "--window": self.window,
            "--share-of-windows": self.share_of_windows,
            "--router": self.router,
            "--load-shape": self.load_shape,
            "--disaggregate": self.disaggregate or None,
            "--autoscale": self.autoscale or None,
        }
        first = next((option for option, value in given.items() if value is not None), None)
        if first is not None:
            raise UsageError(
                f"{first} needs a --workload with times, and neither --users nor --request-rate.",
                hint="it is about a trace that is played as it is",
            )

    def question(self, path: Path, part: FilePart) -> TraceQuestion:
        """Return what is asked of the trace at ``path``. UsageError for a value that cannot be read."""
        return TraceQuestion(
            path,
            part,
            window_seconds(self.window),
            share_of_windows(self.share_of_windows),
            None if self.router is None else check_router(self.router),
            self.load_shape,
            self._wishes(),
        )

    def _wishes(self) -> FleetWishes:
        return fleet_wishes(
            disaggregate=self.disaggregate,
            hand_over=self.hand_over,
            autoscale=self.autoscale,
            min_replicas=self.min_replicas,
            max_replicas=self.max_replicas,
            cold_start=self.cold_start,
        )


def window_seconds(text: str | None) -> float:
    """``5m`` -> 300; nothing -> the default. UsageError for what is no time, or shorter than ten seconds."""
    found = parse_moment("--window", text)
    if found is None:
        return DEFAULT_WINDOW_SECONDS
    if found < SHORTEST_WINDOW_SECONDS:
        raise UsageError(
            f"--window must be at least {SHORTEST_WINDOW_SECONDS:g} s, got {found:g} s.",
            hint="percentiles need requests: for example --window 5m",
        )
    return found


def share_of_windows(text: str | None) -> float:
    """``0.95`` or ``95%`` -> 0.95; nothing -> 1. UsageError outside of more than 0 to 1."""
    if text is None:
        return 1.0
    share = parse_share(text, "--share-of-windows", example="95%")
    if not 0 < share <= 1:
        raise UsageError(
            "--share-of-windows must be more than 0 and at most 1.", hint="1 is every window, as by default"
        )
    return share


def check_playable(path: Path, part: FilePart) -> None:
    """KvplanError for a file whose part is too short, too long or too much to be played request by request.

    It is looked at as a stream: nothing of it is held.
    """
    found = survey_file(path, part)
    many = plural(found.num_requests, "request")
    if not found.has_times:
        return
    if found.seconds < SHORTEST_TRACE_SECONDS:
        raise KvplanError(
            f"The {many} of the workload file {path} come within {found.seconds:.3g} s, too short for a fleet to be "
            "judged by.",
            hint="--trace-unit says what its times are (s, ms, us or ns), --speed how fast; or plan with --users",
        )
    if found.seconds > LONGEST_TRACE_SECONDS:
        raise KvplanError(
            f"The {many} of the workload file {path} come over {span_text(found.seconds)}, more than the "
            f"{span_text(LONGEST_TRACE_SECONDS)} that are played.",
            hint="--trace-unit says what its times are (s, ms, us or ns); --to 24h takes a part",
        )
    if found.num_requests > MOST_REQUESTS:
        raise KvplanError(
            f"The workload file {path} has {many}, more than the {MOST_REQUESTS:,} that are played.",
            hint=f"--from and --to take a part, such as its busiest hours; --sample {MOST_REQUESTS} thins the load",
        )
