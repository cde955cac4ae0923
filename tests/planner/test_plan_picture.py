"""The picture of ``plan --plot``: what stands in it."""

from __future__ import annotations

from dataclasses import astuple
from functools import cache

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.planner.answer.notes import explained_steps
from kvplan.planner.answer.picture import plan_figure
from kvplan.planner.search.plan import PlanAnswer, PlanRequest, make_plan


@cache
def plan(num_users: int) -> PlanAnswer:
    gpus = (find_gpu("h100"), find_gpu("l4"))
    asked = PlanRequest(gpus=gpus, num_users=num_users, average_context=2048, longest_context=8192)
    return make_plan(resolve_model("llama-3.1-8b"), asked)


def test_one_user_is_singular_and_named_on_its_line() -> None:
    figure = plan_figure(plan(1))
    assert "1 user: 2,048 tokens" in figure.get_suptitle()
    legend = figure.axes[2].get_legend()
    assert legend is not None and legend.get_texts()[-1].get_text() == "1 user"


def test_sequences_are_counted_in_plain_numbers_and_the_legend_covers_no_line() -> None:
    figure = plan_figure(plan(32))
    figure.draw_without_rendering()
    curves = figure.axes[2]
    labels = {label.get_text() for label in curves.get_yticklabels()}
    assert "1,000" in labels and not any("10^" in label for label in labels)
    legend = curves.get_legend()
    assert legend is not None and not legend.get_window_extent().overlaps(curves.get_window_extent())


def test_the_steps_of_each_deployment_are_drawn() -> None:
    found = plan(32)
    shown = found.deployments[:8]
    for place, axes in enumerate(plan_figure(found).axes[3:]):
        tops = [bar.get_y() + bar.get_height() for bar in axes.containers[-1]]
        steps = [explained_steps(each, found.workload)[place] for each in shown]
        assert len(steps) == len(tops) > 2
        assert tops == pytest.approx([1000 * sum(astuple(step.terms)) for step in steps])
        assert {label.get_text() for label in axes.get_xticklabels()} == {each.name for each in shown}


def test_deployments_that_hold_the_same_are_told_apart() -> None:
    lines = plan_figure(plan(32)).axes[2].lines[:-1]
    looks = {(line.get_marker(), line.get_linestyle()) for line in lines}
    assert len(looks) == len(lines) > 2


def test_numbers_between_powers_of_ten_are_plain_too() -> None:
    """A narrow range has no power of ten to tell its scale by."""
    asked = PlanRequest(gpus=(find_gpu("l40s"),), requests_per_second=10.0, input_tokens=1024, output_tokens=200)
    figure = plan_figure(make_plan(resolve_model("llama-3.1-8b"), asked))
    figure.draw_without_rendering()
    labels = [label.get_text() for label in figure.axes[2].get_yticklabels(which="minor") if label.get_text()]
    assert labels and all(label.replace(",", "").isdecimal() for label in labels)
