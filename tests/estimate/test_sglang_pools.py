"""Pools of SGLang and TensorRT-LLM by release, and which engines have a memory model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import kvplan
from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.engines import ENGINES, EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.catalog.releases.sglang import sglang_release
from kvplan.catalog.spec import LatentAttention
from kvplan.cli import main
from kvplan.errors import KvplanError
from kvplan.estimate.deployments import PLACED_BY, place
from kvplan.estimate.sglang import CONTEXT_BYTES, predict_sglang
from kvplan.estimate.sglang_share import captures_prompts, default_static_fraction, image_bytes, static_fraction
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


def _share(model: str, gpu: str = "a100-80gb-sxm", version: str = "latest", groups: int = 1, **settings: int) -> float:
    """Of GPUs with exactly 80 GiB, where nothing else is said."""
    asked = ServingSettings(**({"device_memory_bytes": TOTAL} | settings))  # type: ignore[arg-type]
    return static_fraction(resolve_model(model), find_gpu(gpu), asked, groups, sglang_release(version))


def _reserved_mib(*args: Any, **settings: Any) -> float:
    return (1 - _share(*args, **settings)) * TOTAL / MIB


ROUNDED = 0.001 * TOTAL / MIB


def test_stages_count_as_gpus_but_capture_as_few_rows_as_one() -> None:
    found = _reserved_mib("llama-3.1-8b", version="0.5.4", pipeline_parallel_size=4)
    assert found == pytest.approx(512 + 8192 * 1.5 + 256 * 2 + 4 * 128, abs=ROUNDED)


@pytest.mark.parametrize(
    ("version", "mib"),
    [("0.5.19", 512 + 2048 * 1.5 + 24 * 2 + 128 + 42 * 8), ("0.5.20", 512 + 4096 * 1.5 + 48 * 2 + 128 + 50 * 8)],
)
def test_small_gpus_read_twice_as_much_at_once_from_0_5_20_on(version: str, mib: float) -> None:
    """An RTX 4090's pool has 3 GiB less: 42 sizes up to 2,048 tokens are captured, 50 up to 4,096."""
    gpu = find_gpu("rtx-4090")
    found = static_fraction(resolve_model("llama-3.1-8b"), gpu, ServingSettings(), 1, sglang_release(version))
    assert gpu.listed_memory_bytes == 24564 * MIB
    assert (1 - found) * 24564 == pytest.approx(mib, abs=13)


def test_what_is_asked_for_decides_the_reserve() -> None:
    """50 sizes up to 4,096 tokens; graphs for no more sequences than may run, from 0.5.22 on."""
    found = _reserved_mib("llama-3.1-8b", max_num_batched_tokens=4096, max_num_seqs=64)
    assert found == pytest.approx(max(512 + 4096 * 1.5 + 64 * 2 + 128 + 50 * 8, 10240), abs=ROUNDED)
    assert _reserved_mib("llama-3.1-8b", max_num_seqs=64) == pytest.approx(
        512 + 8192 * 1.5 + 64 * 2 + 128 + 58 * 8, abs=ROUNDED
    )
    assert _share("llama-3.1-8b", max_num_seqs=64, version="0.5.21") == _share("llama-3.1-8b", version="0.5.21")


RELEASES = (
    "0.5.9",
    "0.5.10",
    "0.5.12",
    "0.5.13",
    "0.5.14",
    "0.5.15",
    "0.5.16",
    "0.5.17",
    "0.5.18",
    "0.5.19",
    "0.5.20",
    "0.5.23",
)


@pytest.mark.parametrize(
    ("model", "stages", "groups", "captured"),
    [
        ("llama-3.1-8b", 1, 1, "-+++++++++++"),
        ("llama-3.1-8b", 2, 1, "-----++++---"),
        ("llama-3.1-8b", 1, 8, "-------+++++"),
        ("deepseek-v3", 1, 1, "-++++---++++"),
        ("deepseek-v3.2", 1, 1, "---++--+++++"),
        ("qwen3-next-80b-a3b", 1, 1, "-----+++++++"),
        ("nemotron-3-nano-30b", 1, 1, "-++++++-++++"),
        ("kimi-linear-48b-a3b", 1, 1, "-++++---++--"),
        ("qwen3.6-27b", 1, 1, "------++++++"),
        ("kimi-k2.5", 1, 1, "------++++++"),
        ("gemma-4-e4b", 1, 1, "------------"),
        ("gemma-3-27b", 1, 1, "-+++++++++++"),
    ],
)
def test_prompts_are_captured_by_release_and_model(model: str, stages: int, groups: int, captured: str) -> None:
    spec, gpu = resolve_model(model), find_gpu("h200")
    found = (captures_prompts(spec, gpu, stages, groups, sglang_release(version)) for version in RELEASES)
    assert "".join("-+"[each] for each in found) == captured


def test_captured_prompts_are_left_room_for() -> None:
    """58 sizes up to 8,192 tokens, 8 MiB each; 1.5 GiB for latents, which Blackwell's kernel does not capture then."""
    before, since = (_reserved_mib("llama-3.1-8b", version=each) for each in ("0.5.9", "0.5.10"))
    assert since - before == pytest.approx(58 * 8, abs=ROUNDED)
    before, since = (_reserved_mib("deepseek-v3", version=each) for each in ("0.5.17", "0.5.18"))
    assert since - before == pytest.approx(1536, abs=ROUNDED)
    spec, newest = resolve_model("deepseek-v3"), sglang_release()
    assert not captures_prompts(spec, find_gpu("b200"), 1, 1, newest)
    assert _share("deepseek-v3", "b200") == _share("deepseek-v3", "h200")
    assert _share("deepseek-v3", "mi300x") == pytest.approx(
        _share("deepseek-v3", "h200") + 1536 * MIB / TOTAL, abs=0.001
    )


@pytest.mark.parametrize("gpu", ["mi300x", "mi355x", "v100-32gb", "gb10", "h100-3g.40gb"])
def test_any_gpu_has_pools(gpu: str) -> None:
    """Other makers' GPUs capture no prompts; whatever looks at a generation knows theirs."""
    profile, asked = find_gpu(gpu), ServingSettings(max_num_seqs=8, enable_prefix_caching=False)
    for model in ("gpt-oss-20b", "qwen3-vl-2b", "deepseek-v3.2", "qwen3.6-27b"):
        spec = resolve_model(model)
        assert predict_sglang(spec, profile, asked).kv_cache_tokens >= 0
        if profile.vendor != "nvidia":
            assert not captures_prompts(spec, profile, 1, 1, sglang_release())


def test_models_that_see_images_get_a_smaller_share() -> None:
    """Qwen3.6's encoder is 1,152 wide and names no num_hidden_layers; Gemma 3's counts where it is asked for."""
    plain = _share("llama-3.1-8b", version="0.5.15")
    found = _share("qwen3.6-27b", version="0.5.15") + 58 * 8 * MIB / TOTAL
    assert found == pytest.approx(plain * 0.95 * (1 - 0.1 * ((1152 / 1024) ** 2 - 1)), abs=0.02)
    uncaptured = default_static_fraction(TOTAL, 1)
    assert _share("gemma-4-e4b") == pytest.approx(uncaptured * 0.95 * 1.05, rel=1e-6)
    assert _share("gemma-3-27b") == _share("llama-3.1-8b")


def test_models_that_see_images_keep_their_embeddings_off_the_pools() -> None:
    """100 MiB from 0.5.18 on; on a large Hopper GPU Qwen3-VL has room for features and graphs of every request."""
    gemma, qwen, h100 = resolve_model("gemma-4-e4b"), resolve_model("qwen3-vl-30b-a3b"), find_gpu("h100")
    older, newest = sglang_release("0.5.17"), sglang_release()
    assert [image_bytes(gemma, h100, None, each) // MIB for each in (older, newest)] == [0, 100]
    assert [image_bytes(qwen, h100, seats, newest) // MIB for seats in (None, 399, 400)] == [1024, 1024, 3072]
    assert (
        image_bytes(qwen, find_gpu("b200"), 400, newest)
        == image_bytes(qwen, find_gpu("l40s"), 400, newest)
        == 100 * MIB
    )
    assert image_bytes(resolve_model("llama-3.1-8b"), h100, 400, newest) == 0
    shares = [_share("qwen3-vl-30b-a3b", gpu, max_num_seqs=400) for gpu in ("a100-80gb-sxm", "h100")]
    assert shares[0] - shares[1] == pytest.approx((400 - 256) * 2 * MIB / TOTAL * 0.95, abs=0.0015)
    pools = [predict_sglang(gemma, h100, version=each) for each in ("0.5.17", "0.5.18")]
    assert pools[0].kv_pool_bytes - pools[1].kv_pool_bytes == 100 * MIB


def test_sparse_latents_are_8_bits_on_blackwell() -> None:
    """576 values of each of 61 layers, and keys of 128 with a scale; 656 bytes on Hopper if 8 bits are asked for."""
    spec, keys = resolve_model("deepseek-v3.2"), 61 * 132
    eight = ServingSettings(tensor_parallel_size=8, kv_cache_dtype="fp8")
    usual = ServingSettings(tensor_parallel_size=8)

    def token_bytes(gpu: str, settings: ServingSettings, version: str = "latest") -> int:
        return predict_sglang(spec, find_gpu(gpu), settings, version=version).bytes_per_token - keys

    assert token_bytes("b200", usual) == token_bytes("b200", eight) == 61 * 576
    assert token_bytes("h200", usual) == token_bytes("b200", usual, "0.5.9") == 61 * 1152
    assert [token_bytes("h200", eight, each) for each in ("0.5.16", "0.5.17")] == [61 * 576, 61 * 656]


def test_glms_sparse_latents_have_scales_on_workstation_gpus() -> None:
    """A public log of GLM-5 on eight RTX PRO 6000, in 16 bits and before 0.5.10: 29.32 GiB for 314,304 tokens."""
    spec, gpu = resolve_model("zai-org/GLM-5-FP8"), find_gpu("rtx-pro-6000")
    eight = {"tensor_parallel_size": 8}
    found = {
        version: predict_sglang(spec, gpu, ServingSettings(**eight), version=version).bytes_per_token  # type: ignore[arg-type]
        for version in ("0.5.9", "0.5.16", "0.5.17")
    }
    assert found == {"0.5.9": 78 * (1152 + 132), "0.5.16": 78 * (576 + 132), "0.5.17": 78 * (656 + 132)}
    assert 314304 * found["0.5.9"] / GIB == pytest.approx(29.32, abs=0.01)


def test_layers_that_do_not_choose_keep_no_index_keys_from_0_5_18_on() -> None:
    spec, gpu = resolve_model("glm-5.2-fp8"), find_gpu("h200")
    settings = ServingSettings(tensor_parallel_size=8)
    older, newer = (predict_sglang(spec, gpu, settings, version=each).bytes_per_token for each in ("0.5.17", "0.5.18"))
    choosing = sum(isinstance(each.mixer, LatentAttention) and each.mixer.indexer is not None for each in spec.layers)
    assert 0 < choosing < spec.num_layers
    assert older - newer == (spec.num_layers - choosing) * 132


def test_windows_are_capped_by_the_requests_without_a_prefix_cache() -> None:
    """gpt-oss: each request has its window of 128, 128 more and two pages, prompts two chunks; the rest is full."""
    spec, settings = resolve_model("gpt-oss-20b"), ServingSettings(max_num_seqs=64, enable_prefix_caching=False)
    capped = predict_sglang(spec, find_gpu("h100"), settings)
    assert capped.window_tokens == 64 * (128 + 128 + 2) + 2 * 8192 + 1
    layer = 2 * 8 * 64 * 2
    assert capped.bytes_per_token == 12 * layer
    assert capped.kv_cache_tokens == (capped.kv_pool_bytes - capped.window_tokens * 12 * layer) // (12 * layer)
    blackwell = predict_sglang(spec, find_gpu("b200"), settings)
    assert blackwell.window_tokens == 64 * (128 + 128 + 128) + 2 * 16384 + 64
    for other in (ServingSettings(max_num_seqs=64), ServingSettings(enable_prefix_caching=False)):
        found = predict_sglang(spec, find_gpu("h100"), other)
        assert found.window_tokens == int(0.8 * found.kv_cache_tokens)
    assert predict_sglang(spec, find_gpu("h100"), settings, version="0.5.13").bytes_per_token > 12 * layer


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


def test_the_account_adds_up_and_is_the_predictions() -> None:
    found = kvplan.estimate("qwen3-vl-8b", gpu="h100", ctx="16k", engine="sglang@0.5.18")
    (h100,) = found.deployments
    alone = predict_sglang(
        resolve_model("qwen3-vl-8b"), find_gpu("h100"), ServingSettings(max_model_len=16384), version="0.5.18"
    )
    assert (h100.engine, h100.fits) == ("sglang@0.5.18", True)
    assert (h100.kv_cache_tokens, h100.kv_pool_bytes) == (alone.kv_cache_tokens, alone.kv_pool_bytes)
    assert h100.settings.gpu_memory_utilization == alone.mem_fraction_static
    parts = h100.weight_bytes + h100.activation_peak_bytes + h100.overhead_bytes + h100.kv_pool_bytes
    assert parts == h100.settings.device_memory_bytes
    assert h100.max_concurrency == pytest.approx(alone.kv_cache_tokens / 16384)
    assert h100.kv_range is None and found.answer.speeds == (None,)


def test_as_a_release_printed_it() -> None:
    """392,920 tokens and 0.83 (tests/data/startup_logs/sglang-0.5.18-qwen3-30b-a3b-fp8-h100.log)."""
    (h100,) = kvplan.estimate("Qwen/Qwen3-30B-A3B-FP8", gpu="h100", ctx="8k", engine="sglang@0.5.18").deployments
    assert h100.kv_cache_tokens == pytest.approx(392_920, rel=0.01)
    assert round(h100.settings.gpu_memory_utilization, 3) == 0.83


def test_seats_and_windows_limit_what_runs_at_once() -> None:
    few = kvplan.estimate("llama-3.1-8b", gpu="h200", ctx="1k", max_num_seqs=16, engine="sglang").deployments[0]
    assert few.max_concurrency == 16
    states = kvplan.estimate("qwen3.6-27b", gpu="h200", ctx="1k", engine="sglang").deployments[0]
    assert states.max_concurrency == states.settings.max_num_seqs
    within = kvplan.estimate("gpt-oss-20b", gpu="h100", ctx=128, engine="sglang", max_num_seqs=10**6).deployments[0]
    assert within.max_concurrency == pytest.approx(0.8 * within.kv_cache_tokens / 128, rel=0.001)


def test_what_does_not_fit_is_a_sentence(said_by: Callable[..., str]) -> None:
    assert "the weights leave nothing of mem_fraction_static: " in said_by(
        "estimate llama-3.1-70b --gpu h100 --engine sglang", code=1
    )
    words = ["estimate", "llama-3.1-8b", "--gpu", "l40s", "--engine", "sglang", "--ctx"]
    shown = said_by(*words, "256k", code=1)
    assert "longest sequence that fits: " in shown and "--ctx " in shown
    longest = int(shown.split("--ctx ")[1].split(",")[0].split()[0])
    assert main([*words, str(longest)]) == 0


def test_the_table_says_what_it_is_of(capsys: pytest.CaptureFixture[str], answer_of: Callable[..., Any]) -> None:
    assert main(["estimate", "llama-3.1-8b", "--ctx", "8k", "--engine", "sglang", "--explain"]) == 0
    shown = capsys.readouterr()
    assert "fit at once, sglang@0.5.23 (GiB):" in shown.out and "mem_fraction_static" in shown.out
    assert "no speed is told" in shown.err and "TTFT" not in shown.out and "mi300x" not in shown.out
    (document,) = answer_of("estimate gemma-3-27b --gpu 2xh100 --engine sglang")["deployments"]
    assert document["engine"] == "sglang@0.5.23" and document["performance"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--engine sglang@new", "'new' is not a version of SGLang."),
        ("--engine sglang --gpu mi300x", "SGLang's memory is not modelled on mi300x."),
        ("--engine sglang --gpu v100-32gb", "SGLang does not run on v100-32gb."),
        ("--engine sglang --gpu h100 --ctx 8k --plot x.png", "No speed is told of these deployments"),
        ("--engine sglang --gpu h100 --block-size 64", "--engine sglang has no --block-size."),
        ("--engine sglang --gpu h100 --enforce-eager", "--engine sglang has no --enforce-eager."),
        ("--engine sglang --gpu h100 --cpu-offload-gb 4", "--engine sglang has no --cpu-offload-gb."),
    ],
)
def test_what_is_not_modelled_is_refused(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "llama-3.1-8b", *words.split()]) in (1, 2)
    shown = capsys.readouterr().err
    assert f"error: {said}" in shown and "hint: " in shown


@pytest.mark.parametrize("command", ["plan llama-3.1-8b --users 4", "cache trace.jsonl llama-3.1-8b"])
def test_other_commands_refuse_it_in_a_sentence(command: str, said_by: Callable[..., str]) -> None:
    shown = said_by(*command.split(), "--engine", "sglang")
    assert "error: Only vLLM's scheduler and prefix cache are modelled here, not SGLang's." in shown
    assert "kvplan estimate --engine sglang sizes its memory" in shown
    with pytest.raises(KvplanError, match="not SGLang's"):
        kvplan.plan("llama-3.1-8b", users=4, engine="sglang")
