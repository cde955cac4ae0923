"""How fast an estimate's deployments are: to one user, and to as many as fit at once."""

from __future__ import annotations

from kvplan.commands.printing.queues import intervals_text, print_steps, queues_text, server_text, span
from kvplan.commands.printing.render import print_sentence, say
from kvplan.estimate.answer import Estimate
from kvplan.estimate.speed.device_speed import ANSWER_TOKENS, PROMPT_TOKENS, DeploymentSpeed
from kvplan.estimate.speed.latency import Range, ServingSpeed
from kvplan.estimate.speed.queues import Queues


def print_speeds(answer: Estimate, *, explain: bool) -> None:
    """Of devices that were measured; with ``explain`` also those by data sheet, and what their steps consist of."""
    both = zip(answer.deployments, answer.speeds, strict=True)
    shown = [(each.counted_gpu, speed) for each, speed in both if speed and (explain or speed.note is not None)]
    for number, (name, speed) in enumerate(shown):
        if explain and number > 0:
            say()
        for line in _lines(name, speed, explain=explain):
            text = line.lstrip()
            indent = " " * (len(line) - len(text))
            print_sentence(text, indent=indent, further=indent + "  ")
        if explain:
            print_steps(name, speed.explained_steps())


def _lines(name: str, speed: DeploymentSpeed, *, explain: bool) -> list[str]:
    """A head with the origin; percentiles, and ranges of a steady state where no load can be played."""
    head = f"  {name}, prompts of {PROMPT_TOKENS}, answers of {ANSWER_TOKENS}"
    states = {1: ("alone", speed.alone)}
    states.setdefault(speed.num_users, (f"{speed.num_users:,} at once", speed.full))
    played = {count: speed.queues(count) for count in states}
    learned = next((_learned(speed, each) for each in played.values() if each is not None), "")
    drafting = speed.drafting_text()
    drafted = f"; {drafting}" if drafting else ""
    lines = [f"{head} ({speed.origin_text(explain=explain)}{learned}{drafted}):"]
    for count, (who, state) in states.items():
        queues = played[count]
        lines.append(f"    {who}: {_ranges(state) if queues is None else queues_text(queues)}")
        server = server_text(speed.model.server_share(count), speed.model.front_end.servers)
        lines += [] if server is None else [f"    {who}: {server}"]
    return lines


def _learned(speed: DeploymentSpeed, queues: Queues) -> str:
    """What the intervals were learned from, and of what else than this."""
    text = intervals_text(queues)
    if text and speed.model.engine == "kvplan":
        text += " of other engines"
    return f"{text} on GPUs" if text and speed.model.gpu.is_cpu else text


def _ranges(speed: ServingSpeed) -> str:
    found = speed.output_tokens_per_second
    low, high = f"{found.low:,.0f}", f"{found.high:,.0f}"
    tokens = low if low == high else f"{low} to {high}"
    return (
        f"without queues TTFT {_milliseconds(speed.ttft_seconds)} ms, TPOT {_milliseconds(speed.tpot_seconds)} ms, "
        f"{tokens} tokens/s"
    )


def _milliseconds(found: Range) -> str:
    low, high = (span(1000 * end, 1000 * end, ",.0f", least=1000 * found.least) for end in (found.low, found.high))
    return f"{low} to {high}"
