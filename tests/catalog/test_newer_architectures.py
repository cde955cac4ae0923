"""Architectures that ship no profile: small configs of each, counted by transformers, and what they cache."""

from __future__ import annotations

from typing import Any

import pytest
from counted_configs import counted_config
from tiny_configs import own_config

from independent_count import count_independently
from kvplan.catalog.models import find_profile, read_profile, resolve_model
from kvplan.catalog.reader import read_config
from kvplan.catalog.spec import LatentAttention, ModelSpec, SoftmaxAttention, StateMixer
from kvplan.catalog.tensors import count_elements
from kvplan.estimate.weights import format_of, quantized_bytes

_SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 256,
    "torch_dtype": "float32",
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_shared_experts": 1}
_LATENT = {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "num_layers": 3,
    "ffn_hidden_size": 96,
    "expert_ffn_hidden_size": 32,
    "n_routed_experts": 4,
    "zero_expert_num": 2,
    "moe_topk": 2,
}


def _read(name: str) -> ModelSpec:
    return read_config(counted_config(name), model_id=name)


@pytest.mark.slow
def test_longcat_has_two_attentions_a_layer():
    """transformers gives the experts without weights a matrix too; the checkpoint and vLLM give them none."""
    config = {**_SMALL, "architectures": ["LongcatFlashForCausalLM"], "model_type": "longcat_flash", **_LATENT}
    del config["intermediate_size"], config["num_hidden_layers"], config["num_key_value_heads"]
    counted = count_independently(config)
    spec = read_config(config, model_id="longcat")
    idle = 3 * config["zero_expert_num"] * 2 * config["expert_ffn_hidden_size"] * config["hidden_size"]
    assert spec.num_parameters == counted.num_parameters + counted.num_corrections - idle
    assert spec.num_layers == 6
    assert all(isinstance(layer.mixer, LatentAttention) for layer in spec.layers)


def _windows(name: str) -> list[int | None]:
    return [layer.mixer.window_tokens for layer in _read(name).layers if isinstance(layer.mixer, SoftmaxAttention)]


def test_windows_of_configs_without_layer_types():
    assert _windows("granite swa") == [None, 16, 16, 16] * 2
    assert _windows("exaone moe") == [16, 16, 16, None] * 2
    assert _windows("cohere 2 moe") == [16, 16, 16, None] * 2
    assert _windows("cohere 2 moe, dense in front") == [None, None, 4096, 4096, 4096, None, 4096, 4096]


def test_zamba_caches_in_every_layer_that_passes_a_shared_block():
    cached = [layer for layer in _read("zamba 2").layers if isinstance(layer.mixer, SoftmaxAttention)]
    assert len(cached) == 3 and all(layer.parallel_state is not None for layer in cached)
    assert {layer.mixer.cache_elements_per_token for layer in cached} == {2 * 4 * 32}


def test_zamba_reads_a_shared_block_again_at_each_further_pass():
    """Three layers pass through two blocks in turn."""
    more = read_config(counted_config("zamba 2", num_mem_blocks=3), model_id="zamba 2")
    assert _read("zamba 2").repeated_elements == more.num_parameters - _read("zamba 2").num_parameters
    assert more.repeated_elements == 0


def test_bailing_counts_shared_experts_of_their_own_size():
    """Ling 2.0's keys; its code comes with the checkpoint. One dense layer, then experts and a shared one each."""
    own = {"first_k_dense_replace": 1, "moe_shared_expert_intermediate_size": 40, "use_qk_norm": True, "head_dim": 16}
    config = {**_SMALL, **_EXPERTS, **own, "moe_router_enable_expert_bias": True, "model_type": "bailing_moe_v2"}
    spec = read_config({**config, "architectures": ["BailingMoeV2ForCausalLM"]}, model_id="ling")
    attention = 64 * (64 + 2 * 32) + 64 * 64 + 2 * 16
    sparse = 4 * 64 + 4 + 4 * 3 * 64 * 32 + 3 * 64 * 40
    layers = 8 * (attention + 2 * 64) + 3 * 64 * 96 + 7 * sparse
    assert spec.num_parameters == layers + 2 * 128 * 64 + 64


@pytest.mark.parametrize(
    ("architecture", "section", "inner"),
    [
        ("Qwen2AudioForConditionalGeneration", "text_config", "qwen2-7b"),
        ("InternS1ForConditionalGeneration", "text_config", "qwen3-8b"),
        ("Exaone4_5_ForConditionalGeneration", "text_config", "exaone-4.0-32b"),
        ("SkyworkR1VChatModel", "llm_config", "qwen2.5-7b"),
        ("Llama_Nemotron_Nano_VL", "llm_config", "llama-3.1-8b"),
        ("Qwen3OmniMoeForConditionalGeneration", "thinker_config.text_config", "qwen3-30b-a3b"),
        ("Qwen2_5OmniModel", "thinker_config.text_config", "qwen2.5-7b"),
    ],
)
def test_wrappers_are_sized_as_the_language_model_inside(architecture, section, inner):
    profile = find_profile(inner)
    assert profile is not None
    text = {key: value for key, value in profile["config"].items() if key != "architectures"}
    if "omni" in architecture.casefold():
        text["model_type"] = {"qwen3_moe": "qwen3_omni_moe_text", "qwen2": "qwen2_5_omni_text"}[text["model_type"]]
    config: dict[str, Any] = {"architectures": [architecture]}
    place = config
    for name in section.split("."):
        place = place.setdefault(name, {"audio_config": {}} if name == "thinker_config" else {})
    place.update(text)
    spec, plain = read_config(config, model_id=architecture), read_profile(profile)
    assert (spec.layers, spec.tensors, spec.dtype) == (plain.layers, plain.tensors, plain.dtype)
    assert spec.max_position_embeddings == plain.max_position_embeddings


def test_what_gpt_oss_leaves_unquantized_is_bfloat16():
    """Its published config names no dtype; a server finds bfloat16 in the headers of its weights."""
    for name in ("gpt-oss-20b", "gpt-oss-120b"):
        profile = find_profile(name)
        assert profile is not None and "torch_dtype" not in profile["config"]
        assert read_profile(profile).dtype == "bfloat16"


def test_gemma_4_experts_on_an_ignore_list():
    """The checkpoint calls them ``layers.N.experts``, beside the ``mlp``: so do the lists of quantizers."""
    profile = find_profile("gemma-4-26b-a4b-nvfp4")
    assert profile is not None
    quantization = profile["config"]["quantization_config"]
    entries = [*quantization["ignore"], "model.language_model.layers.3.experts*"]
    config = {**profile["config"], "quantization_config": {**quantization, "ignore": entries}}
    spec = read_config(config, model_id="gemma")
    formats = []
    for index in (2, 3):
        tensor = next(each for each in spec.layers[index].all_tensors if each.role == "expert")
        formats.append(format_of(spec.quantization, tensor, index))
    assert formats[0] is not None and formats[1] is None


def test_a_small_kimi_k3_as_vllm_builds_it():
    """vLLM 0.32's class has 7,202,636 parameters: it pads a state's first product from 2,180 to 2,192 rows."""
    profile = find_profile("kimi-k3")
    assert profile is not None
    text = {**profile["config"]["text_config"], **own_config("kimi k3")}
    spec = read_config({**profile["config"], "text_config": text}, model_id="small k3")
    assert spec.num_parameters == 7_202_636 - 3 * (2_192 - 2_180) * 256
    states = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, StateMixer)]
    assert [(each.conv_channels, each.conv_kernel, each.recurrent_shape) for each in states] == [
        (1536, 4, (4, 128, 128))
    ] * 3
    latent = [layer.mixer for layer in spec.layers if isinstance(layer.mixer, LatentAttention)]
    assert [each.cache_elements_per_token for each in latent] == [576] * 2


def test_kimi_k3_is_its_checkpoint():
    """Its report: 2.78 T parameters, 104 B of them active, which leaves the embedding out.

    Others who measured the files: 108.81 GB without experts and ends, 4.70 GB of ends, all in bfloat16 but the states'
    convolutions, decays and steps and the routers' corrections, which are float32; experts of 17.5 MB each.
    """
    spec = resolve_model("kimi-k3")
    assert spec.num_parameters / 1e12 == pytest.approx(2.78, abs=0.005)
    assert (spec.num_active_parameters - spec.vocab_size * spec.hidden_size) / 1e9 == pytest.approx(104, abs=0.5)
    tensors = [tensor for layer in spec.layers for tensor in layer.all_tensors]
    trunk = tuple(tensor for tensor in tensors if tensor.role != "expert")
    wide = count_elements(tuple(tensor for tensor in trunk if tensor.role in ("conv", "state", "bias")))
    assert 2 * (count_elements(trunk) + wide) / 1e9 == pytest.approx(108.81, abs=0.005)
    assert 2 * count_elements(spec.tensors) / 1e9 == pytest.approx(4.70, abs=0.005)
    experts = [tensor for tensor in tensors if tensor.role == "expert"]
    packed = {tensor.name for tensor in tensors if format_of(spec.quantization, tensor, 1) is not None}
    assert packed == {tensor.name for tensor in experts}
    assert spec.quantization is not None
    each = sum(quantized_bytes(tensor.shape, spec.quantization) for tensor in experts) / (92 * 896)
    assert each / 1e6 == pytest.approx(17.5, abs=0.05)


@pytest.mark.parametrize("architecture", ["DeepseekV4ForCausalLM", "DeepseekV4ForConditionalGeneration"])
def test_deepseek_v4_that_sees_is_the_language_model_and_names_its_tower(architecture):
    """vLLM's class for it holds DeepseekV4ForCausalLM of the same config; the published one keeps that name."""
    profile = find_profile("deepseek-v4-flash")
    assert profile is not None
    plain = read_profile(profile)
    config = {**profile["config"], "architectures": [architecture], "vision_n_layers": 32}
    spec = read_config(config, model_id="v4 vision")
    assert (spec.layers, spec.tensors) == (plain.layers, plain.tensors)
    assert [(extra.name, extra.num_parameters) for extra in spec.extras if extra.kind == "vision"] == [
        ("vision tower", None)
    ]
