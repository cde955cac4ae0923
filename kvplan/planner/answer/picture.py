"""``--plot``: each ranked deployment's memory and steps as stacked bars, and concurrency against context."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvplan.catalog.releases.vllm import vllm_release
from kvplan.errors import KvplanError
from kvplan.estimate.speed.step_picture import draw_steps, save_picture
from kvplan.estimate.vllm.groups import blocks_per_request
from kvplan.estimate.vllm.prediction import request_shape
from kvplan.planner.answer.memory_bars import MEMORY_PARTS, memory_parts
from kvplan.planner.answer.notes import explained_steps
from kvplan.planner.answer.tradeoff import tradeoff
from kvplan.planner.choices.deployment import PlannedDeployment
from kvplan.planner.search.plan import PlanAnswer
from kvplan.units import format_tokens, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import Formatter

_MOST_BARS = 8


def concurrency_curve(deployment: PlannedDeployment) -> tuple[list[int], list[int]]:
    """(context lengths in tokens, sequences of that length that the deployment holds), doubling from 512."""
    prediction = deployment.prediction
    shape = request_shape(prediction.settings, vllm_release(prediction.version))
    lengths, length = [], 512
    while length < prediction.settings.serving.max_model_len:
        lengths.append(length)
        length *= 2
    lengths.append(prediction.settings.serving.max_model_len)
    groups = deployment.replicas * deployment.choice.layout.data_parallel_size
    held = [
        groups
        * (
            prediction.num_blocks
            // max(blocks_per_request(prediction.rank.blocks, replace(shape, max_model_len=each)), 1)
        )
        for each in lengths
    ]
    return lengths, held


def draw_plan(plan: PlanAnswer, path: Path) -> None:
    """Write the picture to ``path``. KvplanError when nothing fits or the file cannot be written."""
    if not plan.deployments:
        raise KvplanError("Nothing fits: there is nothing to draw.", hint="see the fix that the plan suggests")
    save_picture(plan_figure(plan), path)


def plan_figure(plan: PlanAnswer) -> Figure:
    """Above: cost and time of all that was played, and of the first eight the memory and how many sequences it holds.

    Below: what the steps of these consist of.
    """
    from matplotlib.figure import Figure

    shown = plan.deployments[:_MOST_BARS]
    figure = Figure(figsize=(17, 9.6), layout="constrained")
    axes = figure.subplot_mosaic([[*"ppmmcc"], [*"dddrrr"]])
    _draw_costs(axes["p"], plan)
    _draw_bars(axes["m"], shown)
    _draw_curves(axes["c"], shown, plan)
    _draw_steps([axes["d"], axes["r"]], shown, plan)
    figure.suptitle(f"{plan.spec.title}, {_load(plan)}: {plan.workload.average_context:,} tokens on average")
    return figure


def _load(plan: PlanAnswer) -> str:
    workload = plan.workload
    return plural(workload.num_users, "user") if workload.num_users else f"{workload.requests_per_second:g} requests/s"


def _draw_costs(axes: Axes, plan: PlanAnswer) -> None:
    """A mark for each deployment: full where it gives what was asked for; those that nothing beats have a name."""
    found = tradeoff(plan)
    sides = itertools.cycle((5, -11))
    for each in found.offers:
        point, meets = (each.cost, each.seconds), each.deployment.verdict.meets
        color = "#55a868" if meets else "#9a9a9a"
        size, marker, face = 90 if each.is_best else 40, "*" if each.is_best else "o", color if meets else "none"
        axes.scatter(*point, s=size, marker=marker, edgecolor=color, color=face)
        if each.stands_out:
            name = each.deployment.name
            axes.annotate(name, point, textcoords="offset points", xytext=(6, next(sides)), fontsize=8)
    axes.set_xlabel(found.unit)
    axes.set_ylabel("seconds of a request")
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0, right=1.5 * max(each.cost for each in found.offers))
    goal = plan.request.goal.text.replace(" and ", "\nand ") if plan.request.goal.is_asked else "readable speed"
    axes.set_title(f"full marks: {goal}", fontsize=9, loc="left")


def _draw_bars(axes: Axes, shown: tuple[PlannedDeployment, ...]) -> None:
    names = [deployment.name for deployment in shown]
    columns = list(zip(*(memory_parts(deployment) for deployment in shown), strict=True))
    bottoms = [0.0] * len(shown)
    for (label, color, _), heights in zip(MEMORY_PARTS, columns, strict=True):
        axes.bar(
            range(len(names)), heights, bottom=bottoms, label=label, color=color, edgecolor="#444444", linewidth=0.4
        )
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_xlim(-0.6, max(len(names), 3) - 0.4)
    axes.set_ylabel("GiB of one GPU")
    axes.legend(fontsize=8, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, frameon=False)


def _draw_steps(axes: Sequence[Axes], shown: tuple[PlannedDeployment, ...], plan: PlanAnswer) -> None:
    """What the steps of one replica consist of: those that decode for everybody, and those with a prompt beside."""
    steps = list(zip(*(explained_steps(deployment, plan.workload) for deployment in shown), strict=True))
    titles = ("a decode step of a replica", f"the same, with a prompt of {plan.workload.input_tokens:,} tokens")
    for each, title, found in zip(axes, titles, steps, strict=True):
        draw_steps(each, [deployment.name for deployment in shown], found)
        for label in each.get_xticklabels():
            label.set(rotation=30, ha="right")
        each.set_title(title, fontsize=10)
    axes[1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _draw_curves(axes: Axes, shown: tuple[PlannedDeployment, ...], plan: PlanAnswer) -> None:
    """A line per deployment, told apart by mark and dash too, because two of them may lie on each other."""
    lengths: list[int] = []
    for deployment, marker, dash in zip(shown, "os^DvPX*", itertools.cycle(("-", "--", "-.", ":")), strict=False):
        lengths, held = concurrency_curve(deployment)
        axes.plot(lengths, held, marker=marker, linestyle=dash, markersize=4, label=deployment.name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [format_tokens(length) for length in lengths])
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.yaxis.set_minor_formatter(_plain_minor_formatter())
    if plan.workload.num_users:
        axes.axhline(plan.workload.num_users, color="#444444", linewidth=0.8, linestyle="--", label=_load(plan))
    axes.set_xlabel("tokens per sequence")
    axes.set_ylabel("sequences at once")
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _plain_minor_formatter() -> Formatter:
    """Labels where matplotlib has room for them, as plain numbers: ``300`` instead of a power of ten."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:,g}" if super().__call__(x, pos) else ""

    return Plain()
