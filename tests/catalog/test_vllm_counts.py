"""Architectures that transformers lacks: what is not in their rows of ``tests/data/counted_configs.json``."""

from __future__ import annotations

from typing import Any

import pytest
from counted_configs import SMALL, counted_config
from kept_elements import kept as kept_by_layer

from kvplan.catalog.reader import read_config
from kvplan.catalog.spec import LatentAttention


def test_solar_without_a_window_has_its_class_default():
    spec = read_config({**SMALL, "architectures": ["SolarForCausalLM"]}, model_id="solar")
    assert [tokens for _, _, tokens in kept_by_layer(spec)] == [2047] * 4
    assert any("2,047" in sentence for sentence in spec.assumptions)


def test_ling_3_flash_is_counted_on_the_hub_with_a_drafter():
    spec = read_config(counted_config("ling 3 flash", num_nextn_predict_layers=1), model_id="ling")
    (drafter,) = spec.extras
    assert drafter.num_parameters is not None
    assert (spec.num_parameters + drafter.num_parameters) / 1e9 == pytest.approx(127, abs=0.6)


def _indexed(config: dict[str, Any]) -> list[bool]:
    """Of each layer: whether it keeps index keys."""
    spec = read_config(config, model_id="indexed")
    return [isinstance(layer.mixer, LatentAttention) and layer.mixer.indexer is not None for layer in spec.layers]


def test_layers_of_hunyuan_4_that_keep_index_keys():
    """As vLLM's class has them: a cache of 132 B a token in each."""
    assert _indexed(counted_config("hunyuan 4")) == [True, True, False, False, False, True]
    assert _indexed(counted_config("hunyuan 4, mixed")) == [False, True, False, False, False, True]
    assert sum(_indexed(counted_config("hunyuan 4, published"))) == 10
    assert not any(_indexed(counted_config("hunyuan 4, all tokens")))
    chosen = [
        layer.mixer.chosen_tokens for layer in read_config(counted_config("hunyuan 4, mixed"), model_id="hy").layers
    ]
    assert chosen == [None, 64] * 3


def test_drafters_of_hunyuan_4_have_one_stream():
    """Parameters of vLLM's class without embedding and head, which are the model's."""
    (drafter,) = read_config(counted_config("hunyuan 4", num_nextn_predict_layers=1), model_id="hy").extras
    assert drafter.num_parameters == 174_560


def test_glm_flash_keeps_latents_and_index_keys():
    spec = read_config(counted_config("glm 5.3 flash, published"), model_id="glm")
    latent = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, LatentAttention)]
    assert len(latent) == 11 and {mixer.indexer.pool for mixer in latent if mixer.indexer} == {16}


def test_the_tower_of_glm_flash():
    vision = {"depth": 3, "hidden_size": 48, "num_heads": 4, "patch_size": 4, "out_hidden_size": 40}
    vision |= {"model_type": "glm5_next_vision", "intermediate_size": 72, "projection_intermediate_size": 56}
    spec = read_config(counted_config("glm 5.3 flash, published", vision_config=vision), model_id="glm")
    assert spec.extras[0].num_parameters == 81_088


@pytest.mark.parametrize(
    ("own", "parameters"), [({}, 170_460), ({"mlp_layer_types": ["sparse"] * 7 + ["dense"]}, 157_912)]
)
def test_drafters_of_glm_flash_have_latent_attention_and_one_stream(own, parameters):
    """Parameters of vLLM's class without embedding and head, which are the model's."""
    config = counted_config("glm 5.3 flash", num_nextn_predict_layers=1, **own)
    (drafter,) = read_config(config, model_id="glm").extras
    assert drafter.num_parameters == parameters
