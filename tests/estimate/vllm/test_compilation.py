"""What a first start of vLLM takes while it compiles: kernels are timed on copies of their largest argument."""

from __future__ import annotations

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.estimate.vllm.prediction import VllmPrediction, predict_vllm
from kvplan.estimate.vllm.ranges import kv_range, warm_gain_bytes
from kvplan.settings import ServingSettings
from kvplan.units import GIB, MIB

QWEN3_8B_MATRIX = 151_936 * 4096 * 2
STEP = 2048 * 4096 * 2


def predict(model: str = "qwen3-8b", gpu: str = "l4", version: str = "0.27.1", **settings: object) -> VllmPrediction:
    asked = ServingSettings(max_model_len=8192, **settings)  # type: ignore[arg-type]
    return predict_vllm(resolve_model(model), find_gpu(gpu), asked, version)


def test_a_first_start_takes_the_embedding_once_more_a_steps_output_and_the_l2_cache() -> None:
    peak = predict().rank.activation
    assert (peak.decided_by, peak.peak_bytes) == ("compilation", QWEN3_8B_MATRIX + STEP + 48 * MIB)


def test_a_start_of_two_gpus_that_others_measured_both_ways() -> None:
    """Issue 54383 of vllm-project/vllm: 245 blocks, 0.47 GiB of each RTX 4090, less at the first start of a shape."""
    found = predict(
        "qwen3-32b", "rtx-4090", "0.28.0", quantization="awq", tensor_parallel_size=2, gpu_memory_utilization=0.85,
        max_num_batched_tokens=3584, max_num_seqs=40,
    )  # fmt: skip
    assert warm_gain_bytes(found) / GIB == pytest.approx(0.47, abs=0.02)


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("qwen3-8b", {"enforce_eager": True}),
        ("qwen3-8b", {"warm_start": True}),
        ("qwen3-8b", {"version": "0.11.0"}),  # PyTorch 2.8
        ("gemma-3-4b", {}),  # tokens are looked up before the compiled decoder, as images may stand among them
    ],
)
def test_nothing_is_compiled_where_there_is_no_lookup_to_time(model: str, settings: dict[str, object]) -> None:
    assert predict(model, **settings).rank.activation.compiling_bytes == 0  # type: ignore[arg-type]


def test_a_model_with_vision_compiles_its_lookup_as_a_language_model_alone() -> None:
    assert predict("gemma-3-4b", language_model_only=True).rank.activation.compiling_bytes > GIB


def test_only_the_first_stage_has_the_embedding() -> None:
    two = predict(pipeline_parallel_size=2, gpu="l40s").rank.activation
    assert two.compiling_bytes in (0, QWEN3_8B_MATRIX + STEP + 96 * MIB)
    assert predict(tensor_parallel_size=2).rank.activation.compiling_bytes == QWEN3_8B_MATRIX // 2 + STEP + 48 * MIB


def test_a_later_start_has_as_much_more_and_the_interval_reaches_it() -> None:
    first, later = predict(), predict(warm_start=True)
    gain = later.rank.available_kv_bytes - first.rank.available_kv_bytes
    assert gain == warm_gain_bytes(first) > GIB * 0.9
    assert warm_gain_bytes(later) == 0
    spec, gpu = resolve_model("qwen3-8b"), find_gpu("l4")
    assert kv_range(spec, gpu, first).pool_bytes[1] > later.rank.available_kv_bytes
