"""Parameter counts by formula: against transformers on the meta device, against litgpt's shapes, against known totals.

One of each family in CI, every profile and every shape of litgpt with `--exhaustive`. The flags that published defaults
leave off are in rows of ``tests/data/counted_configs.json``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from counted_configs import SMALL, counted_config
from tiny_configs import own_config

from independent_count import count_independently
from kvplan.catalog.models import find_profile, profile_names, profiles, read_profile, resolve_model
from kvplan.catalog.reader import read_config
from kvplan.catalog.spec import DenseFeedForward, MoeFeedForward, SoftmaxAttention
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.steps.work import model_work
from kvplan.estimate.weights import extra_bytes, size_weights
from kvplan.units import GIB
from litgpt_shapes import load_shapes, to_config

SAMPLE = (
    *("gpt2", "llama-3.1-8b", "mixtral-8x7b", "qwen2.5-7b", "qwen3-30b-a3b", "gemma-2-9b", "gemma-3-4b"),
    *("gemma-3n-e4b", "gemma-4-26b-a4b", "gpt-oss-20b", "llama-4-scout", "deepseek-v2-lite", "deepseek-v3"),
    *("deepseek-v3.2", "deepseek-v4-flash", "glm-5.3", "glm-4.5-air", "minimax-m2.5", "mimo-v2-flash"),
    *("qwen3-next-80b-a3b", "qwen3.5-27b", "jamba-v0.1", "nemotron-3-nano-30b", "nemotron-h-56b"),
    *("kimi-linear-48b-a3b", "lfm2-1.2b", "mamba-2.8b", "mamba-codestral-7b", "falcon-40b", "bloom", "mpt-7b"),
    *("gpt-j-6b", "opt-125m", "starcoder", "phi-2", "phi-3-mini-4k", "olmo-3-7b", "command-r7b", "t5-base"),
    *("llama-3.2-11b-vision", "qwen2-vl-2b", "qwen3-vl-2b", "llava-1.5-7b", "seed-oss-36b", "minicpm3-4b"),
    *("dbrx", "phi-3.5-moe", "falcon-mamba-7b"),
)

COUNTED_ELSEWHERE = {
    *("ChatGLMModel", "DeciLMForCausalLM", "DeepseekForCausalLM", "InternLM2ForCausalLM", "Phi3VForCausalLM"),
    *("QWenLMHeadModel", "DeepseekOCRForCausalLM", "PixtralForConditionalGeneration", "Step3p5ForCausalLM"),
    *("DeepseekV41ForCausalLM", "KimiK3ForConditionalGeneration", "MiniMaxText01ForCausalLM"),
    *("Mistral3ForConditionalGeneration", "WhisperForConditionalGeneration"),
    *("Ernie4_5_VLMoeForConditionalGeneration", "MiMoV2ForCausalLM"),
}
"""The code of the first nine comes with the checkpoint, or vLLM's is the only one. The next three are counted by other
classes below or as vLLM's. transformers ties Mistral 3's head where the config is silent, and counts Whisper's encoder
in. It knows the last two under other keys: ERNIE's is a row of ``tests/data/counted_configs.json``, MiMo's files are
compared below."""
OTHERS = [
    pytest.param(profile["name"], marks=pytest.mark.exhaustive)
    for profile in profiles()
    if profile["name"] not in SAMPLE and not COUNTED_ELSEWHERE.intersection(profile["config"]["architectures"])
]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SAMPLE, *OTHERS])
def test_profile_against_transformers(name):
    profile = find_profile(name)
    assert profile is not None
    counted = count_independently(profile["config"])
    assert read_profile(profile).num_parameters == counted.num_parameters + counted.num_corrections


def _litgpts_configs() -> Iterator[Any]:
    for shape in load_shapes():
        with suppress(KeyError):  # of families without an architecture of their own
            yield pytest.param(to_config(shape), id=shape["id"])


@pytest.mark.exhaustive
@pytest.mark.parametrize("config", _litgpts_configs())
def test_litgpts_shapes_against_transformers(config):
    counted = count_independently(config)
    spec = read_config(config, model_id="litgpt")
    assert spec.num_parameters == counted.num_parameters + counted.num_corrections


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("gemma-3-4b", "qwen2-vl-2b", "qwen3-vl-2b", "llava-1.5-7b", "gemma-4-26b-a4b"),
        *("glm-4.6v-flash", "glm-4.6v-fp8", "glm-ocr", "muse-glimmer-30b"),
    ],
)
def test_towers_against_transformers(name):
    profile = find_profile(name)
    assert profile is not None
    towers = count_independently(profile["config"]).towers
    counted = [extra.num_parameters for extra in read_profile(profile).extras if extra.kind in ("vision", "projector")]
    assert sum(count or 0 for count in counted) == sum(towers.values())


@pytest.mark.parametrize(
    ("name", "total_size"),
    [
        ("qwen-7b", 15_442_649_088),
        ("internlm2.5-7b", 15_475_417_088),
        ("chatglm3-6b", 12_487_168_064 - 64),  # the index counts the 32 rotary frequencies too
        ("deepseek-ocr", 2 * 3_336_106_240),  # github.com/gogongxt/python, scripts/models/deepseek_ocr.md
        ("muse-glimmer-30b", 59_553_253_376),  # github.com/vllm-project/recipes, Muse-Glimmer-30B.yaml
    ],
)
def test_totals_of_published_indexes(name, total_size):
    """``total_size`` of the checkpoint's index, 2 bytes a parameter: language model, towers and what joins them."""
    spec = resolve_model(name)
    assert 2 * (spec.num_parameters + sum(extra.num_parameters or 0 for extra in spec.extras)) == total_size


def test_whisper_is_its_checkpoint_without_the_encoder():
    profile = find_profile("whisper-large-v3")
    assert profile is not None
    spec = read_profile(profile)
    counted = count_independently(profile["config"])
    encoder = sum(extra.num_parameters or 0 for extra in spec.extras if extra.kind in ("encoder", "audio"))
    assert spec.num_parameters + encoder == counted.num_parameters


def test_minimax_text_01_as_transformers_has_it():
    """Its code came with the checkpoint; transformers has the same model under other keys."""
    config = dict(find_profile("minimax-text-01")["config"])
    kinds = {0: "linear_attention", 1: "full_attention"}
    config |= {"architectures": ["MiniMaxForCausalLM"], "model_type": "minimax"}
    config["layer_types"] = [kinds[kind] for kind in config.pop("attn_type_list")]
    counted = count_independently(config)
    assert resolve_model("minimax-text-01").num_parameters == counted.num_parameters + counted.num_corrections


def test_a_hybrid_mixture_in_granites_keys():
    config = own_config("granite mixture")
    counted = count_independently(config)
    spec = read_config(config, model_id="granite")
    assert spec.num_parameters == counted.num_parameters + counted.num_corrections


@pytest.mark.parametrize(
    ("name", "billions", "rounding"),
    [
        ("mixtral-8x7b", 12.9, 0.05),  # Mistral's announcement
        ("deepseek-v3", 37, 0.6),  # its model card
        ("qwen3-30b-a3b", 3.3, 0.06),  # its model card
        ("hy3", 21, 0.6),  # github.com/vllm-project/recipes, as the next ones
        ("mimo-v2.5-pro", 42, 0.6),
        ("qwen3.8-2.4t-a95b", 95, 0.6),
        ("inkling", 41, 0.6),
        ("ling-3.0-flash", 5.5, 0.06),
        ("trinity-large", 13, 0.6),
        ("hunyuan-a13b", 13, 0.6),
        ("dbrx", 36, 0.6),  # github.com/databricks/dbrx, README.md
    ],
)
def test_active_parameters_as_their_makers_state_them(name, billions, rounding):
    assert resolve_model(name).num_active_parameters / 1e9 == pytest.approx(billions, abs=rounding)


@pytest.mark.parametrize(
    ("name", "total", "active", "embeddings_left_out"),
    [
        ("gpt-oss-120b", 116.83, 5.13, 1),  # its model card: the head counts, the input embedding does not
        ("minimax-text-01", 456, 45.9, 2),  # github.com/MiniMax-AI/MiniMax-01, README.md: neither does
    ],
)
def test_active_parameters_stated_without_embeddings(name, total, active, embeddings_left_out):
    spec = resolve_model(name)
    rest = spec.num_active_parameters - embeddings_left_out * spec.vocab_size * spec.hidden_size
    assert spec.num_parameters / 1e9 == pytest.approx(total, abs=0.1)
    assert rest / 1e9 == pytest.approx(active, abs=0.05)


@pytest.mark.parametrize(
    ("name", "drafter_bytes", "published_bytes"),
    [
        ("gemma-4-12b", 0, 23.9e9),  # github.com/noonghunna/club-3090, scripts/lib/profiles/models/gemma-4-12b.yml
        ("laguna-s-2.1", 0, 235.1e9),  # github.com/sostrowsk/dgx-spark-local-llm, handouts/01-laguna-s-2.1.md
        ("laguna-s-2.1-int4", 0, 92.84 * GIB),  # the same
        ("qwen3.8-27b-awq-bf16-int4", 2, 28.9e9),  # its page, as others quote it
        ("glm-5.3-flash", 1, 305.79 * GIB),  # row Y001 of tests/data/vllm_startups.csv
        ("kimi-k2.5", 0, 554.27 * GIB),  # of K2.7-Code: github.com/gogongxt/python, scripts/models/kimi_k2.7_code.md
        ("mimo-v2.5-pro", 0, 962.40 * GIB),  # scripts/models/mimo_v2.5_pro.md there, with drafters
        ("mistral-medium-3.5-128b", 0, 133.6e9),  # workingset 0.2.0, workingset/model.py
        ("mimo-v2.5", 0, (293.40 - 1.13) * GIB),  # scripts/models/mimo_v2.5.md there, without drafters
    ],
)
def test_checkpoints_are_as_large_as_their_files(name, drafter_bytes, published_bytes):
    """Totals with towers and drafter.

    Kimi's tower is not counted, nor MiMo's for sound (0.5 GiB). GLM-5.3-Flash's has attention in 8 bits,
    which vLLM makes 16 of: 0.4 % of it.
    """
    spec = resolve_model(name)
    drafter = sum(extra.num_parameters or 0 for extra in spec.extras if extra.kind == "multi_token_prediction")
    found = size_weights(spec, "bfloat16").total_bytes + extra_bytes(spec, "bfloat16") + drafter_bytes * drafter
    assert found == pytest.approx(published_bytes, rel=5e-3)


def test_every_profile_is_read_and_says_where_it_comes_from():
    names = profile_names()
    assert len(names) >= 60
    for profile in profiles():
        spec = read_profile(profile)
        assert 0 < spec.num_active_parameters <= spec.num_parameters
        assert profile["source"] and profile["date"]


def test_no_name_stands_for_two_profiles():
    seen: dict[str, str] = {}
    for profile in profiles():
        for name in {each.casefold() for each in (profile["name"], profile["id"], *profile["aliases"])}:
            assert seen.setdefault(name, profile["name"]) == profile["name"], name


@pytest.mark.slow
def test_no_shipped_shape_differs_from_litgpts():
    compared = 0
    for shape in load_shapes():
        profile = find_profile(shape["id"])
        if profile is None:
            continue
        spec = read_profile(profile)
        mixer, part = spec.layers[0].mixer, spec.layers[-1].feed_forward
        assert isinstance(mixer, SoftmaxAttention)
        assert (spec.num_layers, spec.hidden_size) == (shape["n_layer"], shape["n_embd"]), shape["id"]
        heads = (mixer.num_heads, mixer.num_kv_heads, mixer.head_size_k)
        assert heads == (shape["n_head"], shape["kv"], shape["head"]), shape["id"]
        if isinstance(part, MoeFeedForward):
            assert part.num_experts == shape["n_expert"] and part.experts_per_token == shape["k"]
            assert part.expert_intermediate_size == (shape["moe_ffn"] or shape["ffn"])
        elif isinstance(part, DenseFeedForward):
            assert part.intermediate_size == shape["ffn"], shape["id"]
        if shape["id"] == "mistralai/Mixtral-8x22B-v0.1":
            continue  # its config was published with 32,000 tokens and later with 32,768
        # litgpt cuts the 64 image tokens that Gemma 3's vision models have off the vocabulary.
        assert spec.vocab_size - shape["vocab"] in (0, 64), shape["id"]
        compared += 1
    assert compared >= 100


@pytest.mark.slow
def test_the_towers_of_a_small_gemma_4_against_transformers():
    """Gemma 4 E4B hears: its conformer, with sizes that are not the published ones."""
    audio = {"hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 3, "conv_kernel_size": 3}
    audio |= {"subsampling_conv_channels": [16, 8], "output_proj_dims": 48, "model_type": "gemma4_audio"}
    profile = find_profile("gemma-4-26b-a4b-nvfp4")
    assert profile is not None
    config = {**profile["config"], "audio_config": audio}
    towers = count_independently(config).towers
    counted = [extra.num_parameters for extra in read_config(config, model_id="hears").extras]
    assert None not in counted and sum(count or 0 for count in counted) == sum(towers.values())
    assert {"audio_tower", "embed_audio"} <= towers.keys()


@pytest.mark.parametrize(
    ("architecture", "path", "model_type", "inside"),
    [
        ("Alpamayo2Super", "vlm_config.text_config", "qwen3_vl_text", "Qwen3ForCausalLM"),
        ("Cosmos3EdgeForConditionalGeneration", "text_config", "cosmos3_edge_text", "ArceeForCausalLM"),
        ("Emu3ForConditionalGeneration", "text_config", "emu3_text_model", "LlamaForCausalLM"),
        ("KananaVForConditionalGeneration", "text_config", "llama", "LlamaForCausalLM"),
        ("MiDashengLMModel", "text_config", "qwen2_5_omni_text", "Qwen2ForCausalLM"),
        ("MiniCPMO", "", "minicpmo", "Qwen2ForCausalLM"),
        ("MoonshotKimiaForCausalLM", "", "kimi_audio", "Qwen2ForCausalLM"),
        ("MossAudioModel", "language_config", "qwen3", "Qwen3ForCausalLM"),
        ("Ovis2_5", "llm_config", "qwen3", "Qwen3ForCausalLM"),
        ("Ovis2_6ForCausalLM", "llm_config", "qwen3", "Qwen3ForCausalLM"),
        ("VibeVoiceAsrForConditionalGeneration", "text_config", "qwen2", "Qwen2ForCausalLM"),
    ],
)
def test_wrappers_hold_the_language_model_that_vllm_makes(architecture, path, model_type, inside):
    """Classes that cannot be made without files or libraries, and what their code makes inside."""
    text: dict[str, Any] = {**SMALL, "model_type": model_type}
    for section in filter(None, reversed(path.split("."))):
        text = {section: text}
    plain = read_config({**SMALL, "architectures": [inside]}, model_id="plain")
    spec = read_config({**text, "torch_dtype": "bfloat16", "architectures": [architecture]}, model_id=architecture)
    assert (spec.layers, spec.tensors) == (plain.layers, plain.tensors)


def test_glm_4v_is_chatglm_with_a_tower() -> None:
    sizes = {"num_layers": 4, "padded_vocab_size": 128, "ffn_hidden_size": 96, "seq_length": 256}
    chatglm = {**SMALL, **sizes, "multi_query_attention": True, "multi_query_group_num": 2, "add_qkv_bias": True}
    plain = read_config({**chatglm, "architectures": ["ChatGLMModel"]}, model_id="chatglm")
    seeing = {**chatglm, "architectures": ["GLM4VForCausalLM"], "vision_config": {"hidden_size": 32}}
    spec = read_config(seeing, model_id="glm 4v")
    assert spec.num_parameters == plain.num_parameters
    assert [extra.kind for extra in spec.extras] == ["vision"]


def test_text_reads_no_experts_of_images() -> None:
    """All experts of text are read by many tokens, and what stands around them; those of images never are."""
    spec = read_config(counted_config("ernie vl, published"), model_id="ernie")
    weight_bytes = size_weights(spec, "bfloat16").total_bytes
    work = model_work(spec, weight_bytes, "bfloat16", ParallelLayout())
    images = 27 * 64 * 3 * 512 * 2560 * 2
    assert work.dense_bytes + work.expert_bytes == pytest.approx(weight_bytes - images, rel=1e-6)
    assert work.expert_bytes == pytest.approx(3 * images, rel=1e-3)


def test_the_towers_of_unlimited_ocr_are_those_of_deepseek_ocr() -> None:
    both = [
        read_config(counted_config("UnlimitedOCRForCausalLM", architectures=[name]), model_id="ocr")
        for name in ("UnlimitedOCRForCausalLM", "DeepseekOCRForCausalLM")
    ]
    assert both[0].extras == both[1].extras and all(each.num_parameters for each in both[0].extras)
