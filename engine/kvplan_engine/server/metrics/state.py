"""One engine's numbers: updated from its frames and from finished answers, read by the exposition."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from prometheus_client.utils import floatToGoString

from kvplan_engine.server.messages import PoolFacts, Stats, Step

# vLLM's buckets (vllm/v1/metrics/loggers.py and buckets.py of 0.33.0, read on 2026-11-22), in seconds and tokens.


REQUEST_LATENCY: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
TIME_TO_FIRST_TOKEN: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
TIME_PER_TOKEN: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
ITERATION_TOKENS: Final = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
NUM_SAMPLES: Final = (1, 2, 5, 10, 20)
NUM_PREEMPTIONS: Final = (1, 2, 3, 4, 5, 10, 20)

# Ours: vLLM has nothing below 10 ms, and a small model's step takes less.
STEP_SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
LOOP_LAG_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
HTTP_SECONDS: Final = (0.1, 0.5, 1.0)


def token_buckets(largest: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50, ... up to ``largest``."""
    bounds: list[int] = []
    power = 1
    while power <= largest:
        bounds += [step * power for step in (1, 2, 5) if step * power <= largest]
        power *= 10
    return tuple(bounds)


# A histogram as plain numbers. prometheus_client's own takes a lock and a loop over the buckets per observation.


class Histogram:
    """Observations counted by the first of ``bounds`` (ascending) that they do not exceed."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulative(self) -> Iterator[tuple[str, float]]:
        """(upper bound as Prometheus writes it, observations up to it), ending with +Inf."""
        return zip(map(floatToGoString, (*self._bounds, float("inf"))), accumulate(self._counts), strict=True)


# Counters of a pool, which begin at 0 again when a new one is carved.
_POOL_COUNTERS = (
    "num_preemptions",
    "num_swaps",
    "recomputed_tokens",
    "num_blocked_admissions",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
)


@dataclass(frozen=True, slots=True)
class AdaptersInFlight:
    """Names of LoRA adapters with requests that run, and with requests that wait."""

    running: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FinishedAnswer:
    """Times in seconds of the monotonic clock. scheduled, first_token: None when it was aborted before.

    max_tokens: what the request asked for. reason: vLLM's finished_reason.
    """

    reason: str
    arrival: float
    finished: float
    scheduled: float | None
    first_token: float | None
    last_token: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generated_tokens: int
    num_preemptions: int
    max_tokens: int


class EngineMetrics:
    """Every number that /metrics shows of one engine process."""

    def __init__(self) -> None:
        self.stats = Stats()
        self.pool: PoolFacts | None = None
        self._before = Counter[str]()  # counters of the pools before this one
        self._accepted_before = Counter[int]()  # the same of each position of a draft
        self.num_prompt_tokens = 0
        self.num_cached_prompt_tokens = 0
        self.num_generation_tokens = 0
        self.num_requests_by_reason = Counter[str](stop=0, length=0, abort=0, error=0, repetition=0)

        self.time_to_first_token = Histogram(TIME_TO_FIRST_TOKEN)
        self.inter_token_latency = Histogram(TIME_PER_TOKEN)
        self.time_per_output_token = Histogram(TIME_PER_TOKEN)
        self.e2e_latency = Histogram(REQUEST_LATENCY)
        self.queue_time = Histogram(REQUEST_LATENCY)
        self.inference_time = Histogram(REQUEST_LATENCY)
        self.prefill_time = Histogram(REQUEST_LATENCY)
        self.decode_time = Histogram(REQUEST_LATENCY)
        self.iteration_tokens = Histogram(ITERATION_TOKENS)
        self.params_n = Histogram(NUM_SAMPLES)
        self.num_preemptions_per_request = Histogram(NUM_PREEMPTIONS)
        self.step_seconds = Histogram(STEP_SECONDS)
        self._make_token_histograms(1)

    def _make_token_histograms(self, max_model_len: int) -> None:
        bounds = token_buckets(max_model_len)
        self.prompt_tokens = Histogram(bounds)
        self.generation_tokens = Histogram(bounds)
        self.max_generation_tokens = Histogram(bounds)
        self.params_max_tokens = Histogram(bounds)
        self.prefill_computed_tokens = Histogram(bounds)

    def use_pool(self, pool: PoolFacts) -> None:
        """A pool was carved: the first, or a new one after a reconfiguration."""
        if self.pool is None:
            self._make_token_histograms(pool.max_model_len)
        for name in _POOL_COUNTERS:
            self._before[name] += getattr(self.stats, name)
        self._accepted_before.update(dict(enumerate(self.stats.accepted_per_position)))
        self.pool = pool
        self.stats = Stats(num_free_blocks=pool.num_blocks)

    def total(self, name: str) -> int:
        """A counter of Stats since the server's start."""
        return self._before[name] + int(getattr(self.stats, name))

    @property
    def accepted_per_position(self) -> dict[str, int]:
        """Accepted drafts since the server's start, by position; {} where nothing was ever proposed."""
        positions = max(len(self.stats.accepted_per_position), len(self._accepted_before))
        now = dict(enumerate(self.stats.accepted_per_position))
        return {str(position): self._accepted_before[position] + now.get(position, 0) for position in range(positions)}

    def count_step(self, step: Step) -> None:
        self.stats = stats = step.stats
        if step.was_step:
            self.num_generation_tokens += len(step.tokens)
            self.iteration_tokens.observe(stats.num_scheduled_tokens)
            self.step_seconds.observe(stats.step_seconds)

    def count_prompt(self, num_prompt_tokens: int, num_cached_tokens: int) -> None:
        """A request left the queue."""
        self.num_prompt_tokens += num_prompt_tokens
        self.num_cached_prompt_tokens += num_cached_tokens

    def count_answer(self, answer: FinishedAnswer) -> None:
        self.num_requests_by_reason[answer.reason] += 1
        self.e2e_latency.observe(answer.finished - answer.arrival)
        self.prompt_tokens.observe(answer.num_prompt_tokens)
        self.generation_tokens.observe(answer.num_generated_tokens)
        self.params_max_tokens.observe(answer.max_tokens)
        self.num_preemptions_per_request.observe(answer.num_preemptions)
        if answer.scheduled is None:
            return
        self.queue_time.observe(answer.scheduled - answer.arrival)
        self.prefill_computed_tokens.observe(answer.num_prompt_tokens - answer.num_cached_tokens)
        if answer.first_token is None:
            return
        self.prefill_time.observe(answer.first_token - answer.scheduled)
        self.inference_time.observe(answer.last_token - answer.scheduled)
        self.decode_time.observe(answer.last_token - answer.first_token)
        if answer.num_generated_tokens > 1:
            seconds = (answer.last_token - answer.first_token) / (answer.num_generated_tokens - 1)
            self.time_per_output_token.observe(seconds)

    def count_request(self, num_tokens_by_sample: Sequence[int]) -> None:
        """The last of a request's samples has ended."""
        self.params_n.observe(len(num_tokens_by_sample))
        self.max_generation_tokens.observe(max(num_tokens_by_sample))


class ServerMetrics:
    """Every number that /metrics shows. adapters: asked at each reading which of them have requests."""

    def __init__(self, num_engines: int = 1) -> None:
        self.engines = [EngineMetrics() for _ in range(num_engines)]
        self.adapters: Callable[[], AdaptersInFlight] = AdaptersInFlight
        self.num_rejections = Counter[str](max_num_queued_reqs=0, max_num_queued_tokens=0)
        self.num_http_requests = Counter[tuple[str, str, str]]()  # (handler, method, status like "2xx")
        self.http_seconds: dict[tuple[str, str], Histogram] = {}  # by (handler, method)
        self.loop_lag = Histogram(LOOP_LAG_SECONDS)

    def count_http(self, handler: str, method: str, status: int, seconds: float) -> None:
        self.num_http_requests[handler, method, f"{status // 100}xx"] += 1
        histogram = self.http_seconds.get((handler, method))
        if histogram is None:
            histogram = self.http_seconds[handler, method] = Histogram(HTTP_SECONDS)
        histogram.observe(seconds)
