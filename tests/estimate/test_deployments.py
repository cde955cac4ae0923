"""Engines whose memory is predicted: every name that ``--engine`` takes has a memory model."""

from __future__ import annotations

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.engines import ENGINES, EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.estimate.deployments import PLACED_BY, place
from kvplan.settings import ServingSettings


def test_every_engine_has_a_memory_model() -> None:
    assert set(PLACED_BY) == set(ENGINES)


@pytest.mark.parametrize("name", ENGINES)
def test_a_deployment_names_the_engine_it_is_for(name: str) -> None:
    settings = ServingSettings(max_model_len=8192)
    placed = place(resolve_model("llama-3.1-8b"), find_gpu("h100-sxm"), EngineChoice(name), settings)
    assert placed.deployment.engine.partition("@")[0] == name
    assert placed.deployment.fits
