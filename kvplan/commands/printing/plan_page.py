"""What ``kvplan plan --format html`` prints: the answer first, cost against latency, memory, tables, assumptions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvplan.commands.printing.plan_sentences import (
    alternatives_sentence,
    answer_lines,
    assumptions,
    fact_lines,
    load_text,
)
from kvplan.commands.printing.plan_tables import DEPLOYMENT_HEAD, deployment_rows, full_name, shown
from kvplan.errors import KvplanError
from kvplan.planner.answer.charts import Chart, Mark, scatter
from kvplan.planner.answer.memory_bars import memory_bars
from kvplan.planner.answer.page import (
    TableRow,
    commands,
    figure,
    folded,
    html_page,
    listed,
    paragraphs,
    side_by_side_figures,
    table,
)
from kvplan.planner.answer.tradeoff import tradeoff
from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.planner.launch.engines import launch_commands
from kvplan.planner.launch.replicas import Process, balancer_command, vllm_processes
from kvplan.planner.search.plan import PlanAnswer


def plan_page(found: PlanAnswer) -> str:
    """The whole page of a plan that has an answer."""
    best, listed_first = found.deployments[0], shown(found)
    others = [each.deployment for each in found.alternatives]
    rows = [_row(cells, each) for cells, each in zip(deployment_rows(listed_first), listed_first, strict=True)]
    body = [
        paragraphs([*answer_lines(found, best), *fact_lines(best, found)]),
        *_start(best, found.spec.served_id),
        "<h2>Cost and memory</h2>",
        side_by_side_figures([_costs(found), _memory([*listed_first, *others])]),
        "<h2>Deployments</h2>",
        paragraphs(
            ["In red: less sure to keep the level than asked for."] if any(each.is_miss for each in rows) else []
        ),
        table("deployments", DEPLOYMENT_HEAD, rows),
        *_alternatives(found, others),
        "<h2>What it rests on</h2>",
        listed(assumptions(found, explain=False)),
    ]
    return html_page(f"{found.spec.title} for {load_text(found)}", body)


def write_page(page: str, path: Path) -> None:
    """Write a page to ``path``. KvplanError where that cannot be written."""
    try:
        path.write_text(page, "utf-8")
    except OSError as error:
        raise KvplanError(f"{path} cannot be written: {error.strerror}.", hint="give another path to --html") from error


def _row(cells: tuple[str, ...], deployment: PlannedDeployment) -> TableRow:
    return TableRow(cells, is_miss=deployment.verdict.goal.is_asked and not deployment.verdict.meets)


def _start(best: PlannedDeployment, model_id: str) -> Iterator[str]:
    """One instance's command; of several replicas all processes too, and the balancer before them."""
    yield commands(filter(None, [launch_commands(best, model_id).get("vllm")]))
    processes, balancer = vllm_processes(best, model_id), balancer_command(best, model_id)
    if len(processes) == 1:
        return
    lines = [f"{_of_node(each, best)}{each.line}" for each in processes]
    if balancer is not None:
        lines += ["# before them", balancer]
    yield folded(f"All {len(processes)} processes, and what stands before them", commands(lines))


def _of_node(process: Process, best: PlannedDeployment) -> str:
    return f"# node {process.node}\n" if best.num_nodes > 1 else ""


def _costs(found: PlanAnswer) -> str:
    offers = tradeoff(found)
    marks = [
        Mark(
            each.cost,
            each.seconds,
            full_name(each.deployment) if each.stands_out or each.is_best else "",
            each.deployment.verdict.meets,
            each.is_best,
        )
        for each in offers.offers
    ]
    goal = found.request.goal
    full = f"keep {goal.text}" if goal.is_asked else "keep a readable speed"
    caption = (
        f"Every deployment that was played; the star is the answer. Full marks {full}. Named: nothing that costs as "
        "little is as fast."
    )
    chart = Chart("Cost and latency", offers.unit, "seconds of a request on average", (), caption)
    return figure(scatter(chart, marks), caption)


def _memory(deployments: list[PlannedDeployment]) -> str:
    names = [full_name(each) for each in deployments]
    return figure(memory_bars(deployments, names), "Memory of one GPU of each deployment, to one scale.")


def _alternatives(found: PlanAnswer, others: list[PlannedDeployment]) -> Iterator[str]:
    if not others:
        return
    yield paragraphs([alternatives_sentence(found)])
    rows = [_row(cells, each) for cells, each in zip(deployment_rows(others), others, strict=True)]
    yield table("other formats", DEPLOYMENT_HEAD, rows)
    caveats = dict.fromkeys(text for each in found.alternatives for text in each.caveats)
    if caveats:
        yield listed(caveats)
