"""Tokens of a block that vLLM takes by itself, by release, GPU and kind of attention."""

from __future__ import annotations

import json

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.cli import main
from kvplan.estimate.vllm.block_sizes import default_block_size
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.settings import ServingSettings

GPUS = ("a100-80gb-sxm", "l40s", "h100-sxm", "b200", "rtx-pro-6000")


@pytest.mark.parametrize(
    ("version", "sizes"),
    [
        ("0.7.3", (16, 16, 16, 16, 16)),
        ("0.9.0", (16, 16, 64, 16, 16)),
        ("0.11.0", (16, 16, 64, 128, 16)),
        ("0.15.0", (16, 16, 64, 64, 16)),
        ("0.18.0", (16, 16, 16, 32, 16)),
        ("0.32.0", (16, 16, 16, 32, 16)),
    ],
)
def test_latents(version: str, sizes: tuple[int, ...]) -> None:
    spec, release = resolve_model("deepseek-v3"), vllm_release(version)
    assert tuple(default_block_size(spec, find_gpu(gpu), release, "bfloat16") for gpu in GPUS) == sizes


@pytest.mark.parametrize(("version", "size"), [("0.17.0", 64), ("0.32.0", 64)])
def test_latents_in_8_bits_on_hopper_are_flash_mlas(version: str, size: int) -> None:
    spec = resolve_model("deepseek-v3")
    assert default_block_size(spec, find_gpu("h100-sxm"), vllm_release(version), "fp8") == size


def test_sparse_latents_have_blocks_of_their_index() -> None:
    spec = resolve_model("deepseek-v3.2")
    assert {default_block_size(spec, find_gpu(gpu), vllm_release("0.32.0"), "bfloat16") for gpu in GPUS} == {64}
    on_amd = [default_block_size(spec, find_gpu("mi300x"), vllm_release(each), "fp8") for each in ("0.27.0", "0.28.0")]
    assert on_amd == [64, 16]


def test_other_attention_has_16_tokens() -> None:
    assert default_block_size(resolve_model("llama-3.1-8b"), find_gpu("b200"), vllm_release("0.32.0"), "fp8") == 16


def test_a_prediction_takes_it_and_a_launch_command_leaves_it_out(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ServingSettings(max_model_len=8192)
    found = predict_vllm(resolve_model("deepseek-v2-lite"), find_gpu("a100-80gb-sxm"), asked, "0.32.0")
    assert found.rank.blocks.block_size == 16
    load = ("--users", "4", "--input-len", "500", "--output-len", "100")
    assert main(["plan", "deepseek-v2-lite", "--gpu", "h100-sxm", *load, "--json"]) == 0
    (first, *_) = json.loads(capsys.readouterr().out)["deployments"]
    assert first["block_size"] == 16
    assert "--block-size" not in first["commands"]["vllm"]
