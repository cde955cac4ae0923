"""What one result of a user's own server says of its other loads."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.measured import load_measured
from kvplan.catalog.devices.server_scale import Sensitivity, ServerScale, Spread
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.catalog.published_errors import ErrorInterval, FigureName
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.engine_speed import engine_rules, engine_speed_model
from kvplan.estimate.speed.latency import SpeedModel
from kvplan.estimate.speed.own_point import COMMON, MeasuredFigure, OwnPoint, scale_of, spread_of
from kvplan.estimate.speed.queueing.loads import PlayedLoad, users
from kvplan.estimate.speed.queueing.rules import SchedulingRules
from kvplan.estimate.speed.queues import play_queues
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.host import NO_HOST
from kvplan.estimate.speed.steps.step_terms import StepLoad
from kvplan.estimate.speed.steps.work import model_work
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.settings import ServingSettings

_TRUE = ServerScale(kernels=1.3, host=2.0)


@pytest.fixture(scope="module")
def server() -> tuple[SpeedModel, SchedulingRules]:
    """Llama-3.1-8B on an H100, under vLLM."""
    spec, gpu, engine = resolve_model("llama-3.1-8b"), find_gpu("h100-sxm"), EngineChoice("vllm", "0.11.0")
    start = predict_vllm(spec, gpu, ServingSettings(max_model_len=4096), engine.version)
    work = model_work(spec, start.rank.weight_bytes, "bfloat16", ParallelLayout())
    profile = load_measured(None).for_gpu(gpu, "bfloat16", "vllm")
    assert profile is not None
    known = DeviceSpeed.of(profile, spec.id, "bfloat16")
    model = engine_speed_model(engine, work, gpu, 1000, 200, 131072 * 1100, known, step_tokens=8192)
    return model, engine_rules(engine, start.settings.serving, work, 400_000)


def _measured(server: tuple[SpeedModel, SchedulingRules], load: PlayedLoad, scale: ServerScale) -> OwnPoint:
    """A result of ``load`` on a server that is exactly ``scale`` slower than predicted."""
    model, rules = server
    asked: dict[FigureName, MeasuredFigure] = {"ttft": MeasuredFigure("p50", 1.0), "tpot": MeasuredFigure("mean", 1.0)}
    found = OwnPoint(model, load, rules, asked).figures(scale)
    return OwnPoint(model, load, rules, {name: asked[name]._replace(value=found[name]) for name in asked})


def test_a_result_as_predicted_moves_nothing_and_narrows_the_interval(
    server: tuple[SpeedModel, SchedulingRules],
) -> None:
    model, _ = server
    found = scale_of([_measured(server, users(16, 1000, 200), ServerScale())])
    assert found.kernels == pytest.approx(1.0)
    assert found.host == pytest.approx(1.0)
    for name in ("ttft", "tpot"):
        known, narrow = model.error_interval(name), replace(model, scale=found).error_interval(name, 16)
        assert known is not None and narrow is not None
        assert narrow.high < math.exp(1.645 * spread_of(known))


def test_a_slower_server_is_met_part_of_the_way_by_one_result_and_nearly_all_by_many(
    server: tuple[SpeedModel, SchedulingRules],
) -> None:
    loads = [users(count, prompt, 200) for count in (1, 4, 16, 64) for prompt in (200, 1000, 2000)]
    points = [_measured(server, load, _TRUE) for load in loads]
    one, many = scale_of(points[:1]), scale_of(points)
    assert 1.0 < one.kernels < _TRUE.kernels
    assert many.kernels == pytest.approx(_TRUE.kernels, rel=0.08)
    assert 1.1 < many.host < _TRUE.host
    assert many.kernels_variance < one.kernels_variance
    assert many.host_variance < one.host_variance


def test_one_figure_moves_a_factor_by_the_share_of_the_variance_that_loads_have_in_common(
    server: tuple[SpeedModel, SchedulingRules],
) -> None:
    """Of captured steps that wait for no host a lone request's time per token is kernels alone: the posterior's mean is
    the share of what is missing."""
    without_host = replace(server[0], engine_host=NO_HOST), server[1]
    slower = _measured(without_host, users(1, 1000, 200), ServerScale(kernels=1.1))
    of_tpot = replace(slower, measured={"tpot": slower.measured["tpot"]})
    found = scale_of([of_tpot])
    assert math.log(found.kernels) == pytest.approx(COMMON["tpot"] * math.log(1.1), rel=0.02)
    assert found.host == pytest.approx(1.0, abs=0.01)


def test_an_interval_is_never_wider_than_without_the_result() -> None:
    unsure = ServerScale(kernels_variance=9.0, host_variance=9.0, tpot=Spread(0.2, 0.1))
    found = unsure.interval("tpot", Sensitivity(1.0, 0.0))
    assert found.high == pytest.approx(math.exp(1.6448536 * 0.2))
    assert found.low == pytest.approx(1 / found.high)
    sure = replace(unsure, kernels_variance=0.0, host_variance=0.0)
    assert sure.interval("tpot", Sensitivity(1.0, 0.0)).high == pytest.approx(math.exp(1.6448536 * 0.1))


def test_the_spread_of_an_interval_counts_that_predictions_are_off_to_one_side() -> None:
    assert spread_of(ErrorInterval(math.exp(-1.6448536), math.exp(1.6448536))) == pytest.approx(1.0)
    assert spread_of(ErrorInterval(math.exp(0.1), math.exp(0.1))) == pytest.approx(0.1)


def test_steps_terms_and_server_are_as_slow_as_was_measured(server: tuple[SpeedModel, SchedulingRules]) -> None:
    model, _ = server
    scaled, load = replace(model, scale=_TRUE), StepLoad.decoding(16, 1000)
    assert scaled.step_seconds(load) > 1.25 * model.step_seconds(load)
    assert scaled.step_terms(load).weights == pytest.approx(1.3 * model.step_terms(load).weights)
    assert scaled.front_end.request_seconds == pytest.approx(2 * model.front_end.request_seconds)
    parts = scaled.step_terms(load)
    assert parts.host == pytest.approx(2 * model.step_terms(load).host, rel=0.01)
    assert scaled.steady(16, "middle").tpot_seconds > 1.25 * model.steady(16, "middle").tpot_seconds


def test_a_played_load_has_the_interval_of_what_was_measured(server: tuple[SpeedModel, SchedulingRules]) -> None:
    model, rules = server
    scale = scale_of([_measured(server, users(16, 1000, 200), ServerScale())])
    load = users(16, 1000, 200)
    before = play_queues(model, load, rules, 10.0)
    after = play_queues(replace(model, scale=scale), load, rules, 10.0)
    assert before is not None and after is not None
    widths = [each.intervals["tpot"] for each in (before, after)]
    assert widths[0] is not None and widths[1] is not None
    believed = math.exp(2 * 1.645 * spread_of(widths[0]))  # the published interval need not lie around 1
    assert widths[1].high / widths[1].low < 0.95 * believed
