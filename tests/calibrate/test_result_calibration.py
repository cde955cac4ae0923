"""Speeds learned from results: known ones come back, what results do not tell stays, recorded ones are predicted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvplan.calibrate.results.calibration import prior_of
from kvplan.calibrate.results.learning import identify, learn
from kvplan.calibrate.results.matching import Matched, match
from kvplan.calibrate.results.observing import ServedResult, TimedBatch, rank_clock
from kvplan.calibrate.results.outcome import BatchResult, LoadFigures, LoadResult, Results, alike
from kvplan.calibrate.results.served import ServedDeployment
from kvplan.catalog.devices import measured
from kvplan.catalog.devices.measured import load_measured, read_measured
from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.engines.vllm.model import VllmModel
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.speed.simulation.figures import tpot_seconds, ttft_seconds
from kvplan.estimate.speed.steps.step_time import Speed
from kvplan.machine.device import Device
from kvplan.runs.trials import TrialSettings
from kvplan.sweeps.forecast.prediction import Predictor
from kvplan.units import GIB
from kvplan.workload.requests import RequestSpec

DATA = Path(__file__).parents[1] / "data" / "results"
SWEEPS = sorted((DATA / "vllm-cpu-sweeps").iterdir())
H100 = ServedDeployment(model="llama-3.1-8b", gpu="h100-sxm", engine="vllm", engine_version="0.24.0", max_num_seqs=64)
NO_FIGURES = LoadFigures(1.0, 1.0, 1.0, 1.0, 1.0, 1.0)


@pytest.fixture(autouse=True)
def own_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody's profiles but those of the test."""
    monkeypatch.setenv("KVPLAN_PROFILES_DIR", str(tmp_path / "profiles"))
    measured._read_folders.cache_clear()
    return tmp_path / "profiles" / "measured"


def load(prompts: int, answers: int, concurrency: int, served: ServedDeployment = H100) -> LoadResult:
    requests = alike(2 * concurrency, 2 * concurrency * prompts, 2 * concurrency * answers)
    return LoadResult(f"{concurrency} of {prompts}", served, requests, concurrency, NO_FIGURES, True)


def as_served_by(speed: Speed, matched: Matched) -> Matched:
    """The same results with the figures that a device of this speed would have given."""
    return replace_results(matched, [measured_load(each, speed) for each in matched.loads], matched.batches)


def replace_results(matched: Matched, loads: Sequence[ServedResult], batches: Sequence[TimedBatch]) -> Matched:
    return Matched(list(loads), list(batches), matched.excluded)


def measured_load(each: ServedResult, speed: Speed) -> ServedResult:
    simulated = each.simulate(speed)
    ends = simulated.loads.end_seconds
    ttfts = [ttft_seconds(request, ends) for request in simulated.requests]
    tpots = [found for request in simulated.requests if (found := tpot_seconds(request, ends)) is not None]
    figures = LoadFigures(
        duration=simulated.seconds,
        output_throughput=simulated.output_throughput,
        mean_ttft=float(np.mean(ttfts)),
        median_ttft=float(np.median(ttfts)),
        mean_tpot=float(np.mean(tpots)),
        median_tpot=float(np.median(tpots)),
    )
    return replace(each, result=replace(each.result, figures=figures))


def changed(speed: Speed, **factors: float) -> Speed:
    return replace(speed, **{name: getattr(speed, name) * factor for name, factor in factors.items()})


LOADS = [load(*sizes) for sizes in ((64, 24, 1), (512, 24, 4), (2048, 12, 16), (512, 24, 64), (1024, 2, 2))]


def test_known_speeds_come_back() -> None:
    matched = match(Results(loads=LOADS), ServedDeployment())
    expected = prior_of(matched.first).kernels.base
    truth = changed(expected, flops=0.7, bandwidth=0.8)
    found = learn(as_served_by(truth, matched), expected)
    assert {"bandwidth", "flops"} <= set(found.identified.names)
    assert found.speed.flops == pytest.approx(truth.flops, rel=0.05)
    assert found.left_out["output_throughput"].median_pct < 2
    assert found.left_out["tpot"].p90_pct < 4
    assert found.num_settings == 5


def test_what_one_load_does_not_tell_stays_as_it_was() -> None:
    """Single requests with short prompts: one direction, the time of a decode step."""
    matched = match(Results(loads=[load(16, 64, 1)]), ServedDeployment())
    expected = prior_of(matched.first).kernels.base
    found = learn(as_served_by(changed(expected, layer_seconds=1.5), matched), expected)
    kept = set(expected.as_json()) - set(found.identified.names)
    assert len(found.identified.names) <= 2
    assert {"flops", "kv_bandwidth", "attention_flops"} <= kept
    assert all(getattr(found.speed, name) == getattr(expected, name) for name in kept)
    assert found.left_out == {}
    assert found.fitted["tpot"].median_pct < 1


def test_timed_batches_tell_a_forward_without_the_host() -> None:
    sizes = [((1, 1024),) * count for count in (1, 8, 64, 256)] + [((count, count),) for count in (256, 1024, 4096)]
    batches = [BatchResult(f"case {index}", H100, each, 1.0) for index, each in enumerate(sizes)]
    matched = match(Results(batches=batches), ServedDeployment())
    expected = prior_of(matched.first).kernels.base
    truth = changed(expected, flops=1.4, layer_seconds=0.6, step_seconds=5.0)
    timed = [
        replace(each, result=replace(each.result, seconds=float(each.observe(truth).seconds(truth)[0])))
        for each in matched.batches
    ]
    found = learn(replace_results(matched, [], timed), expected)
    assert "step_seconds" not in found.identified.names
    assert found.speed.step_seconds == expected.step_seconds
    assert found.fitted["step"].p90_pct < 1
    assert found.left_out["step"].median_pct < 3


def test_directions_that_look_alike_get_one_coefficient() -> None:
    one, two = np.array([10.0, 10.0, 10.0, 0.0]), np.array([0.0, 5.0, -5.0, 5.0])
    found = identify(np.stack([one, two, 1.1 * one, 0.01 * two], axis=1), ["a", "b", "c", "d"], [1.0, 1.0, 1.0, 1.0])
    assert found.names == ("b", "c")  # c is a's direction, seen more clearly
    assert len(found.singular_values) == 4
    assert found.singular_values[2] == pytest.approx(0, abs=1e-9)
    assert found.uncertainty["b"] == pytest.approx(1 / np.linalg.norm(two), rel=1e-6)
    wide = identify(np.stack([one, 1.1 * one], axis=1), ["a", "c"], [1.0, 0.5])
    assert wide.names == ("a",)  # less was known of it before


def test_the_steps_of_a_load_and_of_its_observation_are_one() -> None:
    mixture = replace(H100, model="mixtral-8x7b", tensor_parallel_size=2)
    matched = match(Results(loads=[load(200, 5, 3, mixture)]), ServedDeployment())
    speed = prior_of(matched.first).kernels.base
    simulated = matched.loads[0].simulate(speed)
    assert matched.loads[0].observe(speed).seconds(speed) == pytest.approx(simulated.loads.step_seconds)
    assert rank_clock(matched.first, speed).seconds(1, 1, 1, 64, 64.0) > 0


def test_recorded_rows_of_vllm_are_predicted_from_the_others(
    printed_by: Callable[..., str], own_profiles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two models on vLLM 0.32 for CPUs; each setting by a fit to the others."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    printed = printed_by("calibrate", *map(str, SWEEPS))
    assert "13 loads (12 settings) of openai-community/gpt2, HuggingFaceTB/SmolLM2-135M-Instruct" in printed
    assert "served by vllm 0.32.0 on AMD EPYC, 2 cores, bfloat16" in printed
    assert "Each of 12 settings, predicted by the others" in printed
    (path,) = own_profiles.iterdir()
    assert path.name == "amd-epyc-2-cores-bfloat16-vllm.json"
    profile, document = read_measured(path), json.loads(path.read_text())
    assert (profile.engine, profile.num_rows, profile.dtype) == ("vllm", 13, "bfloat16")
    assert profile.errors["output_throughput"].median_pct < 8
    assert profile.errors["tpot"].median_pct < 10
    assert set(document["identification"]["determined"]) >= {"layer_seconds", "flops"}
    assert document["identification"]["others"] == "what CPUs usually reach"


def test_a_sweep_of_that_engine_predicts_its_speeds_and_no_other(own_profiles: Path, tmp_path: Path) -> None:
    seats = SWEEPS[2]
    assert main(["calibrate", *(str(path) for path in SWEEPS if path != seats)]) == 0
    found = load_measured()
    assert found.for_device("cpu", "AMD EPYC", 2, "bfloat16", engine="kvplan") is None
    profile = found.for_device("cpu", "AMD EPYC", 2, "bfloat16", engine="vllm")
    spec, device = resolve_model("gpt2"), Device("cpu", "AMD EPYC", 24 * GIB, 2)
    requests = tuple(RequestSpec(index, 64, 16) for index in range(12))
    engine = VllmModel(spec, device, "0.32.0")
    predictor = Predictor(spec, device, requests, calibration=profile, engine=engine)
    settings = TrialSettings(
        gpu_memory_utilization=0.9,
        max_num_seqs=8,
        block_size=128,
        max_model_len=512,
        max_num_batched_tokens=2048,
        dtype="bfloat16",
        kv_cache_memory_bytes=100_000_000,
    )
    predicted = predictor.trial(settings)
    assert predicted.origin == "measured"
    assert predicted.figures is not None
    assert predicted.figures.output_throughput == pytest.approx(172.0, rel=0.15)  # trial 1 of gpt2-seats
    unknown = replace(predictor, calibration=None)
    assert unknown.trial(settings).origin is None
    assert unknown.with_time_scale(0.5).trial(settings).origin == "roofline"
    on_two = predictor.trial(replace(settings, tensor_parallel_size=2))
    assert on_two.origin in (None, "roofline")


def test_estimates_of_that_engine_use_it(
    capsys: pytest.CaptureFixture[str],
    answer_of: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    own_profiles: Path,
) -> None:
    """On the machine that the rows are of; kvplan's own engine has no profile there."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(measured, "cpu_name", lambda: "AMD EPYC")
    assert main(["calibrate", *map(str, SWEEPS)]) == 0
    found = {}
    for engine in ("vllm@0.32", "kvplan"):
        capsys.readouterr()
        options = ["--gpu", "cpu", "--dtype", "bfloat16", "--device-memory", "8GiB", "--ctx", "1k", "--engine", engine]
        found[engine] = answer_of("estimate", "gpt2", *options)["deployments"][0]["performance"]["origin"]
    assert found == {"vllm@0.32": "measured", "kvplan": "roofline"}


def results_of(*served: ServedDeployment) -> Results:
    return Results(loads=[load(64, 8, 1, each) for each in served])


@pytest.mark.parametrize(
    ("results", "options", "sentence"),
    [
        (results_of(ServedDeployment()), ServedDeployment(), "does not say which model was served"),
        (results_of(ServedDeployment(model="gpt2")), ServedDeployment(), "does not say what it was measured on"),
        (results_of(ServedDeployment(model="gpt2", gpu="l4")), ServedDeployment(), "does not say which engine"),
        (
            results_of(ServedDeployment(model="smollm", gpu="l4")),
            ServedDeployment(engine="vllm"),
            "is of a model 'smollm', which is not",
        ),
        (
            results_of(ServedDeployment(model="gpt2", gpu="l4")),
            ServedDeployment(engine="orca"),
            "Unknown engine 'orca'",
        ),
        (results_of(H100, replace(H100, gpu="a100-80gb-sxm")), ServedDeployment(), "are of different devices"),
        (results_of(H100, replace(H100, dtype="float16")), ServedDeployment(), "are of different devices"),
        (
            results_of(H100, replace(H100, engine="sglang")),
            ServedDeployment(),
            "are of different engines: vllm; sglang",
        ),
        (results_of(H100, replace(H100, model="gpt2")), ServedDeployment(model="gpt2"), "are of different models"),
        (
            results_of(H100),
            ServedDeployment(gpu="a100-80gb-sxm"),
            "says that it ran on h100-sxm, but --gpu says a100-80gb-sxm",
        ),
        (results_of(H100), ServedDeployment(max_num_seqs=8), "says max_num_seqs 64, but --max-num-seqs says 8"),
    ],
)
def test_results_that_make_no_profile(results: Results, options: ServedDeployment, sentence: str) -> None:
    with pytest.raises((KvplanError, UsageError), match=sentence):
        match(results, options)


def test_the_command_refuses_in_a_sentence(said_by: Callable[..., str], tmp_path: Path) -> None:
    serve = str(DATA / "vllm-bench-serve" / "serve-c1.json")
    assert "is of a model 'smollm2', which is not known here" in said_by(
        "calibrate", serve, "--engine", "vllm", "--gpu", "cpu", code=1
    )
    assert "--holdout is an option of kvplan's own sweeps" in said_by("calibrate", serve, "--holdout", "0.3")
    assert "does not exist" in said_by("calibrate", str(tmp_path / "none"), code=1)


def test_measured_kernels_are_believed_where_results_tell_nothing() -> None:
    matched = match(Results(loads=LOADS), ServedDeployment())
    prior = prior_of(matched.first)
    assert prior.source.startswith("kernels measured on h100-sxm with vLLM")
    assert set(prior.groups) >= {"links"}
    on_four = match(Results(loads=[load(64, 8, 2, replace(H100, tensor_parallel_size=4))]), ServedDeployment())
    plain, believing = on_four.loads[0], on_four.believing(prior.kernels).loads[0]
    base = prior.kernels.base
    assert believing.simulate(base).seconds < plain.simulate(base).seconds  # all-reduces as they were measured


def test_what_was_read_of_a_folder_is_said(printed_by: Callable[..., str]) -> None:
    sweep = DATA / "vllm-bench-sweep"
    assert f"{sweep}: 2 JSON files in 2 folders read" in printed_by(
        "calibrate", str(sweep), "--model", "gpt2", "--gpu", "cpu", "--out", "-"
    )


def test_one_load_of_vllm_bench_serve(answer_of: Callable[..., Any]) -> None:
    serve = str(DATA / "vllm-bench-serve" / "serve-c4-detailed.json")
    options = ["--model", "smollm2-135m", "--gpu", "cpu", "--engine", "vllm@0.32", "--dtype", "bfloat16"]
    document = answer_of("calibrate", serve, *options, "--max-num-seqs", "16", "--out", "-")
    assert document["engine"] == {"name": "vllm", "version": "0.32"}
    assert document["errors"]["figures"] == {}
    assert document["provenance"][0]["name"] == "serve-c4-detailed.json"
    assert 1 <= len(document["identification"]["determined"]) <= 3
