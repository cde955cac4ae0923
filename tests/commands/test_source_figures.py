"""Figures that articles on KV-cache sizing give, printed by the command: right where the article is wrong."""

from __future__ import annotations

import json

import pytest

from kvplan.cli import main

MIB, GIB = 2**20, 2**30


def estimate(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    code = main(["estimate", *arguments, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == (0 if any(each["fits"] for each in found["deployments"]) else 1)
    return found


def test_bytes_per_token_are_two_times_layers_heads_size_and_bytes(capsys):
    cache = estimate(capsys, "llama-3.1-8b", "--ctx", "4k", "--gpu", "l4")["kv_cache"]
    assert cache["bytes_per_token"] == 2 * 32 * 8 * 128 * 2
    assert cache["components"][0]["formula"] == "32 layers x 2 (K, V) x 8 KV heads x 128 x 2 B"


@pytest.mark.parametrize(
    ("context", "expected"), [("4k", 512 * MIB), ("16k", 2 * GIB), ("32k", 4 * GIB), ("64k", 8 * GIB)]
)
def test_llama_31_8b_grows_linearly(capsys, context, expected):
    assert estimate(capsys, "llama-3.1-8b", "--ctx", context, "--gpu", "l4")["kv_cache"]["logical_bytes"] == expected


def test_llama_2_7b_has_no_grouping(capsys):
    assert estimate(capsys, "llama-2-7b", "--gpu", "l4")["kv_cache"]["bytes_per_token"] == 512 * 1024


def test_llama_13b_at_2048_tokens_is_not_800_megabytes(capsys):
    assert estimate(capsys, "llama-13b", "--ctx", "2k", "--gpu", "l4")["kv_cache"]["logical_bytes"] == 1.5625 * GIB


@pytest.mark.parametrize("engine", ["vllm", "kvplan"])
def test_a_100_80gb_serves_a_dozen_sequences_of_32k(capsys, engine):
    found = estimate(capsys, "llama-3.1-8b", "--ctx", "32k", "--gpu", "a100-80gb-sxm", "--engine", engine)
    assert 12 <= found["deployments"][0]["max_concurrency"] <= 14.5
    assert found["deployments"][0]["weight_bytes"] == pytest.approx(16.06e9, rel=0.01)


@pytest.mark.parametrize(
    ("model", "gigabytes"),
    [
        ("llama-3.1-8b", 16),
        ("llama-3.1-70b", 141.1),
        ("mistral-7b-v0.3", 14.5),
        ("mixtral-8x7b", 93.4),
        ("qwen2.5-7b", 15.2),
    ],
)
def test_weights_in_16_bit(capsys, model, gigabytes):
    weight_bytes = estimate(capsys, model, "--ctx", "4k", "--gpu", "l4")["model"]["weight_bytes"]
    assert weight_bytes / 1e9 == pytest.approx(gigabytes, abs=0.1)


def test_70b_needs_two_gpus_of_80_gb(capsys):
    one, two = (
        estimate(capsys, "llama-3.1-70b", "--ctx", "8k", "--gpu", "a100-80gb-sxm", "--tp", ranks)["deployments"][0]
        for ranks in ("1", "2")
    )
    assert not one["fits"] and "weights do not fit" in one["limit"]
    assert two["fits"]


def test_a_context_that_does_not_fit_is_refused_with_the_longest_that_does(capsys):
    found = estimate(capsys, "llama-3.1-8b", "--ctx", "128k", "--gpu", "rtx-4090")["deployments"][0]
    assert not found["fits"]
    assert found["limit"].startswith("longest sequence that fits: ")
    longest = int(found["limit"].split(": ")[1].split(" ")[0].replace(",", ""))
    assert 32_768 < longest < 131_072
