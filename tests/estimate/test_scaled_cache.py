"""A KV cache of integers with a scale for each token and head: vLLM's bytes, and who has none."""

from __future__ import annotations

import json

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.errors import UsageError
from kvplan.estimate.kv_cache import CacheSettings, size_sequence
from kvplan.estimate.sglang import predict_sglang
from kvplan.estimate.vllm.prediction import VllmPrediction, predict_vllm
from kvplan.settings import ServingSettings

SCALED = "int8_per_token_head"


def predict(model: str, gpu: str = "h100", version: str = "0.32.0", **settings: object) -> VllmPrediction:
    asked = ServingSettings(**{"max_model_len": 8192, "kv_cache_dtype": SCALED, **settings})  # type: ignore[arg-type]
    return predict_vllm(resolve_model(model), find_gpu(gpu), asked, version)


@pytest.mark.parametrize("tensor_parallel_size", [1, 4])
def test_a_block_has_the_bytes_of_vllms_pages(tensor_parallel_size: int) -> None:
    """AttentionSpec.page_size_bytes: 2 x 16 x heads x 128 integers and 2 x 16 x heads float32, for 32 layers."""
    heads = 8 // tensor_parallel_size
    blocks = predict("llama-3.1-8b", tensor_parallel_size=tensor_parallel_size).rank.blocks
    assert blocks.bytes_per_block == 32 * (2 * 16 * heads * 128 + 2 * 16 * heads * 4)


def test_a_state_raises_the_block_to_pages_with_scales() -> None:
    """_align_hybrid_block_size divides the state's page by that of one token, scales included."""
    cache = CacheSettings(kv_dtype=SCALED)
    (attention,) = [c for c in size_sequence(resolve_model("qwen3.5-27b"), 1, cache).components if c.kind == "full"]
    states = [c for c in size_sequence(resolve_model("qwen3.5-27b"), 1, cache).components if c.entry.state_bytes]
    token_bytes, state_bytes = attention.entry.token_bytes, sum(c.entry.state_bytes for c in states)
    assert token_bytes == 4 * (256 + 256 + 8)
    assert predict("qwen3.5-27b").rank.blocks.block_size == 16 * -(-state_bytes // (16 * token_bytes))


def test_values_of_another_size_are_counted_and_their_formula_says_so() -> None:
    size = size_sequence(resolve_model("mimo-v2-flash"), 1, CacheSettings(kv_dtype=SCALED))
    (full,) = [component for component in size.components if component.kind == "full"]
    assert full.entry.token_bytes == 4 * (192 + 128 + 8)
    assert full.entry.formula == "4 KV heads x ((192 K + 128 V) x 1 B + 2 x 4 B scale)"


@pytest.mark.parametrize(
    ("model", "version", "sentence"),
    [
        ("deepseek-v3", "0.32.0", "is for keys and values of KV heads, and this model keeps latents"),
        ("deepseek-v4-flash", "0.32.0", "is for keys and values of KV heads, and this model keeps latents"),
        ("whisper-large-v3", "0.32.0", "and this model keeps an encoder's tokens"),
        ("mimo-v2-flash", "0.32.0", "for keys and values of unlike sizes, as in"),
        ("llama-3.1-8b", "0.18.1", "vLLM 0.18.1 has no kv_cache_dtype int8_per_token_head, which 0.20 has"),
    ],
)
def test_what_cannot_be_kept_so_is_refused(model: str, version: str, sentence: str) -> None:
    length = 448 if model.startswith("whisper") else 8192
    with pytest.raises(UsageError) as refusal:
        predict(model, version=version, max_model_len=length, tensor_parallel_size=4)
    assert sentence in refusal.value.message
    assert refusal.value.hint


def test_flashinfer_has_no_workspace_for_it_on_blackwell() -> None:
    graphs = {kv: predict("llama-3.1-8b", "b200", kv_cache_dtype=kv).rank.cudagraph_bytes for kv in ("fp8", SCALED)}
    assert graphs["fp8"] - graphs[SCALED] >= 394 * 1024**2


def test_sglang_has_none() -> None:
    with pytest.raises(UsageError, match="SGLang has no KV cache in int8_per_token_head"):
        predict_sglang(resolve_model("llama-3.1-8b"), find_gpu("h100"), ServingSettings(kv_cache_dtype=SCALED))


def test_a_plan_offers_the_engines_that_have_it(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "llama-3.1-8b", "--users", "4", "--ctx-avg", "4k", "--gpu", "h100", "--json"]
    assert main([*arguments, "--kv-cache-dtype", SCALED]) == 0
    best = json.loads(capsys.readouterr().out)["deployments"][0]
    assert set(best["commands"]) == {"vllm", "kvplan"}
    assert all(f"--kv-cache-dtype {SCALED}" in command for command in best["commands"].values())
