"""A profile of a tiny model through the real worker and the real engine: what it records, writes and prints."""

from __future__ import annotations

import base64
import io
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tiny_profile import profile_tiny_model, write_tiny_model

from kvplan.cli import main
from kvplan.commands.profile import progress_text
from kvplan.errors import KvplanError, UsageError
from kvplan.profiling import timeline
from kvplan.profiling.plan import make_profile_plan
from kvplan.profiling.session import ProfileOutcome, new_directory, run_profile
from kvplan.profiling.shares import TimeShare, operation_shares, phase_shares
from kvplan.reports.plots.canvas import drawing, new_figure
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.worker.protocol import Event

_NUM_PROMPTS = 6


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProfileOutcome]:
    """Six requests of 40 and 12 tokens, 32 tokens a step, three sequences at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield profile_tiny_model(
            tmp_path_factory.mktemp("profile"),
            {"max_num_seqs": "3", "max_num_batched_tokens": "32"},
            num_prompts=_NUM_PROMPTS,
            input_len="40",
            output_len="12",
        )


@pytest.fixture(scope="module")
def trace(outcome: ProfileOutcome) -> dict[str, Any]:
    return json.loads((outcome.directory / "trace.json").read_text())


def test_every_prompt_and_output_token_is_in_some_step(outcome: ProfileOutcome) -> None:
    steps = outcome.recording.steps
    assert sum(steps["prefill_tokens"]) == _NUM_PROMPTS * 40
    assert sum(steps["decode_tokens"]) == _NUM_PROMPTS * 11  # the first token comes with the prompt
    assert sum(steps["new_tokens"]) == _NUM_PROMPTS * 12
    assert max(steps["num_running"]) == 3
    totals = [a + b for a, b in zip(steps["prefill_tokens"], steps["decode_tokens"], strict=True)]
    assert max(totals) <= 32


def test_blocks_add_up_in_every_step(outcome: ProfileOutcome) -> None:
    steps, parts = outcome.recording.steps, outcome.recording.memory
    for used, cached, free in zip(steps["used_blocks"], steps["cached_blocks"], steps["free_blocks"], strict=True):
        assert used + cached + free == parts["num_blocks"]
    assert max(steps["used_blocks"]) == 3 * -(-52 // parts["block_size"])
    assert steps["cached_blocks"][-1] > 0, "finished prompts stay in the prefix cache"
    assert 0 <= parts["kv_pool_bytes"] - parts["num_blocks"] * parts["block_bytes"] < parts["block_bytes"]


def test_memory_parts_stay_within_the_budget(outcome: ProfileOutcome) -> None:
    parts = outcome.recording.memory
    kinds = ("weight_bytes", "workspace_bytes", "overhead_bytes", "graph_bytes", "kv_pool_bytes")
    assert sum(parts[kind] for kind in kinds) <= parts["budget_bytes"] < parts["device_total_bytes"]
    readings = [reading for reading in outcome.recording.steps["process_bytes"] if reading is not None]
    assert readings and max(readings) < parts["device_total_bytes"]


def test_the_phases_add_up_to_the_steps(outcome: ProfileOutcome) -> None:
    shares = {share.name: share for share in phase_shares(outcome.recording)}
    assert {"schedule", "prepare", "forward", "sample", "process"} <= shares.keys()
    assert "transfer" not in shares  # nothing was swapped
    assert sum(share.share for share in shares.values()) == pytest.approx(1.0, abs=1e-3)
    operations = operation_shares(outcome.recording)
    assert {share.name for share in operations} >= {"qkv", "attention", "up", "down", "rest"}
    assert "rope" not in {share.name for share in operations}  # GPT-2 learns its positions
    assert sum(share.seconds for share in operations) == pytest.approx(shares["forward"].seconds, rel=1e-3)
    assert all(share.median_prefill_seconds and share.median_decode_seconds for share in operations)


def test_the_document_has_a_sweeps_names_and_every_step(outcome: ProfileOutcome) -> None:
    document = json.loads((outcome.directory / "profile.json").read_text())
    assert document["schema"] == "kvplan.profile/1"
    assert document["settings"]["max_num_seqs"] == 3
    assert document["measured"]["completed"] == _NUM_PROMPTS
    assert document["measured"]["num_blocks_total"] == document["predicted"]["num_blocks_predicted"]
    lengths = {len(column) for column in document["steps"].values()}
    assert lengths == {document["where_time_goes"]["num_steps"]}
    assert len(document["requests"]) == _NUM_PROMPTS


def test_the_trace_has_the_fields_of_the_trace_event_format(trace: dict[str, Any]) -> None:
    """Required by the format: ph, pid, tid and name everywhere; ts in microseconds; dur on X; id and cat on b and e."""
    assert trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:
        assert {"ph", "pid", "tid", "name"} <= event.keys()
        assert event["ph"] in "XCMbe"
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name") and isinstance(event["args"]["name"], str)
            continue
        assert isinstance(event["ts"], (int, float)) and event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] == "C":
            assert event["args"] and all(isinstance(value, (int, float)) for value in event["args"].values())
        if event["ph"] in "be":
            assert event["cat"] and event["id2"]["local"], "in the process of requests, not beside all processes"
    times = [event["ts"] for event in trace["traceEvents"] if event["ph"] != "M"]
    assert times == sorted(times)


def test_the_traces_times_are_microseconds(outcome: ProfileOutcome, trace: dict[str, Any]) -> None:
    slices = [event for event in trace["traceEvents"] if event.get("cat") == "step"]
    assert len(slices) == outcome.recording.num_steps
    total = sum(event["dur"] for event in slices)
    assert total == pytest.approx(1e6 * outcome.recording.step_seconds, rel=1e-3)
    last = slices[-1]
    assert last["ts"] + last["dur"] <= 1e6 * outcome.recording.json["duration_seconds"]


def test_the_slices_of_a_track_nest(trace: dict[str, Any]) -> None:
    """Steps follow each other, and every phase lies within its step: what Perfetto draws as one track."""
    open_until: list[float] = []
    for event in trace["traceEvents"]:
        if event["ph"] != "X":
            continue
        while open_until and event["ts"] >= open_until[-1] - 1e-2:
            open_until.pop()
        end = event["ts"] + event["dur"]
        assert not open_until or end <= open_until[-1] + 1e-2
        assert (event["cat"] == "phase") == bool(open_until)
        open_until.append(end)


def test_every_request_of_the_trace_begins_and_ends(trace: dict[str, Any]) -> None:
    open_names: dict[int, list[str]] = {}
    closed = []
    for event in trace["traceEvents"]:
        if event["ph"] == "b":
            open_names.setdefault(event["id2"]["local"], []).append(event["name"])
        elif event["ph"] == "e":
            assert open_names[event["id2"]["local"]].pop() == event["name"], "the innermost ends first"
            closed.append(event["name"])
    assert not any(open_names.values())
    assert closed.count("decoding") == closed.count("to the first token") == _NUM_PROMPTS


def test_the_picture_is_a_png_of_the_recording(outcome: ProfileOutcome) -> None:
    png = (outcome.directory / "timeline.png").read_bytes()
    assert png.startswith(b"\x89PNG") and len(png) > 20_000
    assert outcome.files == ("profile.json", "trace.json", "timeline.png", "report.html")


def test_the_page_shows_the_picture_the_shares_and_what_was_predicted(outcome: ProfileOutcome) -> None:
    page = (outcome.directory / "report.html").read_text()
    assert "http" not in page.split("<body>")[1]
    drawn = (
        Image.open(io.BytesIO(base64.b64decode(data))) for data in re.findall(r"data:image/png;base64,([^\"]+)", page)
    )
    assert [picture.width for picture in drawn] == [567, 1300], "a phone's, and that of a screen"
    for text in ("Where a step", "forward", "sampling", "Measured beside predicted: blocks", "settings.<wbr>max_"):
        assert text in page


@pytest.mark.parametrize("size", [timeline._SIZE_INCHES, timeline._NARROW_SIZE_INCHES])
def test_every_label_is_within_its_part_of_the_bar(size: tuple[float, float]) -> None:
    titles = ("embedding and head", "MLP down product", "QKV product", "attention's output product", "sampling")
    widths = (0.6, 0.2, 0.12, 0.06, 0.02)
    shares = [TimeShare("", title, width, width, None, None) for title, width in zip(titles, widths, strict=True)]
    with drawing():
        figure = new_figure(*size)
        axes = figure.subplots(6, 1)[5]
        axes.set_xlim(0, 100)
        timeline._bar(axes, 0, shares)
        figure.draw_without_rendering()
        labelled = {label.get_text(): label.get_window_extent() for label in axes.texts}
        bars = [bar.get_window_extent() for bar in axes.patches]
    names = [" ".join(text.split()) for text in labelled]
    assert "embedding and head 60" in names and not any("output" in text for text in labelled)
    for extent in labelled.values():
        assert any(bar.x0 <= extent.x0 and extent.x1 <= bar.x1 for bar in bars)


def options(tmp_path: Path, axes: dict[str, str], **given: Any) -> SweepOptions:
    model = write_tiny_model(tmp_path / "model")
    return SweepOptions(model=str(model), axes=axes, device="cpu", **given)


def test_a_list_of_values_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--max-num-seqs has 2 values, but a profile runs one setting"):
        make_profile_plan(options(tmp_path, {"max_num_seqs": "1,2"}))


def test_the_memory_that_nobody_chose_lets_the_requests_fill_the_pool(tmp_path: Path) -> None:
    plan = make_profile_plan(options(tmp_path, {"block_size": "4", "max_model_len": "128"}))
    peak = plan.prepared.prediction
    assert peak.status == "ok"
    assert any("max_model_len 128, of which the requests fill 6 % at most" in notice for notice in plan.notices)
    chosen = make_profile_plan(options(tmp_path, {}, device_memory="1GiB"))
    assert chosen.predictor.device.memory_bytes == 1024**3


def test_no_history_of_allocations_is_asked_for_on_the_cpu(tmp_path: Path) -> None:
    assert not make_profile_plan(options(tmp_path, {}), records_allocations=True).records_allocations


HELLO = {"type": "hello", "pid": 1, "engine_version": "0", "torch_version": "0", "architectures": ["GPT2LMHeadModel"]}


def worker_that_says(*messages: dict[str, Any], then: str = "sys.stdin.read()") -> tuple[str, ...]:
    """A worker process that sends these messages whatever it is told."""
    lines = "".join(json.dumps(message) + "\n" for message in messages)
    return sys.executable, "-c", f"import sys; sys.stdout.write({lines!r}); sys.stdout.flush(); {then}"


def run_with_worker(tmp_path: Path, command: tuple[str, ...]) -> None:
    plan = make_profile_plan(options(tmp_path, {}))
    run_profile(plan, new_directory(tmp_path / "run"), lambda event: None, worker_command=command)


def test_a_setting_that_does_not_fit_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    row = {"status": "oom_kv_init", "error": "No memory is left for a KV pool."}
    worker = worker_that_says(HELLO, {"type": "result", "row": row, "recording": None})
    with pytest.raises(KvplanError, match=r"^Nothing was profiled: No memory is left for a KV pool \(oom_kv_init\)\.$"):
        run_with_worker(tmp_path, worker)
    assert not (tmp_path / "run").exists()


def test_the_history_of_allocations_survives_the_failure_that_it_explains(tmp_path: Path) -> None:
    plan = replace(make_profile_plan(options(tmp_path, {})), records_allocations=True)
    row = {"status": "oom_runtime", "error": "Memory ran out."}
    worker = worker_that_says(HELLO, {"type": "result", "row": row, "recording": None})
    directory = new_directory(tmp_path / "run")
    (directory / "memory.pickle").write_bytes(b"history")
    with pytest.raises(KvplanError, match="Nothing was profiled") as caught:
        run_profile(plan, directory, lambda event: None, worker_command=worker)
    assert caught.value.hint == f"{directory / 'memory.pickle'} has the allocations up to there"
    assert (directory / "memory.pickle").read_bytes() == b"history"


def test_an_interrupted_profile_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(_event: Event) -> None:
        raise KeyboardInterrupt

    stage = {"type": "stage", "stage": "loading", "memory_share": None}
    directory = new_directory(tmp_path / "run")
    plan = make_profile_plan(options(tmp_path, {}))
    with pytest.raises(KeyboardInterrupt):
        run_profile(plan, directory, interrupt, worker_command=worker_that_says(HELLO, stage))
    assert not directory.exists()


def test_a_worker_that_dies_is_one_sentence_and_leaves_its_log(tmp_path: Path) -> None:
    with pytest.raises(KvplanError, match="exit code 3: no luck") as caught:
        run_with_worker(tmp_path, worker_that_says(HELLO, then="print('no luck', file=sys.stderr); sys.exit(3)"))
    assert caught.value.hint is not None and "worker.log" in caught.value.hint
    assert "no luck" in (tmp_path / "run" / "worker.log").read_text()


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(KvplanError, match="is not empty"):
        new_directory(tmp_path)
    assert new_directory(tmp_path / "new").is_dir()


def test_what_is_shown_meanwhile() -> None:
    assert progress_text({"type": "stage", "stage": "loading", "memory_share": None}) == "loading"
    serving: Event = {
        "type": "progress", "output_tokens_per_second": 1.0, "kv_usage": 0.6, "num_running": 8, "num_waiting": 3,
        "share": 0.45, "memory_share": None,
    }  # fmt: skip
    assert progress_text(serving) == "serving, 45 % of the tokens, 8 running, 3 waiting, KV 60 % used"


@pytest.mark.slow
def test_the_command_prints_tables_and_says_that_memory_needs_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    model = write_tiny_model(tmp_path / "model")
    words = ["profile", str(model), "--device", "cpu", "--num-prompts", "2", "--input-len", "8", "--output-len", "4"]
    assert main([*words, "--memory", "--out", str(tmp_path / "run")]) == 0
    printed = capsys.readouterr()
    assert "Where a step's time goes" in printed.out
    assert "Within forward" in printed.out
    assert "--memory is left out: only a GPU's allocator keeps a history." in printed.err
    assert f"written to {tmp_path / 'run'}: profile.json, trace.json, timeline.png, report.html" in printed.err
