"""What the engine hands back. No torch."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class StepOutput:
    """New tokens of one sequence in one step. Not frozen: hundreds are made per step, at a third of the time."""

    request_id: str
    index: int
    new_token_ids: list[int]
    finished: bool
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One answer.

    logprobs: per token, the alternatives' natural log-probabilities by token id (where asked for), of the model's raw
    logits. stop_reason: the stop string or stop token it ended with; None at the model's own end token.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, float]] | None
    finish_reason: str | None
    stop_reason: str | int | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A finished request: ``params.n`` completions of one prompt."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    num_cached_tokens: int
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = True
