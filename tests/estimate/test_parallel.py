"""One instance over several GPUs: what each rank holds under tensor, pipeline, data and expert parallelism."""

from __future__ import annotations

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.errors import UsageError
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.deployments import place
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.latency import ServingSpeed, SpeedModel
from kvplan.estimate.speed.steps.collectives import (
    LinkEfficiency,
    bridge_note,
    collective_cost,
    link_between,
    network_note,
    ring_over,
)
from kvplan.estimate.speed.steps.work import kv_read_bytes, model_work
from kvplan.estimate.vllm.prediction import VllmPrediction, predict_vllm
from kvplan.settings import ServingSettings

H200 = find_gpu("h200")
DEEPSEEK = resolve_model("deepseek-v3")
MIXTRAL = resolve_model("mixtral-8x7b")


def predicted(model: str, **settings: object) -> VllmPrediction:
    return predict_vllm(resolve_model(model), H200, ServingSettings(max_model_len=8192, **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layout", "groups", "slices", "shared"),
    [
        (ParallelLayout(8), 1, 8, 8),
        (ParallelLayout(8, enable_expert_parallel=True), 8, 1, 8),
        (ParallelLayout(1, 1, 16, True), 16, 1, 1),
        (ParallelLayout(4, 1, 4), 1, 16, 4),
        (ParallelLayout(4, 1, 4, True), 16, 1, 1),  # tokens are divided over the ranks: shared experts whole
        (ParallelLayout(8, 2), 1, 8, 8),
    ],
)
def test_what_a_rank_holds_of_the_experts(layout: ParallelLayout, groups: int, slices: int, shared: int) -> None:
    assert (layout.expert_groups, layout.expert_slices, layout.shared_expert_slices) == (groups, slices, shared)


def test_experts_of_deepseek_v3_over_sixteen_groups() -> None:
    """Every rank has all of attention and 16 of the 256 experts of each of the 58 mixtures, in 8 bits."""
    alone = predicted("deepseek-v3", data_parallel_size=16, enable_expert_parallel=True).rank.weight_bytes
    experts = 58 * 256 * 3 * 7168 * 2048
    others = DEEPSEEK.num_parameters - experts
    assert alone == pytest.approx(experts / 16 * (1 + 4 / 128**2) + others * 1.1, rel=0.06)  # some of them in 16 bits
    sliced = predicted("deepseek-v3", tensor_parallel_size=16).rank.weight_bytes
    assert sliced < alone - 10 * 2**30  # attention, shared experts and embeddings 16 times


def test_the_same_experts_whole_or_in_slices() -> None:
    whole = predicted("mixtral-8x7b", tensor_parallel_size=8, enable_expert_parallel=True).rank.weight_bytes
    sliced = predicted("mixtral-8x7b", tensor_parallel_size=8).rank.weight_bytes
    assert whole == pytest.approx(sliced, rel=0.001)


def test_groups_of_a_dense_model_are_copies() -> None:
    one = predicted("llama-3.1-8b")
    four = predicted("llama-3.1-8b", data_parallel_size=4)
    assert four.rank == one.rank and four.kv_cache_tokens == one.kv_cache_tokens


def test_a_deployment_counts_the_tokens_of_all_groups() -> None:
    model, engine = resolve_model("llama-3.1-8b"), EngineChoice("vllm")
    one = place(model, H200, engine, ServingSettings(max_model_len=8192))
    four = place(model, H200, engine, ServingSettings(max_model_len=8192, data_parallel_size=4))
    assert four.deployment.kv_cache_tokens == 4 * one.deployment.kv_cache_tokens
    assert four.deployment.max_concurrency == 4 * one.deployment.max_concurrency
    assert any("4 data-parallel groups" in note for note in four.notes)


def test_engines_of_kvplan_hold_the_whole_model_each() -> None:
    model, engine = resolve_model("mixtral-8x7b"), EngineChoice("kvplan")
    one = place(model, H200, engine, ServingSettings(max_model_len=8192))
    four = place(model, H200, engine, ServingSettings(max_model_len=8192, data_parallel_size=4))
    for name in ("num_blocks", "kv_cache_tokens", "max_concurrency"):
        assert getattr(four.deployment, name) == 4 * getattr(one.deployment, name), name
    assert four.deployment.weight_bytes == one.deployment.weight_bytes
    assert f"4 engines: each holds {one.deployment.kv_cache_tokens:,} tokens of its own KV cache." in four.notes


def test_slices_of_8_bit_experts_must_be_whole_blocks() -> None:
    """Qwen3-235B-A22B-FP8 on 8 GPUs: vLLM stops with "192 is not divisible by weight quantization block_n = 128"."""
    with pytest.raises(UsageError, match="192 wide") as caught:
        predicted("qwen3-235b-a22b-fp8", tensor_parallel_size=8)
    assert "--enable-expert-parallel" in (caught.value.hint or "")
    assert predicted("qwen3-235b-a22b-fp8", tensor_parallel_size=8, enable_expert_parallel=True).fits


def test_more_groups_than_experts() -> None:
    with pytest.raises(UsageError, match="8 experts cannot be divided over 16"):
        predicted("mixtral-8x7b", data_parallel_size=16, enable_expert_parallel=True)


def test_whole_experts_of_a_model_without_any() -> None:
    with pytest.raises(UsageError, match=r"vLLM does not start meta-llama/.* with whole experts on each GPU"):
        predicted("llama-3.1-8b", tensor_parallel_size=2, enable_expert_parallel=True)


def speed(
    gpu: str, users: int, *sizes: int, model: str = "llama-3.1-70b", whole_experts: bool = False, context: int = 1088
) -> ServingSpeed:
    """By the data sheet, with the weights of a rank as vLLM holds them."""
    layout = ParallelLayout(*sizes, enable_expert_parallel=whole_experts)
    spec, profile = resolve_model(model), find_gpu(gpu)
    names = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel")
    settings = ServingSettings(max_model_len=4096, **{name: getattr(layout, name) for name in names})
    weight_bytes = predict_vllm(spec, profile, settings).rank.weight_bytes
    work = model_work(spec, weight_bytes, "bfloat16", layout)
    cache = CacheSettings("bfloat16", "bfloat16", layout.tensor_parallel_size)
    return SpeedModel(work, profile, 1024, 128, kv_read_bytes(spec, context, cache)).speed(users)


def test_pipeline_stages_serve_more_but_not_sooner() -> None:
    """Stages hold a share of the layers each: as much work per token, different tokens side by side."""
    one, two = speed("h200", 1, 1, 1), speed("h200", 1, 1, 2)
    assert two.tpot_seconds.middle == pytest.approx(one.tpot_seconds.middle, rel=0.05)
    assert (
        speed("h200", 64, 1, 2).output_tokens_per_second.middle
        > 1.4 * speed("h200", 64, 1).output_tokens_per_second.middle
    )
    assert speed("h200", 1, 2).tpot_seconds.middle < 0.7 * two.tpot_seconds.middle


def test_tensor_parallelism_across_nodes_waits_for_the_network() -> None:
    inside, outside = speed("h200", 4, 8), speed("h200", 4, 16)
    assert outside.tpot_seconds.middle > inside.tpot_seconds.middle
    assert speed("h200", 4, 8, 2).tpot_seconds.middle < outside.tpot_seconds.middle


def test_experts_of_data_parallel_groups() -> None:
    """DeepSeek-V3 on 16 H200, long sequences: a group reads its own cache, a tensor rank that of all."""
    groups = speed("h200", 1024, 1, 1, 16, model="deepseek-v3", whole_experts=True, context=16384)
    sliced = speed("h200", 1024, 8, 2, model="deepseek-v3", context=16384)
    assert groups.output_tokens_per_second.middle > sliced.output_tokens_per_second.high
    one = speed("h200", 16, 1, 1, 16, model="deepseek-v3", whole_experts=True)
    assert one.tpot_seconds.low > 0.002  # its weights at full bandwidth: 56 GiB, of which few experts


def test_one_link_for_neighbours_and_one_between_nodes() -> None:
    assert link_between(H200, 8).bytes_per_second == 450e9 and not link_between(H200, 8).crosses_nodes
    assert link_between(H200, 16).bytes_per_second == 50e9 and link_between(H200, 16).crosses_nodes
    assert link_between(find_gpu("l4"), 16).bytes_per_second == 12.5e9 / find_gpu("l4").max_gpus_per_node


def test_a_ring_over_nodes_leaves_them_by_all_adapters() -> None:
    assert ring_over(H200, 8) == link_between(H200, 8)
    assert ring_over(H200, 16).bytes_per_second == 400e9 and ring_over(H200, 16).crosses_nodes
    slow = find_gpu("l4")
    assert ring_over(slow, 16).bytes_per_second == min(12.5e9, slow.pcie_bytes_per_second)


def test_a_rack_is_like_one_node() -> None:
    rack = find_gpu("gb200")
    assert link_between(rack, 72).bytes_per_second == 900e9 and not link_between(rack, 72).crosses_nodes
    assert link_between(rack, 144).bytes_per_second == 50e9 and link_between(rack, 144).crosses_nodes
    assert speed("gb200", 64, 8).tpot_seconds.middle < 1.2 * speed("b200", 64, 8).tpot_seconds.middle


def test_an_answer_says_which_network_it_assumes() -> None:
    rack = find_gpu("gb200")
    assert network_note(H200, ParallelLayout(8)) is None and network_note(rack, ParallelLayout(4)) is None
    assert "72 gb200 in nodes of 4: 900 GB/s" in (network_note(rack, ParallelLayout(8)) or "")
    assert "Between racks each gb200 has 400 Gb/s" in (network_note(rack, ParallelLayout(4, 36)) or "")
    assert "Between nodes each h200 has 400 Gb/s (as in its ref" in (network_note(H200, ParallelLayout(8, 2)) or "")
    card, many = find_gpu("l40s"), ParallelLayout(8, 2)
    assert "is not known: 12.5 Gb/s for each GPU is an assumption" in (network_note(card, many) or "")
    assert "200 Gb/s (as given)" in (network_note(card.with_network(25e9), many) or "")


def test_cards_without_a_bridge_talk_over_pcie() -> None:
    card = find_gpu("a100-80gb-pcie")
    bridged = card.with_bridge()
    assert [link_between(card, ranks).bytes_per_second for ranks in (2, 4, 8)] == [32e9] * 3
    assert [link_between(bridged, ranks).bytes_per_second for ranks in (2, 4, 8)] == [300e9, 32e9, 32e9]


def test_geforce_cards_talk_through_the_host() -> None:
    """40 us for each of two all-reduces a layer, where an L40S takes what its tables have; a bridge reads directly."""
    usual = LinkEfficiency(0.5, 6.4e-6, sends_to_chosen=False)
    spec, layout = resolve_model("llama-3.1-8b"), ParallelLayout(2)
    work = model_work(spec, 8 << 30, "bfloat16", layout)
    cards = {name: find_gpu(name) for name in ("rtx-4090", "rtx-5090", "l40s", "rtx-3090")}
    cards["bridged"] = cards["rtx-3090"].with_bridge()
    fixed = {name: collective_cost(work, card, usual).fixed_seconds for name, card in cards.items()}
    slow, quick = 2 * 32 * 40e-6, 2 * 32 * 6.4e-6
    assert fixed == pytest.approx(
        {"rtx-4090": slow, "rtx-5090": slow, "l40s": quick, "rtx-3090": slow, "bridged": quick}
    )
    alone = model_work(spec, 16 << 30, "bfloat16", ParallelLayout())
    assert collective_cost(alone, cards["rtx-4090"], usual).fixed_seconds == 0


def test_an_answer_says_which_bridges_it_assumes() -> None:
    card = find_gpu("h100-pcie")
    two = ParallelLayout(2)
    assert "--nvlink-bridge" in (bridge_note(card, two) or "")
    assert "in pairs" in (bridge_note(card.with_bridge(), two) or "")
    assert "--nvlink-bridge" in (bridge_note(card, ParallelLayout(1, 2)) or "")
    assert bridge_note(card, ParallelLayout(1)) is None and bridge_note(H200, two) is None
    notes = place(MIXTRAL, card, EngineChoice("vllm"), ServingSettings(tensor_parallel_size=2)).notes
    assert bridge_note(card, two) in notes
