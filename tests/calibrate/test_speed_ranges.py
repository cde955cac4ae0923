"""How wide the ranges of calibrated speeds are, and how often they hold what another sweep measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_sweep import TRUTH, tied, write_sweep

import score_speed_ranges as tool
from kvplan.calibrate.calibration import calibrate_directories, profile_document
from kvplan.calibrate.scoring import conformal_quantile
from kvplan.calibrate.trials import read_trial_sets
from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.measured import HeldOutError
from kvplan.catalog.models import resolve_model
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.latency import SpeedModel
from kvplan.estimate.speed.steps.clocks import ANOTHER_RUN, DeviceSpeed
from kvplan.estimate.speed.steps.rank_step import KernelSpeed
from kvplan.estimate.speed.steps.step_time import Speed
from kvplan.estimate.speed.steps.work import model_work
from kvplan.workload.lengths import Lengths
from kvplan.workload.requests import WorkloadSpec


@pytest.mark.parametrize(
    ("num_sizes", "rank"),
    [(1, 1), (8, 8), (9, 9), (10, 10), (19, 18), (29, 27)],
)
def test_a_range_from_few_rows_takes_the_conformal_rank_not_the_percentile_in_between(
    num_sizes: int, rank: int
) -> None:
    assert conformal_quantile([float(size) for size in range(1, num_sizes + 1)]) == rank


def test_a_profile_without_the_conformal_quantile_keeps_its_percentile() -> None:
    assert HeldOutError(2.0, 5.0).range_pct == 5.0
    assert HeldOutError(2.0, 5.0, 7.0).range_pct == 7.0


def test_the_profile_has_the_conformal_quantile_of_its_held_out_errors(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "sweep", speed=tied(TRUTH), noise=0.05)
    figures = profile_document(calibrate_directories([sweep], held_out=0.5, seed=0))["errors"]["figures"]  # type: ignore[index]
    for error in figures.values():
        assert error["within_pct"] >= error["p90_pct"] >= error["median_pct"]


def test_the_ends_of_a_range_are_where_the_error_takes_the_measured_figure() -> None:
    """|predicted / measured - 1| <= e means predicted / (1 + e) <= measured <= predicted / (1 - e)."""
    spec = resolve_model("gpt2")
    work = model_work(spec, 4 * spec.num_parameters, "float32", ParallelLayout(1))
    errors = {"output_throughput": 0.2, "tpot": 0.25, "ttft": 0.5}
    device = DeviceSpeed(KernelSpeed(tied(TRUTH)), "measured", "float32", "note", errors)
    model = SpeedModel(work, find_gpu("cpu"), 128, 32, 1e6, device)
    middle, found = model.steady(4, "middle"), model.speed(4)
    assert found.ttft_seconds.low == pytest.approx(middle.ttft_seconds / 1.5)
    assert found.ttft_seconds.high == pytest.approx(middle.ttft_seconds / 0.5)
    assert found.tpot_seconds.high == pytest.approx(middle.tpot_seconds / 0.75)
    assert found.requests_per_second.low == pytest.approx(middle.requests_per_second / 1.2)
    assert found.requests_per_second.high == pytest.approx(middle.requests_per_second / 0.8)


def test_another_run_widens_the_range_and_so_does_another_model(tmp_path: Path) -> None:
    profile = tool.calibrated(write_sweep(tmp_path / "sweep", speed=tied(TRUTH), noise=0.05))
    own = DeviceSpeed.of(profile, "openai-community/gpt2", "float32").errors
    other = DeviceSpeed.of(profile, "HuggingFaceTB/SmolLM2-135M-Instruct", "float32").errors
    for name, error in profile.errors.items():
        assert own[name] ** 2 == pytest.approx((error.range_pct / 100) ** 2 + ANOTHER_RUN**2)
        assert other[name] > own[name]


@pytest.fixture(scope="module")
def crossed(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """Three runs of a device that was slower by 8 % in one and faster by 5 % in another, under two loads."""
    folder = tmp_path_factory.mktemp("runs")
    lengths = WorkloadSpec(12, Lengths(64, 128), Lengths(16, 32), seed=9)
    runs = {
        "first": write_sweep(folder / "first", speed=tied(TRUTH), noise=0.1),
        "slower": write_sweep(folder / "slower", speed=tied(_scaled(0.92)), noise=0.1, workload=lengths),
        "faster": write_sweep(folder / "faster", speed=tied(_scaled(1.05)), noise=0.1, seqs=(3, 5, 6, 7, 12)),
    }
    sweeps = {name: read_trial_sets([path]) for name, path in runs.items()}
    profiles = {name: tool.calibrated(path) for name, path in runs.items() if name != "faster"}
    return tool.cross_errors(sweeps, profiles)


def _scaled(factor: float) -> Speed:
    """The device, ``factor`` times as fast."""
    times = {name: getattr(TRUTH, name) / factor for name in ("step_seconds", "layer_seconds", "sequence_seconds")}
    rates = {name: getattr(TRUTH, name) * factor for name in ("bandwidth", "flops", "kv_bandwidth", "attention_flops")}
    return replace(TRUTH, **times, **rates)


@pytest.mark.slow
def test_ranges_hold_other_runs_of_the_device(crossed) -> None:  # type: ignore[no-untyped-def]
    assert len(crossed) == 4 * 15 * 3
    assert all(each.fitted != each.scored for each in crossed)
    held = tool.inside(crossed, ANOTHER_RUN)
    assert sum(held) / len(held) >= 0.85
    assert sum(tool.inside(crossed, 0.0)) < sum(held)


@pytest.mark.slow
def test_what_another_run_adds_is_fitted_so_that_nine_in_ten_are_held(crossed) -> None:  # type: ignore[no-untyped-def]
    held = tool.inside(crossed, tool.fit_another_run(crossed) + 1e-9)
    assert 0.9 <= sum(held) / len(held) < 0.93
