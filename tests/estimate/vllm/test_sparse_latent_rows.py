"""Sparse latent attention: what its kernels keep in 8 bits, by GPU and release."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.catalog.spec import LatentAttention
from kvplan.cli import main
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.settings import ServingSettings

INDEX_KEY = 128 + 4


@pytest.mark.parametrize(
    ("model", "gpu", "asked", "ranks", "version", "dtype"),
    [
        ("glm-5.1", "rtx-pro-6000", "auto", 8, "0.33.0", "fp8_ds_mla"),
        ("glm-5.1", "rtx-pro-6000", "fp8", 8, "0.24.0", "fp8_ds_mla"),
        ("glm-5.1", "h200", "auto", 8, "0.33.0", "bfloat16"),
        ("deepseek-v3.2", "h200", "auto", 8, "0.11.0", "fp8_ds_mla"),
        ("deepseek-v3.2", "h200", "auto", 8, "0.11.1", "bfloat16"),
        ("deepseek-v3.2", "h200", "fp8", 8, "0.33.0", "fp8_ds_mla"),
        ("deepseek-v3.2", "h200", "fp8_e4m3", 8, "0.17.0", "fp8_ds_mla"),
        ("deepseek-v3.2", "h200", "fp8_e4m3", 8, "0.30.0", "fp8_e4m3"),
        ("deepseek-v3.2", "b200", "fp8", 8, "0.17.0", "fp8_ds_mla"),
        ("deepseek-v3.2", "b200", "fp8", 4, "0.18.0", "fp8_ds_mla"),
        ("deepseek-v3.2", "b200", "fp8", 8, "0.18.0", "fp8"),
        ("glm-5.1", "b200", "fp8", 8, "0.18.0", "fp8_ds_mla"),
        ("deepseek-v3.2", "b200", "fp8", 4, "0.19.0", "fp8"),
        ("glm-5.1", "b300", "auto", 4, "0.33.0", "fp8_e4m3"),
        ("deepseek-v3.2", "mi300x", "fp8", 8, "0.33.0", "fp8"),
    ],
)
def test_each_kernel_keeps_8_bits_its_way(
    model: str, gpu: str, asked: str, ranks: int, version: str, dtype: str
) -> None:
    """_get_backend_priorities and _canonicalize_sparse_mla_kv_cache_dtype: 656 B of a token in each layer, or 576."""
    spec = resolve_model(model)
    settings = ServingSettings(kv_cache_dtype=asked, tensor_parallel_size=ranks)
    found = predict_vllm(spec, find_gpu(gpu), settings, version)
    assert found.settings.serving.kv_cache_dtype == dtype
    row = {"fp8_ds_mla": 656, "bfloat16": 2 * 576}.get(dtype, 576)
    mixers = [layer.mixer for layer in spec.layers]
    keys = sum(isinstance(mixer, LatentAttention) and mixer.indexer is not None for mixer in mixers)
    assert found.bytes_per_block == found.block_size * (spec.num_layers * row + keys * INDEX_KEY)


Answer = Callable[..., Any]


@pytest.fixture
def answer(capsys: pytest.CaptureFixture[str]) -> Answer:
    def run(*words: str) -> Any:
        assert main([*words, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_an_estimate_for_one_kind_of_gpu_shows_its_rows(answer: Answer) -> None:
    def cache(gpu: str, *words: str) -> tuple[str, int]:
        found = answer("estimate", "deepseek-v3.2", "--ctx", "32k", "--gpu", gpu, *words)["kv_cache"]
        assert found["paged_bytes"] == found["logical_bytes"]
        return found["dtype"], found["bytes_per_token"]

    assert cache("8xh200", "--kv-cache-dtype", "fp8") == ("fp8_ds_mla", 61 * (656 + INDEX_KEY))
    assert cache("8xb200", "--kv-cache-dtype", "fp8") == ("fp8", 61 * (576 + INDEX_KEY))
    assert cache("8xb200,8xh200", "--kv-cache-dtype", "fp8") == ("fp8", 61 * (576 + INDEX_KEY))


def test_gpus_without_a_kernel_are_not_shown_by_default(answer: Answer) -> None:
    assert [each["gpu"] for each in answer("estimate", "deepseek-v3.2")["deployments"]] == ["h100-sxm", "h200"]


def test_other_engines_are_told_of_8_bits_too(answer: Answer) -> None:
    load = ("--users", "8", "--input-len", "1000", "--output-len", "200", "--kv-cache-dtype", "fp8")
    first = answer("plan", "deepseek-v3.2", "--gpu", "h200", *load)["deployments"][0]
    assert first["kv_cache_dtype"] == "fp8_ds_mla"
    assert "--kv-cache-dtype fp8" in first["commands"]["vllm"]
    assert "--kv-cache-dtype fp8_e4m3" in first["commands"]["sglang"]
