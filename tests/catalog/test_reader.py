"""Configs as they stand on the hub: old keys, nested text configs, nulls, missing layer_types; and refusals by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvplan.catalog.models import find_profile, resolve_model
from kvplan.catalog.reader import parse_config, read_config
from kvplan.catalog.spec import LatentAttention, ModelSpec, SoftmaxAttention, StateMixer
from kvplan.errors import KvplanError, UnknownArchitectureError, UsageError

PROFILES = Path(__file__).parents[2] / "profiles" / "models"


def config_of(name: str) -> dict:
    return json.loads((PROFILES / f"{name}.json").read_text())["config"]


def windows(spec: ModelSpec) -> list[int | None]:
    return [layer.mixer.window_tokens for layer in spec.layers if isinstance(layer.mixer, SoftmaxAttention)]


def read(config: dict, **assumptions: str) -> ModelSpec:
    return read_config(config, model_id="test", assumptions=assumptions)


@pytest.mark.parametrize("name", ["llama-3.1-8b", "meta-llama/Llama-3.1-8B", "META-LLAMA/llama-3.1-8b-instruct"])
def test_names_ids_and_aliases_resolve_offline(name):
    assert resolve_model(name).id == "meta-llama/Llama-3.1-8B"


def test_a_directory_and_a_file_resolve(tmp_path):
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_of("gpt2")))
    assert resolve_model(str(folder)).id == "my-model"
    assert resolve_model(str(folder / "config.json")).num_parameters == 124_439_808


def test_sliding_layers_without_layer_types():
    """Gemma 2 slides every other layer, Gemma 3 all but each sixth, OLMo 3 and Command R7B all but each fourth."""
    assert windows(resolve_model("gemma-2-2b"))[:4] == [4096, None, 4096, None]
    assert [index for index, tokens in enumerate(windows(resolve_model("gemma-3-27b"))) if tokens is None] == list(
        range(5, 62, 6)
    )
    assert windows(resolve_model("olmo-3-7b"))[:4] == [4096, 4096, 4096, None]
    assert windows(resolve_model("command-r7b"))[3::4] == [None] * 8


def test_published_layer_types_win_over_the_rule():
    config = {**config_of("gemma-2-2b"), "layer_types": ["full_attention"] * 25 + ["sliding_attention"]}
    assert windows(read(config)) == [None] * 25 + [4096]


def test_exaone_writes_its_pattern_in_letters():
    found = windows(resolve_model("exaone-4.0-32b"))
    assert found[:4] == [4096, 4096, 4096, None] and found[-1] is None


def test_qwen_2_slides_only_when_told_to():
    config = {**config_of("qwen2.5-7b"), "sliding_window": 1000, "max_window_layers": 20}
    assert set(windows(read(config))) == {None}
    assert windows(read({**config, "use_sliding_window": True})) == [None] * 20 + [1000] * 8


def test_llama_4_attends_in_chunks_but_for_each_fourth_layer():
    spec = resolve_model("llama-4-scout")
    kinds = [layer.mixer.window_kind for layer in spec.layers if isinstance(layer.mixer, SoftmaxAttention)]
    assert kinds[:4] == ["chunked", "chunked", "chunked", "full"] and windows(spec)[0] == 8192


def test_mistral_without_a_window_key_has_the_default_and_says_so():
    config = config_of("mistral-7b-v0.1")
    del config["sliding_window"]
    spec = read(config)
    assert windows(spec)[0] == 4096
    assert any("sliding_window" in sentence for sentence in spec.assumptions)


def test_nested_text_configs_take_their_types_defaults_and_say_so():
    """LLaVA's text config leaves out everything that LlamaConfig has by default."""
    config = {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "text_config": {"model_type": "llama", "vocab_size": 32064, "max_position_embeddings": 4096},
        "vision_config": {"model_type": "clip_vision_model", "hidden_size": 1024, "num_hidden_layers": 24},
        "torch_dtype": "float16",
    }
    spec = read(config)
    assert spec.num_parameters == 6_738_939_904
    assert any("text_config.hidden_size" in sentence for sentence in spec.assumptions)


def test_caches_shared_between_layers_are_counted_once():
    spec = resolve_model("gemma-3n-e4b")
    shared = [layer.mixer.kv_shared_with for layer in spec.layers if isinstance(layer.mixer, SoftmaxAttention)]
    assert shared[:20] == [None] * 20 and set(shared[20:]) == {18, 19}


def test_layers_of_other_kinds():
    kinds = {type(layer.mixer) for layer in resolve_model("kimi-linear-48b-a3b").layers}
    assert kinds == {LatentAttention, StateMixer}
    falcon = read(
        {
            "architectures": ["FalconH1ForCausalLM"],
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 100,
            "mamba_d_ssm": 64,
            "mamba_n_heads": 4,
            "mamba_d_state": 16,
            "torch_dtype": "bfloat16",
        }
    )
    assert all(isinstance(layer.mixer, SoftmaxAttention) and layer.parallel_state for layer in falcon.layers)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            {"architectures": ["BertForMaskedLM"], "model_type": "bert"},
            "BertForMaskedLM is not a causal language model",
        ),
        ({"architectures": ["CLIPModel"], "model_type": "clip"}, "CLIPModel is not a causal language model"),
        ({"model_type": "siglip"}, "model_type 'siglip' is not a causal language model"),
        ({"architectures": ["LlamaForSequenceClassification"], "model_type": "llama"}, "serves it for pooling"),
        ({"architectures": "LlamaForCausalLM"}, "'architectures' is 'LlamaForCausalLM'; expected a list"),
        ({"architectures": [7]}, "a list of texts"),
        ({}, "neither 'architectures' nor 'model_type'"),
    ],
)
def test_what_is_no_causal_language_model_is_refused(config, sentence):
    with pytest.raises(KvplanError) as caught:
        read(config)
    assert sentence in caught.value.message and caught.value.hint


def test_an_unknown_architecture_is_refused_by_name_and_can_be_supplied():
    config = {**config_of("llama-3.1-8b"), "architectures": ["BrandNewForCausalLM"], "model_type": "brand_new"}
    with pytest.raises(UnknownArchitectureError, match="Unknown architecture BrandNewForCausalLM") as caught:
        read(config)
    assert "--assume architectures=LlamaForCausalLM" in (caught.value.hint or "")
    spec = read(config, architectures="LlamaForCausalLM")
    assert spec.num_parameters == 8_030_261_248
    assert any("--assume" in sentence for sentence in spec.assumptions)


def test_an_unknown_weight_format_is_refused_by_name():
    config = {**config_of("llama-3.1-8b"), "quantization_config": {"quant_method": "abracadabra", "bits": 3}}
    with pytest.raises(KvplanError, match="Unknown weight format 'abracadabra'"):
        read(config)
    assert read(config, quantization_config="null").quantization is None


@pytest.mark.parametrize("text", ["", "{", "[1]", '"a"', "nul", '{"a":' * 5000])
def test_text_that_is_no_json_object_is_refused(text):
    with pytest.raises(KvplanError, match=r"config\.json"):
        parse_config(text, where="config.json")


def test_unknown_names_suggest_close_ones():
    with pytest.raises(UsageError) as caught:
        resolve_model("llama-3.1-9b")
    assert "llama-3.1-8b" in (caught.value.hint or "")
    assert find_profile("llama-3.1") is None


def test_a_config_that_begins_with_a_byte_order_mark_is_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(find_profile("gpt2")["config"]), encoding="utf-8-sig")
    assert resolve_model(str(tmp_path)).num_parameters == resolve_model("gpt2").num_parameters


@pytest.mark.parametrize(
    ("name", "changed", "says"),
    [
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "8 experts, of which each token uses 9"),
        ("qwen3-30b-a3b", {"num_experts": 7}, "7 experts, of which each token uses 8"),
        ("llama-3.1-8b", {"num_hidden_layers": 1025}, "expected a whole number from 1 to 1,024"),
    ],
)
def test_counts_that_no_model_has_are_refused(name, changed, says):
    profile = find_profile(name)
    assert profile is not None
    with pytest.raises(KvplanError) as caught:
        read(profile["config"] | changed)
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [
        ({"type": "linear", "factor": 4.0}, 16_384),
        ({"rope_type": "dynamic", "factor": 2.0}, 8_192),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1_024}, 4_096),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 512}, 4_096),
        ({"rope_type": "linear", "factor": None}, 4_096),
    ],
)
def test_a_scaling_stretches_the_longest_context_as_in_vllm(scaling, longest):
    config = {**config_of("llama-2-7b"), "max_position_embeddings": 4096, "rope_scaling": scaling}
    assert read(config).longest_context == longest


def test_gemma_3_states_the_stretched_length():
    assert resolve_model("gemma-3-27b").longest_context == 131_072


def test_a_decoder_that_is_served_for_pooling_keeps_a_cache():
    """vLLM's pooling models are decoders with another head, over the same KV cache."""
    config = {**config_of("qwen3-8b"), "architectures": ["Qwen3ForSequenceClassification"]}
    with pytest.raises(KvplanError, match="with the KV cache of its decoder") as caught:
        read(config)
    assert "architectures=Qwen3ForCausalLM" in caught.value.hint
    with pytest.raises(KvplanError, match="keeps no KV cache"):
        read({"architectures": ["BertForSequenceClassification"], "model_type": "bert"})


def test_a_model_without_a_head_says_what_it_is_sized_as():
    spec = read({**config_of("qwen3-8b"), "architectures": ["Qwen3Model"]})
    assert spec.assumptions[0].startswith("Qwen3Model is sized as Qwen3ForCausalLM, head included")


def test_a_model_that_looks_both_ways_keeps_no_cache():
    config = {**config_of("gemma-3-1b"), "architectures": ["Gemma3TextModel"], "use_bidirectional_attention": True}
    with pytest.raises(KvplanError, match="looks both ways"):
        read(config)
