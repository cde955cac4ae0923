"""What the user asked a load to do, checked; ``traffic`` makes the traffic of a run of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

from kvplan.errors import KvplanError, UsageError, check
from kvplan.load.client.body import Endpoint
from kvplan.load.traffic.arrivals import UNLIMITED, Rate
from kvplan.load.traffic.plan import TrafficPlan
from kvplan.runs.answers.slo_result import LoadVariable, objectives_ms
from kvplan.runs.trials import Load
from kvplan.settings import option_of
from kvplan.sweeps.axes import parse_values
from kvplan.sweeps.schedules.slo_search import LOAD_AXES
from kvplan.workload.files import survey_file
from kvplan.workload.lengths import Lengths, parse_length
from kvplan.workload.part import FilePart, file_part
from kvplan.workload.requests import LARGEST_SEED, MOST_REQUESTS, POISSON, WorkloadSpec, survey_for_run
from kvplan.workload.times import LONGEST_SECONDS

DEFAULT_NUM_PROMPTS: Final = 100
DEFAULT_INPUT_LEN: Final = "128"
DEFAULT_OUTPUT_LEN: Final = "64"
DEFAULT_TIMEOUT_SECONDS: Final = 600.0
SEARCH_RUNS: Final = 1
# A share of requests within the service level says little of fewer, and each user should come round several times.
_SEARCH_PROMPTS: Final = 30
_ROUNDS_PER_USER: Final = 5
# Users that a search tries if none are given: about a quarter more each.
_SEARCHED_USERS: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 160, 192, 256, 320, 384,
                          512, 640, 768, 1024)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SearchRange:
    """What ``--search`` asks for. variable: users, max_concurrency or request_rate; values: ascending, () for usual."""

    variable: LoadVariable
    values: tuple[float, ...]

    @staticmethod
    def parse(text: str) -> SearchRange:
        """``users``, ``request_rate=0.5..8*1.2``. UsageError otherwise."""
        name, equals, listed = text.partition("=")
        variable = cast(LoadVariable, name.strip().replace("-", "_"))
        axis = LOAD_AXES.get("max_concurrency" if variable == "users" else variable)
        if axis is None or (equals and not listed.strip()):
            raise UsageError(
                f"--search cannot vary '{text}'.",
                hint="users, max_concurrency or request_rate, optionally with values, such as users=1..64",
            )
        values = tuple(sorted(float(value) for value in parse_values(axis, listed))) if equals else ()
        return SearchRange(
            variable, values or (() if variable == "request_rate" else tuple(map(float, _SEARCHED_USERS)))
        )

    @property
    def axis(self) -> LoadVariable:
        """The part of a load that is varied: users are requests in flight."""
        return "request_rate" if self.variable == "request_rate" else "max_concurrency"


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The options of ``kvplan load``. None: not given. slo_seconds: upper bounds of ttft, tpot and e2el."""

    url: str | None = None
    model: str | None = None
    api_key: str | None = None
    endpoint: Endpoint = "completions"
    num_prompts: int | None = None
    duration: float | None = None
    request_rate: str | None = None
    burstiness: float | None = None
    max_concurrency: int | None = None
    users: int | None = None
    think_time: float | None = None
    input_len: str | None = None
    output_len: str | None = None
    num_prefixes: int | None = None
    prefix_len: str | None = None
    same_prompt: bool = False
    workload: str | None = None
    start: str | None = None
    end: str | None = None
    speed: float | None = None
    sample: int | None = None
    trace_unit: str | None = None
    spread_ticks: bool = False
    num_warmups: int = 0
    num_runs: int | None = None
    seed: int = 0
    num_clients: int = 1
    ignore_eos: bool = True
    request_timeout: float = DEFAULT_TIMEOUT_SECONDS
    search: str | None = None
    self_test: bool = False
    save_detailed: bool = False
    slo_seconds: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self.url is not None or self.self_test, "No server given", "kvplan load http://localhost:8000")
        check(self.endpoint in ("completions", "chat"), f"Unknown --endpoint '{self.endpoint}'", "completions or chat")
        for name in ("num_prompts", "max_concurrency", "users", "num_runs", "num_prefixes", "num_clients"):
            value = getattr(self, name)
            check(value is None or value >= 1, f"{option_of(name)} must be at least 1, got {value}", "leave it out")
        for name in ("duration", "burstiness", "request_timeout"):
            value = getattr(self, name)
            check(value is None or value > 0, f"{option_of(name)} must be above 0, got {value}", "leave it out")
        for name in ("seed", "num_warmups", "think_time"):
            value = getattr(self, name)
            check(value is None or value >= 0, f"{option_of(name)} must not be negative, got {value}", "use 0 or more")
        self._check_limits()
        self._check_arrivals()
        self._check_requests()
        self._check_search()

    def _check_limits(self) -> None:
        """Refuse numbers that nothing could be made with."""
        for name in ("duration", "request_timeout", "think_time"):
            value, most = getattr(self, name) or 0, LONGEST_SECONDS
            check(value <= most, f"{option_of(name)} must be at most {most:,.0f} s, got {value}", "use less")
        counted = dict.fromkeys(("num_prompts", "num_warmups", "users"), MOST_REQUESTS)
        for name, largest in {"seed": LARGEST_SEED, **counted}.items():
            value = getattr(self, name) or 0
            check(value <= largest, f"{option_of(name)} must be at most {largest:,}, got {value:,}", "use less")
        num_drawn = 0 if self.duration is None or self.rate.is_all_at_once else self.duration * self.rate.mean
        made = f"make more than {MOST_REQUESTS:,} requests"
        check(num_drawn <= MOST_REQUESTS, f"--request-rate and --duration {made}", "use less of one")
        if self.search is None:
            return
        each = _ROUNDS_PER_USER if self.search_range.axis == "max_concurrency" else self.duration or 0.0
        searched = each * max(self.search_range.values, default=0.0)
        check(searched <= MOST_REQUESTS, f"The largest load of --search would {made}", "use less")

    def _check_arrivals(self) -> None:
        rate = self.rate
        for name in ("request_rate", "max_concurrency"):
            both = self.users is not None and getattr(self, name) is not None
            check(not both, f"{option_of(name)} cannot be used with --users", "users send when they have their answer")
        searched = self.search_range.variable if self.search else ""
        has_users = self.users is not None or searched == "users"
        check(self.think_time is None or has_users, "--think-time needs --users", "for example --users 16")
        has_rate = not rate.is_all_at_once or searched == "request_rate"
        check(self.burstiness is None or has_rate, "--burstiness needs a --request-rate", "leave it out, or give one")

    def _check_requests(self) -> None:
        both = self.duration is not None and self.num_prompts is not None
        check(not both, "--num-prompts cannot be used with --duration", "leave one out")
        endless = self.duration is not None and self.rate.is_all_at_once and not self.workload
        self._check_pace(not endless, "--duration needs to know how requests come")
        given = self.workload is not None and self.input_len is not None
        check(not given, "--input-len cannot be used with --workload", "the file gives the lengths")
        _ = self.part  # UsageError for what cannot be read
        alone = self.num_prefixes is not None and self.prefix_len is None
        check(not alone, "--num-prefixes needs a --prefix-len", "for example 128")

    def _check_search(self) -> None:
        if self.search is None:
            return
        variable = self.search_range.variable
        check(bool(self.slo_seconds), "--search needs a --slo", "for example --slo 'ttft:500 tpot:50'")
        fixed = {"users": self.users, "max_concurrency": self.max_concurrency, "request_rate": self.request_rate}
        for name in {variable, "users"}:
            check(fixed[name] is None, f"{option_of(name)} cannot be used with --search {variable}", "leave it out")
        held = variable == "users" and (self.request_rate is not None or self.max_concurrency is not None)
        check(not held, "--search users needs a closed loop", "leave --request-rate and --max-concurrency out")

    @property
    def rate(self) -> Rate:
        return UNLIMITED if self.request_rate is None else Rate.parse(self.request_rate)

    @property
    def part(self) -> FilePart:
        """Which part of the workload's file is used. UsageError for values that cannot be read."""
        return file_part(
            start=self.start,
            end=self.end,
            speed=self.speed,
            sample=self.sample,
            trace_unit=self.trace_unit,
            spread_ticks=self.spread_ticks,
            output_len=self.output_len,
            has_file=self.workload is not None,
            has_rate=self.request_rate is not None,
        )

    def file_notes(self) -> tuple[str, ...]:
        """What to tell about the workload's file; nothing without one."""
        if self.workload is None:
            return ()
        most = None if self.num_prompts is None else self.num_prompts + self.num_warmups
        return survey_file(Path(self.workload), replace(self.part, most=most)).notes

    @property
    def search_range(self) -> SearchRange:
        """UsageError if ``--search`` is malformed."""
        return SearchRange.parse(self.search or "")

    def _check_pace(self, is_known: bool, sentence: str) -> None:
        """What comes all at once ends after a number of requests, and by the clock never."""
        is_closed = self.users is not None or self.max_concurrency is not None or self.search is not None
        check(is_known or is_closed, sentence, "add --users or --request-rate")

    @property
    def repetitions(self) -> int:
        return self.num_runs or SEARCH_RUNS

    def traffic(self, load: Load = Load(), run_number: int = 1) -> TrafficPlan:
        """The traffic of one run. load: what a search tries. Repetitions draw their requests anew."""
        users, in_flight, rate = self.users, self.max_concurrency, self.rate
        if load.max_concurrency is not None and self.search_range.variable == "users":
            users = load.max_concurrency
        elif load.max_concurrency is not None:
            in_flight = load.max_concurrency
        if load.request_rate is not None:
            rate = Rate(load.request_rate, load.request_rate)
        return TrafficPlan(
            workload=replace(self._workload(users or in_flight or 1), seed=self.seed + run_number - 1),
            rate=rate,
            burstiness=self.burstiness or POISSON,
            users=users,
            think_seconds=self.think_time or 0.0,
            max_in_flight=in_flight,
            duration_seconds=self.duration,
            num_warmups=self.num_warmups,
            has_times=self.workload is not None and survey_file(Path(self.workload), self.part).has_times,
        )

    def _workload(self, concurrency: int) -> WorkloadSpec:
        count, part, seconds = self.num_prompts or DEFAULT_NUM_PROMPTS, self.part, None
        if self.search and self.num_prompts is None:
            count = max(_SEARCH_PROMPTS, _ROUNDS_PER_USER * concurrency)
        if self.workload is not None:
            count = self._num_of_file(None if self.num_prompts is None and not self.search else count)
            seconds = survey_file(Path(self.workload), replace(part, most=count)).seconds
        return WorkloadSpec(
            num_prompts=count,
            part=part,
            file_seconds=seconds,
            input_len=Lengths.parse("--input-len", self.input_len or DEFAULT_INPUT_LEN),
            output_len=Lengths.parse("--output-len", self.output_len or DEFAULT_OUTPUT_LEN),
            seed=self.seed,
            file=self.workload,
            num_prefixes=(self.num_prefixes or 1) if self.prefix_len else 0,
            prefix_len=parse_length("--prefix-len", self.prefix_len) if self.prefix_len else 0,
        )

    def _num_of_file(self, asked: int | None) -> int:
        """Measured requests: those of the file behind the warm-ups, ``asked`` at most. KvplanError where none is left.

        A run by the clock has its warm-ups among them.
        """
        assert self.workload is not None
        survey = survey_for_run(Path(self.workload), self.part)
        found = survey.num_requests
        if self.duration is not None:
            paced = survey.has_times or not self.rate.is_all_at_once
            self._check_pace(paced, f"--duration needs to know how requests come, and {self.workload} does not say it")
            return found
        left = found - self.num_warmups
        if left < 1:
            raise KvplanError(
                f"The {found:,} requests of the workload file {self.workload} are all warm-ups.",
                hint="use fewer --num-warmups",
            )
        return left if asked is None else min(left, asked)

    def as_json(self) -> dict[str, Any]:
        """The options for the manifest, without the API key."""
        record = asdict(self)
        del record["api_key"]
        record["slo_ms"] = objectives_ms(record.pop("slo_seconds"))
        record["burstiness"] = burstiness_as_json(self.burstiness)
        return record


def burstiness_as_json(burstiness: float | None) -> float | str | None:
    """JSON has no infinity: equal gaps are the word ``inf``."""
    return "inf" if burstiness is not None and math.isinf(burstiness) else burstiness
