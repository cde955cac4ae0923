"""Small kernels of a mixture's layer that no table has, by model and release."""

from __future__ import annotations

import pytest

from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.steps.clocks import DeviceSpeed
from kvplan.estimate.speed.steps.kernels.routing_kernels import with_routing
from kvplan.estimate.speed.steps.rank_step import ExpertSpeed, KernelSpeed, LinkSpeed
from kvplan.estimate.speed.steps.step_time import Speed
from kvplan.estimate.speed.steps.work import model_work

ALL_REDUCE = 6e-6


def _more_us(engine: str, model: str, ranks: int = 4, *, is_fit: bool = True) -> float:
    name, _, version = engine.partition("@")
    base = Speed(0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0)
    speed = KernelSpeed(base, ExpertSpeed(1e-5, 4e12, 8e14), links=LinkSpeed({2: ALL_REDUCE}, 0.5))
    device = DeviceSpeed(speed, "kernels", "bfloat16", "note", {}, name, version if is_fit else None)
    work = model_work(resolve_model(model), 10**10, "bfloat16", ParallelLayout(ranks))
    found = with_routing(device, work, EngineChoice(name, version)).speed.experts
    assert found is not None
    return 1e6 * (found.layer_seconds - 1e-5)


@pytest.mark.parametrize(
    ("engine", "more_us"),
    [("sglang@0.5.6", 5.3 + 8.0), ("sglang@0.5.14", 5.3), ("vllm@0.11.0", 5.8), ("vllm@0.32.0", 5.8)],
)
def test_glm_4_routes_by_more_kernels_than_the_tables(engine: str, more_us: float) -> None:
    assert _more_us(engine, "glm-4.5") == pytest.approx(more_us)
    assert _more_us(engine, "qwen3-235b-a22b") == 0.0
    assert _more_us(engine, "glm-4.5", is_fit=False) == 0.0


@pytest.mark.parametrize(
    ("engine", "routing_us", "norm_us", "reduces"),
    [
        ("sglang@0.5.6", 13.3, 9.2, 2),
        ("sglang@0.5.7", 8.0, 9.2, 2),
        ("sglang@0.5.8", 8.0, 4.8, 1),
        ("sglang@0.5.10", 8.0, 0.0, 1),
        ("vllm@0.13.0", 5.8, 9.2, 2),
        ("vllm@0.14.0", 5.8, 4.8, 1),
        ("vllm@0.19.0", 0.0, 4.8, 1),
    ],
)
def test_minimax_m2_normalizes_over_all_ranks(engine: str, routing_us: float, norm_us: float, reduces: int) -> None:
    assert _more_us(engine, "minimax-m2.5", ranks=1) == pytest.approx(routing_us)
    over_ranks = routing_us + norm_us + reduces * 1e6 * ALL_REDUCE
    assert _more_us(engine, "minimax-m2.5") == pytest.approx(over_ranks)


def test_one_kernel_in_place_of_three_brings_what_was_measured() -> None:
    """150 tokens a second and 157 with four ranks and 62 layers."""
    before, after = (_more_us(f"sglang@{version}", "minimax-m2.5") for version in ("0.5.9", "0.5.10"))
    assert 62e-6 * (before - after) == pytest.approx(1 / 150 - 1 / 157, rel=0.02)
