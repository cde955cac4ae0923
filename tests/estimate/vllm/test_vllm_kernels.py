"""What the choice of a kernel costs: attention workspaces, padded experts, towers left out, AWQ's partial sums."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.catalog.reader import read_config
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.vllm.activation import cublas_bytes
from kvplan.estimate.vllm.budget import largest_graph
from kvplan.estimate.vllm.kernels import ExpertLayout, expert_layout, repeats_block_scales
from kvplan.estimate.vllm.prediction import VllmPrediction, predict_vllm
from kvplan.estimate.vllm.torch_allocator import CachingAllocator
from kvplan.estimate.vllm.weights import padded_experts
from kvplan.settings import ServingSettings
from kvplan.units import GIB, KIB, MIB

AWQ = "TheBloke/Mixtral-8x7B-Instruct-v0.1-AWQ"
CONFIGS = Path(__file__).resolve().parents[2] / "data" / "vllm_startup_models.json"


def model_of(name: str) -> ModelSpec:
    """A shipped profile, or a config that only the start-ups need."""
    configs = json.loads(CONFIGS.read_text(encoding="utf-8"))["models"]
    return read_config(configs[name]["config"], model_id=name) if name in configs else resolve_model(name)


def predict(model: str, gpu: str, version: str = "0.27.1", **settings: object) -> VllmPrediction:
    asked = ServingSettings(**{"max_model_len": 32768, **settings})  # type: ignore[arg-type]
    return predict_vllm(model_of(model), find_gpu(gpu), asked, version)


def workspace(model: str, gpu: str, version: str = "0.27.1", **settings: object) -> int:
    """What an 8-bit cache adds to the graphs: FlashInfer's workspace."""
    eight_bit = predict(model, gpu, version, kv_cache_dtype="fp8", **settings).rank.cudagraph_bytes
    return eight_bit - predict(model, gpu, version, **settings).rank.cudagraph_bytes


def test_workspace_grows_with_the_batch_as_measured_on_an_rtx_5090() -> None:
    """vLLM issue 52872, a 27B hybrid: graphs of 0.52 GiB with 2048 to 4096 batched tokens, 0.89 with 8192."""
    sizes = [workspace("qwen3.5-27b", "rtx-5090", max_num_batched_tokens=tokens) for tokens in (2048, 4096, 8192)]
    assert sizes[:2] == [394 * MIB, 394 * MIB]
    assert (sizes[2] - sizes[1]) / GIB == pytest.approx(0.89 - 0.52, abs=0.01)


def test_workspace_per_token_as_measured_since_026() -> None:
    """vLLM issue 50780, 32 heads of 256 on one GPU: 128 KiB for each batched token since 0.26, nothing before."""
    tokens = [workspace("qwen3.5-122b-a10b", "rtx-pro-6000", max_num_batched_tokens=n) for n in (32768, 16384)]
    assert (tokens[0] - tokens[1]) / 16384 == 128 * KIB
    before = [
        workspace("qwen3.5-122b-a10b", "rtx-pro-6000", "0.23.0", max_num_batched_tokens=n) for n in (32768, 16384)
    ]
    assert before == [394 * MIB, 394 * MIB]


def test_where_flashinfer_attends() -> None:
    assert workspace("llama-3.1-8b", "h100") == 0  # FlashAttention 3 reads 8-bit caches on Hopper
    assert workspace("llama-3.1-8b", "l40s") == 394 * MIB
    assert workspace("gpt-oss-20b", "l40s") == 0  # no attention sinks in FlashInfer there
    assert workspace("llama-3.1-8b", "l40s", enforce_eager=True) == 0
    plain = [predict("llama-3.1-8b", gpu, max_num_seqs=256).rank.cudagraph_bytes for gpu in ("b200", "a100-80gb-sxm")]
    assert plain[0] - plain[1] == 8192 * 32 * 128 * 16  # the default on Blackwell data-centre GPUs


def drafted_graphs(gpu: str, version: str, **settings: object) -> float:
    asked = {"kv_cache_dtype": "fp8", "num_speculative_tokens": 3, "max_num_seqs": 256, **settings}
    return predict("qwen3.5-27b", gpu, version, **asked).rank.cudagraph_bytes / GIB


def test_pieces_alone_are_captured_where_flashinfer_takes_one_token_of_each_sequence() -> None:
    """An 8-bit cache is FlashInfer's on Ampere: with drafts pieces between attention layers alone, and no workspace.

    Two RTX 3090 estimated 0.17 GiB for 7 sizes of a 27B hybrid (pull request 44 of noonghunna/club-3090).
    """
    assert drafted_graphs("rtx-3090", "0.23.0", max_num_seqs=4) == pytest.approx(0.17, abs=0.04)
    pieces = drafted_graphs("rtx-3090", "0.23.0")
    whole = drafted_graphs("rtx-3090", "0.23.0", kv_cache_dtype="auto")  # FlashAttention 2 takes several
    assert whole > pieces + 0.2
    assert drafted_graphs("rtx-3090", "0.23.0", num_speculative_tokens=0) > whole + 0.3  # with FlashInfer's 394 MiB
    workspace_gib = drafted_graphs("rtx-3090", "0.33.0") - drafted_graphs("rtx-3090", "0.33.0", kv_cache_dtype="auto")
    assert workspace_gib == pytest.approx(394 / 1024)
    assert drafted_graphs("rtx-3090", "0.23.0", enforce_eager=True) == 0


def test_drafts_are_captured_whole_on_hopper_and_consumer_blackwell_before_ampere() -> None:
    """By XQA in 0.32.0, by FlashAttention 2 in 0.33.0 (flashinfer.py, get_cudagraph_support)."""
    whole = {
        (gpu, version): drafted_graphs(gpu, version, kv_cache_dtype="fp8_e5m2") > 1.2
        for gpu in ("h100-sxm", "rtx-pro-6000", "l40s")
        for version in ("0.23.0", "0.32.0", "0.33.0")
    }
    assert [case for case, is_whole in whole.items() if not is_whole] == [
        ("h100-sxm", "0.23.0"),
        ("rtx-pro-6000", "0.23.0"),
        ("l40s", "0.23.0"),
        ("l40s", "0.32.0"),
    ]


@pytest.mark.parametrize(
    ("model", "settings", "largest"),
    [
        ("llama-3.1-8b", {"max_num_seqs": 4}, 8),
        ("qwen3.6-35b-a3b-nvfp4", {"max_num_seqs": 4, "num_speculative_tokens": 2}, 24),  # W011's log
        ("qwen3.5-27b", {"max_num_seqs": 32, "num_speculative_tokens": 3}, 256),  # V177's log
        ("llama-3.1-8b", {"max_num_seqs": 1024, "num_speculative_tokens": 3}, 512),
        ("llama-3.1-8b", {"max_num_seqs": 256, "max_num_batched_tokens": 300}, 300),
        ("gpt-oss-20b", {"max_num_seqs": 1024}, 1024),
    ],
)
def test_the_largest_graph_counts_draft_tokens(model: str, settings: dict[str, int], largest: int) -> None:
    found = predict(model, "h100", "0.23.0", **{"max_num_batched_tokens": 4096, **settings}).settings.serving
    assert largest_graph(model_of(model), find_gpu("h100"), found, vllm_release("0.23.0")) == largest


def test_mxfp4_experts_are_padded_for_the_kernel() -> None:
    marlin = ExpertLayout(inner_step=128)
    assert padded_experts((32, 5760, 2880), "column", marlin) == (32, 5760, 3072)
    assert padded_experts((32, 2880, 2880), "row", marlin) == (32, 3072, 2944)


def layer_graphs(gpu: str, ranks: int, *, bridged: bool = False) -> float:
    """MiB of graphs for each layer and captured size."""
    card = find_gpu(gpu).with_bridge() if bridged else find_gpu(gpu)
    asked = ServingSettings(max_model_len=32768, tensor_parallel_size=ranks)
    found = predict_vllm(model_of("llama-3.1-8b"), card, asked, "0.21.0")
    return found.rank.cudagraph_bytes / MIB / 32


def test_graphs_have_further_nodes_where_nccl_reduces() -> None:
    """P025 and P026 print 1.2 and 1.08 GiB for two and four RTX 3090, 0.61 is what one GPU has."""
    alone = layer_graphs("rtx-3090", 1)
    assert layer_graphs("rtx-3090", 2) * 32 / KIB == pytest.approx(1.14, abs=0.01)
    assert layer_graphs("rtx-3090", 4) == layer_graphs("l40s", 4) == layer_graphs("rtx-3090", 2)
    assert layer_graphs("l40s", 2) == layer_graphs("rtx-3090", 2, bridged=True) == alone
    assert layer_graphs("h100-sxm", 4) == layer_graphs("h100-sxm", 1)
    assert layer_graphs("gb10", 2) > layer_graphs("gb10", 1), "two nodes"


def gpt_oss_weights(model: str, gpu: str, version: str, ranks: int = 1) -> float:
    return predict(model, gpu, version, tensor_parallel_size=ranks).rank.weight_bytes / GIB


def test_triton_takes_the_hidden_width_of_experts_as_it_is() -> None:
    """13.03 GiB on an H100 in a judge's log of 2026, 61.29 in P040's; on a GB10 Marlin's 13.8 (Q004)."""
    assert gpt_oss_weights("gpt-oss-20b", "h100", "0.27.1") == pytest.approx(13.03, abs=0.02)
    assert gpt_oss_weights("gpt-oss-120b", "h100", "0.25.1") == pytest.approx(61.29, abs=0.03)
    assert gpt_oss_weights("gpt-oss-20b", "gb10", "0.30.0") == pytest.approx(13.8, abs=0.02)


def test_scales_of_swizzled_experts_stayed_beside_them_before_0_25() -> None:
    """32.98 GiB on each of two GPUs under 0.15.1 in V165's log."""
    assert gpt_oss_weights("gpt-oss-120b", "h200", "0.15.1", 2) == pytest.approx(32.98, abs=0.03)
    before, after = (gpt_oss_weights("gpt-oss-120b", "h100", version) for version in ("0.24.0", "0.25.0"))
    assert before - after == pytest.approx(36 * 128 * 3 * 2880 * 90 / GIB, abs=0.05)


def test_experts_of_other_models_are_not_swizzled() -> None:
    others = replace(model_of("gpt-oss-20b"), architecture="DeepseekV4ForCausalLM")
    layouts = [
        expert_layout(spec, find_gpu(gpu), vllm_release("0.33.0"))
        for spec in (model_of("gpt-oss-20b"), others)
        for gpu in ("h100", "l40s")
    ]
    assert [layout.is_swizzled for layout in layouts] == [True, False, False, False]


def encoder_widths(model: str, version: str, ranks: int = 1) -> float:
    """Hidden widths of each of 65,536 patches that are alive in the encoder, without pixels and cuBLAS's workspace."""
    settings = {"tensor_parallel_size": ranks, "max_num_batched_tokens": 2048}
    found = predict(model, "a100-80gb-sxm", version, **settings)
    section = model_of(model).raw_config["vision_config"]
    patches, hidden = 65_536, section.get("hidden_size", 1280)
    pixels = patches * 3 * section["patch_size"] ** 2 * section["temporal_patch_size"]
    workspace = cublas_bytes(find_gpu("a100-80gb-sxm"))
    return (found.rank.activation.encoder_bytes - workspace - 2 * pixels) / (2 * patches * hidden)


def test_vision_encoders_turn_queries_in_the_models_dtype_from_012_on() -> None:
    """Qwen3-VL's block (vllm/model_executor/models/qwen3_vl.py): its positions, input and norm, the attention's output
    as wide on every rank; qkv (3), q and k before and after the rotation (4) and what attention makes (1) divided."""
    assert encoder_widths("qwen3.5-27b", "0.19.0") == 4 + 8
    assert encoder_widths("qwen3.5-27b", "0.19.0", ranks=4) == 4 + 8 / 4


def test_language_model_only_leaves_out_the_tower_and_its_profile() -> None:
    whole = predict("Qwen/Qwen3.6-27B-FP8", "h100", max_num_batched_tokens=4096, max_num_seqs=32)
    text = predict(
        "Qwen/Qwen3.6-27B-FP8", "h100", max_num_batched_tokens=4096, max_num_seqs=32, language_model_only=True
    )
    assert text.rank.weight_bytes / GIB == pytest.approx(27.67, rel=0.005)  # vLLM 0.27.1's log
    assert text.rank.activation.encoder_bytes == 0 < whole.rank.activation.encoder_bytes
    assert text.num_blocks + text.rank.pinned_bytes // text.bytes_per_block > whole.num_blocks


def test_awq_before_030_keeps_partial_sums() -> None:
    """Mixtral AWQ on two GPUs, 32,768 tokens: 8 sums of 14,336 are 7 GiB, and fragments make it two of them."""
    peaks = [
        predict(AWQ, "a100-80gb-sxm", version, tensor_parallel_size=2).rank.activation.peak_bytes
        for version in ("0.2.7", "0.3.0")
    ]
    assert peaks[0] / GIB == pytest.approx(19.9, abs=0.2)
    assert peaks[1] / GIB < 5


def test_allocator_reuses_whole_segments_and_is_split_by_what_stays() -> None:
    memory = CachingAllocator()
    large = memory.allocate(100 * MIB)
    memory.release(large)
    small = memory.allocate(30 * MIB)
    assert memory.reserved_bytes == 100 * MIB
    memory.allocate(80 * MIB)
    assert memory.reserved_bytes == 180 * MIB  # 70 MiB are left beside the small one
    memory.release(small)
    memory.allocate(100 * MIB)
    assert memory.reserved_bytes == 180 * MIB  # both neighbours were free: one piece again
    assert memory.peak_bytes == 180 * MIB


def test_allocator_with_a_limit_splits_no_large_piece() -> None:
    memory = CachingAllocator(max_split_bytes=20 * MIB)
    freed = memory.allocate(32 * MIB)
    memory.release(freed)
    assert memory.allocate(24 * MIB).size == 32 * MIB  # taken whole, 8 MiB too much
    memory.release(memory.allocate(60 * MIB))
    memory.allocate(24 * MIB)  # 60 MiB are more than 20 MiB too much
    assert memory.reserved_bytes == (32 + 60 + 24) * MIB
    memory.allocate(16 * MIB)  # a smaller request takes none of them
    memory.allocate(6 * MIB)
    memory.release_segments()
    assert memory.reserved_bytes - memory.in_use_bytes == 14 * MIB  # beside the 6 of a segment of 20


@pytest.mark.parametrize(
    ("gpu", "release", "repeated"),
    [
        ("a100-80gb", "0.28.0", "all"),
        ("l40s", "0.28.0", "none"),
        ("l40s", "0.29.0", "linear"),  # pull request 52182
        ("h100-sxm", "0.29.0", "none"),
    ],
)
def test_marlin_repeats_scales_of_blocks_where_no_kernel_stands_before_it(
    gpu: str, release: str, repeated: str
) -> None:
    assert repeats_block_scales(find_gpu(gpu), vllm_release(release)) == repeated
