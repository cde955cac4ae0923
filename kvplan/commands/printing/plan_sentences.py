"""What a plan says in sentences: what to rent, what it gives and costs, how sure that is, and what it assumes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvplan.commands.printing.plan_tables import confidence_text, formats_text, shown, sure_text
from kvplan.commands.printing.queues import server_text
from kvplan.estimate.mixers import speed_caveats
from kvplan.planner.answer.document import (
    adapter_notes,
    bridge_notes,
    calibration_notes,
    limit_assumption,
    load_assumption,
    network_notes,
    offload_notes,
    scale_notes,
)
from kvplan.planner.answer.money import break_even_text
from kvplan.planner.answer.notes import drafting_sentence, graphs_sentence, hits_sentence, seats_sentence
from kvplan.planner.answer.ranges import within
from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.planner.search.plan import PlanAnswer
from kvplan.units import plural

_SURER = 0.9
"""What the answer names a price for, where it is less sure itself."""


def answer_lines(found: PlanAnswer, best: PlannedDeployment) -> Iterator[str]:
    """What to rent, what it gives, what it costs and how sure that is."""
    yield f"{rent_text(best)} for {load_text(found)} of {found.spec.title}."
    yield f"Gives {_times_text(best)}."
    yield f"{_cost_text(best, found)}{_confidence_sentence(found, best)}"


def rent_text(best: PlannedDeployment) -> str:
    """``Rent 8 x h100-sxm at $21.52/h (2 replicas, tp 4)``."""
    cost = "" if best.usd_per_hour is None else f" at ${best.usd_per_hour:,.2f}/h"
    name = f"1 x {best.choice.gpu.id}" if best.num_gpus == 1 else f"{best.num_gpus} x {best.choice.gpu.id}"
    layout = best.choice.layout.short_text() or "tp 1"
    parts = [plural(best.replicas, "replica"), layout] if best.num_gpus > 1 else []
    if best.num_spare:
        parts[:1] = [f"{plural(best.replicas, 'replica')} and {best.num_spare} spare"]
    parts += filter(None, [formats_text(best.choice)])
    return f"{'Rent' if cost else 'Use'} {name}{cost}" + (f" ({', '.join(parts)})" if parts else "")


def load_text(found: PlanAnswer) -> str:
    """``40 users``, or ``3 requests/s``."""
    workload = found.workload
    if workload.num_users is not None:
        return plural(workload.num_users, "user")
    return f"{workload.requests_per_second:g} requests/s"


def _times_text(best: PlannedDeployment) -> str:
    """Each figure with its 90 % interval."""
    expected, parts = best.expected, []
    for name in ("ttft", "tpot"):
        p50, p99 = expected.time(name, "p50"), expected.time(name, "p99")
        if p50 is not None and p99 is not None:
            tail = f", p99 {1000 * p99.middle:,.0f} ms" if p99.middle < float("inf") else ""
            parts.append(f"{name.upper()} p50 {within(p50.middle, p50.between, 1000)} ms{tail}")
    tokens = best.output_tokens_per_second
    return "; ".join([*parts, f"{within(tokens.middle, tokens.between)} tokens/s"])


def _cost_text(best: PlannedDeployment, found: PlanAnswer) -> str:
    output, workload = best.middle_usd_per_million_output_tokens(), found.workload
    if output is None:
        return "No price is known (--price). "
    every = output * workload.output_tokens / (workload.input_tokens + workload.output_tokens)
    return f"Costs ${_cents(output)} per million output tokens, ${_cents(every)} of prompt and output together. "


def _cents(dollars: float) -> str:
    """``1.29``; below ten cents two digits that count, ``0.012``."""
    return f"{dollars:,.2f}" if dollars >= 0.1 else f"{dollars:.2g}"


def _confidence_sentence(found: PlanAnswer, best: PlannedDeployment) -> str:
    goal, sure = best.verdict.goal, confidence_text(best)
    if not goal.is_asked:
        return _readable_sentence(best, found)
    verb = "Keeps" if best.verdict.meets else "May keep"
    text = f"{verb} {goal.text}: {sure} sure ({100 * goal.confidence:.0f} % asked for)."
    surer = next((each for each in found.deployments if each.verdict.confidence >= max(_SURER, goal.confidence)), None)
    if surer is None or best.verdict.confidence >= _SURER:
        return text
    cost = "" if surer.usd_per_hour is None else f" at ${surer.usd_per_hour:,.2f}/h"
    return f"{text} {confidence_text(surer)}: {surer.name}{cost}."


def _readable_sentence(best: PlannedDeployment, found: PlanAnswer) -> str:
    holds = "" if best.verdict.confidence >= 1 else f" Carries this load: {confidence_text(best)} sure."
    if best.verdict.broken is None:
        speed = best.verdict.weakest
        how_sure = "" if speed is None else f" ({sure_text(speed.confidence)} sure)"
        return (
            f"No --slo: the cheapest expected to begin within 10 s and to write 10 tokens/s to each{how_sure}; below, "
            f"sure is of room for the load.{holds}"
        )
    # The table of other formats has some that are: "nothing" is of the formats asked for.
    formats = "in this format " if any(each.deployment.verdict.meets for each in found.alternatives) else ""
    slow = "Slower than people read (10 tokens/s, begun within 10 s)"
    return f"{slow}: {formats}nothing within the limits is fast enough.{holds}"


def alternatives_sentence(found: PlanAnswer) -> str:
    """What other formats are beside the answer."""
    best = found.deployments[0] if found.deployments else None
    if best is None:
        return "Fits with other formats:"
    is_surer = best.verdict.goal.is_asked and not best.verdict.meets
    return "Surer with other formats:" if is_surer else "Cheaper or faster with other formats:"


def assumptions(found: PlanAnswer, *, explain: bool) -> Iterator[str]:
    """Short ones always; where each time comes from with ``explain``."""
    workload, everything = found.workload, [*shown(found), *(each.deployment for each in found.alternatives)]
    lengths = f"prompts {workload.input_tokens:,}, answers {workload.output_tokens:,} tokens"
    contexts = f"sequences of {workload.average_context:,} on average, {workload.longest_context:,} at most"
    yield f"Assumes {lengths}; {contexts}."
    yield from workload.assumptions
    limit = limit_assumption(found)
    yield load_assumption(found) + ("" if limit is None else f" {limit}")
    compared = "measurements of such predictions"
    if found.deployments[0].speed_model.scale is not None:
        compared = "loads of servers that were measured once, as yours"
    played = plural(found.num_played, "time")
    yield (
        f"Of {plural(found.num_tried, 'layout')}, from cheap to dear, the load was played {played}; "
        f"brackets hold 9 in 10 published {compared} (docs/accuracy.md)."
    )
    yield _origins(everything)
    yield from speed_caveats(found.spec.layers)
    yield from scale_notes(everything)
    yield from [*adapter_notes(found), *offload_notes(everything)]
    yield from [*bridge_notes(everything), *network_notes(everything)]
    if explain:
        yield from calibration_notes(everything)


def _origins(deployments: Sequence[PlannedDeployment]) -> str:
    """Where step times come from, each with its GPUs."""
    words = {
        "roofline": "from data sheets alone",
        "measured": "measured on this model",
        "calibrated": "measured on another model or dtype",
        "kernels": "sums of measured kernels",
        "scaled": "sums of kernels measured on a similar GPU",
    }
    found: dict[str, dict[str, None]] = {}
    for each in deployments:
        found.setdefault(words[each.served.speed.origin], {})[each.choice.gpu.id] = None
    if len(found) == 1:
        return f"Step times are {next(iter(found))}."
    return "Step times are " + "; ".join(f"{word} ({', '.join(gpus)})" for word, gpus in found.items()) + "."


def fact_lines(best: PlannedDeployment, plan: PlanAnswer) -> Iterator[str]:
    """What the prefix cache finds, a drafter yields, the server can take, and what an API would cost."""
    sentences = {
        "Prefix cache": hits_sentence,
        "Drafter": drafting_sentence,
        "Seats": seats_sentence,
        "Graphs": graphs_sentence,
    }
    for name, sentence_of in sentences.items():
        sentence = sentence_of(best)
        if sentence is not None:
            yield f"{name}: {sentence}"
    server = server_text(best.served.server_share, best.speed_model.front_end.servers)
    if server is not None:
        yield f"Server: {server}."
    against = break_even_text(best, plan.request.api_price)
    if against is not None:
        yield f"API: {against}"
