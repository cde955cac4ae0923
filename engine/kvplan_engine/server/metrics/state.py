"""One engine's numbers: updated from its frames and from finished answers, read by the exposition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kvplan_engine.server.messages import PoolFacts, Stats, Step
from kvplan_engine.server.metrics import buckets
from kvplan_engine.server.metrics.histogram import Histogram

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

        self.time_to_first_token = Histogram(buckets.TIME_TO_FIRST_TOKEN)
        self.inter_token_latency = Histogram(buckets.TIME_PER_TOKEN)
        self.time_per_output_token = Histogram(buckets.TIME_PER_TOKEN)
        self.e2e_latency = Histogram(buckets.REQUEST_LATENCY)
        self.queue_time = Histogram(buckets.REQUEST_LATENCY)
        self.inference_time = Histogram(buckets.REQUEST_LATENCY)
        self.prefill_time = Histogram(buckets.REQUEST_LATENCY)
        self.decode_time = Histogram(buckets.REQUEST_LATENCY)
        self.iteration_tokens = Histogram(buckets.ITERATION_TOKENS)
        self.params_n = Histogram(buckets.NUM_SAMPLES)
        self.num_preemptions_per_request = Histogram(buckets.NUM_PREEMPTIONS)
        self.step_seconds = Histogram(buckets.STEP_SECONDS)
        self._make_token_histograms(1)

    def _make_token_histograms(self, max_model_len: int) -> None:
        bounds = buckets.token_buckets(max_model_len)
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
