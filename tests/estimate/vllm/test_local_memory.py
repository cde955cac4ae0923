"""What kernels that are tried out take: Triton's buffer, and the driver's local memory for what they spill."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.vllm.prediction import VllmPrediction, predict_vllm
from kvplan.estimate.vllm.ranges import possible_loss_bytes
from kvplan.estimate.vllm.trials import trial_bytes
from kvplan.settings import ServingSettings
from kvplan.units import GIB, MIB


def _predict(spec: ModelSpec, gpu: str, release: str, **settings: object) -> VllmPrediction:
    asked = {"max_model_len": 8192, "language_model_only": True, "enforce_eager": True, **settings}
    return predict_vllm(spec, find_gpu(gpu), ServingSettings(**asked), release)  # type: ignore[arg-type]


def _small() -> ModelSpec:
    return resolve_model("qwen3.5-0.8b")


@pytest.mark.parametrize(("model", "stack"), [("qwen3.5-0.8b", 11944), ("qwen3.5-35b-a3b", 11912), ("qwen3.5-27b", 0)])
def test_a_kernel_that_spills_costs_every_thread_of_an_a100(model: str, stack: int) -> None:
    """108 multiprocessors hold 2,048 threads each; a context has 1 KiB for each of them anyway."""
    local = _predict(resolve_model(model), "a100-80gb-sxm", "0.28.0").rank.local
    assert local.grown_bytes == max(stack - 1024, 0) * 108 * 2048
    assert local.possible_bytes == 0


def test_local_memory_is_part_of_what_torch_does_not_see() -> None:
    """X011 and X013 of tests/data/vllm_startups.csv: 4.18 and 4.31 GiB were consumed beside 1.72 of weights."""
    spills, other = (_predict(_small(), gpu, "0.28.0").rank for gpu in ("a100-80gb-sxm", "rtx-3090"))
    assert spills.non_torch_bytes - other.non_torch_bytes == pytest.approx(2.25 * GIB, abs=0.01 * GIB)


def test_before_the_profile_run_tried_kernels_nothing_grew() -> None:
    assert _predict(_small(), "a100-80gb-sxm", "0.17.1").rank.local.grown_bytes == 0


@pytest.mark.parametrize("gpu", ["h100-sxm", "mi300x"])
def test_flashinfers_kernels_and_rocms_local_memory_are_not_counted(gpu: str) -> None:
    found = _predict(_small(), gpu, "0.29.0")
    assert (found.rank.local.grown_bytes, found.rank.local.possible_bytes) == (0, 0)
    release, settings = vllm_release("0.29.0"), found.settings.serving
    held = trial_bytes(_small(), _small().layers, find_gpu(gpu), settings, release)
    assert (held > 0) == (gpu == "mi300x")  # ROCm times Triton's kernels, too


def test_heads_that_were_not_compiled_widen_the_interval() -> None:
    spec = _small()
    mixer = spec.states[0]
    odd = replace(mixer, conv_channels=8 * 128, recurrent_shape=(6, 128, 128))
    layer = replace(spec.layers[0], mixer=odd)
    unread = replace(spec, layers=(layer, *spec.layers[1:]))
    found = _predict(unread, "a100-80gb-sxm", "0.28.0")
    assert found.rank.local.grown_bytes == 0
    assert found.rank.local.possible_bytes == (11944 - 1024) * 108 * 2048
    gpu = find_gpu("a100-80gb-sxm")
    assert possible_loss_bytes(unread, gpu, found) >= found.rank.local.possible_bytes


@pytest.mark.parametrize(
    ("model", "quantization", "gpu", "stack"),
    [
        ("qwen3-8b", "fp8", "rtx-4090", 2048),
        ("qwen2.5-7b", "fp8", "rtx-4090", 2288),  # its queries, keys and values have a bias
        ("qwen3-8b", "auto", "rtx-4090", 1024),
        ("qwen3-8b", "fp8", "rtx-3090", 1024),  # Marlin's
        ("qwen3-30b-a3b-fp8", "auto", "rtx-4090", 1024),  # a scale for each block
    ],
)
def test_products_of_eight_bits_spill_on_ada(model: str, quantization: str, gpu: str, stack: int) -> None:
    found = _predict(resolve_model(model), gpu, "0.27.1", quantization=quantization, language_model_only=False)
    threads = find_gpu(gpu).multiprocessors * 1536
    assert found.rank.local.grown_bytes == (stack - 1024) * threads


def test_a_trial_holds_the_buffer_that_flushes_the_cache() -> None:
    """Qwen3.5-4B in eager mode on an RTX 4090 under vLLM 0.29, run without a GPU: 348.5 MiB at the peak of the trial.

    There are 10 MiB of hidden states, twice, 48 of the projection, 16 of the output, 8.1 of cuBLAS's workspace, 256 of
    the buffer, the rest are operands.
    """
    peak = _predict(resolve_model("qwen3.5-4b"), "rtx-4090", "0.29.0", max_num_seqs=8).rank.activation
    assert peak.decoder_bytes == pytest.approx(356 * MIB, abs=10 * MIB)
    before = _predict(resolve_model("qwen3.5-4b"), "rtx-4090", "0.17.1", max_num_seqs=8).rank.activation
    assert peak.decoder_bytes - before.decoder_bytes > 100 * MIB
