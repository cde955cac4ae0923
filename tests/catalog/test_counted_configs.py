"""Families that few profiles show: sizes as their classes are built, and as published; what vLLM does with them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest
from counted_configs import COUNTED, SMALL, counted_config, kept, with_text

from independent_count import count_independently
from kvplan.catalog.models import resolve_model
from kvplan.catalog.reader import read_config
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import LatentAttention, ModelSpec
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.steps.work import model_work
from kvplan.estimate.vllm.division import check_division
from kvplan.estimate.vllm.groups import RequestShape, blocks_per_request, plan_blocks
from kvplan.estimate.weights import size_weights
from resaved_configs import saved_by_transformers


def _figures(spec: ModelSpec) -> dict[str, Any]:
    """What a row may say of its config."""
    return {
        "num_parameters": spec.num_parameters,
        "max_position_embeddings": spec.max_position_embeddings,
        "kept": [[len(list(run)), *layer] for layer, run in groupby(kept(spec))],
        "extras": [[extra.kind, extra.num_parameters] for extra in spec.extras],
        "extra_parameters": sum(extra.num_parameters or 0 for extra in spec.extras),
    }


def _having(*keys: str) -> list[str]:
    return [name for name, row in COUNTED.items() if row.keys() & set(keys)]


@pytest.mark.parametrize(
    "name", _having("num_parameters", "max_position_embeddings", "kept", "extras", "extra_parameters")
)
def test_a_config_is_counted_as_its_class_is_built(name: str) -> None:
    row = COUNTED[name]
    found = _figures(read_config(row["config"], model_id=name))
    assert {key: found[key] for key in found.keys() & row} == {key: row[key] for key in found.keys() & row}


@pytest.mark.slow
@pytest.mark.parametrize("name", _having("compared"))
def test_a_config_is_counted_as_transformers_builds_it(name: str) -> None:
    """As it is, or as transformers writes it again."""
    config = COUNTED[name]["config"]
    counted = count_independently(config)
    read = config if COUNTED[name]["compared"] == "built" else saved_by_transformers(config)
    spec = read_config(read, model_id=name)
    assert spec.num_parameters == counted.num_parameters + counted.num_corrections


@pytest.mark.parametrize("name", _having("stated"))
def test_sizes_that_makers_state(name: str) -> None:
    """In billions; embedding and head are left out where the maker leaves them out."""
    stated, spec = COUNTED[name]["stated"], read_config(counted_config(name), model_id=name)
    embedding = spec.vocab_size * spec.hidden_size
    found = {
        "total": spec.num_parameters - stated.get("left_out", 0) * embedding,
        "active": spec.num_active_parameters - stated.get("left_out_of_active", 0) * embedding,
        "total_with_extras": spec.num_parameters + sum(extra.num_parameters or 0 for extra in spec.extras),
    }
    for key in found.keys() & stated:
        billions, within = stated[key]
        assert found[key] / 1e9 == pytest.approx(billions, abs=within), key


_PLANS = [(name, plan) for name in _having("plans") for plan in COUNTED[name]["plans"]]


@pytest.mark.parametrize(("name", "wanted"), _PLANS)
def test_blocks_as_vllm_plans_them(name: str, wanted: dict[str, Any]) -> None:
    settings = CacheSettings(**wanted.get("cache", {}))
    layers = read_config(counted_config(name), model_id=name).layers
    plan = plan_blocks(layers, settings, wanted.get("asked_block_size", 16), vllm_release("0.33.0"))
    found = {
        "block_size": plan.block_size,
        "num_groups": len(plan.groups),
        "groups": sorted([group.page.kind, group.num_layers] for group in plan.groups),
        "bytes_per_block": plan.bytes_per_block,
        "blocks": blocks_per_request(plan, RequestShape(*wanted.get("tokens", (4096, 16384)))),
    }
    assert {key: found[key] for key in found.keys() & wanted} == {key: wanted[key] for key in found.keys() & wanted}


def _refusals() -> Iterator[tuple[str, dict[str, Any], str]]:
    """A row, what is changed in it, and what a refusal must name: the first key, where the row says nothing else."""
    for name in _having("refused", "needed"):
        row = COUNTED[name]
        for entry in row.get("refused", ()):
            changed, *word = entry if isinstance(entry, list) else [entry]
            yield name, changed, word[0] if word else next(iter(changed))
        for key in row.get("needed", ()):
            yield name, {key: ...}, key


@pytest.mark.parametrize(("name", "changed", "named"), _refusals())
def test_what_is_not_known_or_not_there_is_refused_by_name(name: str, changed: dict[str, Any], named: str) -> None:
    config = with_text(counted_config(name), changed)
    config = {key: value for key, value in config.items() if value is not ...}
    with pytest.raises(KvplanError, match=re.escape(named)):
        read_config(config, model_id=name)


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


def test_k2_horizon_in_4_bits():
    """Of 64 matrices of values a token uses 4.

    A conversion with 4-bit groups of 64 beside a bfloat16 embedding and head loads 21.8 GB and reads 3.78 GB a token.
    """
    spec = read_config(counted_config("k2 horizon"), model_id="k2")
    outside = 2 * 250624 * 2560 + 2560
    four_bits, head = (4 + 16 / 64) / 8, 2 * 250624 * 2560
    assert ((spec.num_parameters - outside) * four_bits + 2 * head) / 1e9 == pytest.approx(21.8, abs=0.1)
    assert ((spec.num_active_parameters - outside) * four_bits + head) / 1e9 == pytest.approx(3.78, abs=0.05)
    assert any("copies the matrices of all 64 value experts" in sentence for sentence in spec.assumptions)


def test_step_1_has_no_positions():
    assert read_config(counted_config("step 1"), model_id="step").rope is None


def test_domyn_edge_has_heads_of_each_layers_own_size():
    own = {"0": {"head_dim": 32}, "3": {"head_dim": 32}}
    written = counted_config("domyn edge", head_sizes=None, head_dim=16, per_layer_config=own)
    spec = read_config(counted_config("domyn edge"), model_id="domyn")
    assert read_config(written, model_id="domyn").layers == spec.layers


def test_blocks_of_nemotron_puzzle_have_sizes_of_their_own():
    spec = read_config(counted_config("nemotron puzzle"), model_id="puzzle")
    assert [layer.feed_forward.experts_per_token for layer in spec.layers if layer.feed_forward] == [2, 3]


def test_what_a_token_uses_of_unlike_mixtures_is_their_mean():
    """2 of 8 experts of 24, and 3 of 8 of 40: 8 * (2 * 24 + 3 * 40) / (8 * (24 + 40)) = 2.6 of them."""
    spec = read_config(counted_config("nemotron puzzle"), model_id="puzzle")
    work = model_work(spec, 2 * spec.num_parameters, "bfloat16", ParallelLayout())
    assert work.experts_per_token == 3
    assert work.active_expert_parameters == 2 * 32 * (2 * 24 + 3 * 40)


def test_vllm_divides_no_alice_into_stages():
    spec = read_config(counted_config("alice"), model_id="alice")
    with pytest.raises(UsageError, match="AliceAIForCausalLM takes no --pipeline-parallel-size above 1"):
        check_division(spec, ParallelLayout(pipeline_parallel_size=2))


def test_more_ranks_than_inklings_kv_heads_are_refused_as_by_vllm() -> None:
    spec = read_config(counted_config("inkling, published"), model_id="inkling")
    with pytest.raises(KvplanError, match="8 KV heads over 16 ranks"):
        plan_blocks(spec.layers, CacheSettings(tensor_parallel_size=16), 16, vllm_release("0.33.0"))


def test_solar_without_a_window_has_its_class_default():
    spec = read_config({**SMALL, "architectures": ["SolarForCausalLM"]}, model_id="solar")
    assert [tokens for _, _, tokens in kept(spec)] == [2047] * 4
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


def test_loop_coder_goes_through_all_layers_again():
    spec = read_config(counted_config("loop coder"), model_id="loop")
    assert spec.repeated_elements == spec.num_parameters - 2 * 76800 * 5120 - 5120


def test_what_transformers_writes_of_hrm_text_is_read_alike():
    """It counts the passes, and names the layers of a stack beside them."""
    written = counted_config("hrm text", num_hidden_layers=128, num_layers_per_stack=16)
    spec = read_config(counted_config("hrm text"), model_id="hrm")
    assert read_config(written, model_id="hrm").layers == spec.layers


@pytest.mark.parametrize(("mode", "caches"), [("per_loop", 56), ("last_loop", 36)])
def test_dory_has_caches_by_its_mode(mode, caches):
    """20 of its 36 blocks of attention are gone through twice."""
    spec = read_config(counted_config("dory", recurrent_kv_cache_mode=mode), model_id="dory")
    layers = [each for each in kept(spec) if each[1]]
    assert len(layers) == caches
    assert layers.count(("softmax", 2 * 4 * 256, None)) == caches // 4
    assert layers.count(("softmax", 2 * 4 * 256, 1024)) == caches - caches // 4


@pytest.mark.parametrize("name", ["loop coder", "hrm text", "dory", "nanbeige"])
def test_weights_are_read_in_every_pass_and_held_once(name):
    """A step reads and multiplies as many weights as the passes have, beside the head."""
    spec = read_config(counted_config(name), model_id="looped")
    held = sum(tensor.num_elements for layer in spec.layers for tensor in layer.all_tensors)
    work = model_work(spec, 2 * spec.num_parameters, "bfloat16", ParallelLayout())
    read = held + spec.repeated_elements + sum(each.num_elements for each in spec.tensors if each.role != "embedding")
    assert work.active_parameters == read
    assert work.dense_bytes == pytest.approx(2 * read, rel=1e-9)
    assert spec.repeated_elements > 0.8 * held * (len(spec.layers) / sum(bool(x.all_tensors) for x in spec.layers) - 1)


def test_vllm_divides_no_looped_model_into_stages():
    spec = read_config(counted_config("hrm text"), model_id="hrm")
    check_division(spec, ParallelLayout(tensor_parallel_size=2))
    with pytest.raises(UsageError, match="goes through layers again"):
        check_division(spec, ParallelLayout(pipeline_parallel_size=2))


def test_vllm_divides_no_dory_over_ranks():
    """DoryForCausalLM: "Dory currently supports tensor_parallel_size=1 only"."""
    spec = read_config(counted_config("dory"), model_id="dory")
    with pytest.raises(UsageError, match="DoryForCausalLM takes no --tensor-parallel-size above 1"):
        check_division(spec, ParallelLayout(tensor_parallel_size=2))
