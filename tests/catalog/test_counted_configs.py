"""Sizes of families that few profiles show: as their classes are built, and as published."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest
from counted_configs import COUNTED, SMALL, counted_config, with_text
from kept_elements import kept

from independent_count import count_independently
from kvplan.catalog.models import resolve_model
from kvplan.catalog.reader import read_config
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError
from kvplan.estimate.kv_cache import CacheSettings
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
