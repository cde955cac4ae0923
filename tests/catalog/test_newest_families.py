"""Architectures of vLLM 0.33 that came last: what is not in their rows of ``tests/data/counted_configs.json``."""

from __future__ import annotations

import pytest
from counted_configs import counted_config

from kvplan.catalog.reader import read_config
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.kv_cache import CacheSettings
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.steps.work import model_work
from kvplan.estimate.vllm.division import check_division
from kvplan.estimate.vllm.groups import plan_blocks


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
