"""Nemotron 3 against what NVIDIA publishes of it: parameters with the drafter, and bytes in each format."""

from __future__ import annotations

import pytest

from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.weights import size_weights


def drafter_parameters(spec: ModelSpec) -> int:
    return sum(extra.num_parameters or 0 for extra in spec.extras if extra.kind == "multi_token_prediction")


def test_parameters_with_the_multi_token_layer_are_the_published_ones() -> None:
    """123.61 billion, as the hub counts Nemotron 3 Super in bfloat16."""
    spec = resolve_model("nemotron-3-super-120b-a12b-nvfp4")
    assert round((spec.num_parameters + drafter_parameters(spec)) / 1e9, 2) == 123.61


@pytest.mark.parametrize(
    ("name", "gigabytes"), [("nemotron-3-ultra-550b", 1121), ("nemotron-3-ultra-550b-a55b-nvfp4", 352.3)]
)
def test_checkpoints_of_ultra_are_as_large_as_published(name: str, gigabytes: float) -> None:
    """1,121 GB in bfloat16 and 352.3 GB in NVFP4: developer.nvidia.com/blog, "Creating the NVIDIA Nemotron 3 Ultra
    NVFP4 Checkpoint with NVIDIA Model Optimizer", 2026-06-26. The drafter stays in bfloat16."""
    spec = resolve_model(name)
    stored = size_weights(spec, "bfloat16").total_bytes + 2 * drafter_parameters(spec)
    assert stored / 1e9 == pytest.approx(gigabytes, rel=0.002)


def test_attention_that_a_list_names_mixer_is_left_unquantized() -> None:
    """Nemotron 3 Nano lists ``backbone.layers.5.mixer.q_proj`` and the like for every attention layer."""
    found = size_weights(resolve_model("nemotron-3-nano-30b-a3b-nvfp4"), "bfloat16")
    assert {each.format for each in found.components if each.kind == "attention"} == {"bfloat16"}
