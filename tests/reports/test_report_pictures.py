"""The pictures: there, of readable size, with ink inside and none at the edge, whatever the rows are."""

from __future__ import annotations

import copy
import io
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image
from report_helpers import failed_records, records, sample_directory, sample_run, write_trials
from sample_full import write_full_directory

from kvplan.reports.comparison import compare_runs
from kvplan.reports.findings import prediction_sentences, recommendations, sentences
from kvplan.reports.html.page import report_page
from kvplan.reports.outcome_map import violations
from kvplan.reports.pictures import PICTURES, Picture, draw_comparison, draw_pictures
from kvplan.reports.plots import canvas, outcomes, predictions, requests
from kvplan.reports.plots.canvas import NARROW_DOTS_PER_INCH, NARROW_INCHES, drawing, new_figure
from kvplan.reports.searches import searches
from kvplan.reports.tables import markdown_text
from kvplan.runs.answers.summary import prediction_errors
from kvplan.runs.request_lines import RequestLine
from kvplan.runs.storage.reader import Run, load_run

ROOT = Path(__file__).parents[2]


def assert_readable(picture: Picture) -> None:
    image = Image.open(io.BytesIO(picture.png)).convert("L")
    assert image.width >= 900 and image.height >= 240, picture.name
    assert sum(count > 0 for count in image.histogram()) > 20, f"{picture.name} is blank"
    edges = [(0, 0, image.width, 2), (0, image.height - 2, image.width, image.height), (0, 0, 2, image.height),
             (image.width - 2, 0, image.width, image.height)]  # fmt: skip
    for edge in edges:
        assert image.crop(edge).getextrema() == (255, 255), f"{picture.name} is cut off at {edge}"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> dict[str, Picture]:
    run = sample_run(tmp_path_factory.mktemp("run"))
    return {picture.name: picture for picture in draw_pictures(run, with_narrow=True)}


def test_every_picture_is_drawn(drawn):
    assert set(drawn) == {kind.name for kind in PICTURES}
    assert {"throughput", "occupancy", "outcomes", "predicted_vs_measured", "memory", "block_size"} <= set(drawn)


@pytest.mark.slow
@pytest.mark.parametrize("name", [kind.name for kind in PICTURES])
def test_a_picture_has_ink_and_nothing_is_cut_off(drawn, name):
    assert_readable(drawn[name])


def test_a_phone_gets_drawings_of_its_own_width(drawn):
    for picture in drawn.values():
        assert Image.open(io.BytesIO(picture.narrow_png)).width == NARROW_INCHES * NARROW_DOTS_PER_INCH, picture.name


@pytest.mark.parametrize(
    ("name", "finding"),
    [
        ("outcomes", "18 of 27 settings could be served; the prediction was right for all 27"),
        (
            "throughput",
            "Still rising at the largest batch: 216 tokens/s (max_num_seqs 32, block_size 8)",
        ),
        ("predicted_vs_measured", "Blocks predicted exactly in 33 trials"),
        ("memory", "Utilization 0.9: KV pool 2.89 GiB of 4.00 GiB, 9 % used at the peak"),
    ],
)
def test_titles_say_the_finding(drawn, name, finding):
    assert drawn[name].finding == finding


def repeated(kept: list[dict], num_runs: int) -> list[dict]:
    found = []
    for run_number in range(1, num_runs + 1):
        for record in copy.deepcopy(kept):
            record["row"] |= {"run_number": run_number, "trial_id": f"{record['row']['trial_id']}-{run_number}"}
            if record["row"]["output_throughput"]:
                record["row"]["output_throughput"] *= 1 + 0.1 * run_number
            found.append(record)
    return found


def strange(kept: list[dict]) -> list[dict]:
    """Names that would be formulas, markup or missing glyphs; a status of a later version; a very long device."""
    for record in kept:
        record["row"] |= {"model_id": "$x_{2}$ <b>\u4e2d", "device_name": "long name " * 30}
    kept[-1]["row"]["status"] = "melted"
    return kept


CASES = {
    "one": lambda: records()[:1],
    "one_failed": lambda: failed_records()[:1],
    "all_failed": failed_records,
    "repeated": lambda: repeated([r for r in records() if r["row"]["max_num_seqs"] in (4, 16)], 3),
    "strange": lambda: strange(records()[::4]),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_pictures_of_unusual_runs_are_readable(tmp_path, case):
    for picture in draw_pictures(load_run(write_trials(tmp_path, CASES[case]()))):
        assert_readable(picture)


def test_plots_that_would_be_empty_are_not_drawn(tmp_path):
    bare = [{"row": {"trial_id": "a", "status": "ok"}, "series": None}]
    assert draw_pictures(load_run(write_trials(tmp_path / "bare", bare))) == []
    failed = draw_pictures(load_run(write_trials(tmp_path / "failed", failed_records())))
    assert [picture.name for picture in failed] == ["outcomes"]


def test_one_trial_has_no_plot_of_what_was_not_varied(tmp_path):
    drawn = draw_pictures(load_run(write_trials(tmp_path, records()[:1])))
    assert [picture.name for picture in drawn] == ["occupancy", "predicted_vs_measured", "memory"]


def test_a_comparison_of_runs_that_served_nothing_draws_nothing(tmp_path):
    directories = [write_trials(tmp_path / name, failed_records()) for name in ("first", "second")]
    assert draw_comparison(compare_runs(*map(load_run, directories))) is None


def test_a_failure_that_breaks_monotony_is_flagged_on_the_map(tmp_path):
    path = sample_directory(tmp_path) / "summary.json"
    summary = json.loads(path.read_text())
    at = {"max_num_seqs": 16, "block_size": 16, "max_model_len": 512}
    summary["violations"] = [
        {"axis": "gpu_memory_utilization", "at": at, "worked": 0.2, "failed": 0.3, "sentence": "x"}
    ]
    path.write_text(json.dumps(summary))
    run, figure = load_run(tmp_path), new_figure()
    with drawing():
        outcomes.draw(run, figure)
    flagged = [text.get_text() for text in figure.axes[0].texts if text.get_text().startswith("!")]
    assert len(flagged) == 1 and flagged[0].startswith("! ok")


def test_two_runs_in_one_picture(tmp_path):
    first, faster = sample_run(tmp_path / "first"), records()
    for record in faster:
        if record["row"]["output_throughput"]:
            record["row"]["output_throughput"] *= 1.25
    second = load_run(write_trials(tmp_path / "second", faster))
    picture = draw_comparison(compare_runs(first, second))
    assert picture.finding == "second is 1.25 times as fast as first (median of 32 settings that both served)"
    assert_readable(picture)


@pytest.mark.slow
def test_writing_reports_says_nothing_on_stderr(tmp_path):
    """Not even matplotlib's talk about its font cache, nor a user's own matplotlibrc."""
    directory = sample_directory(tmp_path / "run")
    (tmp_path / "matplotlibrc").write_text("font.size: 40\nfigure.facecolor: black\n")
    script = "import sys, pathlib, kvplan.reports; kvplan.reports.write_reports(pathlib.Path(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(directory)],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
        env=os.environ | {"MPLCONFIGDIR": str(tmp_path / "fresh"), "MATPLOTLIBRC": str(tmp_path / "matplotlibrc")},
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert {path.name for path in directory.glob("*.png")} == {f"{kind.name}.png" for kind in PICTURES}
    assert Image.open(directory / "throughput.png").convert("L").getpixel((0, 0)) == 255


def test_reading_a_run_imports_no_matplotlib():
    modules = "kvplan.runs.storage.reader, kvplan.reports.pictures, kvplan.commands.report"
    script = f"import sys, {modules}; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n"


def test_titles_are_broken_into_lines_of_equal_length():
    assert canvas.balanced("four short words here", 40) == "four short words here"
    assert canvas.balanced("a title that is one word too long", 28) == "a title that is\none word too long"
    assert canvas.balanced("as much as 9 %", 13).splitlines()[-1].endswith("9\N{NO-BREAK SPACE}%")


def test_a_speed_that_was_estimated_before_any_trial_is_marked_and_no_error_of_the_others(tmp_path):
    kept = [record for record in records() if record["row"]["status"] == "ok"][:3]
    for number, record in enumerate(kept):
        scale = 1.0 if number == 0 else 0.7
        record["row"] |= {"prediction_origin": "roofline", "learned_time_factor": scale}
        record["row"] |= {"pred_output_throughput": (50.0 if number == 0 else 99.0), "output_throughput": 100.0}
    with drawing():
        figure = new_figure(9.6, 7.4)
        predictions.draw(load_run(write_trials(tmp_path, kept)), figure)
        panels = {axes.get_title(loc="left").split("\n")[0]: axes for axes in figure.axes}
        assert panels["Output throughput"].get_title(loc="left").endswith("filled: error 1 %, max 1 %")
        texts = [text.get_text() for text in panels["Output throughput"].get_legend().get_texts()]
        assert texts == ["before any trial", "ok"]
        assert panels["KV pool blocks"].get_title(loc="left").endswith("exact in 3 trials")
        figure.clear()
        predictions.draw(load_run(write_trials(tmp_path / "one", kept[:1])), figure)
        (panel,) = [axes for axes in figure.axes if axes.get_title(loc="left").startswith("Output throughput")]
        assert panel.get_title(loc="left").endswith("error before any trial: max 50 %")


def test_the_text_and_the_plot_say_the_same_error_of_the_same_trials(tmp_path):
    kept = [record for record in records() if record["row"]["status"] == "ok"][:3]
    for record, scale, predicted in zip(kept, (1.0, 0.7, 0.7), (50.0, 98.0, 96.0), strict=True):
        record["row"] |= {"prediction_origin": "roofline", "learned_time_factor": scale, "predicted_status": "ok"}
        record["row"] |= {"pred_output_throughput": predicted, "output_throughput": 100.0}
    summary = {"predictions": prediction_errors([record["row"] for record in kept])}
    directory = write_trials(tmp_path, kept)
    (directory / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    run = load_run(directory)
    (text,) = [line for line in prediction_sentences(run) if "throughput" in line]
    assert text == (
        "Median error of output throughput: 4 % in 3 trials, 3 % in the 2 that were predicted after a first one "
        "(the filled points of the plot)."
    )
    with drawing():
        figure = new_figure(9.6, 7.4)
        predictions.draw(run, figure)
        (panel,) = [axes for axes in figure.axes if axes.get_title(loc="left").startswith("Output throughput")]
        assert panel.get_title(loc="left").endswith("filled: error 3 %, max 4 %")


def test_ticks_of_a_logarithmic_panel_do_not_touch(tmp_path):
    kept = [record for record in records() if record["row"]["status"] == "ok"][:2]
    for record, value in zip(kept, (1500.0, 42000.0), strict=True):
        record["row"] |= {"median_ttft_ms": value, "pred_median_ttft_ms": value}
    with drawing():
        figure = new_figure(9.6, 7.4)
        predictions.draw(load_run(write_trials(tmp_path, kept)), figure)
        figure.draw_without_rendering()
        (panel,) = [axes for axes in figure.axes if axes.get_title(loc="left").startswith("Median TTFT")]
        boxes = [label.get_window_extent() for label in panel.get_xticklabels() if label.get_text()]
        boxes = [box for box in boxes if panel.bbox.x0 <= (box.x0 + box.x1) / 2 <= panel.bbox.x1]
    assert len(boxes) >= 2
    assert all(right.x0 > left.x1 + 2 for left, right in itertools.pairwise(sorted(boxes, key=lambda box: box.x0)))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return load_run(write_full_directory(tmp_path_factory.mktemp("full")))


@pytest.mark.slow
def test_the_page_shows_the_level_the_hole_and_what_is_left_out(run: Run) -> None:
    pictures = draw_pictures(run)
    assert "slo" in [picture.name for picture in pictures]
    page = report_page(run, pictures)
    assert page.index('id="recommendation"') < page.index('id="slo"') < page.index('id="outcomes"')
    assert "met up to max_concurrency 9 (in 2 of 3 runs; in every run up to 8; at 10 in 1 of 3 runs)" in page
    assert "Excluded from medians: run 1 of utilization 0.9, 8 sequences, block 16" in page
    assert "other processes used 64 % of the CPU; run 101 replaces it" in page
    assert "Not monotonic: gpu_memory_utilization 0.3 failed although 0.19 worked" in page
    finding = next(picture.finding for picture in pictures if picture.name == "slo")
    assert finding == "SLO of ttft 1,500 ms and tpot 60 ms (p99) met up to max_concurrency 9 (2 of 3 runs)"


def test_the_hole_is_flagged_on_the_map(run: Run) -> None:
    flagged = [(entry["gpu_memory_utilization"], entry["max_model_len"]) for entry in violations(run)]
    assert set(flagged) == {(0.3, 512)}
    assert len(sentences(run, "violations")) == 2


def test_excluded_runs_stay_in_the_table_and_leave_the_pictures(run: Run) -> None:
    (excluded,) = run.excluded
    assert run.trial(excluded) is not None
    assert excluded not in set(run.measured["trial_id"])
    assert "again" in set(run.measured["trial_id"])


def test_markdown_and_recommendation_tell_the_level(run: Run) -> None:
    text = markdown_text(run)
    assert "## Highest load within the SLO" in text
    assert "> Excluded from medians: run 1" in text
    assert recommendations(run)[0].title == "Fastest within the SLO"
    assert len(searches(run)) == 1


def request_lines(sent: Sequence[float], slowest: float = 7.0) -> list[RequestLine]:
    """Requests that take 2 s to ``slowest`` for their whole answers."""
    step = (slowest - 2.0) / len(sent)
    return [
        {
            "id": number,
            "sent_s": moment,
            "ttft_s": 1.0 + step * number,
            "e2el_s": 2.0 + step * (number + 1),
            "error": None,
        }
        for number, moment in enumerate(sent)
    ]  # type: ignore[misc]


@pytest.mark.parametrize(("every", "label"), [(1e-5, "in the order sent"), (0.5, "since the first request (s)")])
def test_requests_sent_at_once_are_shown_in_their_order(every: float, label: str) -> None:
    with drawing():
        axes = new_figure(4.8, 4.0).subplots()
        requests._over_time(axes, request_lines([every * number for number in range(12)]), [])
        axes.figure.draw_without_rendering()
        boxes = sorted((tick.get_window_extent() for tick in axes.get_xticklabels()), key=lambda box: box.x0)
    assert label in axes.get_xlabel()
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes)), "numbers do not touch"


@pytest.mark.parametrize("slowest", [7.0, 700.0])
def test_an_axis_of_latencies_has_numbers(slowest: float) -> None:
    with drawing():
        axes = new_figure(4.8, 4.0).subplots()
        requests._distribution(axes, request_lines([0.0] * 12, slowest))
        axes.figure.draw_without_rendering()
        low, high = axes.get_xlim()
        shown = [
            tick.label1.get_text()
            for tick in axes.xaxis.get_major_ticks()
            if low <= tick.get_loc() <= high and tick.label1.get_text()
        ]
    assert len(shown) >= 2
