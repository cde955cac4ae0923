"""A beam search's request, and how its beams fork and end in the scheduler; ``requests.beams`` ranks them. No torch."""

from __future__ import annotations

from kvplan_engine.errors import EngineError
from kvplan_engine.requests.beams import BeamGroup, Continuation
from kvplan_engine.requests.request import Request, Sequence
from kvplan_engine.requests.sampling_params import SamplingParams
from kvplan_engine.requests.status import FinishReason
from kvplan_engine.scheduling.scheduler import Scheduler


def make_beam_request(
    request_id: str,
    prompt_token_ids: list[int],
    group: BeamGroup[Sequence],
    vocab_size: int,
    *,
    prompt: str | None = None,
    cache_salt: str | None = None,
) -> Request:
    """A request whose sequences are beams. EngineError when the vocabulary is too small for the beam width."""
    if group.num_candidates > vocab_size:
        raise EngineError(
            f"beam search: beam_width {group.params.beam_width} needs {group.num_candidates} candidates per beam, "
            f"more than the vocabulary of {vocab_size:,}.",
            hint="lower beam_width",
        )
    params = SamplingParams(temperature=0.0, max_tokens=group.params.max_tokens, logprobs=group.num_candidates)
    request = Request(request_id, prompt_token_ids, params, prompt=prompt, cache_salt=cache_salt)
    request.beams = group
    return request


def grow_beams(request: Request, group: BeamGroup[Sequence], scheduler: Scheduler) -> None:
    """All beams have reported: end those without a continuation, fork those with several, and start the next round.

    Afterwards ``request.sequences`` are the running beams, or finished ones when the search is over.
    """
    by_beam: dict[Sequence, list[Continuation[Sequence]]] = {}
    for continuation in group.next_beams():
        by_beam.setdefault(continuation.beam, []).append(continuation)
    for beam in group.scores:
        if beam not in by_beam:
            scheduler.finish(beam, FinishReason.STOP)
    if not by_beam:
        return
    group.scores = {}
    for beam, continuations in by_beam.items():
        children = [scheduler.branch(beam, group.num_sequences + index) for index in range(len(continuations) - 1)]
        group.num_sequences += len(children)
        scheduler.unpark(beam)
        for child, continuation in zip([beam, *children], continuations, strict=True):
            child.append_token(continuation.token)
            group.scores[child] = continuation.score
    request.sequences = list(group.scores)
