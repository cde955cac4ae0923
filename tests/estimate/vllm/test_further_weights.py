"""What vLLM keeps beside the weights as published, what a rank has of stored ones, and what compiling takes."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
from checkpoints import LLAMA, llama_tensors, write_checkpoint
from small_gguf import write as write_gguf

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import find_profile, resolve_model
from kvplan.catalog.reader import read_config
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.catalog.speculation.heads import multi_token_model
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.vllm.prediction import VllmPrediction, as_loaded, predict_ranks, predict_vllm
from kvplan.estimate.vllm.ranges import kv_range, warm_gain_bytes
from kvplan.estimate.vllm.weights import (
    buffer_bytes_per_token,
    per_layer_input_bytes,
    rank_shape,
    rank_weight_bytes,
    stored_formats,
)
from kvplan.settings import ServingSettings
from kvplan.units import GIB, MIB


def weight_bytes(spec: ModelSpec, *, in_float32: bool) -> int:
    return rank_weight_bytes(
        spec,
        range(spec.num_layers),
        layout=ParallelLayout(tensor_parallel_size=4),
        dtype="bfloat16",
        formats=stored_formats(spec, "none"),
        max_model_len=8192,
        in_float32=in_float32,
    )


def wider(spec: ModelSpec) -> int:
    """Bytes on every rank beyond those in 16 bits."""
    return weight_bytes(spec, in_float32=True) - weight_bytes(spec, in_float32=False)


@pytest.mark.parametrize(
    ("model", "mixtures", "hidden", "experts"),
    [
        ("glm-4.5-air", 45, 4096, 128),
        ("minimax-m2.5", 62, 3072, 256),
        ("mimo-v2-flash", 47, 4096, 256),
        ("ernie-4.5-21b-a3b", 27, 2560, 64),
        ("qwen3-30b-a3b", 0, 2048, 128),
        ("deepseek-v3.2", 0, 7168, 256),
        ("gpt-oss-120b", 0, 2880, 128),
    ],
)
def test_routers(model: str, mixtures: int, hidden: int, experts: int) -> None:
    """``params_dtype=torch.float32`` of the gate in the model's class (vLLM 0.33.0), whole on every rank."""
    assert wider(resolve_model(model)) == mixtures * hidden * experts * 2


def test_a_router_whose_dtype_the_config_says() -> None:
    profile = find_profile("mimo-v2-flash")
    assert profile is not None
    assert wider(read_config({**profile["config"], "moe_router_dtype": "bfloat16"}, model_id="model")) == 0


def test_what_mixes_the_streams_of_deepseek_v4() -> None:
    spec = resolve_model("deepseek-v4-flash")
    streams, hidden, mixed = 4, spec.hidden_size, 4 * spec.hidden_size
    assert spec.residual_streams == streams
    each = 2 * (2 + streams) * streams * mixed
    assert wider(spec) == (spec.num_layers * each + streams * mixed) * 2
    assert hidden == 4096
    drafter = multi_token_model(spec)
    assert drafter is not None and drafter.residual_streams == streams


@pytest.mark.parametrize(
    ("model", "chosen"), [("deepseek-v3.2", 2048), ("deepseek-v4-flash", 512), ("llama-3.1-8b", 0)]
)
def test_the_list_of_chosen_tokens_that_layers_share(model: str, chosen: int) -> None:
    """topk_indices_buffer: int32 for every token of a step."""
    spec = resolve_model(model)
    asked = ServingSettings(tensor_parallel_size=4, max_num_batched_tokens=4096, max_model_len=8192)
    settings = predict_vllm(spec, find_gpu("b200"), asked).settings.serving
    assert buffer_bytes_per_token(spec.layers, settings.dtype) == 4 * chosen


def test_a_steps_per_layer_inputs_are_kept_by_models_that_see() -> None:
    """per_layer_embeddings of gemma3n_mm.py: 35 layers of 256 numbers for every token of a step."""
    text = resolve_model("gemma-3n-e4b")
    seeing = replace(text, raw_config={"text_config": text.raw_config})
    asked = ServingSettings(max_num_batched_tokens=4096, max_model_len=8192)
    settings = predict_vllm(text, find_gpu("b200"), asked).settings.serving
    assert per_layer_input_bytes(seeing, settings) == 4096 * 35 * 256 * 2
    assert per_layer_input_bytes(text, settings) == 0
    assert per_layer_input_bytes(resolve_model("gemma-3-4b"), settings) == 0


@pytest.mark.parametrize(("version", "unused"), [("0.28.0", 15 * 2 * 512 * 2048 + 15 * 256), ("0.33.0", 0)])
def test_layers_that_read_anothers_cache_had_keys_and_values_of_their_own(version: str, unused: int) -> None:
    """Gemma 3n's last 15 of 35 layers (pull request 54917 of vllm-project/vllm): two matrices and a norm each."""
    spec = resolve_model("gemma-3n-e4b")
    loaded = as_loaded(spec, vllm_release(version))
    assert loaded.num_parameters - spec.num_parameters == unused
    assert as_loaded(resolve_model("gemma-3-4b"), vllm_release("0.28.0")) == resolve_model("gemma-3-4b")


@pytest.mark.parametrize(
    ("model", "version", "copied"),
    [
        ("deepseek-v3", "0.33.0", 61 * 128 * (128 + 128) * 512),
        ("kimi-k2", "0.33.0", 61 * 64 * (128 + 128) * 512),
        ("deepseek-v3", "0.7.3", 0),
        ("kimi-k2.5", "0.33.0", 0),
    ],
)
def test_attention_reads_a_copy_of_a_quantized_upward_matrix(model: str, version: str, copied: int) -> None:
    """W_UK_T and W_UV of latent attention, in 16 bits beside 8; Kimi K2.5's attention is not quantized."""
    spec, layout = resolve_model(model), ParallelLayout(tensor_parallel_size=8)
    found = predict_vllm(spec, find_gpu("b300"), ServingSettings(tensor_parallel_size=8, max_model_len=8192), version)
    formats = stored_formats(spec, "auto")
    without = rank_weight_bytes(
        spec,
        range(61),
        layout=layout,
        dtype="bfloat16",
        formats=formats,
        max_model_len=8192,
        absorbs_latents=False,
        allocator="splitting" if vllm_release(version).splits_large_weights else "limited",
    )
    assert found.rank.weight_bytes - without == copied * 2 // 8


def test_segments_that_grow_leave_no_rests_of_large_tensors() -> None:
    """Half of Qwen3-32B in AWQ: 9.01 GiB in P032's log, as in the checkpoint."""
    spec, gpu = resolve_model("Qwen/Qwen3-32B-AWQ"), find_gpu("rtx-4090")
    asked = ServingSettings(max_model_len=8192, tensor_parallel_size=2)
    fixed, grown = (
        predict_vllm(spec, gpu, replace(asked, expandable_segments=grows), "0.28.0") for grows in (False, True)
    )
    assert fixed.rank.weight_bytes / GIB == pytest.approx(9.15, abs=0.005)
    assert grown.rank.weight_bytes / GIB == pytest.approx(9.01, abs=0.005)
    assert grown.rank.segment_bytes == 0
    before = [
        predict_vllm(spec, gpu, replace(asked, expandable_segments=grows), "0.20.0").rank.weight_bytes
        for grows in (False, True)
    ]
    assert before[1] < before[0] < fixed.rank.weight_bytes


def test_parts_of_different_modules_are_allocated_apart() -> None:
    """Experts of 512 MiB and a shared one of 1 MiB fill whole steps of the allocator; 513 MiB would not."""
    spec, size = resolve_model("qwen3-next-80b-a3b"), 2
    experts = 2 * 512 * (512 // 4) * 2048 * size
    assert experts == 512 * MIB
    layers = range(4)
    plain = [each for layer in spec.layers[:4] for each in layer.all_tensors]
    exact = sum(prod(rank_shape(each, ParallelLayout(tensor_parallel_size=4), 256)) for each in plain) * size
    found = rank_weight_bytes(
        replace(spec, tensors=(), rope=None),
        layers,
        layout=ParallelLayout(tensor_parallel_size=4),
        dtype="bfloat16",
        formats=stored_formats(spec, "none"),
        max_model_len=8192,
    )
    assert found == exact


@pytest.mark.parametrize(
    ("version", "gpu", "printed"),
    [("0.20", "l40s", 14.25), ("0.21", "l40s", 14.29), ("0.24", "rtx-4090", 14.29), ("0.21", "mi300x", 14.25)],
)
def test_a_large_weight_keeps_whole_steps_of_memory_from_021_on(version: str, gpu: str, printed: float) -> None:
    """An o_proj of 24.5 MiB takes 26 where PyTorch splits nothing of 20 MiB; as three logs of 0.22 to 0.24 print it."""
    found = predict_vllm(
        resolve_model("qwen2.5-7b-instruct"), find_gpu(gpu), ServingSettings(max_model_len=4096), version
    )
    assert round(found.rank.weight_bytes / GIB, 2) == printed


def test_online_fp8_takes_the_larger_piece_that_its_16_bits_left() -> None:
    """Each layer's qkv_proj of 24 MiB lies in the 32 MiB that o_proj was first in: a log prints 9.06 GiB."""
    spec, l4 = resolve_model("qwen3-8b"), find_gpu("l4")
    found = predict_vllm(spec, l4, ServingSettings(quantization="fp8", max_model_len=4096), "0.27.1").rank
    earlier = predict_vllm(spec, l4, ServingSettings(quantization="fp8", max_model_len=4096), "0.20.0").rank
    assert found.weight_bytes / GIB == pytest.approx(9.06, abs=0.03)
    assert found.weight_bytes - earlier.weight_bytes > 36 * 8 * MIB * 0.9
    assert earlier.segment_bytes == 0
    assert 0 < found.segment_bytes < 20 * MIB, "what the requests' masks leave of a segment of their own"


def test_segments_that_weights_leave_partly_free_count_from_0_27_on() -> None:
    """Qwen3-0.6B: 8 and 4 MiB of attention, 12 and 6 of the MLP leave 2 of each layer's 32 MiB, and the last 8 more."""
    spec, gpu = resolve_model("qwen3-0.6b"), find_gpu("rtx-4090")
    settings = ServingSettings(max_model_len=4096, enforce_eager=True)
    before, since = (predict_vllm(spec, gpu, settings, version).rank for version in ("0.26.0", "0.27.0"))
    assert since.segment_bytes == pytest.approx(28 * 2 * MIB, abs=12 * MIB)
    assert before.segment_bytes == 0
    more = vllm_release("0.27.0").non_torch_gib - vllm_release("0.26.0").non_torch_gib
    assert since.non_torch_bytes == pytest.approx(before.non_torch_bytes + since.segment_bytes + more * GIB, abs=2)
    assert since.weight_bytes == before.weight_bytes


@pytest.mark.parametrize(
    ("model", "rotary", "shrinks"),
    [("qwen3-vl-32b", 128, True), ("qwen3.5-27b", 64, True), ("qwen2-vl-2b", 128, False)],
)
def test_qwen3s_are_made_once_from_0_32_on(model: str, rotary: int, shrinks: bool) -> None:
    """mrope_positions_factor in vllm/model_executor/models/qwen3_vl.py; all others are for four times the positions."""
    spec = resolve_model(model)
    asked = ServingSettings(max_model_len=8192)
    older, newer = (predict_vllm(spec, find_gpu("h200"), asked, each).rank.weight_bytes for each in ("0.31", "0.32"))
    assert spec.max_position_embeddings is not None
    assert older - newer == shrinks * 3 * spec.max_position_embeddings * rotary * 2


def test_qwen3_vl_keeps_a_steps_inputs_of_its_first_layers_with_the_weights() -> None:
    """4339.5 MiB in 0.25.1 run without a GPU, 24 of them three layers' inputs; its copied config names no sections."""
    kept = {"max_num_batched_tokens": 2048, "max_num_seqs": 1, "version": "0.25.1"}
    assert predict("qwen3-vl-2b", **kept).rank.weight_bytes / MIB == pytest.approx(4339.5, abs=2)  # type: ignore[arg-type]
    kept["max_num_batched_tokens"] = 4096
    assert predict("qwen3-vl-2b", **kept).rank.weight_bytes / MIB == pytest.approx(4363.5, abs=2)  # type: ignore[arg-type]


CONFIG = LLAMA | {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1024}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def test_a_gguf_file_counts_as_stored_also_outside_its_layers(tmp_path: Path) -> None:
    """The embedding and the head are 8-bit there, and stay so under vLLM."""
    spec = resolve_model(str(write_gguf(tmp_path / "small.gguf")))
    assert spec.checkpoint is not None
    stored = sum(each.num_bytes for each in spec.checkpoint.language_model)
    table = 256 * (64 // 4) * 2  # cos and sin of 256 positions
    assert weights(spec) == pytest.approx(stored + table, rel=0.01)


def weights(spec: object, tp: int = 1) -> int:
    settings = ServingSettings(tensor_parallel_size=tp)
    return predict_vllm(spec, find_gpu("h100-sxm"), settings).rank.weight_bytes  # type: ignore[arg-type]


@pytest.mark.parametrize("tp", [1, 2])
def test_a_checkpoint_as_its_config_says_changes_nothing(tmp_path: Path, tp: int) -> None:
    spec = resolve_model(str(write_checkpoint(tmp_path, CONFIG, llama_tensors(CONFIG))))
    assert weights(spec, tp) == weights(replace(spec, checkpoint=None), tp)


@pytest.mark.parametrize("tp", [1, 2])
def test_layers_that_were_left_unquantized_count_as_stored(tmp_path: Path, tp: int) -> None:
    """The config says fp8 everywhere, the second layer is stored in bfloat16."""
    tensors = llama_tensors(CONFIG)
    for name, (_, shape) in tuple(tensors.items()):
        if "layers.0" in name and "_proj" in name:
            tensors |= {name: ("F8_E4M3", shape)}
    folder = write_checkpoint(tmp_path, CONFIG | {"quantization_config": FP8}, tensors)
    spec = resolve_model(str(folder))
    matrices = 2 * 512 * 512 + 2 * 256 * 512 + 3 * 96 * 512
    more = weights(spec, tp) - weights(replace(spec, checkpoint=None), tp)
    assert more == pytest.approx(matrices / tp, rel=0.01)


QWEN3_8B_MATRIX = 151_936 * 4096 * 2
STEP = 2048 * 4096 * 2


def predict(model: str = "qwen3-8b", gpu: str = "l4", version: str = "0.27.1", **settings: object) -> VllmPrediction:
    asked = ServingSettings(max_model_len=8192, **settings)  # type: ignore[arg-type]
    return predict_vllm(resolve_model(model), find_gpu(gpu), asked, version)


@pytest.mark.parametrize("version", ["0.25.1", "0.29.0", "0.33.0"])
def test_a_first_start_takes_the_embedding_once_more_and_two_outputs_of_a_step(version: str) -> None:
    """1,220 MiB in 0.29.0 and 0.33.0 on a CUDA runtime without a GPU, whatever the L2 cache is."""
    for gpu in ("l4", "rtx-4090"):
        peak = predict(gpu=gpu, version=version).rank.activation
        assert (peak.decided_by, peak.peak_bytes) == ("compilation", QWEN3_8B_MATRIX + 2 * STEP)


def test_a_start_of_two_gpus_that_others_measured_both_ways() -> None:
    """Issue 54383 of vllm-project/vllm: 245 blocks, 0.47 GiB of each RTX 4090, less at the first start of a shape."""
    found = predict(
        "qwen3-32b", "rtx-4090", "0.28.0", quantization="awq", tensor_parallel_size=2, gpu_memory_utilization=0.85,
        max_num_batched_tokens=3584, max_num_seqs=40,
    )  # fmt: skip
    assert warm_gain_bytes(found) / GIB == pytest.approx(0.47, abs=0.01)


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("qwen3-8b", {"enforce_eager": True}),
        ("qwen3-8b", {"warm_start": True}),
        ("qwen3-8b", {"version": "0.11.0"}),  # PyTorch 2.8
    ],
)
def test_a_start_that_compiles_nothing_times_nothing(model: str, settings: dict[str, object]) -> None:
    assert predict(model, **settings).rank.activation.compiling_bytes == 0  # type: ignore[arg-type]


def test_a_model_with_vision_compiles_its_lookup_as_a_language_model_alone() -> None:
    assert predict("gemma-3-4b", language_model_only=True).rank.activation.compiling_bytes > GIB


def test_gemma_4s_inputs_of_every_layer_are_the_largest_table_that_is_timed() -> None:
    """Where tokens are looked up inside the compiled decoder: not behind towers, and not in Gemma 3n at all."""
    alone = predict("gemma-4-e2b", language_model_only=True).rank.activation
    assert alone.compiling_bytes == (262144 + 2 * 2048) * 35 * 256 * 2
    assert predict("gemma-4-e2b").rank.activation.compiling_bytes < GIB / 4
    assert predict("gemma-3n-e4b", language_model_only=True).rank.activation.compiling_bytes < 2 * GIB


@pytest.mark.parametrize("model", ["gemma-3-4b", "qwen3-omni-30b-a3b", "llama-4-scout", "phi-3-vision-128k"])
def test_models_that_see_look_tokens_up_before_their_compiled_decoder(model: str) -> None:
    """Whether or not their config names a tower."""
    activation = predict(model, gpu="h200").rank.activation
    assert activation.compiling_bytes < activation.warm_peak_bytes


def test_slots_of_the_embeddings_adapters_are_looked_up_and_timed_with_the_matrix() -> None:
    """Run without a GPU on 0.25.1 and 0.29.0: 741.88 + 37.09 + 10 MiB, and the L2 cache's 72."""
    found = predict("qwen3-4b", gpu="rtx-4090", enable_lora=True, max_loras=8, max_lora_rank=16)
    assert found.rank.activation.compiling_bytes / MIB == pytest.approx(860.97, abs=0.01)


def test_only_the_first_stage_has_the_embedding() -> None:
    ranks = predict_ranks(resolve_model("qwen3-8b"), find_gpu("l40s"), ServingSettings(pipeline_parallel_size=2)).ranks
    first, last = (rank.activation.compiling_bytes for rank in ranks)
    assert (first, last) == (QWEN3_8B_MATRIX + 2 * STEP, 2 * STEP + 2048 * 3 * 12288 * 2 + 96 * MIB)


@pytest.mark.parametrize("version", ["0.25.1", "0.28.0"])
def test_a_lookup_of_several_ranks_is_timed_before_its_parts_are_summed(version: str) -> None:
    """681.5 MiB in 0.25.1 on two RTX 4090 that are not there; the issue above is of 0.28.0."""
    peak = predict(gpu="rtx-4090", version=version, tensor_parallel_size=2).rank.activation
    assert (peak.decided_by, peak.peak_bytes) == ("compilation", QWEN3_8B_MATRIX // 2 + STEP + 72 * MIB)


def test_from_0_29_on_ranks_look_tokens_up_without_a_compiled_kernel() -> None:
    """What is timed instead is the feed-forward's activation: 262 MiB of Qwen3-32B-AWQ, of FP8 on L40S 286."""
    for version in ("0.29.0", "0.33.0"):
        two = predict("qwen3-32b", "rtx-4090", version, tensor_parallel_size=2).rank.activation
        assert two.compiling_bytes == 2048 * (2 * 5120 + 3 * 12800) * 2 + 72 * MIB


def test_a_later_start_has_as_much_more_and_the_answer_says_so() -> None:
    first, later = predict(), predict(warm_start=True)
    gain = later.rank.available_kv_bytes - first.rank.available_kv_bytes
    assert gain == warm_gain_bytes(first) > GIB * 0.9
    assert warm_gain_bytes(later) == 0
    spec, gpu = resolve_model("qwen3-8b"), find_gpu("l4")
    assert kv_range(spec, gpu, first).later_start_bytes == gain
    assert kv_range(spec, gpu, later).later_start_bytes == 0
