"""What vLLM refuses on older GPUs, and versions of it that are not known."""

from __future__ import annotations

import pytest

from kvplan.catalog.devices.device_support import check_formats, dtype_on
from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.catalog.releases.vllm import latest_vllm, version_note, vllm_release
from kvplan.errors import UsageError
from kvplan.estimate.answer import with_quantization
from kvplan.settings import ServingSettings

LLAMA = resolve_model("llama-3.1-8b")


@pytest.mark.parametrize(
    ("gpu", "model", "version", "dtype"),
    [
        ("t4", "llama-3.1-8b", "latest", "float16"),
        ("v100", "llama-3.1-8b", "0.9.0", "float16"),
        ("t4", "gemma-2-2b", "latest", "float32"),
        ("l4", "llama-3.1-8b", "latest", "bfloat16"),
        ("mi300x", "llama-3.1-8b", "0.6.0", "bfloat16"),
        ("cpu", "llama-3.1-8b", "latest", "bfloat16"),
    ],
)
def test_gpus_without_bfloat16_are_served_in_what_vllm_falls_back_to(
    gpu: str, model: str, version: str, dtype: str
) -> None:
    assert dtype_on(find_gpu(gpu), resolve_model(model), "bfloat16", asked="auto", version=version) == dtype


@pytest.mark.parametrize(("asked", "version"), [("bfloat16", "latest"), ("auto", "0.8.5")])
def test_bfloat16_on_a_t4_is_refused_as_vllm_does(asked: str, version: str) -> None:
    with pytest.raises(UsageError, match=r"needs compute capability 8.0, and t4 has 7.5") as caught:
        dtype_on(find_gpu("t4"), LLAMA, "bfloat16", asked=asked, version=version)
    assert caught.value.hint == "use --dtype half"


@pytest.mark.parametrize(
    ("gpu", "quantization", "kv_cache_dtype", "version", "refused"),
    [
        ("v100", "fp8", "float16", "latest", "fp8 weights"),
        ("v100", "awq", "float16", "latest", "awq weights"),
        ("v100", "gptq", "float16", "latest", None),
        ("v100", "none", "fp8", "latest", "a KV cache in fp8"),
        ("t4", "fp8", "float16", "latest", None),
        ("t4", "fp8", "float16", "0.11", "fp8 weights"),
        ("a100-80", "fp8", "fp8", "latest", None),
        ("mi300x", "fp8", "fp8", "latest", None),
    ],
)
def test_formats_without_kernels_on_an_old_gpu_are_refused(
    gpu: str, quantization: str, kv_cache_dtype: str, version: str, refused: str | None
) -> None:
    spec = with_quantization(LLAMA, ServingSettings(quantization=quantization))
    if refused is None:
        check_formats(find_gpu(gpu), spec, kv_cache_dtype, version=version)
        return
    with pytest.raises(UsageError, match=f"no kernels for {refused} on {find_gpu(gpu).id}"):
        check_formats(find_gpu(gpu), spec, kv_cache_dtype, version=version)


def test_a_version_newer_than_the_newest_known_is_sized_as_that_and_said() -> None:
    assert vllm_release("0.99").text == vllm_release("latest").text == latest_vllm()
    assert latest_vllm() in (version_note("0.99") or "")
    assert [version_note(known) for known in ("latest", latest_vllm(), "0.19", "0.2.5", "0.1.dev18496+gabc")] == [
        None
    ] * 5
    assert "older" in (version_note("0.1.7") or "")
