"""What ``kvplan plan`` prints: the answer, what else serves, and what it assumes; a document, rows or manifests."""

from __future__ import annotations

from pathlib import Path

from kvplan.commands.options.extras import need_extra
from kvplan.commands.printing.plan_page import plan_page
from kvplan.commands.printing.plan_sentences import alternatives_sentence, answer_lines, assumptions, fact_lines
from kvplan.commands.printing.plan_tables import (
    print_deployments,
    print_memory,
    shown,
)
from kvplan.commands.printing.queues import print_steps
from kvplan.commands.printing.render import as_markdown, print_csv, print_json, print_sentence, say
from kvplan.errors import KvplanError
from kvplan.planner.answer.document import (
    plan_document,
    plan_row,
)
from kvplan.planner.answer.notes import explained_steps
from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.planner.launch.engines import command_note, launch_commands
from kvplan.planner.launch.manifests import MANIFESTS
from kvplan.planner.launch.replicas import balancer_command, vllm_processes
from kvplan.planner.question.request import PlanRequest
from kvplan.planner.search.fixes import Fix
from kvplan.planner.search.plan import PlanAnswer, left_out
from kvplan.units import format_bytes, plural

_MOST_PROCESSES = 8
_MOST_NAMED = 6
"""GPUs that somebody names, of each of which the answer says what became of it."""


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
        # One HTML page; nothing where nothing serves the load, which the error says.
        if found.deployments:
            say(plan_page(found), end="")
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


def _print_alternatives(found: PlanAnswer) -> None:
    if not found.alternatives:
        return
    say(f"\n{alternatives_sentence(found)}")
    print_deployments([each.deployment for each in found.alternatives])
    for caveat in dict.fromkeys(text for each in found.alternatives for text in each.caveats):
        print_sentence(caveat)


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


def print_unlike(kept: PlanAnswer, free: PlanAnswer) -> None:
    """The answer of ``free``, below that of ``kept``; one line where both are the same."""
    if not free.deployments:
        return
    say()
    best = list(answer_lines(free, free.deployments[0]))
    if kept.deployments and best == list(answer_lines(kept, kept.deployments[0])):
        print_sentence("Without the command's settings nothing better was found.", indent="", further="  ")
        return
    say("Without the command's settings:")
    for line in best:
        print_sentence(line)
