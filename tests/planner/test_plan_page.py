"""``kvplan plan --format html`` and ``--plot``: a page that tells what the table tells, and what a picture shows."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from dataclasses import astuple
from functools import cache
from pathlib import Path

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.planner.answer.charts import Chart, Mark, scatter
from kvplan.planner.answer.notes import explained_steps
from kvplan.planner.answer.picture import plan_figure
from kvplan.planner.search.plan import PlanAnswer, PlanRequest, make_plan

WORDS = ["plan", "qwen3-32b", "--users", "50", "--ctx-avg", "8k", "--gpu", "rtx-pro-6000", "h100", "b200"]


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main([*WORDS, *words])
    return code, *capsys.readouterr()


@pytest.fixture(scope="module")
def page() -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        assert main([*WORDS, "--slo", "ttft:3000", "tpot:60", "--format", "html"]) == 0
    return out.getvalue()


def test_the_answer_stands_first_and_the_rest_is_the_tables(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = printed(capsys, "--slo", "ttft:3000", "tpot:60")
    lines, text = out.splitlines(), re.sub(r"<[^>]+>", "\n", page).replace("&#x27;", "'").replace("&quot;", '"')
    shown = [line.strip() for line in text.splitlines() if line.strip()]
    places = [shown.index(line) for line in lines[:3]]
    assert places == sorted(places) and places[0] < 80
    command = next(line.partition("vllm: ")[2].strip() for line in lines if line.lstrip().startswith("vllm:"))
    assert command in shown and shown.index(command) > places[-1]
    rows = [re.split(r" {2,}", line.strip()) for line in lines if re.match(r"  \S.* \d+ %$", line)]
    assert len(rows) >= 3
    for row in rows:
        place = shown.index(row[0], shown.index("Deployments"))
        assert shown[place : place + len(row)] == row
    for sentence in lines[-3:]:
        assert sentence.strip() in shown


def test_the_page_asks_no_other_host_and_has_no_script(page: str) -> None:
    for word in ("<script", "<link", "<img", "@import", "url(", "src="):
        assert word not in page
    assert page.count("<svg") == 1 and "prefers-color-scheme: dark" in page and 'name="viewport"' in page


def test_every_bar_is_the_memory_of_a_gpu(page: str) -> None:
    bars = re.findall(r'<div class="bar" style="width:([\d.]+)%">(.*?)</div>', page)
    assert len(bars) >= 3 and max(float(width) for width, _ in bars) == 100
    for _, segments in bars:
        widths = [float(each) for each in re.findall(r"width:([\d.]+)%", segments)]
        assert len(widths) == 7 and sum(widths) == pytest.approx(100, abs=0.05)


def test_the_answer_is_the_only_star_and_misses_are_empty(page: str) -> None:
    assert page.count("<polygon") == 1
    full = re.findall(r'<circle[^>]* fill="([^"]+)"', page)
    missed = page.count('<tr class="miss">')
    assert full.count("none") >= missed


def test_a_file_and_stdout_have_the_same_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.html"
    code, out, _ = printed(capsys, "--format", "html", "--html", str(path))
    assert code == 0 and path.read_text("utf-8") == out
    small = "plan gpt2 --users 2 --ctx-avg 256 --gpu l4 --html"
    code, err = main([*small.split(), str(tmp_path / "missing" / "plan.html")]), capsys.readouterr().err
    assert code == 1 and "cannot be written" in err and "hint: give another path to --html" in err


def test_a_load_that_nothing_serves_has_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.html"
    code, out, err = printed(capsys, "--max-gpus", "1", "--users", "5000", "--format", "html", "--html", str(path))
    assert code == 1 and not out and not path.exists() and "error: No deployment of at most 1 GPU" in err


def names(picture: str) -> list[str]:
    return re.findall(r'class="name"[^>]*>([^<]+)<', picture)


def test_names_do_not_lie_on_each_other() -> None:
    chart = Chart("Cost", "dollars", "s", (), "")
    apart = [Mark(1.0, 1.0, "a" * 10), Mark(9.0, 9.0, "b" * 10, is_best=True)]
    assert sorted(names(scatter(chart, apart))) == ["a" * 10, "b" * 10]
    crowd = [Mark(5.0 + place / 100, 5.0, f"name of mark {place}", is_best=place == 7) for place in range(20)]
    shown = names(scatter(chart, crowd))
    assert "name of mark 7" in shown and len(shown) < 20


def test_text_of_others_is_escaped() -> None:
    picture = scatter(Chart("<b>", "x", "y", (), '"'), [Mark(1.0, 1.0, "<i>&")])
    assert "<b>" not in picture and "<i>" not in picture and "&lt;i&gt;&amp;" in picture


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
