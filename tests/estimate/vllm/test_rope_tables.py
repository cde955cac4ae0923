"""Rotary tables of models whose positions are those of time, height and width."""

from __future__ import annotations

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.settings import ServingSettings


@pytest.mark.parametrize(
    ("model", "rotary", "shrinks"),
    [("qwen3-vl-32b", 128, True), ("qwen3.5-27b", 64, True), ("qwen2-vl-2b", 128, False)],
)
def test_qwen3s_are_made_once_from_0_32_on(model: str, rotary: int, shrinks: bool) -> None:
    """mrope_positions_factor in vllm/model_executor/models/qwen3_vl.py; all others are for four times the positions."""
    spec = resolve_model(model)
    asked = ServingSettings(max_model_len=8192)
    older, newer = (predict_vllm(spec, find_gpu("h200"), asked, each).rank.weight_bytes for each in ("0.31", "0.32"))
    assert spec.max_position_embeddings is not None
    assert older - newer == shrinks * 3 * spec.max_position_embeddings * rotary * 2
