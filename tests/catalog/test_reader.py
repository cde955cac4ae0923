"""Configs as they stand on the hub and as transformers 5 writes them, and what is no model that kvplan sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from counted_configs import counted_config

from kvplan.catalog.models import find_profile, pooling_note, profiles, resolve_model
from kvplan.catalog.reader import parse_config, read_config
from kvplan.catalog.spec import CompressedAttention, LatentAttention, ModelSpec, SoftmaxAttention, StateMixer
from kvplan.errors import KvplanError, UnknownArchitectureError, UsageError
from resaved_configs import changes, saved_by_transformers

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


_SHIPPED = {profile["name"]: profile["config"] for profile in profiles()}
_NOT_LOADED = (
    *("chatglm3-6b", "deepseek-moe-16b", "deepseek-ocr", "deepseek-v4.1-flash", "ernie-4.5-vl-28b-a3b"),
    *("exaone-4.0-32b", "internlm2.5-7b", "kimi-k2", "kimi-k2-thinking", "kimi-k3"),
    *("llama-3.3-nemotron-super-49b", "mimo-7b-base", "mimo-v2.5", "minimax-text-01", "phi-3-vision-128k", "qwen-7b"),
)
"""Profiles whose class comes with the checkpoint, or whose published keys transformers 5.24 refuses."""
_SAMPLE = ("deepseek-v4-flash", "mimo-v2-flash", "mistral-small-3.1-24b", "nemotron-3-nano-30b", "qwen3-vl-30b-a3b")


@pytest.mark.parametrize("name", _SAMPLE)
def test_a_config_that_is_saved_again_is_sized_as_before(name):
    assert changes(_SHIPPED[name], saved_by_transformers(_SHIPPED[name])) == ""


def _format(config: dict[str, Any]) -> str | None:
    section: dict[str, Any] = config.get("quantization_config") or {}
    return section.get("quant_method")


@pytest.mark.slow
def test_one_config_of_each_architecture_and_format_is_sized_as_before():
    """``tools/resaved_configs.py`` tries all of them."""
    kinds = {(config["architectures"][0], str(_format(config))): name for name, config in _SHIPPED.items()}
    rest = sorted(set(kinds.values()) - set(_SAMPLE))
    written = {name: saved_by_transformers(_SHIPPED[name]) for name in rest}
    assert tuple(name for name in rest if written[name] is None) == _NOT_LOADED
    found = {name: changes(_SHIPPED[name], config) for name, config in written.items() if config is not None}
    assert {name: change for name, change in found.items() if change} == {}


def _written(name: str) -> tuple[Any, ...]:
    config = saved_by_transformers(counted_config(f"{name}, its class's keys"))
    return tuple(layer.mixer for layer in read_config(config, model_id="written").layers)


def test_layer_types_say_which_layers_keep_what():
    assert [isinstance(mixer, StateMixer) for mixer in _written("kimi linear")] == [True, True, False, True]
    assert [mixer.window_tokens for mixer in _written("inkling")] == [512, 512, None, 512]
    assert [mixer.num_heads for mixer in _written("step 3.7") if isinstance(mixer, SoftmaxAttention)] == [4, 6, 6, 4]
    assert [mixer.indexer is not None for mixer in _written("minimax m3")] == [False, True, True, False]
    compressed = [mixer for mixer in _written("deepseek v4") if isinstance(mixer, CompressedAttention)]
    assert [mixer.ratio for mixer in compressed] == [None, 4, 128, 4]


def test_the_outer_config_says_whether_embeddings_are_tied():
    """vLLM's ``with_hf_config``: transformers writes the text class's own default into the section."""
    written = saved_by_transformers(_SHIPPED["qwen3-vl-30b-a3b"])
    assert written is not None
    assert (written["tie_word_embeddings"], written["text_config"]["tie_word_embeddings"]) == (False, True)
    assert not read_config(written, model_id="written").tie_word_embeddings
    tied = {
        **written,
        "tie_word_embeddings": True,
        "text_config": {**written["text_config"], "tie_word_embeddings": False},
    }
    assert read_config(tied, model_id="tied").tie_word_embeddings


def test_a_head_of_mistral_3_stays_its_own():
    """Its outer class ties by default what is published untied; the smallest Ministral says inside that it is tied."""
    written = saved_by_transformers(_SHIPPED["mistral-small-3.1-24b"])
    assert written is not None and written["tie_word_embeddings"]
    assert not read_config(written, model_id="written").tie_word_embeddings
    inside = {**written["text_config"], "tie_word_embeddings": True}
    assert read_config({**written, "text_config": inside}, model_id="tied").tie_word_embeddings


@pytest.mark.parametrize(("rank", "slot"), [(16, 16), (20, 32), (1, 1), (400, 512), (1000, 1000)])
def test_an_adapter_names_its_base_and_its_slot(rank: int, slot: int, tmp_path: Path) -> None:
    """vllm/config/lora.py, MaxLoRARanks: the slot's rank is the next one that vLLM takes."""
    config = {"base_model_name_or_path": "meta-llama/Llama-3.1-8B", "r": rank}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(UsageError) as caught:
        resolve_model(str(tmp_path))
    assert caught.value.message == f"{tmp_path} holds a LoRA adapter of rank {rank}, not a model."
    assert (caught.value.hint or "").endswith(f": meta-llama/Llama-3.1-8B --max-lora-rank {slot}")


@pytest.mark.parametrize("text", ["[]", "{", '{"r": true, "base_model_name_or_path": "x"}', '{"r": 8}'])
def test_an_adapter_that_says_less_is_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(UsageError, match="holds a LoRA adapter, not a model"):
        resolve_model(str(tmp_path))


@pytest.mark.parametrize("name", ["bge-m3", "BAAI/bge-m3", "Qwen3-Reranker-8B", "intfloat/multilingual-e5-large"])
def test_a_model_that_embeds_is_not_taken_for_a_misprint(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(KvplanError) as caught:
        resolve_model(name)
    hint = caught.value.hint or ""
    assert hint.startswith("kvplan sizes models that generate text;") and "did you mean" not in hint


def test_a_decoder_that_embeds_is_sized_with_a_note() -> None:
    note = pooling_note(resolve_model("Qwen/Qwen3-Embedding-8B"))
    assert note is not None and "no speed here is of what it does" in note
    assert pooling_note(resolve_model("qwen3-8b")) is None


def test_models_of_july_2025_have_the_layers_of_the_first_ones() -> None:
    first, longer = (resolve_model(f"Qwen/Qwen3-235B-A22B{each}") for each in ("", "-Instruct-2507-FP8"))
    assert longer.num_parameters == first.num_parameters and longer.sized_as == first.id
    assert (first.longest_context, longer.longest_context) == (40960, 262144)
    assert longer.quantization is not None and longer.quantization.method == "fp8"
