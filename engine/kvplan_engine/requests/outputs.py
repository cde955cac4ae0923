"""What the engine returns: new tokens per step, and finished requests. No torch."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import overload

from kvplan_engine.requests.request import Sequence


@dataclass(slots=True, eq=False)
class StepOutput:
    """New tokens of one sequence in one step. Not frozen: creating one then takes a third of the time."""

    sequence: Sequence
    new_token_ids: list[int]
    finish_reason: str | None = None

    @property
    def request_id(self) -> str:
        return self.sequence.request.request_id

    @property
    def num_cached_tokens(self) -> int:
        """Return how many tokens of the prompt came from the prefix cache."""
        return self.sequence.request.num_cached_tokens

    @property
    def index(self) -> int:
        return self.sequence.index

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


class PlainOutputs(abc.Sequence[StepOutput]):
    """The outputs of a step with one token each: ``token_ids[i]`` is for ``sequences[i]``.

    reasons: the finish reason, by row, of those that ended. Outputs are created when they are accessed: an offline
    batch never looks at them, and a server reads the lists.
    """

    def __init__(self, sequences: list[Sequence], token_ids: list[int], reasons: dict[int, str]) -> None:
        self.sequences = sequences
        self.token_ids = token_ids
        self.reasons = reasons

    def __len__(self) -> int:
        return len(self.token_ids)

    def __iter__(self) -> Iterator[StepOutput]:
        for row in range(len(self)):
            yield self[row]

    @overload
    def __getitem__(self, index: int) -> StepOutput: ...

    @overload
    def __getitem__(self, index: slice) -> list[StepOutput]: ...

    def __getitem__(self, index: int | slice) -> StepOutput | list[StepOutput]:
        if isinstance(index, slice):
            return list(self)[index]
        row = range(len(self))[index]
        return StepOutput(self.sequences[row], [self.token_ids[row]], self.reasons.get(row))


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One answer.

    logprobs: if requested, for each token the natural log-probabilities of its alternatives by token id, from the
    model's raw logits. stop_reason: the stop string or stop token that ended it; None for the model's own end token.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, float]] | None
    finish_reason: str | None
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """When what happened to a request, under the names of vLLM's RequestStateStats.

    arrival_time: in seconds since the epoch; those that end with ``_ts``: of a monotonic clock, when the step was over.
    first_token_latency: seconds from its arrival to its first token. num_generation_tokens: of all its completions.
    """

    arrival_time: float
    queued_ts: float
    scheduled_ts: float
    first_token_ts: float
    last_token_ts: float
    first_token_latency: float
    num_generation_tokens: int
    num_preemptions: int


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished request: ``params.n`` completions of one prompt.

    prompt_logprobs: if requested, for each token of the prompt its own natural log-probability and its alternatives',
    by token id; None for the first token, which nothing comes before. metrics: when it ran.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    num_cached_tokens: int
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = True
    prompt_logprobs: list[dict[int, float] | None] | None = None
    metrics: RequestMetrics | None = None
