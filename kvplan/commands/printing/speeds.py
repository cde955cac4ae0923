"""How fast an estimate's deployments are: to one user, and to as many as fit at once."""

from __future__ import annotations

from kvplan.commands.printing.queues import intervals_text, print_steps, queues_text
from kvplan.estimate.answer import Estimate
from kvplan.estimate.speed.device_speed import ANSWER_TOKENS, PROMPT_TOKENS, DeploymentSpeed
from kvplan.estimate.speed.latency import Range, ServingSpeed


def print_speeds(answer: Estimate, *, explain: bool) -> None:
    """Of devices that were measured; with ``explain`` also those by data sheet, and what their steps consist of."""
    for speed in answer.speeds:
        if speed is None or not (explain or speed.note is not None):
            continue
        for line in _lines(speed):
            print(line)
        if explain:
            print_steps(speed.gpu, speed.explained_steps())
            print()


def _lines(speed: DeploymentSpeed) -> list[str]:
    """A head with the origin, and percentiles; ranges of a steady state where the requests are too long to play."""
    head = f"  {speed.gpu}, prompts of {PROMPT_TOKENS}, answers of {ANSWER_TOKENS}"
    alone = speed.queues(1)
    full = speed.queues(speed.num_users)
    if alone is None or full is None:
        texts, learned = (_ranges(speed.alone), _ranges(speed.full)), ""
    else:
        texts, learned = (queues_text(alone), queues_text(full)), intervals_text(full)
        if learned and speed.model.engine == "kvplan":
            learned += " of other engines"
        if learned and speed.model.gpu.is_cpu:
            learned += " on GPUs"
    users = ("alone", f"{speed.num_users:,} at once")
    shown = [f"    {each}: {text}" for each, text in dict(zip(users, texts, strict=True)).items()]
    return [f"{head} ({speed.origin_text}{learned}):", *shown[: 1 if speed.num_users == 1 else 2]]


def _ranges(speed: ServingSpeed) -> str:
    tokens = speed.output_tokens_per_second
    return (
        f"TTFT {_milliseconds(speed.ttft_seconds)} ms, TPOT {_milliseconds(speed.tpot_seconds)} ms, "
        f"{tokens.low:,.0f} to {tokens.high:,.0f} tokens/s"
    )


def _milliseconds(found: Range) -> str:
    return f"{1000 * found.low:,.0f} to {1000 * found.high:,.0f}"
