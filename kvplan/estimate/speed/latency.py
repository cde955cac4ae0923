"""Time to first token, time per output token and throughput: from a measured profile of the device, else a roofline.

Every figure is a range, and says where it comes from (``ServingSpeed.origin``). From a roofline (bytes moved and
operations done, by the data sheet) the low end assumes that kernels reach what well-tuned ones reach, the high end what
ordinary deployments show. From a measured profile the range is as wide as the profile's held-out error.

While users' requests follow one another, each request's prefill also delays everybody else's tokens (chunked prefill
shares the steps).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Final, Literal

from kvplan.catalog.devices.gpu_profile import host_bytes_per_second
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.devices.measured_profile import Origin
from kvplan.catalog.devices.server_scale import Sensitivity, ServerScale
from kvplan.catalog.published_errors import ErrorInterval, FigureName, published_errors, server_kind
from kvplan.estimate.speed.bounds import SpeedBounds, speed_bounds
from kvplan.estimate.speed.queueing.drafting import DraftedSteps, Drafting, DraftPasses
from kvplan.estimate.speed.queueing.front_end import NO_FRONT_END, FrontEnd
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.speed.queueing.sharing import ExpectedHits
from kvplan.estimate.speed.queueing.steps import (
    BetweenSteps,
    HostedSteps,
    OffloadedSteps,
    RooflineSteps,
    ScaledSteps,
    padded_pairs,
)
from kvplan.estimate.speed.simulation.interface import GroupClock
from kvplan.estimate.speed.steady import (
    PromptReading,
    PromptsRead,
    SharedSteps,
    SteadyState,
    behind_server,
    middle_state,
    num_decoding,
    steady_state,
)
from kvplan.estimate.speed.steps.clocks import (
    BEST,
    DATA_SHEET,
    IN_A_SERVER,
    USUAL,
    DeviceSpeed,
    Efficiency,
    Roofline,
)
from kvplan.estimate.speed.steps.host import NO_HOST, HostWork
from kvplan.estimate.speed.steps.measured_clock import MeasuredClock
from kvplan.estimate.speed.steps.step_terms import StepLoad, StepTerms, measured_terms, roofline_terms
from kvplan.estimate.speed.steps.work import ModelWork

End = Literal["best", "middle", "worst"]
"""Which end of the ranges a steady state is at."""
FIGURES: Final[tuple[FigureName, ...]] = ("ttft", "tpot", "throughput")
_PROFILE_NAMES: Final[dict[FigureName, str]] = {"ttft": "ttft", "tpot": "tpot", "throughput": "output_throughput"}
_ROUNDS: Final = 3
"""After which latency and what is found agree."""
_ENDS: Final[tuple[End, End]] = ("best", "worst")


@dataclass(frozen=True, slots=True)
class Range:
    """Low and high end of a figure. ``high`` is infinite where nothing bounds it: a queue that grows for ever.

    ``least``, ``most``: what the data sheet allows; no end lies beyond, nor is one rounded to lie there.
    """

    low: float
    high: float
    least: float = 0.0
    most: float = math.inf

    @property
    def middle(self) -> float:
        """The geometric mean: as many times more than the low end as less than the high one."""
        return float((self.low * self.high) ** 0.5)

    @property
    def is_bounded(self) -> bool:
        return math.isfinite(self.high)


@dataclass(frozen=True, slots=True)
class ServingSpeed:
    """One replica with ``num_users`` requests always in progress. Throughputs are per second and replica."""

    num_users: float
    ttft_seconds: Range
    tpot_seconds: Range
    e2el_seconds: Range
    output_tokens_per_second: Range
    requests_per_second: Range
    bandwidth_bound: bool
    origin: Origin = "roofline"
    note: str | None = None
    """What a measured profile says of itself; None for a roofline."""

    @property
    def output_tokens_per_request(self) -> float:
        return self.output_tokens_per_second.high / max(self.requests_per_second.high, 1e-12)


@dataclass(frozen=True)
class SpeedModel:
    """One instance that serves prompts of ``input_tokens`` and answers of ``output_tokens``.

    ``kv_bytes``: of one sequence's cache, read by a rank that holds all layers. ``device_speed``: if it was measured.
    ``step_tokens``: of a step; None where each reads one whole prompt. ``steps_before``: as for ``PromptReading``.
    ``hits``: tokens of prompts that need not be read; None: no prompt begins with what was read before. ``drafting``:
    tokens that are drafted, None without a drafter. ``scale``: what its user measured of such a server.
    ``offloaded_bytes``: of a rank's weights, that it reads from the host's memory.
    """

    work: ModelWork
    gpu: GpuProfile
    input_tokens: int
    output_tokens: int
    kv_bytes: float
    device_speed: DeviceSpeed | None = None
    engine: str = "vllm"
    engine_host: HostWork = NO_HOST
    mixed_tile_rows: int = 1
    engine_front_end: FrontEnd = NO_FRONT_END
    is_first_engine: bool = False
    step_tokens: int | None = None
    steps_before: float = 0.5
    hits: ExpectedHits | None = None
    drafting: Drafting | None = None
    scale: ServerScale | None = None
    offloaded_bytes: int = 0

    @property
    def host(self) -> HostWork:
        """What the engine's host adds to steps; speeds that were measured on the device have it in them."""
        found = NO_HOST if self.origin in ("measured", "calibrated") else self.engine_host
        return found if self.scale is None else found.times(self.scale.host)

    @property
    def _kernels_factor(self) -> float:
        """How many times as long as alone kernels take in steps; speeds measured on the device have that in them."""
        in_server = IN_A_SERVER if self.origin in ("kernels", "scaled") else 1.0
        return in_server * (1.0 if self.scale is None else self.scale.kernels)

    @property
    def front_end(self) -> FrontEnd:
        """The server before the engine."""
        return self.engine_front_end if self.scale is None else self.engine_front_end.times(self.scale.host)

    @property
    def origin(self) -> Origin:
        return "roofline" if self.device_speed is None else self.device_speed.origin

    def steady(self, num_users: float, end: End) -> SteadyState:
        """The steady state of ``num_users`` users at one end of what is likely, behind the engine's server."""
        return behind_server(self._of_engine(num_users, end), self.front_end, self.output_tokens)

    def server_share(self, num_users: float) -> float:
        """How much of its time the server would work on what the engine answers; above 1 it bounds the throughput."""
        return self.front_end.busy_share(self._of_engine(num_users, "middle").requests_per_second, self.output_tokens)

    def _of_engine(self, num_users: float, end: End) -> SteadyState:
        """The steady state without the server's own work."""
        key = (num_users, end)
        if key not in self._states:
            self._states[key] = self._found_state(num_users, end)
        return self._states[key]

    @cached_property
    def _states(self) -> dict[tuple[float, End], SteadyState]:
        """Found so far, by ``num_users`` and end."""
        return {}

    def _found_state(self, num_users: float, end: End) -> SteadyState:
        if self.scale is not None:
            return self._scaled(num_users, end, self.scale)
        if self.device_speed is not None:
            return self._measured(num_users, end, self.device_speed)
        if end == "middle":
            return middle_state(self._of_engine(num_users, "best"), self._of_engine(num_users, "worst"))
        return self._state(self._drafted(self._roofline_steps[end], end), num_users)

    def bounds(self, num_users: float, num_decoding: float | None = None) -> SpeedBounds:
        """What the data sheet allows ``num_users`` users at most, of whom ``num_decoding`` decode; None: as many as in
        a steady state."""
        decoding = self._decoding(num_users) if num_decoding is None else num_decoding
        read = self.input_tokens if self.hits is None else max(int(self.hits.least_read), 1)
        lengths = (read, self.output_tokens)
        most = self.tokens_per_step * (1.0 if self.drafting is None else self.drafting.spread[1])
        return speed_bounds(self.work, self.gpu, self.kv_bytes, lengths, num_users, decoding, most)

    @property
    def rows(self) -> int:
        """Count the rows of a sequence that decodes, in a step."""
        return 1 if self.drafting is None else self.drafting.rows

    @property
    def tokens_per_step(self) -> float:
        """Return how many tokens a sequence that decodes gets in a step, on average."""
        return 1 if self.drafting is None else self.drafting.tokens_per_step

    def followed(self, rules: SchedulingRules) -> SchedulingRules:
        """``rules`` with this model's drafter, and with a server as slow as was measured."""
        front_end = rules.front_end if self.scale is None else rules.front_end.times(self.scale.host)
        rows, tokens = self.rows, self.tokens_per_step
        return replace(rules, rows_per_sequence=rows, tokens_per_step=tokens, front_end=front_end)

    def error_interval(self, figure: FigureName, num_users: float = 1.0) -> ErrorInterval | None:
        """Factors of a prediction between which 9 in 10 measurements lie; None where nothing was ever compared.

        As wide as the number of draft tokens that are accepted is open, too. ``num_users``: in progress; what was
        measured of such a server (``scale``) says more about some loads than about others.
        """
        found = self._error_interval(figure)
        if self.scale is not None:
            found = self.scale.interval(figure, self.sensitivity(figure, num_users)).beyond(found)
        if found is None or self.drafting is None or figure == "ttft":
            return found
        low, high = self.drafting.spread
        if figure == "tpot":
            low, high = 1 / high, 1 / low
        return found.times(low, high)

    def _error_interval(self, figure: FigureName) -> ErrorInterval | None:
        """Return the held-out errors of speeds measured on the device; of others what was published, by kind."""
        kind = server_kind(
            self.engine,
            self.gpu.architecture,
            is_mixture=self.work.num_experts > 0,
            is_latent=self.work.num_latent_layers > 0,
            is_first=self.is_first_engine,
            format=self.work.kernel_format,
        )
        published = published_errors().interval(kind, figure, in_any_direction=self.origin != "roofline")
        if self.device_speed is None or (published is not None and self.origin not in ("measured", "calibrated")):
            return published
        error = self.device_speed.errors[_PROFILE_NAMES[figure]]
        return ErrorInterval(1 / (1 + error), 1 / (1 - error)).beyond(published)

    def sensitivity(self, figure: FigureName, num_users: float) -> Sensitivity:
        """How much of a figure is kernels' time and how much the host's, where ``num_users`` are in progress."""
        if num_users not in self._sensitivities:
            scale = self.scale or ServerScale()
            now = replace(self, scale=scale).steady(num_users, "middle")
            slower = (replace(scale, kernels=scale.kernels * _SLIGHTLY), replace(scale, host=scale.host * _SLIGHTLY))
            states = [replace(self, scale=each).steady(num_users, "middle") for each in slower]
            self._sensitivities[num_users] = {name: _sensitivity(name, now, *states) for name in FIGURES}
        return self._sensitivities[num_users][figure]

    @cached_property
    def _sensitivities(self) -> dict[float, dict[FigureName, Sensitivity]]:
        """Found so far, by ``num_users``."""
        return {}

    @cached_property
    def _rooflines(self) -> dict[End, Roofline]:
        reached: dict[End, Efficiency] = {"best": BEST, "worst": USUAL}
        return {end: Roofline.of(self.work, self.gpu, self.kv_bytes, each) for end, each in reached.items()}

    @cached_property
    def _data_sheet(self) -> Roofline:
        return Roofline.of(self.work, self.gpu, self.kv_bytes, DATA_SHEET)

    def speed(self, num_users: float) -> ServingSpeed:
        """``num_users`` users who each send the next request when the last one has been answered."""
        return self.between(self.steady(num_users, "best"), self.steady(num_users, "worst"), num_users)

    def between(self, best: SteadyState, worst: SteadyState | None, num_users: float) -> ServingSpeed:
        """The ranges from ``best`` to ``worst``, as far as the data sheet allows them; without a worst one nothing
        bounds the times."""
        bounds = self.bounds(num_users)
        slowest = (math.inf, math.inf, math.inf)
        if worst is not None:  # behind a busy server a faster engine's requests wait longer for their first token
            slowest = (max(best.ttft_seconds, worst.ttft_seconds), worst.tpot_seconds, worst.e2el_seconds)
        first = best.ttft_seconds if worst is None else min(best.ttft_seconds, worst.ttft_seconds)
        tokens, most = self.output_tokens, bounds.output_tokens_per_second
        ends = (best.requests_per_second, 0.0 if worst is None else worst.requests_per_second)
        requests = sorted(min(end, most / tokens) for end in ends)
        return ServingSpeed(
            num_users=num_users,
            ttft_seconds=_above(bounds.ttft_seconds, first, slowest[0]),
            tpot_seconds=_above(bounds.tpot_seconds, best.tpot_seconds, slowest[1]),
            e2el_seconds=_above(bounds.e2el_seconds, best.e2el_seconds, slowest[2]),
            output_tokens_per_second=Range(requests[0] * tokens, requests[1] * tokens, most=most),
            requests_per_second=Range(requests[0], requests[1]),
            bandwidth_bound=self._data_sheet.is_bandwidth_bound(num_users),
            origin=self.origin,
            note=None if self.device_speed is None else self.device_speed.note,
        )

    @cached_property
    def steps(self) -> GroupClock:
        """The middle of what is likely, for any step that a play finds."""
        return self._drafted(self._gpu_steps, "middle")

    def _drafted(self, clock: GroupClock, end: End) -> GroupClock:
        hosted = self._hosted(clock)
        return hosted if self.drafting is None else DraftedSteps(hosted, self._passes(self.drafting, end))

    def _passes(self, drafting: Drafting, end: End) -> DraftPasses:
        return drafting.passes(self.gpu, self._context, {"best": BEST, "worst": USUAL}.get(end))

    def _hosted(self, clock: GroupClock) -> HostedSteps:
        work = self.work
        rows = self.rows
        if self._kernels_factor != 1:
            clock = ScaledSteps(clock, self._kernels_factor)
        if self.offloaded_bytes:
            clock = OffloadedSteps(clock, work, self.offloaded_bytes, host_bytes_per_second(self.gpu))
        return HostedSteps(clock, self.host, work.num_layers, work.num_expert_layers, self.mixed_tile_rows, rows)

    @cached_property
    def _gpu_steps(self) -> GroupClock:
        if self.device_speed is not None:
            return self._measured_clock
        return BetweenSteps(*(self._roofline_steps[end] for end in _ENDS))

    @cached_property
    def _roofline_steps(self) -> dict[End, RooflineSteps]:
        return {end: RooflineSteps(self._rooflines[end], self.kv_bytes / self._context) for end in _ENDS}

    @cached_property
    def _measured_clock(self) -> MeasuredClock:
        assert self.device_speed is not None, "asked for where the device was measured"
        return MeasuredClock(self.work, self.gpu, self.kv_bytes, self.device_speed, self._context, self.rows)

    def step_terms(self, load: StepLoad) -> StepTerms:
        """The parts of a step; of a roofline the geometric middle of both ends."""
        hosted, drafter = self._hosted(self._gpu_steps), 0.0
        if self.drafting is not None:
            passes = self._passes(self.drafting, "middle")
            drafter = passes.seconds(load.num_met, load.num_tokens, load.num_sequences, load.num_kv_tokens)
        host = _seconds(hosted, load) - _seconds(replace(hosted, host=NO_HOST), load)
        terms = self._gpu_terms(load)
        return replace(terms.times(self._kernels_factor), host=host, drafter=drafter)

    def _gpu_terms(self, load: StepLoad) -> StepTerms:
        padded = padded_pairs(
            self.mixed_tile_rows, load.num_tokens, load.num_sequences, load.num_kv_tokens, load.num_pairs
        )
        load = replace(load, num_pairs=padded)
        if self.device_speed is not None:
            return measured_terms(self._measured_clock, load)
        best, worst = (roofline_terms(self._rooflines[end], self.kv_bytes / self._context, load) for end in _ENDS)
        return best.merged(worst, lambda one, other: (one * other) ** 0.5)

    def step_seconds(self, load: StepLoad) -> float:
        """The whole step."""
        return _seconds(self.steps, load)

    def _measured(self, num_users: float, end: End, device: DeviceSpeed) -> SteadyState:
        state = self._predicted(num_users)
        slower = {"best": -1.0, "middle": 0.0, "worst": 1.0}[end]

        def at_end(name: str, seconds: float) -> float:
            return seconds / (1 - slower * device.errors[name])

        # A throughput is predicted too high where it is slower than predicted: measured = predicted / (1 + error).
        whole = state.e2el_seconds * (1 + slower * device.errors["output_throughput"])
        return SteadyState(num_users, at_end("ttft", state.ttft_seconds), at_end("tpot", state.tpot_seconds), whole)

    def _scaled(self, num_users: float, end: End, scale: ServerScale) -> SteadyState:
        """Return the state as far from the middle as what was measured of such a server leaves open."""
        state = self._predicted(num_users)
        if end == "middle":
            return state
        of: dict[FigureName, float] = {}
        for name in FIGURES:
            interval = scale.interval(name, self.sensitivity(name, num_users))
            of[name] = interval.low if end == "best" else interval.high
        times = (of["ttft"] * state.ttft_seconds, of["tpot"] * state.tpot_seconds)
        return SteadyState(num_users, *times, of["throughput"] * state.e2el_seconds)

    def _predicted(self, num_users: float) -> SteadyState:
        """Return the state by the coefficients alone: what both ends of the range begin with."""
        if num_users not in self._predictions:
            self._predictions[num_users] = self._state(self.steps, num_users)
        return self._predictions[num_users]

    @cached_property
    def _predictions(self) -> dict[float, SteadyState]:
        """Found so far, by ``num_users``."""
        return {}

    def _state(self, steps: GroupClock, num_users: float) -> SteadyState:
        """With what prompts find in the cache, which depends on how long answers take where users think in between."""
        if self.hits is None:
            return self._state_beside(steps, num_users, 0.0)
        state = self._state_beside(steps, num_users, self.hits.found(num_users, math.inf))
        for _ in range(_ROUNDS if self.hits.depends_on_latency else 0):
            state = self._state_beside(steps, num_users, self.hits.found(num_users, state.e2el_seconds))
        return state

    def _state_beside(self, steps: GroupClock, num_users: float, found: float) -> SteadyState:
        """Return the state by the clock that plays have: of a step in which all decode, and of those that read prompts
        beside them, of each of which the cache has ``found`` tokens.
        """
        layout, decoding = self.work.layout, self._decoding(num_users, found)
        groups, stages = layout.data_parallel_size, layout.pipeline_parallel_size
        reading = PromptReading(
            self._chunks(decoding, found), stages, self.steps_before, self.front_end.first_token_seconds
        )
        in_fullest = decoding * math.ceil(num_users / groups) / num_users  # groups have whole users
        held = in_fullest * self._context
        rows, each_row = self.rows, self.rows * in_fullest
        step = steps.seconds_beside(rows * decoding, each_row, in_fullest, each_row, held, rows * held)
        others = max(decoding - 1, 0.0)
        reading_step = partial(self._reading_step, steps, found, others, in_fullest * others / decoding)
        together = groups if self.work.steps_together else 1
        alike = SharedSteps(step, reading_step, groups // together, together)
        state = steady_state(alike, reading, num_users, self._answer_steps)
        each = state.tpot_seconds / self.tokens_per_step
        return SteadyState(state.num_users, state.ttft_seconds, each, state.e2el_seconds)

    def _reading_step(self, steps: GroupClock, found: float, others: float, beside: float, read: PromptsRead) -> float:
        """Return the seconds of a step that reads prompts, of each of which the cache has ``found`` tokens, beside
        ``others`` that decode, ``beside`` of them in the fullest group."""
        rows, context = self.rows, self._context
        prompts, prompt = read.in_fullest, self.input_tokens - found
        kv_tokens = beside * context + max(prompts, 1.0) * (found + prompt * (1 + min(prompts, 1.0)) / 2)
        pairs = rows * beside * context + prompts * prompt * (found + (prompt + 1) / 2)
        tokens, sequences = rows * beside + prompts * prompt, beside + max(prompts, 1.0)
        return steps.seconds_beside(
            rows * others + read.in_all * prompt, tokens, sequences, rows * beside + prompts, kv_tokens, pairs
        )

    def most_prompts_per_second(self, step_tokens: int) -> float:
        """Prompts that one instance reads at most, were steps of at most so many tokens to do nothing else."""
        layout, found = self.work.layout, 0.0 if self.hits is None else self.input_tokens - self.hits.least_read
        prompts = step_tokens * layout.pipeline_parallel_size / (self.input_tokens - found)
        read = PromptsRead(prompts, layout.data_parallel_size * prompts)
        return read.in_all / self._reading_step(self.steps, found, 0.0, 0.0, read)

    @property
    def _context(self) -> float:
        """Tokens that a sequence holds on average."""
        return self.input_tokens + self.output_tokens / 2

    @property
    def _answer_steps(self) -> float:
        """Steps in which an answer gets its tokens: the first one in that which reads the last of its prompt."""
        return 1 + (self.output_tokens - 1) / self.tokens_per_step

    def _decoding(self, num_users: float, found: float = 0.0) -> float:
        """Return how many of ``num_users`` decode in a step, as for ``num_decoding``."""
        key = (num_users, found)
        if key not in self._found_decoding:
            stages, groups = self.work.layout.pipeline_parallel_size, self.work.layout.data_parallel_size
            share = min(num_users, groups)  # of the groups, those that have any users
            of_one = num_decoding(
                num_users / share,
                self._answer_steps,
                lambda decoding: self._chunks(decoding * share, found) / stages,
                self.steps_before,
            )
            self._found_decoding[key] = share * of_one
        return self._found_decoding[key]

    @cached_property
    def _found_decoding(self) -> dict[tuple[float, float], float]:
        """Results by ``num_users`` and tokens in the cache."""
        return {}

    def _chunks(self, decoding: float, found: float = 0.0) -> float:
        """Steps in which a prompt is read: it has what those that decode leave of their tokens."""
        if self.step_tokens is None:
            return 1.0
        layout = self.work.layout
        beside = self.rows * decoding / (layout.pipeline_parallel_size * layout.data_parallel_size)
        return (self.input_tokens - found) / max(self.step_tokens - beside, 1.0)


_SLIGHTLY: Final = 1.1


def _sensitivity(figure: FigureName, now: SteadyState, kernels: SteadyState, host: SteadyState) -> Sensitivity:
    """From a state and those with kernels, or a host, that are ``_SLIGHTLY`` slower."""

    def grown(slower: SteadyState) -> float:
        if figure == "throughput":
            ratio = slower.requests_per_second / now.requests_per_second
        else:
            ratio = getattr(slower, f"{figure}_seconds") / getattr(now, f"{figure}_seconds")
        return math.log(ratio) / math.log(_SLIGHTLY)

    return Sensitivity(grown(kernels), grown(host))


def _above(least: float, low: float, high: float) -> Range:
    return Range(max(low, least), max(high, least), least=least)


def _seconds(steps: GroupClock, load: StepLoad) -> float:
    return steps.seconds_beside(
        load.num_met, load.num_tokens, load.num_sequences, load.num_sequences, load.num_kv_tokens, load.num_pairs
    )


def decode_step_seconds(work: ModelWork, gpu: GpuProfile, batch: float, kv_bytes: float) -> Range:
    """One token for each of ``batch`` sequences whose caches hold ``kv_bytes`` on average, by the data sheet."""
    best, usual = (Roofline.of(work, gpu, kv_bytes, efficiency) for efficiency in (BEST, USUAL))
    return Range(best.decode_seconds(batch), usual.decode_seconds(batch))


def prefill_seconds(work: ModelWork, gpu: GpuProfile, tokens: int) -> Range:
    """Reading a prompt of ``tokens`` tokens, alone on the GPUs, by the data sheet."""
    best, usual = (Roofline.of(work, gpu, 0.0, efficiency) for efficiency in (BEST, USUAL))
    return Range(best.prefill_seconds(tokens), usual.prefill_seconds(tokens))
