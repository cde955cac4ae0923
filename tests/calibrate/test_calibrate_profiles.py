"""The profile that a calibration leaves: round trip, who uses it and says so, and files that are none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic_sweep import TRUTH, tied, write_sweep

from kvplan.calibrate.calibration import calibrate_directories, profile_document
from kvplan.catalog.devices import measured
from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.measured import load_measured, read_measured
from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.errors import KvplanError
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.latency import SpeedModel
from kvplan.estimate.speed.simulation.batching import simulate_requests
from kvplan.estimate.speed.simulation.figures import simulated_figures
from kvplan.estimate.speed.simulation.interface import BatchLimits
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.step_time import Speed, StepTimes, step_shape
from kvplan.estimate.speed.steps.work import model_work
from kvplan.machine.host import cpu_name
from kvplan.sweeps.options import SweepOptions
from kvplan.sweeps.plan import make_plan
from kvplan.workload.requests import RequestSpec


@pytest.fixture(autouse=True)
def own_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody's profiles but those of the test, and a machine of two cores."""
    monkeypatch.setenv("KVPLAN_PROFILES_DIR", str(tmp_path / "profiles"))
    monkeypatch.setattr(measured, "profiles_dir", lambda: tmp_path / "shipped")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    measured._read_folders.cache_clear()
    return tmp_path / "profiles" / "measured"


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The text of a profile of this very machine."""
    sweep = write_sweep(tmp_path_factory.mktemp("run") / "sweep", speed=tied(TRUTH), noise=0.05, device_name=cpu_name())
    return json.dumps(profile_document(calibrate_directories([sweep], held_out=0.5, seed=0)))


@pytest.fixture
def profile(own_profiles: Path, calibrated: str) -> Path:
    """That profile where its user keeps it."""
    own_profiles.mkdir(parents=True)
    path = own_profiles / "mine.json"
    path.write_text(calibrated, encoding="utf-8")
    return path


def test_the_command_prints_its_error_and_keeps_the_profile(
    tmp_path: Path, own_profiles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = write_sweep(tmp_path / "sweep", speed=tied(TRUTH), noise=0.05)
    other = write_sweep(tmp_path / "other", model="smollm2-135m", speed=tied(TRUTH), noise=0.05)
    assert main(["calibrate", str(sweep), "--score", str(other)]) == 0
    printed = capsys.readouterr()
    assert "15 rows (15 settings) of openai-community/gpt2 on Test CPU, 2 cores, float32" in printed.out
    assert "Held-out error: fitted on 7 settings, scored on 8 others (8 rows, seed 0)" in printed.out
    assert "Transfer to HuggingFaceTB/SmolLM2-135M-Instruct: 15 rows" in printed.out
    assert [path.name for path in own_profiles.iterdir()] == ["test-cpu-2-cores-float32.json"]
    assert "test-cpu-2-cores-float32.json; estimate, plan and sweep use it on this device" in printed.err


@pytest.mark.slow
def test_the_profile_survives_the_disk(tmp_path: Path, profile: Path) -> None:
    document = json.loads(profile.read_text(encoding="utf-8"))
    assert document["schema"] == "kvplan.measured/1"
    assert len(document["provenance"][0]["manifest_sha256"]) == 64
    assert document["rows"]["used"] == 15
    found = read_measured(profile)
    assert dict(found.coefficients) == document["coefficients"]
    assert found.errors["tpot"].p90_pct == document["errors"]["figures"]["tpot"]["p90_pct"]
    assert found.origin_for("openai-community/gpt2", "float32") == "measured"
    assert found.origin_for("openai-community/gpt2", "bfloat16") == "calibrated"
    assert load_measured().for_gpu(find_gpu("cpu"), "float32") == found
    assert load_measured().swept == (found,)
    assert load_measured().for_device("cpu", cpu_name(), 64) is None


def test_json_and_other_places(tmp_path: Path, own_profiles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = write_sweep(tmp_path / "sweep", speed=tied(TRUTH))
    out = tmp_path / "here" / "mine.json"
    assert main(["calibrate", str(sweep), "--out", str(out), "--holdout", "0.4", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["errors"]["held_out"] == 0.4
    assert f"estimate and plan use it with --calibration {out}; without it" in printed.err
    assert read_measured(out).device_name == "Test CPU"
    assert not own_profiles.exists()
    assert main(["calibrate", str(sweep), "--holdout", "1.5"]) == 2


def document_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict:  # type: ignore[type-arg]
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


ESTIMATE = ["estimate", "gpt2", "--gpu", "cpu", "--engine", "kvplan", "--dtype", "float32", "--device-memory", "4GiB"]
PLAN = ["plan", "gpt2", "--gpu", "cpu", "--users", "8", "--input-len", "128", "--output-len", "32", "--ctx-max", "1k"]


def test_estimate_uses_it_and_says_so(
    profile: Path, capsys: pytest.CaptureFixture[str], printed_by: Callable[..., str]
) -> None:
    assert document_of(ESTIMATE, capsys)["deployments"][0]["performance"]["origin"] == "measured"
    printed = printed_by(*ESTIMATE)
    assert f": measured: calibrated on {cpu_name()}, 2 cores." in printed
    assert "median held-out error: throughput" in printed_by(*ESTIMATE, "--explain")
    for option in (["--no-calibration"], ["--calibration", "none"]):
        found = document_of([*ESTIMATE, *option], capsys)["deployments"][0]["performance"]
        assert (found["origin"], found["profile"]) == ("roofline", None)


def test_plan_uses_it_and_says_so(
    profile: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = document_of([*PLAN, "--dtype", "float32"], capsys)
    assert found["deployments"][0]["performance"]["origin"] == "measured"
    assert any("kvplan's engine (measured): calibrated on" in text for text in found["assumptions"])
    smol = ["plan", "smollm2-135m", *PLAN[2:], "--dtype", "float32"]
    assert document_of(smol, capsys)["deployments"][0]["performance"]["origin"] == "calibrated"
    assert document_of([*PLAN, "--no-calibration"], capsys)["deployments"][0]["performance"]["origin"] == "roofline"
    monkeypatch.setenv("KVPLAN_PROFILES_DIR", str(tmp_path / "empty"))
    assert document_of(PLAN, capsys)["deployments"][0]["performance"]["origin"] == "roofline"
    explicit = document_of([*PLAN, "--dtype", "float32", "--calibration", str(profile)], capsys)
    assert explicit["deployments"][0]["performance"]["origin"] == "measured"


def test_plan_and_simulation_agree(profile: Path) -> None:
    """The plan's closed form against requests simulated one by one: eight users, each with the next request at hand."""
    found = read_measured(profile)
    spec, speed = resolve_model("gpt2"), Speed.from_json(found.coefficients)
    kv_bytes = spec.num_layers * spec.layers[0].mixer.cache_elements_per_token * 4  # type: ignore[union-attr]
    shape = step_shape(spec, element_bytes=4, kv_bytes_per_token=kv_bytes)
    requests = [RequestSpec(index, 96 + index % 64, 24 + index % 17) for index in range(96)]
    limits = BatchLimits(8, 2048, 16, 4000)
    simulated = simulated_figures(simulate_requests(requests, limits, StepTimes(shape, speed), max_concurrency=8))
    work = model_work(spec, 4 * spec.num_parameters, "float32", ParallelLayout(1))
    device = DeviceSpeed.of(found, spec.id, "float32")
    planned = SpeedModel(work, find_gpu("cpu"), 127, 32, (127 + 16) * kv_bytes, device).speed(8)
    assert planned.output_tokens_per_second.middle == pytest.approx(simulated.output_throughput, rel=0.15)
    assert planned.tpot_seconds.middle == pytest.approx(simulated.median_tpot_seconds, rel=0.15)


def test_a_sweep_predicts_with_it(profile: Path) -> None:
    options = SweepOptions(model="gpt2", device="cpu", device_memory="2GiB")
    plan = make_plan(options)
    predicted = plan.predictions()[0]
    assert predicted.origin == "measured"
    assert predicted.figures is not None and predicted.figures.median_ttft_seconds
    assert any("calibrated on" in notice for notice in plan.notices)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "it is not JSON"),
        ('{"schema": "other/1"}', "its schema is not kvplan.measured/1"),
        ('{"schema": "kvplan.measured/1"}', "something is missing or malformed"),
        ("[]", "its schema is not"),
    ],
)
def test_what_is_no_profile_is_left_out_in_one_line(
    profile: Path, own_profiles: Path, content: str, reason: str, said_by: Callable[..., str]
) -> None:
    (own_profiles / "foreign.json").write_text(content, encoding="utf-8")
    measured._read_folders.cache_clear()
    (line,) = [line for line in said_by(*ESTIMATE, code=0).splitlines() if "foreign.json" in line]
    assert line.startswith("note: the measured profile foreign.json is left out: " + reason)
    assert len(load_measured().swept) == 1
    with pytest.raises(KvplanError, match="is not a measured profile"):
        load_measured(str(own_profiles / "foreign.json"))


@pytest.mark.parametrize("change", [{"flops": 0}, {"bandwidth": -1}, {"step_seconds": None}, {"flops": "fast"}])
def test_coefficients_that_cannot_be_are_left_out(profile: Path, change: dict[str, object]) -> None:
    document = json.loads(profile.read_text(encoding="utf-8"))
    document["coefficients"] |= change
    profile.write_text(json.dumps(document), encoding="utf-8")
    measured._read_folders.cache_clear()
    assert not load_measured().swept
    assert len(load_measured().notices) == 1


def test_the_newest_of_a_device_is_taken(profile: Path, own_profiles: Path) -> None:
    document = json.loads(profile.read_text(encoding="utf-8"))
    (own_profiles / "old.json").write_text(json.dumps(document | {"created": "2001-01-01"}), encoding="utf-8")
    measured._read_folders.cache_clear()
    found = load_measured().for_device("cpu", cpu_name(), 2, "float32")
    assert found is not None and found.path == profile
