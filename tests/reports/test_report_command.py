"""``kvplan report`` as users run it, and two runs held against each other."""

from __future__ import annotations

import csv
import io
import json

import pytest
from report_helpers import records, sample_directory, write_trials

from kvplan.cli import main
from kvplan.errors import KvplanError
from kvplan.reports.comparison import compare_runs, verdicts
from kvplan.reports.pictures import draw_comparison
from kvplan.runs.storage.reader import load_run


def faster_directory(directory, factor: float = 1.25):
    """The sample again, faster, on another device, one trial lost and one outcome changed."""
    kept = records()[1:]
    for record in kept:
        record["row"]["engine_version"] = "0.9.9"
        if record["row"]["output_throughput"]:
            record["row"]["output_throughput"] *= factor
    changed = next(r for r in kept if r["row"]["status"] == "queued")
    changed["row"]["status"] = "preempted"
    return write_trials(directory, kept)


def test_csv_holds_every_row_as_the_sweep_wrote_it(tmp_path, printed_by):
    directory = sample_directory(tmp_path / "run")
    printed = printed_by("report", str(directory), "--format", "csv")
    with (directory / "results.csv").open(newline="") as file:
        assert list(csv.DictReader(io.StringIO(printed))) == list(csv.DictReader(file))


def test_json_is_one_document(tmp_path, printed_by):
    directory = sample_directory(tmp_path / "run")
    document = json.loads(printed_by("report", str(directory), "--format", "json"))
    assert document["schema"] == "kvplan.report/1"
    assert document["rows"] == [record["row"] for record in records()]


def test_markdown_is_short_and_whole(tmp_path, printed_by):
    directory = sample_directory(tmp_path / "run")
    text = printed_by("report", str(directory), "--format", "md")
    assert "## Recommendation" in text and "vllm serve gpt2" in text
    table = [line for line in text.splitlines() if line.startswith("|")]
    ran = [record for record in records() if record["row"]["status"] != "skipped_oom_dominated"]
    assert len(table) == 2 + len(ran)
    assert len({line.count("|") for line in table}) == 1


@pytest.mark.slow
def test_the_page_goes_beside_the_rows(tmp_path, printed_by):
    directory = write_trials(tmp_path / "run", records()[:1])
    assert printed_by("report", str(directory)) == f"{directory / 'report.html'}\n"
    assert (directory / "report.html").read_text().startswith("<!doctype html>")
    assert not list(directory.glob(".*.tmp"))


@pytest.mark.slow
def test_pictures_go_where_out_says(tmp_path, printed_by):
    directory = write_trials(tmp_path / "run", records()[:1])
    paths = printed_by("report", str(directory), "--format", "png", "--out", str(tmp_path / "a" / "b")).split()
    assert f"{tmp_path / 'a' / 'b' / 'occupancy.png'}" in paths
    assert sorted(paths) == sorted(str(path) for path in (tmp_path / "a" / "b").iterdir())


def test_a_torn_line_is_a_note_on_stderr(tmp_path, capsys):
    directory = sample_directory(tmp_path / "run")
    with (directory / "trials.jsonl").open("a") as file:
        file.write('{"row"')
    assert main(["report", str(directory), "--format", "csv"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1 + len(records())
    assert captured.err == f"note: Line {len(records()) + 1} of trials.jsonl could not be read and was skipped.\n"


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["{tmp}/empty"], 1, "is no run directory"),
        (["{tmp}/run/trials.jsonl"], 1, "is a file"),
        (["{tmp}/run", "{tmp}/nowhere"], 1, "There is no directory"),
        (["{tmp}/run", "--format", "csv", "--out", "{tmp}/run/trials.jsonl/x"], 1, "could not be written"),
        (["{tmp}/run", "--format", "png", "--out", "{tmp}/run/trials.jsonl"], 1, "cannot be created"),
        (["{tmp}/run", "--format", "png", "--out", "-"], 2, "cannot be written to stdout"),
        (["{tmp}/run", "--format", "pdf"], 2, "pdf"),
    ],
)
def test_errors_are_one_sentence_and_a_hint(tmp_path, capsys, arguments, code, sentence):
    sample_directory(tmp_path / "run")
    (tmp_path / "empty").mkdir()
    words = [word.replace("{tmp}", str(tmp_path)) for word in arguments]
    assert main(["report", *words]) == code
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 2 and lines[0].startswith("error: ") and lines[1].startswith("hint: ")
    assert sentence in lines[0]


def test_a_folder_of_runs_names_them(tmp_path, capsys):
    sample_directory(tmp_path / "a run")
    assert main(["report", str(tmp_path)]) == 1
    error = f"error: '{tmp_path}' is no run directory.\nhint: name those in it, such as '{tmp_path}/a run'\n"
    assert capsys.readouterr().err == error


def test_two_runs_are_matched_by_their_settings(tmp_path):
    first, second = load_run(sample_directory(tmp_path / "one")), load_run(faster_directory(tmp_path / "two"))
    compared = compare_runs(first, second)
    assert compared.names == ("one", "two")
    assert compared.num_alone == (1, 0)
    ratios = list(compared.ratios("output_throughput"))
    assert ratios and ratios == pytest.approx([1.25] * len(ratios))
    changed = compared.changed_outcomes
    assert list(zip(changed["status_first"], changed["status_second"], strict=True)) == [("queued", "preempted")]
    assert [(entry.name, entry.second) for entry in compared.differences] == [("engine_version", "0.9.9")]
    assert verdicts(compared)[0].startswith("Output throughput of two is 1.25 times that of one (median of ")


def test_what_changed_is_said_on_the_terminal(tmp_path, capsys):
    """Beside the page's path, which is what a script reads."""
    first, second = sample_directory(tmp_path / "one"), faster_directory(tmp_path / "two")
    assert main(["report", str(first), str(second)]) == 0
    printed = capsys.readouterr()
    assert printed.out.strip() == str(first / "comparison.html")
    said = " ".join(printed.err.split())
    assert "Output throughput of two is 1.25 times that of one" in said
    assert "engine_version differs: 0.1.0 in one, 0.9.9 in two." in said


def test_a_difference_within_the_spread_of_runs_is_none(tmp_path):
    """Of latencies that are a fraction, it is said how many times shorter they are."""
    kept = records()
    for record in kept:
        for name, factor in (("output_throughput", 1.02), ("median_tpot_ms", 0.02)):
            if record["row"].get(name):
                record["row"][name] *= factor
    one, two = sample_directory(tmp_path / "one"), write_trials(tmp_path / "two", kept)
    said = verdicts(compare_runs(load_run(one), load_run(two)))
    assert said[0].startswith("Output throughput of two is 1.02 times that of one")
    assert said[1].startswith("Output throughput: that shows no difference, since runs of one setting may be ")
    assert any(line.startswith("Median TPOT of two is 50 times shorter than that of one") for line in said)


def test_runs_with_and_without_kernels_differ_in_that(tmp_path, capsys):
    """A run of plain torch, several times slower, was said to be the same model, device, workload and engine."""
    for name, kernels in (("one", "cpu-avx512"), ("two", "reference")):
        kept = records()
        for record in kept:
            record["row"]["kernels"] = kernels
        write_trials(tmp_path / name, kept)
    assert main(["report", str(tmp_path / "one"), str(tmp_path / "two"), "--format", "md"]) == 0
    printed = capsys.readouterr()
    assert "| kernels | cpu-avx512 | reference |" in printed.out
    assert (
        "note: two: Measured without compiled kernels: in every timed trial the engine ran on plain torch"
        in printed.err
    )
    assert main(["report", str(tmp_path / "one"), str(tmp_path / "two"), "--out", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "two: Measured without compiled kernels" in page
    assert "are the same in both runs" not in page


def test_a_setting_that_only_separates_the_runs_is_the_change_not_a_mismatch(tmp_path):
    kept = records()
    for record in kept:
        record["row"]["max_num_batched_tokens"] = 512
    first = load_run(sample_directory(tmp_path / "one"))
    compared = compare_runs(first, load_run(write_trials(tmp_path / "two", kept)))
    assert compared.num_alone == (0, 0)
    assert [(entry.name, entry.first, entry.second) for entry in compared.differences] == [
        ("max_num_batched_tokens", "2,048", "512")
    ]


def test_runs_without_a_common_setting_cannot_be_compared(tmp_path):
    kept = records()[:6]
    for place, record in enumerate(kept):
        record["row"]["max_model_len"] = 5000 + place
    other = load_run(write_trials(tmp_path / "two", kept))
    with pytest.raises(KvplanError, match="no setting in common") as caught:
        compare_runs(load_run(sample_directory(tmp_path / "one")), other)
    assert caught.value.hint


@pytest.mark.parametrize("kind", ["md", "csv", "json"])
def test_comparisons_as_text(tmp_path, printed_by, kind):
    first, second = sample_directory(tmp_path / "one"), faster_directory(tmp_path / "two")
    text = printed_by("report", str(first), str(second), "--format", kind)
    if kind == "json":
        document = json.loads(text)
        assert document["schema"] == "kvplan.comparison/1" and document["num_shared_settings"] == len(document["rows"])
    elif kind == "csv":
        rows = list(csv.DictReader(io.StringIO(text)))
        ratios = [float(row["output_throughput_ratio"]) for row in rows if row["output_throughput_ratio"]]
        assert ratios == pytest.approx([1.25] * len(ratios)) and len(ratios) > 20
    else:
        assert text.startswith("# two vs. one") and "0.9.9" in text


def test_the_comparison_page(tmp_path, printed_by):
    first, second = sample_directory(tmp_path / "one"), faster_directory(tmp_path / "two")
    path = printed_by("report", str(first), str(second)).strip()
    assert path == str(first / "comparison.html")
    page = (first / "comparison.html").read_text()
    assert "two vs. one" in page and "data:image/png;base64," in page and "http" not in page.split("<body>")[1]


def test_one_shared_setting_is_not_a_median(tmp_path):
    first, second = (
        load_run(sample_directory(tmp_path / "one")),
        load_run(write_trials(tmp_path / "two", records()[:1])),
    )
    compared = compare_runs(first, second)
    assert verdicts(compared)[0].endswith("(the one setting that both served).")
    assert verdicts(compared)[-1] == "No outcome changed in the one setting that both tried."
    assert draw_comparison(compared).finding.endswith("(the one setting that both served)")


def test_runs_that_swept_a_dtype_are_matched_by_it(tmp_path):
    kept = records()[:2]
    kept[1] = json.loads(json.dumps(kept[0]))
    kept[1]["row"] |= {"dtype": "bfloat16", "trial_id": "half", "output_throughput": 999.0}
    compared = compare_runs(*(load_run(write_trials(tmp_path / name, kept)) for name in ("one", "two")))
    assert list(compared.matches["output_throughput_first"]) == [kept[0]["row"]["output_throughput"], 999.0]
