"""What ``kvplan plan`` prints: the answer, what else serves, and what it assumes; a document, rows or manifests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from kvplan.commands.options.extras import need_extra
from kvplan.commands.printing.plan_tables import (
    confidence_text,
    formats_text,
    print_deployments,
    print_memory,
    shown,
    sure_text,
)
from kvplan.commands.printing.queues import print_steps, server_text
from kvplan.commands.printing.render import as_markdown, print_csv, print_json, print_sentence, say
from kvplan.errors import KvplanError
from kvplan.planner.answer.document import (
    adapter_notes,
    bridge_notes,
    calibration_notes,
    limit_assumption,
    load_assumption,
    network_notes,
    offload_notes,
    plan_document,
    plan_row,
    scale_notes,
)
from kvplan.planner.answer.drafting import drafting_sentence
from kvplan.planner.answer.money import break_even_text
from kvplan.planner.answer.ranges import within
from kvplan.planner.answer.seats import graphs_sentence, seats_sentence
from kvplan.planner.answer.sharing import hits_sentence
from kvplan.planner.answer.steps import explained_steps
from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.planner.launch.engines import command_note, launch_commands
from kvplan.planner.launch.manifests import MANIFESTS
from kvplan.planner.launch.replicas import balancer_command, vllm_processes
from kvplan.planner.question.request import PlanRequest
from kvplan.planner.search.fixes import Fix
from kvplan.planner.search.left_out import left_out
from kvplan.planner.search.plan import PlanAnswer
from kvplan.units import format_bytes, plural

_MOST_PROCESSES = 8
_MOST_NAMED = 6
"""GPUs that somebody names, of each of which the answer says what became of it."""
_SURER = 0.9
"""What the answer names a price for, where it is less sure itself."""


def print_answer(
    found: PlanAnswer, fix: Fix | None, output_format: str, plot: Path | None, *, explain: bool = False
) -> None:
    """The whole answer in ``output_format``. KvplanError, with the fix as its hint, where nothing serves the load."""
    if output_format == "json":
        print_json(plan_document(found, fix))
    elif output_format == "csv":
        print_csv([plan_row(each, found.spec.served_id, found.request.api_price) for each in found.deployments])
    elif output_format == "md" and found.deployments:
        _print_markdown(found)
    elif output_format == "html":
        _print_page(found)
    elif output_format in MANIFESTS and found.deployments:
        say(MANIFESTS[output_format](found.deployments[0], found.spec.served_id), end="")
    else:
        print_plan(found, explain=explain)
    if plot is not None and found.deployments:
        need_extra("plan --plot", "report")
        from kvplan.planner.answer.picture import draw_plan

        draw_plan(found, plot)
    if not found.deployments:
        raise nothing_serves(found, fix)


def _print_page(found: PlanAnswer) -> None:
    """One HTML page; nothing where nothing serves the load, which the error says."""
    from kvplan.commands.printing.plan_page import plan_page

    if found.deployments:
        say(plan_page(found), end="")


def _print_markdown(found: PlanAnswer) -> None:
    """The answer, its command and the tables, as a page or a ticket takes them."""
    best = found.deployments[0]
    say(f"**{found.spec.title}**\n")
    for line in answer_lines(found, best):
        say(f"{as_markdown(line)}  ")
    command = launch_commands(best, found.spec.served_id).get("vllm")
    say("" if command is None else f"\n```\n{command}\n```")
    say()
    print_deployments(shown(found), as_markdown=True)
    if found.alternatives:
        say("\nWith other formats:\n")
        print_deployments([each.deployment for each in found.alternatives], as_markdown=True)
    say()
    for note in assumptions(found, explain=False):
        say(f"- {as_markdown(note)}")


def nothing_serves(found: PlanAnswer, fix: Fix | None) -> KvplanError:
    """What came nearest, and the change after which something serves."""
    limits = ", ".join(_limits(found.request))
    hint = f"no single change was found to serve it: loosen several of {limits}, or take a smaller model"
    if fix is not None:
        hint = f"{fix.sentence}: then {fix.deployment.name} serves it"
    formats = " in the formats asked for" if found.alternatives else ""
    if found.too_dear is not None:
        limit = f"${found.request.usd_per_hour:,.2f} per hour"
        return KvplanError(f"Nothing within {limit} serves this load{formats}.", hint=hint)
    miss = found.nearest_miss
    if miss is None:
        return KvplanError("No deployment serves this load.", hint=hint)
    lacks = f" ({format_bytes(miss.missing_bytes)} missing on each GPU)" if miss.missing_bytes else ""
    if found.is_cut:
        hint = f"--thorough goes on: {found.num_played:,} loads were played, and dearer layouts were not; or {hint}"
    limit = "at most " + plural(max(map(found.request.most_gpus, found.request.gpus)), "GPU")
    return KvplanError(
        f"No deployment of {limit} serves this load{formats}. Nearest: {miss.name}{lacks}. {miss.sentence}", hint=hint
    )


def _limits(request: PlanRequest) -> list[str]:
    """Options that may stand in the way."""
    settings = request.settings
    asked = {
        "--budget": request.usd_per_hour is not None,
        "--slo": not request.slo.is_empty,
        "--gpu-memory-utilization": settings.gpu_memory_utilization is not None,
        "--max-num-batched-tokens": settings.max_num_batched_tokens is not None,
    }
    return ["--gpu", "--max-gpus", *(option for option, is_asked in asked.items() if is_asked)]


def print_plan(found: PlanAnswer, *, explain: bool = False) -> None:
    """The answer in a few lines, its command, what else serves the load, and what all of it assumes."""
    if found.deployments:
        best = found.deployments[0]
        for line in answer_lines(found, best):
            print_sentence(line, indent="", further="  ")
        print_commands(best, found, explain=explain)
        say()
        print_deployments(shown(found))
    _print_alternatives(found)
    if not found.deployments:
        return
    if len(found.request.gpus) <= _MOST_NAMED:
        for gpu_id, sentence in left_out(found).items():
            print_sentence(f"not on {gpu_id}: {sentence}")
    say()
    for note in assumptions(found, explain=explain):
        print_sentence(note)
    if explain:
        _print_more(found)


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


def _print_alternatives(found: PlanAnswer) -> None:
    if not found.alternatives:
        return
    say(f"\n{alternatives_sentence(found)}")
    print_deployments([each.deployment for each in found.alternatives])
    for caveat in dict.fromkeys(text for each in found.alternatives for text in each.caveats):
        print_sentence(caveat)


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


def _print_more(found: PlanAnswer) -> None:
    """What the steps of the best deployment consist of, and where the memory of each goes."""
    best = found.deployments[0]
    say()
    print_memory(found, shown(found))
    if found.rule is not None:
        total = found.rule.total_bytes / 1e9
        print_sentence(f"by rule: weights + 1.2 GB x users + 5 GB, {total:,.0f} GB in all")
    print_steps(best.choice.name, explained_steps(best, found.workload))


_ALWAYS = ("vllm", "kvplan")
"""Engines whose commands are shown without --explain."""


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


def print_commands(best: PlannedDeployment, plan: PlanAnswer, *, explain: bool, balancer: str | None = None) -> None:
    """What the caches and the server do, and the lines that start the best deployment.

    ``balancer``: what stands before several replicas, where that is not one that takes turns.
    """
    model_id = plan.spec.served_id
    for line in fact_lines(best, plan):
        print_sentence(line, indent="", further="  ")
    say()
    commands = launch_commands(best, model_id)
    for engine, command in commands.items():
        if explain or engine in _ALWAYS:
            say(f"  {engine + ':':14s}{command}")
    note = command_note(plan.spec)
    if note is not None:
        print_sentence(note)
    processes = vllm_processes(best, model_id)
    if len(processes) == 1 or "vllm" not in commands:
        return
    every = "both" if len(processes) == 2 else f"all {len(processes)}"
    say(f"\n  {every} processes (vllm):")
    for process in processes[:_MOST_PROCESSES]:
        node = f"node {process.node}: " if best.num_nodes > 1 else ""
        say(f"    {node}{process.line}")
    if len(processes) > _MOST_PROCESSES:
        say(f"    ... and {len(processes) - _MOST_PROCESSES} more (--json lists all, --format kubernetes starts them)")
    if balancer is not None:
        say(f"  before them: {balancer}")
        return
    balancer = balancer_command(best, model_id)
    if balancer is not None and len(processes) > _MOST_PROCESSES:
        say("  before them: a balancer that knows all of them (--json has its command)")
    elif balancer is not None:
        say(f"  before them: {balancer}")
