"""Step times from measured kernels: terms counted by hand, and which profile speaks for a device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.devices.kernel_tables import read_kernel_tables
from kvplan.catalog.devices.measured import MeasuredProfiles
from kvplan.catalog.devices.measured_profile import MeasuredProfile
from kvplan.catalog.models import resolve_model
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.speed.latency import SpeedModel
from kvplan.estimate.speed.steps.clocks import BEST, USUAL, DeviceSpeed, Roofline
from kvplan.estimate.speed.steps.measured_clock import MeasuredClock, link_efficiency, rank_step
from kvplan.estimate.speed.steps.rank_step import (
    ExpertSpeed,
    KernelSpeed,
    LatentSpeed,
    LinkSpeed,
    RankStep,
    step_seconds,
)
from kvplan.estimate.speed.steps.step_time import Speed
from kvplan.estimate.speed.steps.work import ModelWork, model_work, speed_format
from kvplan.estimate.weights import named_format

BASE = Speed(
    step_seconds=1.0,
    layer_seconds=0.1,
    sequence_seconds=0.01,
    bandwidth=100.0,
    flops=1000.0,
    kv_bandwidth=50.0,
    attention_flops=500.0,
)
STEP = RankStep(
    num_layers=10,
    num_sequences=4,
    body_bytes=200.0,
    body_operations=3000.0,
    head_bytes=100.0,
    head_operations=1000.0,
    kv_bytes=150.0,
    attention_operations=1000.0,
    num_expert_layers=5,
    expert_bytes=400.0,
    expert_operations=2000.0,
)


def test_every_term_is_counted_once() -> None:
    overheads = 1.0 + 0.1 * 10 + 0.01 * 4
    dense, head, attention = 200 / 100 + 3000 / 1000, 100 / 100 + 1000 / 1000, 150 / 50 + 1000 / 500
    as_dense = 400 / 100 + 2000 / 1000
    assert step_seconds(KernelSpeed(BASE), STEP) == pytest.approx(overheads + dense + head + attention + as_dense)
    speed = KernelSpeed(BASE, ExpertSpeed(0.2, 80.0, 500.0))
    experts = 0.2 * 5 + 400 / 80 + 2000 / 500
    assert step_seconds(speed, STEP) == pytest.approx(overheads + dense + head + attention + experts)


def test_vectors_routed_to_experts_and_the_sharpness_of_their_products() -> None:
    experts = ExpertSpeed(0.2, 80.0, 500.0)
    plain = step_seconds(KernelSpeed(BASE, experts), STEP)
    routed = step_seconds(KernelSpeed(BASE, replace(experts, routed_bandwidth=50.0)), STEP._replace(routed_bytes=100.0))
    assert routed - plain == pytest.approx(100 / 50)
    sharp = step_seconds(KernelSpeed(BASE, replace(experts, sharpness=50.0)), STEP)
    assert plain - sharp == pytest.approx(min(400 / 80, 2000 / 500), rel=1e-3)


def test_latent_attention_has_its_own_speeds() -> None:
    speed = KernelSpeed(BASE, latent=LatentSpeed(0.3, 30.0, 250.0))
    plain, latent = step_seconds(speed, STEP), step_seconds(speed, STEP._replace(num_latent_layers=10))
    layers = (0.3 - BASE.layer_seconds) * 10
    assert latent - plain == pytest.approx(layers + 150 / 30 - 150 / 50 + 1000 / 250 - 1000 / 500)
    slower = KernelSpeed(BASE, latent=replace(speed.latent, token_seconds=0.01))  # type: ignore[type-var]
    tokens = step_seconds(slower, STEP._replace(num_latent_layers=10, latent_tokens=40))
    assert tokens - latent == pytest.approx(0.01 * 40)


def test_bytes_and_operations_hide_behind_each_other_where_the_device_overlaps_them() -> None:
    sharp = KernelSpeed(replace(BASE, sharpness=50.0))
    nothing = STEP._replace(head_bytes=0.0, head_operations=0.0, expert_bytes=0.0, expert_operations=0.0)
    added = step_seconds(KernelSpeed(BASE), nothing) - step_seconds(sharp, nothing)
    assert added == pytest.approx(min(200 / 100, 3000 / 1000), rel=1e-3)


def test_small_all_reduces_take_what_was_measured_for_as_many_ranks_or_the_next_fewer() -> None:
    links = LinkSpeed({2: 1e-6, 8: 3e-6}, 0.5)
    assert [links.seconds(ranks) for ranks in (2, 4, 8, 16)] == [1e-6, 1e-6, 3e-6, 3e-6]
    assert {links.share_of(ranks) for ranks in (2, 4, 8)} == {0.5}


def test_without_nvlink_more_ranks_reach_less_of_the_link() -> None:
    """L40S's tables of all-reduces: 16, 8 and 5 GB/s of PCIe's 32 over 2, 4 and 8 ranks; RTX 4090 takes them over."""
    profiles = MeasuredProfiles(read_kernel_tables())
    for name in ("l40s", "rtx-4090"):
        profile = profiles.for_gpu(find_gpu(name), "bfloat16", "vllm")
        assert profile is not None
        links = KernelSpeed.from_json(profile.speeds).links
        assert links is not None
        shares = [links.share_of(ranks) for ranks in (2, 4, 8, 16)]
        assert shares == pytest.approx([0.51, 0.25, 0.15, 0.15], rel=0.02)


def test_over_pcie_all_reduces_are_not_those_of_nvlink() -> None:
    """Tables of H100 SXM count for two cards of PCIe form with a bridge, not for four, nor for two without one."""
    card = find_gpu("h100-pcie")
    profile = MeasuredProfiles(read_kernel_tables()).for_gpu(card, "bfloat16", "vllm")
    assert profile is not None
    speed = KernelSpeed.from_json(profile.speeds)
    assert speed.links is not None
    two, four = (_work("llama-3.1-70b", ranks) for ranks in (2, 4))
    assert link_efficiency(speed, two, card) == link_efficiency(speed, four, card.with_bridge()) == USUAL.links
    assert link_efficiency(speed, two, card.with_bridge()).message_seconds == speed.links.seconds(2)
    assert link_efficiency(speed, four, find_gpu("h100-sxm")).message_seconds == speed.links.seconds(4)


def _work(name: str, tensor_parallel_size: int = 1) -> ModelWork:
    spec = resolve_model(name)
    layout = ParallelLayout(tensor_parallel_size)
    return model_work(spec, 2 * spec.num_parameters // tensor_parallel_size, "bfloat16", layout)


def _step(work: ModelWork, tokens: int) -> RankStep:
    return rank_step(
        work,
        tokens=tokens,
        rows=tokens,
        sequences=tokens,
        sampled=tokens,
        kv_bytes=0.0,
        pairs=tokens * 100,
        expert_tokens=tokens,
    )


def test_a_mixture_reads_the_experts_that_a_batch_touches() -> None:
    """Mixtral: 8 experts, 2 for each token. One token reads a quarter of them, 64 all."""
    work = _work("mixtral-8x7b")
    alone, many = _step(work, 1), _step(work, 64)
    assert alone.expert_bytes == pytest.approx(0.25 * work.expert_bytes)
    assert many.expert_bytes == pytest.approx(work.expert_bytes, rel=1e-6)
    elements = 32 * 8 * 3 * 4096 * 14336
    assert work.expert_bytes == pytest.approx(2 * elements, rel=0.01)
    assert alone.expert_operations == pytest.approx(2 * elements / 4)


def test_every_rank_has_the_routed_vectors_of_experts_that_are_divided() -> None:
    """Mixtral: a vector of 4,096 for each of 2 experts in 32 layers, whether a rank has all of an expert or a part."""
    vectors = 32 * 2 * 4096 * 2
    assert _work("mixtral-8x7b").routed_bytes() == _work("mixtral-8x7b", 8).routed_bytes() == vectors
    own = replace(_work("mixtral-8x7b", 8), layout=ParallelLayout(8, enable_expert_parallel=True))
    assert own.routed_bytes() == vectors / 8
    assert _step(own, 64).routed_bytes == 64 * vectors / 8


def test_ranks_divide_inner_activations_and_have_norms_and_residuals_whole() -> None:
    alone, divided = _work("llama-3.1-8b"), _work("llama-3.1-8b", 8)
    whole = 2 * 12 * 4096 * 32
    assert divided.rank_activation_bytes() == pytest.approx(whole + (alone.rank_activation_bytes() - whole) / 8)


def test_the_ranks_share_products_heads_and_experts() -> None:
    one, four = _step(_work("mixtral-8x7b"), 8), _step(_work("mixtral-8x7b", 4), 8)
    for name in ("body_operations", "head_bytes", "expert_bytes", "expert_operations", "attention_operations"):
        assert getattr(four, name) == pytest.approx(getattr(one, name) / 4, rel=0.01)
    assert four.num_layers == one.num_layers == 32


def test_a_window_bounds_what_a_token_attends_to() -> None:
    """Every second layer of gpt-oss sees 128 tokens: contexts of 128 thousand cost half of what all layers would."""
    work = _work("gpt-oss-20b")
    width = 64 * (64 + 64)
    step = rank_step(work, tokens=1, rows=1, sequences=1, sampled=1, kv_bytes=0, pairs=128_000, expert_tokens=1)
    assert step.attention_operations == 2 * width * (12 * 128_000 + 12 * 128)


def _profile(engine: str, dtype: str, source: str = "kernels", device: str = "h100-sxm") -> MeasuredProfile:
    return MeasuredProfile(
        path=Path("profile.json"),
        device_kind="cuda",
        device_name=device,
        num_cores=None,
        dtype=dtype,
        engine=engine,
        created="2026-11-23",
        model_ids=("gpt2",),
        num_rows=10,
        coefficients=BASE.as_json(),
        errors={},
        source="sweep" if source == "sweep" else "kernels",
    )


def test_a_profile_of_the_engine_asked_for_comes_first_then_sweeps_then_the_format() -> None:
    names = [("sglang", "fp8"), ("vllm", "bfloat16"), ("vllm", "fp8-block")]
    kernels = [_profile(*name) for name in names]
    gpu = find_gpu("h100-sxm")

    def found(profiles: list[MeasuredProfile], dtype: str, engine: str | None) -> MeasuredProfile | None:
        return MeasuredProfiles(tuple(profiles)).for_gpu(gpu, dtype, engine)

    assert found(kernels, "fp8", "vllm") == kernels[2]  # block scales are nearer than 16 bits
    assert found(kernels, "float16", "vllm") == kernels[1]
    assert found(kernels, "bfloat16", "sglang") == kernels[0]
    own = _profile("vllm", "bfloat16", "sweep")
    assert found([*kernels, own], "fp8", "vllm") == own
    assert found([*kernels, own], "fp8", "sglang") == kernels[0]
    assert found(kernels, "bfloat16", "trtllm") is not None
    assert found([_profile("vllm", "bfloat16", device="l40s")], "bfloat16", "vllm") is None


def test_kernel_profiles_say_that_they_are_such() -> None:
    assert _profile("vllm", "bfloat16").origin_for("gpt2", "bfloat16") == "kernels"
    assert _profile("vllm", "bfloat16", "sweep").origin_for("gpt2", "bfloat16") == "measured"


def test_formats_of_eight_bit_floats() -> None:
    assert speed_format(named_format("fp8"), "bfloat16") == "fp8"
    assert speed_format(named_format("fp8-block"), "bfloat16") == "fp8-block"
    assert speed_format(named_format("awq"), "float16") == "float16"


def test_overheads_of_the_roofline_grow_with_the_layers() -> None:
    """Each of 80 layers and 32 pays the same; what a step costs beside them is paid once."""
    gpu, deep, shallow = find_gpu("a10g"), _work("llama-3.1-70b"), _work("llama-3.1-8b")
    spent = [Roofline.of(work, gpu, 0.0, BEST).step_seconds for work in (deep, shallow)]
    assert spent[0] - spent[1] == pytest.approx((80 - 32) * BEST.layer_seconds)


def test_the_links_of_the_profile_are_used_and_not_a_guess() -> None:
    work = _work("llama-3.1-70b", 8)

    def seconds(all_reduce: float) -> float:
        speed = KernelSpeed(BASE, links=LinkSpeed({8: all_reduce}, 0.5))
        device = DeviceSpeed(speed, "kernels", "bfloat16", "note", {})
        return MeasuredClock(work, find_gpu("h100-sxm"), 1e6, device, 1000.0).seconds(1, 1, 1, 1000, 1000.0)

    assert seconds(2e-6) - seconds(1e-6) == pytest.approx(2 * 80 * 1e-6, rel=1e-3)  # two for each of 80 layers


def test_shipped_profiles_reach_no_more_than_the_data_sheets_and_fit_their_tables() -> None:
    shipped = read_kernel_tables()
    assert {(each.device_name, each.engine) for each in shipped} >= {("h100-sxm", "vllm"), ("a100-80gb-sxm", "sglang")}
    for each in shipped:
        gpu, speed = find_gpu(each.device_name), KernelSpeed.from_json(each.speeds)
        most = 1.001 * gpu.memory_bandwidth_bytes_per_second  # four digits are kept
        assert 0 < speed.base.bandwidth <= most and 0 < speed.base.kv_bandwidth <= most, each.as_text()
        assert 0 < speed.base.flops <= 1.001 * gpu.flops(each.dtype.removesuffix("-block")), each.as_text()
        assert speed.experts is None or 0 < speed.experts.bandwidth <= most, each.as_text()
        assert each.origin_for(each.model_ids[0], each.dtype) == "kernels"


def test_what_a_prompt_costs_the_groups_that_read_none() -> None:
    """A step is as long as that of the group that reads; the experts have the tokens of all groups in it."""
    work = replace(_work("qwen3-30b-a3b"), layout=ParallelLayout(data_parallel_size=8, enable_expert_parallel=True))
    gpu, device = find_gpu("h100-sxm"), DeviceSpeed(KernelSpeed(BASE), "kernels", "bfloat16", "note", {})
    steps = SpeedModel(work, gpu, 1000, 100, 1e6, device).steps
    prompt = (1000, 1, 1, 1000, 500_000.0)
    one_reads, all_read = steps.seconds_beside(1007, *prompt), steps.seconds_beside(8000, *prompt)
    assert steps.seconds_beside(8, 1, 1, 1, 1000, 1000.0) < one_reads < all_read < 8 * one_reads


@pytest.mark.parametrize(("model", "table"), [("gemma-4-e4b", 2_818_572_288), ("qwen3-0.6b", 0), ("gpt2", 786_432)])
def test_of_embeddings_that_the_head_shares_only_its_own_table_is_read(model: str, table: int) -> None:
    """Gemma 4 E4B has 262,144 x 42 x 256 inputs of layers in one table, and GPT-2 1,024 positions of 768: looked up."""
    spec = resolve_model(model)
    work = model_work(spec, 2 * spec.num_parameters, "bfloat16", ParallelLayout())
    assert work.active_parameters == spec.num_parameters - table
    assert work.dense_bytes == pytest.approx(2 * (spec.num_parameters - table))
