"""Known coefficients come back from the rows they made, noise and outliers are borne, and the split is by settings."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from synthetic_sweep import TRUTH, WORKLOAD, tied, write_sweep

from kvplan.calibrate.calibration import calibrate_directories, profile_document
from kvplan.calibrate.observations import observe
from kvplan.calibrate.peaks import Peaks, readable_coefficients, shares_of_peaks
from kvplan.calibrate.scoring import repetition_spread_pct, score_trials, split_by_settings, summarize_errors
from kvplan.calibrate.trials import read_trial_sets
from kvplan.catalog.devices.measured import COEFFICIENTS, HeldOutError
from kvplan.errors import KvplanError
from kvplan.estimate.speed.steps.step_time import Speed, StepTimes


def assert_close(found: Speed, truth: Speed, tolerance: float) -> None:
    for name in COEFFICIENTS:
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=tolerance), name


def test_coefficients_of_one_model_come_back(tmp_path: Path) -> None:
    found = calibrate_directories([write_sweep(tmp_path / "a", speed=tied(TRUTH))], held_out=0.5, seed=0)
    assert_close(found.speed, tied(TRUTH), 0.02)
    assert found.errors["output_throughput"].median_pct < 0.5
    assert found.errors["tpot"].p90_pct < 1
    assert found.errors["ttft"].p90_pct < 1


def test_two_models_tell_layers_from_steps(tmp_path: Path) -> None:
    paths = [write_sweep(tmp_path / model, model=model) for model in ("gpt2", "smollm2-135m")]
    assert_close(calibrate_directories(paths, held_out=0, seed=0).speed, TRUTH, 0.02)


def test_overlap_and_rounded_rows_are_recognised(tmp_path: Path) -> None:
    truth = replace(tied(TRUTH), sharpness=4.0, row_step=8.0)
    found = calibrate_directories([write_sweep(tmp_path / "a", speed=truth)], held_out=0, seed=0)
    assert_close(found.speed, truth, 0.02)


def test_noise_and_outliers_are_borne(tmp_path: Path) -> None:
    noisy = write_sweep(tmp_path / "noisy", speed=tied(TRUTH), noise=0.15, slow_share=0.02)
    clean = read_trial_sets([write_sweep(tmp_path / "clean", speed=tied(TRUTH))])
    found = calibrate_directories([noisy], held_out=0.5, seed=1)
    errors = summarize_errors(score_trials(clean.trials, found.speed))
    # 2 % of the steps take five times as long: the rows are 9 % slower than the device, and so may the prediction be.
    assert errors["output_throughput"].median_pct < 9
    assert errors["tpot"].median_pct < 9
    assert found.speed.flops == pytest.approx(TRUTH.flops, rel=0.25)


def test_figures_alone_suffice(tmp_path: Path) -> None:
    path = write_sweep(tmp_path / "a", speed=tied(TRUTH), with_series=False)
    found = calibrate_directories([path], held_out=0.5, seed=0)
    assert found.errors["output_throughput"].p90_pct < 1.5
    assert found.errors["tpot"].p90_pct < 2


def test_arrivals_over_time_are_played_with_measured_durations(tmp_path: Path) -> None:
    workload = replace(WORKLOAD, request_rate=4.0, max_concurrency=6)
    path = write_sweep(tmp_path / "a", speed=tied(TRUTH), workload=workload)
    trials = read_trial_sets([path]).trials
    observations = [observe(trial) for trial in trials]
    for trial, observation in zip(trials, observations, strict=True):
        assert observation is not None and observation.has_steps
        assert len(observation.loads.tokens) == trial.row["num_steps"]
    found = calibrate_directories([path], held_out=0.5, seed=0)
    assert found.errors["output_throughput"].p90_pct < 1
    without = read_trial_sets([write_sweep(tmp_path / "b", workload=workload, with_series=False)]).trials
    assert [observe(trial) for trial in without] == [None] * len(without)


def test_long_trials_are_stored_in_points_of_several_steps(tmp_path: Path) -> None:
    workload = replace(WORKLOAD, num_prompts=40)
    path = write_sweep(tmp_path / "a", speed=tied(TRUTH), workload=workload, seqs=(1, 2, 8), tokens=(64, 512))
    longest = max(read_trial_sets([path]).trials, key=lambda trial: trial.row["num_steps"])
    observation = observe(longest)
    assert observation is not None
    assert len(observation.group_starts) <= 400 < longest.row["num_steps"]
    seconds = observation.seconds(tied(TRUTH))
    groups = np.add.reduceat(seconds, observation.group_starts)
    assert groups == pytest.approx(observation.group_seconds)
    assert observation.figure_weights @ seconds == pytest.approx(observation.figure_seconds)


def test_arrays_and_clock_agree(tmp_path: Path) -> None:
    trial = read_trial_sets([write_sweep(tmp_path / "a", seqs=(4,), tokens=(48,))]).trials[0]
    observation = observe(trial)
    assert observation is not None
    for sharpness in (1.0, 3.0):
        speed = replace(TRUTH, sharpness=sharpness)
        times, loads = StepTimes(trial.shape, speed), observation.loads
        one_by_one = [
            times.seconds(int(tokens), int(sequences), int(sampled), int(read), float(pairs))
            for tokens, sequences, sampled, read, pairs in zip(
                loads.tokens, loads.sequences, loads.sampled, loads.kv_tokens, loads.pairs, strict=True
            )
        ]
        assert observation.seconds(speed) == pytest.approx(one_by_one)


def test_the_split_is_by_settings(tmp_path: Path) -> None:
    trials = read_trial_sets([write_sweep(tmp_path / "a", num_runs=3)]).trials
    split = split_by_settings(trials, 0.5, seed=5)
    fitted, held_out = ({trial.setting for trial in part} for part in (split.fitted, split.held_out))
    assert not fitted & held_out
    assert len(split.fitted) + len(split.held_out) == len(trials) == 45
    assert abs(len(fitted) - len(held_out)) <= 1
    assert split_by_settings(trials, 0.5, seed=5) == split
    assert {trial.setting for trial in split_by_settings(trials, 0.5, seed=6).held_out} != held_out
    assert not split_by_settings(trials, 0.0, seed=5).held_out


def test_few_rows_are_refused(tmp_path: Path) -> None:
    path = write_sweep(tmp_path / "a", seqs=(1, 2), tokens=(64, 128), num_runs=4)
    with pytest.raises(KvplanError, match="The rows cover 4 settings, but a calibration needs at least 6"):
        calibrate_directories([path], held_out=0.5, seed=0)


def test_different_devices_are_refused(tmp_path: Path) -> None:
    one, other = write_sweep(tmp_path / "a"), write_sweep(tmp_path / "b", device_name="Another CPU")
    with pytest.raises(KvplanError, match="different devices: Test CPU, 2 cores, float32; and Another CPU"):
        calibrate_directories([one, other], held_out=0.5, seed=0)
    with pytest.raises(KvplanError, match="of another device"):
        calibrate_directories([one], held_out=0.5, seed=0, score=[other])


def test_rows_of_another_engine_are_refused(tmp_path: Path) -> None:
    path = write_sweep(tmp_path / "a")
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    manifest["options"]["engine"] = "vllm"
    (path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(KvplanError, match="was served by vllm, whose speed is not learned"):
        read_trial_sets([path])


def test_rows_that_plain_torch_computed_are_left_out(tmp_path: Path) -> None:
    path = write_sweep(tmp_path / "a", num_runs=2)
    records = [json.loads(line) for line in (path / "trials.jsonl").read_text(encoding="utf-8").splitlines()]
    for number, record in enumerate(records):
        record["row"]["kernels"] = "reference" if number < 3 else "cpu-avx512"
    (path / "trials.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    found = read_trial_sets([path])
    reason = "computed by plain torch, without the engine's kernels (column kernels: reference)"
    assert dict(found.excluded) == {reason: 3}
    assert len(found.trials) == len(records) - 3
    for record in records:
        record["row"]["kernels"] = "reference"
    (path / "trials.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    with pytest.raises(KvplanError, match=r"No row of .* can be used: 30 x computed by plain torch") as refused:
        read_trial_sets([path])
    assert refused.value.hint == "install a C++ compiler, such as g++, and sweep again"


def test_the_other_model_is_predicted(tmp_path: Path) -> None:
    """What was fitted to gpt2 is carried over to a model of another depth, width and number of KV heads."""
    gpt2 = write_sweep(tmp_path / "a", speed=tied(TRUTH))
    other = write_sweep(tmp_path / "b", model="smollm2-135m", speed=tied(TRUTH))
    found = calibrate_directories([gpt2], held_out=0, seed=0, score=[other])
    (transfer,) = found.transfers
    assert transfer.model_ids == ("HuggingFaceTB/SmolLM2-135M-Instruct",)
    assert transfer.errors["output_throughput"].p90_pct < 1


def test_the_coefficients_are_named_once() -> None:
    assert tuple(each.name for each in dataclasses.fields(Speed)) == COEFFICIENTS
    assert all(math.isfinite(value) for value in TRUTH.as_json().values())


def test_the_spread_of_repetitions_is_their_distance_from_the_median(tmp_path: Path) -> None:
    trials = read_trial_sets([write_sweep(tmp_path / "a", num_runs=3)]).trials
    for trial in trials:
        trial.row["output_throughput"] = {1: 90.0, 2: 100.0, 3: 120.0}[trial.row["run_number"]]
    assert repetition_spread_pct(trials) == pytest.approx(10)
    assert repetition_spread_pct([trial for trial in trials if trial.row["run_number"] == 1]) is None


def test_errors_without_a_measured_figure_are_left_out() -> None:
    errors = pd.DataFrame({"output_throughput": [-10.0, 20.0], "tpot": [math.nan, 5.0], "ttft": [math.nan] * 2})
    assert summarize_errors(errors) == {"output_throughput": HeldOutError(15, 19, 20), "tpot": HeldOutError(5, 5, 5)}


def test_coefficients_are_scaled_for_people() -> None:
    shares = shares_of_peaks(TRUTH, Peaks(bandwidth=34e9, flops=220e9, source="test"))
    found = {each.label: (each.value, each.unit) for each in readable_coefficients(TRUTH, shares)}
    assert found["overhead per step"] == ("900.0", "us")
    assert found["weights and activations"] == ("17.00", "GB/s")
    assert found["attention"] == ("35.0", "GFLOP/s")
    assert [each.share_of_peak.share for each in readable_coefficients(TRUTH, shares) if each.share_of_peak] == [
        pytest.approx(0.5),
        pytest.approx(0.5),
        pytest.approx(9 / 34),
        pytest.approx(35 / 220),
    ]


def test_rows_of_a_busy_machine_are_fitted_where_one_insists(tmp_path: Path) -> None:
    directory = write_sweep(tmp_path / "busy", speed=tied(TRUTH))
    file = directory / "trials.jsonl"
    records = [json.loads(line) for line in file.read_text().splitlines()]
    for record in records:
        record["row"]["other_cpu_pct"] = 60.0
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(KvplanError, match=r"All 15 rows of .* were measured while other processes used") as refused:
        calibrate_directories([directory], held_out=0.5, seed=1)
    assert "--despite-noise" in str(refused.value.hint)
    found = calibrate_directories([directory], held_out=0.5, seed=1, despite_noise=True)
    assert profile_document(found)["rows"]["noisy"] == 15  # type: ignore[index]
