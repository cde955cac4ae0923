"""Pools of SGLang and TensorRT-LLM by release, and which engines have a memory model."""

from __future__ import annotations

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.engines import ENGINES, EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.catalog.releases.sglang import sglang_release
from kvplan.estimate.deployments import PLACED_BY, place
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.sglang import CONTEXT_BYTES, predict_sglang
from kvplan.estimate.sglang_share import captures_prompts, default_static_fraction, static_fraction
from kvplan.estimate.trtllm import DEFAULT_BLOCK, predict_trtllm
from kvplan.settings import ServingSettings
from kvplan.units import GIB, KIB, MIB

TOTAL = 80 * GIB


@pytest.mark.parametrize(
    ("version", "gib", "gpus", "expected"),
    [
        ("0.4.6", 80, 1, 0.88),
        ("0.4.6", 80, 8, 0.81),
        ("0.4.7", 141, 8, (141 - 18) / 141),
        ("0.4.7", 300, 1, 0.88 + 48 * 0.12 / 300),
        ("0.5.2", 80, 1, (80 - 10) / 80),
        ("0.5.2", 80, 8, (80 - 13.5) / 80),
        ("0.4.8", 24, 2, (24 - 3) / 24),
        ("0.5.0", 141, 8, (141 - 16) / 141),
        ("0.5.2", 180, 8, (180 - 32) / 180),
        ("0.5.3", 80, 1, (80 - (512 + 8192 * 1.5 + 256 * 2 + 128) / 1024) / 80),
        ("0.5.9", 80, 8, (80 - (512 + 8192 * 1.5 + 512 * 2 + 1024) / 1024) / 80),
    ],
)
def test_what_is_left_free_by_release(version: str, gib: int, gpus: int, expected: float) -> None:
    """Of the sums in server_args.py of these releases, for GPUs of so many GiB."""
    release = sglang_release(version)
    assert default_static_fraction(gib * GIB, gpus, 1, release) == pytest.approx(expected, abs=0.0006)


def test_stages_count_as_gpus_but_capture_as_few_rows_as_one() -> None:
    release, spec = sglang_release("0.5.4"), resolve_model("llama-3.1-8b")
    stages = static_fraction(spec, TOTAL, ParallelLayout(1, 4), 1, release)
    assert stages == pytest.approx(1 - (512 + 8192 * 1.5 + 256 * 2 + 4 * 128) * MIB / TOTAL, abs=0.0006)


def test_prompts_are_captured_from_0_5_10_on() -> None:
    """58 sizes up to 8,192 tokens, 8 MiB each; none with images, stages or groups."""
    spec, one = resolve_model("llama-3.1-8b"), ParallelLayout()
    before, since = (static_fraction(spec, TOTAL, one, 1, sglang_release(each)) for each in ("0.5.9", "0.5.10"))
    assert (before - since) * TOTAL / MIB == pytest.approx(58 * 8, abs=0.001 * TOTAL / MIB)
    newest = sglang_release()
    assert captures_prompts(spec, one, 1, newest)
    assert not captures_prompts(spec, ParallelLayout(1, 2), 1, newest)
    assert not captures_prompts(spec, one, 8, newest)
    assert not captures_prompts(resolve_model("qwen3.6-27b"), one, 1, newest)


def test_models_that_see_images_get_a_smaller_share() -> None:
    """Qwen3.6's encoder is 1,152 wide and names no num_hidden_layers; Gemma 3's counts where it is asked for."""
    newest, one = sglang_release(), ParallelLayout()
    plain = default_static_fraction(TOTAL, 1, 1, newest)
    found = static_fraction(resolve_model("qwen3.6-27b"), TOTAL, one, 1, newest)
    assert found == pytest.approx(plain * 0.95 * (1 - 0.1 * ((1152 / 1024) ** 2 - 1)), rel=1e-6)
    small = static_fraction(resolve_model("gemma-4-e4b"), TOTAL, one, 1, newest)
    assert small == pytest.approx(plain * 0.95 * 1.05, rel=1e-6)
    assert static_fraction(resolve_model("gemma-3-27b"), TOTAL, one, 1, newest) == static_fraction(
        resolve_model("llama-3.1-8b"), TOTAL, one, 1, newest
    )


def test_each_stage_has_its_own_layers() -> None:
    """32 layers of Llama-3.1-8B over four stages: 8 each, of 32 KiB a token in all."""
    spec, gpu = resolve_model("llama-3.1-8b"), find_gpu("l4")
    stages = predict_sglang(spec, gpu, ServingSettings(pipeline_parallel_size=4))
    assert stages.bytes_per_token == 8 * 2 * 8 * 128 * 2
    whole = predict_sglang(spec, gpu).weight_bytes
    assert whole / 4 < stages.weight_bytes < whole / 2  # the first stage has the embedding too
    assert stages.kv_cache_tokens == stages.kv_pool_bytes // stages.bytes_per_token
    assert stages.kv_cache_tokens > 8 * predict_sglang(spec, gpu).kv_cache_tokens


@pytest.mark.parametrize(("version", "each"), [("0.5.2", 1), ("0.5.3", 3), ("0.5.13", 3), ("0.5.14", 5), ("latest", 5)])
def test_hybrid_models_run_as_many_as_their_states_allow(version: str, each: int) -> None:
    """A log of Qwen3.6 (tests/data/startup_logs/sglang-hybrid-gb10.log) has 360 slots for 72 requests."""
    spec, gpu = resolve_model("qwen3.6-27b"), find_gpu("h200")
    found = predict_sglang(spec, gpu, version=version)
    assert found.max_running_requests == found.state_slots // each
    assert predict_sglang(spec, gpu, ServingSettings(max_num_seqs=8), version=version).max_running_requests == 8
    assert sglang_release().state_slots("Qwen3_5ForConditionalGeneration") == 360 // 72


def test_without_a_prefix_cache_each_request_has_one_state() -> None:
    """--max-running-requests is then the number of slots, and tokens have the rest."""
    spec, gpu = resolve_model("qwen3.6-27b"), find_gpu("h200")
    usual = predict_sglang(spec, gpu)
    plain = predict_sglang(spec, gpu, ServingSettings(enable_prefix_caching=False))
    assert plain.max_running_requests == plain.state_slots == usual.state_slots
    few = predict_sglang(spec, gpu, ServingSettings(enable_prefix_caching=False, max_num_seqs=40))
    assert (few.state_slots, few.max_running_requests) == (40, 40)
    assert few.kv_cache_tokens > 1.5 * usual.kv_cache_tokens


def test_seats_where_nothing_is_said() -> None:
    """512 for each longest context of the pool, from 2,048 to 4,096; groups share those that are asked for."""
    spec, gpu = resolve_model("llama-3.1-8b"), find_gpu("h100")
    assert predict_sglang(spec, gpu).max_running_requests == 2048
    assert predict_sglang(spec, gpu, ServingSettings(max_model_len=8192)).max_running_requests == 4096
    groups = ServingSettings(data_parallel_size=8, max_num_seqs=256)
    assert predict_sglang(spec, gpu, groups, dp_attention=True).max_running_requests == 32


def test_layers_that_read_anothers_keys_have_room_too() -> None:
    """Gemma 4 E4B: 42 layers, 7 of them full with heads of 512, the others' heads of 256 in the window pool."""
    found = predict_sglang(resolve_model("gemma-4-e4b"), find_gpu("h100"))
    full, windows = 7 * 2 * 2 * 512 * 2, 35 * 2 * 2 * 256 * 2
    assert found.bytes_per_token == full + int(0.8 * windows)


SETTINGS = ServingSettings(tensor_parallel_size=8, max_num_batched_tokens=16384, max_num_seqs=512, max_model_len=4000)


@pytest.mark.parametrize(("model", "times"), [("deepseek-r1", 2), ("llama-3.1-70b", 1)])
def test_latents_were_counted_twice_before_0_19(model: str, times: int) -> None:
    spec, gpu = resolve_model(model), find_gpu("h200")
    newest, old = (predict_trtllm(spec, gpu, SETTINGS, release).kv_cache_tokens for release in ("latest", "0.17.0"))
    assert newest == pytest.approx(times * old, abs=2 * DEFAULT_BLOCK)
    assert predict_trtllm(spec, gpu, SETTINGS, "0.19.0").kv_cache_tokens == newest


def test_the_pool_is_sized_after_a_step_of_as_many_tokens_as_one_may_have() -> None:
    """Three activations of 5,120 values and two of 25,600 in 16 bits are 128 KiB a token and more."""
    spec, gpu = resolve_model("qwen3-32b"), find_gpu("a100-80gb-sxm")
    small, usual, large = (
        predict_trtllm(spec, gpu, ServingSettings(max_num_batched_tokens=tokens)).other_bytes
        for tokens in (2048, None, 16384)
    )
    assert 6144 * 128 * KIB < usual - small < 6144 * 256 * KIB
    assert large > usual > small > CONTEXT_BYTES
    assert predict_trtllm(spec, gpu, ServingSettings(max_num_seqs=2048)).other_bytes == usual


def test_short_contexts_take_several_prompts_to_fill_the_step() -> None:
    spec, gpu = resolve_model("llama-3.1-8b"), find_gpu("h100-sxm")
    few, many = (predict_trtllm(spec, gpu, ServingSettings(max_model_len=each)).other_bytes for each in (32768, 17))
    assert many > few  # 512 rows of logits


def test_every_engine_has_a_memory_model() -> None:
    assert set(PLACED_BY) == set(ENGINES)


@pytest.mark.parametrize("name", ENGINES)
def test_a_deployment_names_the_engine_it_is_for(name: str) -> None:
    settings = ServingSettings(max_model_len=8192)
    placed = place(resolve_model("llama-3.1-8b"), find_gpu("h100-sxm"), EngineChoice(name), settings)
    assert placed.deployment.engine.partition("@")[0] == name
    assert placed.deployment.fits
