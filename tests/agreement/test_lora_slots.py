"""Planner and engine give the slots of LoRA adapters the same bytes, each from its own reading of the config."""

from __future__ import annotations

import pytest

from kvplan.catalog.models import profiles, resolve_model
from kvplan.estimate.adapters import engine_slot_bytes
from kvplan.settings import ServingSettings
from kvplan_engine.adapters.sites import slot_bytes
from kvplan_engine.checkpoints.config_json import load_model_config


@pytest.mark.parametrize(("number", "rank"), [(1, 16), (8, 32)])
def test_slots_of_every_profile(number: int, rank: int) -> None:
    settings = ServingSettings(max_loras=number, max_lora_rank=rank)
    for name in [p["name"] for p in profiles()]:
        planned = engine_slot_bytes(resolve_model(name), settings, "bfloat16")
        found = slot_bytes(load_model_config(name), 2, max_loras=number, max_lora_rank=rank)
        assert planned == found, name


def test_without_adapters_there_are_no_slots() -> None:
    assert engine_slot_bytes(resolve_model("llama-3.1-8b"), ServingSettings(), "bfloat16") == 0
