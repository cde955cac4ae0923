"""Families of models: parameters, names, what is refused, and the states of hybrid ones."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tiny_configs import llama_config, own_config

from kvplan_engine import EngineError
from kvplan_engine.checkpoints.config_json import load_model_config
from kvplan_engine.checkpoints.families import family_of, names_of
from kvplan_engine.checkpoints.families.common import after_dense_ones
from kvplan_engine.checkpoints.parameters import stored_parameters
from kvplan_engine.description.feed_forward import Mlp
from kvplan_engine.description.mixers import FULL, Attention, Kept, State
from kvplan_engine.description.model import ModelDescription, uniform_attention
from kvplan_engine.description.parameters import model_parameters, num_parameters
from kvplan_engine.models.known_parts import refuse_unknown_parts

PROFILES = {
    "GPT2LMHeadModel": ("gpt2", 124_439_808),
    "LlamaForCausalLM": ("llama-3.1-8b", 8_030_261_248),
    "MistralForCausalLM": ("mistral-7b-v0.3", 7_248_023_552),
    "Qwen2ForCausalLM": ("qwen2.5-7b", 7_615_616_512),
    "Qwen3ForCausalLM": ("qwen3-8b", 8_190_735_360),
}
"""A shipped profile of each architecture and the number of parameters that its publisher states."""

LLAMA = llama_config(vocab_size=100)


def attention_of(source: Any) -> Attention:
    """The attention of all layers of a config or of a shipped profile."""
    attention = uniform_attention(load_model_config(source))
    assert attention is not None
    return attention


def activation_of(model: ModelDescription) -> str:
    (layer,) = model.distinct_layers
    assert isinstance(layer.feed_forward, Mlp)
    return layer.feed_forward.activation


@pytest.mark.parametrize("architecture", PROFILES)
def test_a_published_model_has_the_parameters_it_should(architecture: str) -> None:
    name, expected = PROFILES[architecture]
    config = load_model_config(name)
    assert config.architecture == architecture
    assert num_parameters(config) == expected


@pytest.mark.parametrize("architecture", PROFILES)
def test_every_name_is_used_once(architecture: str) -> None:
    """In safetensors and in GGUF: no tensor fills two parameters, and both fill the same ones."""
    config, family = load_model_config(PROFILES[architecture][0]), family_of(architecture)
    for names in filter(None, (family.names, family.gguf and family.gguf.names)):
        parameters = stored_parameters(config, names)
        sources = [source.name for parameter in parameters for source in parameter.sources]
        assert len(set(sources)) == len(sources)
        assert all(sum(source.num_rows for source in p.sources) == p.shape[0] for p in parameters)
        assert [parameter.name for parameter in parameters] == [p.name for p in model_parameters(config)]


def test_an_unknown_architecture_is_refused_by_name() -> None:
    with pytest.raises(EngineError, match=r"does not run UnheardOfForCausalLM yet") as caught:
        load_model_config({"architectures": ["UnheardOfForCausalLM"]})
    assert caught.value.hint is not None
    assert "docs/models.md" in caught.value.hint
    with pytest.raises(EngineError, match=r"does not run \? yet"):
        load_model_config({})


def test_an_unknown_dtype_is_refused_with_the_ones_there_are() -> None:
    with pytest.raises(EngineError, match=r"its dtype 'int8' is none of bfloat16, float16, float32, float64"):
        load_model_config(LLAMA | {"torch_dtype": "int8"})


def test_a_mistral_that_does_not_mention_its_window_has_the_default_one() -> None:
    """As MistralConfig in transformers; null is no window."""
    mistral = LLAMA | {"architectures": ["MistralForCausalLM"]}
    assert attention_of(mistral).kept == Kept("window", 4096)
    assert attention_of(mistral | {"sliding_window": None}).kept == FULL


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": "wide"}, "the config of this LlamaForCausalLM is malformed"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3 KV heads evenly"),
        ({"hidden_act": "sine"}, "does not know the activation 'sine'"),
        ({"rope_scaling": {"rope_type": "spiral"}}, "lacks the RoPE scaling 'spiral'"),
    ],
)
def test_what_the_engine_does_not_compute_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(EngineError, match=message):
        refuse_unknown_parts(load_model_config(LLAMA | change))


def test_a_missing_key_is_named() -> None:
    with pytest.raises(EngineError, match=r"the config of this LlamaForCausalLM lacks 'vocab_size'"):
        load_model_config({key: value for key, value in LLAMA.items() if key != "vocab_size"})


def test_which_layers_have_experts() -> None:
    """All behind the dense ones, every second of them, or one by one; null is as if the key were left out."""
    config = {"num_hidden_layers": 4, "first_k_dense_replace": 1}
    for frequency, expected in ((None, "0111"), (1, "0111"), (2, "0010"), ([0, 1, 0, 1], "0101")):
        assert "".join(str(int(each)) for each in after_dense_ones(config | {"moe_layer_freq": frequency})) == expected
    assert after_dense_ones(config) == [False, True, True, True]
    assert after_dense_ones(config | {"mlp_layer_types": ["sparse"] * 5}) == [True] * 4


def test_activations_without_a_gate() -> None:
    gpt2 = {"architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_head": 4, "n_layer": 1, "vocab_size": 9}
    gpt2["n_positions"] = 16
    for published, ours in (("gelu", "gelu"), ("gelu_new", "gelu_tanh"), ("gelu_pytorch_tanh", "gelu_tanh")):
        assert activation_of(load_model_config(gpt2 | {"activation_function": published})) == ours
    with pytest.raises(EngineError, match=r"the activation 'sine'"):
        load_model_config(gpt2 | {"activation_function": "sine"})


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_qwens_window_is_off_unless_it_is_used(architecture: str) -> None:
    config = LLAMA | {"architectures": [architecture], "sliding_window": 32}
    assert attention_of(config).kept == FULL
    assert attention_of(config | {"use_sliding_window": True}).kept == Kept("window", 32)
    mixed = load_model_config(config | {"use_sliding_window": True, "max_window_layers": 1})
    assert [layer.mixers[0].kept for layer in mixed.layers] == [FULL, Kept("window", 32)]  # type: ignore[union-attr]
    refuse_unknown_parts(mixed)


def test_what_the_decoder_lacks_is_named_with_a_way_to_measure_it() -> None:
    with pytest.raises(EngineError, match="it lacks all of its parts") as caught:
        refuse_unknown_parts(load_model_config("whisper-large-v3"))
    assert "load_format='none'" in (caught.value.hint or "")


def test_features_follow_the_family() -> None:
    assert attention_of("qwen3-8b").head_norm == "head"
    assert attention_of("llama-3.1-8b").head_norm == "none"
    assert attention_of("qwen2.5-7b").qkv_bias
    assert load_model_config("gpt2").norm.kind == "layer"
    assert family_of("GPT2LMHeadModel").gguf is None


_SIZES: dict[str, Any] = own_config("bamba sizes")
BAMBA = _SIZES | {"architectures": ["BambaForCausalLM"]}
FALCON_H1 = _SIZES | {
    "architectures": ["FalconH1ForCausalLM"],
    "attention_bias": True,
    "attention_in_multiplier": 2.0,
    "key_multiplier": 3.0,
    "ssm_in_multiplier": 0.5,
    "ssm_multipliers": [1.0, 3.0, 5.0, 7.0, 9.0],
    "mamba_proj_bias": True,
}


def state_of(config: dict[str, Any]) -> State:
    found = [mixer for mixer in load_model_config(config).layers[0].mixers if isinstance(mixer, State)]
    return found[0]


@pytest.mark.parametrize("infinity", [math.inf, {"__float__": "Infinity"}], ids=["number", "object"])
def test_limits_of_steps_as_configs_write_them(infinity: object) -> None:
    assert state_of(BAMBA).step_limits == (0.0, math.inf)
    assert state_of(BAMBA | {"time_step_limit": [0.25, infinity]}).step_limits == (0.25, math.inf)
    assert state_of(BAMBA | {"time_step_limit": [0.0, 0.5]}).step_limits == (0.0, 0.5)


def test_another_activation_is_refused() -> None:
    with pytest.raises(EngineError, match="its states use 'gelu', and the engine has 'silu'"):
        load_model_config(BAMBA | {"hidden_act": "gelu"})


def arranged(config: dict[str, Any], name: str, source: str) -> torch.Tensor:
    """A stored tensor of ones, as it is loaded into the parameter ``name``: in its order, by its factors."""
    model = load_model_config(config)
    names, _ = names_of(model)
    assert names is not None
    (parameter,) = (each for each in stored_parameters(model, names) if each.name == name)
    (found,) = (each for each in parameter.sources if each.name == source)
    stored = torch.ones(found.num_rows, *parameter.shape[1:])
    for step in (found.arrange, found.scaling):
        stored = stored if step is None else step(stored)
    return stored


def test_factors_reach_the_rows_that_they_belong_to() -> None:
    """gate, input, B, C and step lie in one tensor; a factor of its input does not reach its bias."""
    sizes = [64, 64, 16, 16, 4]
    weight = arranged(FALCON_H1, "layers.1.second.in.weight", "model.layers.1.mamba.in_proj.weight")
    assert [run.unique().tolist() for run in weight.split(sizes)] == [[0.5], [1.5], [2.5], [3.5], [4.5]]
    bias = arranged(FALCON_H1, "layers.1.second.in.bias", "model.layers.1.mamba.in_proj.bias")
    assert [run.unique().tolist() for run in bias.split(sizes)] == [[1.0], [3.0], [5.0], [7.0], [9.0]]


def test_factors_of_tensors_that_are_stacked() -> None:
    for part, weight, bias in (("q", 2.0, 1.0), ("k", 6.0, 3.0), ("v", 2.0, 1.0)):
        source = f"model.layers.0.self_attn.{part}_proj"
        assert arranged(FALCON_H1, "layers.0.qkv.weight", f"{source}.weight").unique().tolist() == [weight]
        assert arranged(FALCON_H1, "layers.0.qkv.bias", f"{source}.bias").unique().tolist() == [bias]


def test_a_model_without_factors_is_loaded_as_it_is_stored() -> None:
    assert load_model_config(BAMBA).layers[0].factors == ()
    plain = {key: value for key, value in FALCON_H1.items() if "multiplier" not in key}
    assert load_model_config(plain).layers[0].factors == ()
