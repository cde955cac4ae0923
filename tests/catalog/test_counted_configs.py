"""Sizes of families that few profiles show: as their classes are built, and as published."""

from __future__ import annotations

import pytest
from counted_configs import COUNTED, SMALL, counted_config
from kept_elements import kept

from kvplan.catalog.models import resolve_model
from kvplan.catalog.reader import read_config
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.estimate.weights import size_weights


@pytest.mark.parametrize("name", COUNTED)
def test_a_small_config_is_counted_as_its_class_is_built(name: str) -> None:
    row = COUNTED[name]
    spec = read_config(row.config, model_id=name)
    assert spec.num_parameters == row.num_parameters
    assert kept(spec) == row.kept


_PUBLISHED: dict[str, tuple[tuple[int, ...], int]] = {
    "CwmForCausalLM": ((6144, 21504, 64, 48, 8, 128, 128256), 32_581_097_472),
    "Jais2ForCausalLM": ((3328, 26624, 32, 26, 26, 128, 150272), 8_090_401_280),
    "VaultGemmaForCausalLM": ((2304, 9216, 26, 8, 4, 256, 256000), 2_614_222_080),
}
"""Hidden and inner size, layers, heads, KV heads, head size, vocabulary; parameters."""


@pytest.mark.parametrize("architecture", _PUBLISHED)
def test_published_sizes(architecture: str) -> None:
    sizes, parameters = _PUBLISHED[architecture]
    config = dict(zip(SMALL, sizes, strict=False)) | {"architectures": [architecture], "torch_dtype": "bfloat16"}
    assert read_config(config, model_id="published").num_parameters == parameters


@pytest.mark.parametrize("windows", [None, [64, 64], [64, 64, 64, "none"]])
def test_windows_of_plamo_that_are_not_listed_are_refused(windows: object) -> None:
    config = counted_config("plamo 3", interleaved_sliding_window=windows)
    with pytest.raises(KvplanError, match="interleaved_sliding_window"):
        read_config(config, model_id="plamo")


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
