"""Which GPU a log is of: one profile where only one fits, else none."""

from __future__ import annotations

import pytest

from kvplan.catalog.models import resolve_model
from kvplan.explaining.explanation import explain_log
from kvplan.explaining.startup_log import parse_startup_log
from kvplan.explaining.which_gpu import fitting_gpus

TOTAL = "Free memory on device (1.0/{} GiB) on startup. Desired GPU memory utilization is (0.9, 1.0 GiB).\n"


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        (TOTAL.format("79.19"), ["h100-sxm"]),
        (TOTAL.format("119.63"), ["gb10"]),
        (TOTAL.format("121.69"), ["gb10"]),
        (TOTAL.format("31.37"), ["rtx-5090", "rtx-pro-4500"]),
        (TOTAL.format("178.35"), ["b200"]),
        ("HIP out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which", []),
        (
            "HIP out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 191.98 GiB of which",
            ["mi300x"],
        ),
        ("configs/E=256,N=512,device_name=NVIDIA_GB10.json\nAvailable KV cache memory: 1.0 GiB", ["gb10"]),
        (
            "E=128,N=704,device_name=NVIDIA_RTX_PRO_6000_Blackwell_Server_Edition,dtype=fp8_w8a8.json",
            ["rtx-pro-6000"],
        ),
        ("GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\n" + TOTAL.format("79.25"), ["a100-80gb-sxm"]),
        ("|   0  NVIDIA GeForce RTX 3060          On  |\n" + TOTAL.format("11.63"), ["rtx-3060"]),
        ("On 2x DGX Spark (TP=2), Available KV cache memory: 22.5 GiB", ["gb10"]),
        ("2 x RTX 3090, vLLM 0.21.0\nAvailable KV cache memory: 22.5 GiB", ["rtx-3090"]),
        ("It works on an A100, but not on an H20\nAvailable KV cache memory: 22.5 GiB", []),
        ("0: NVIDIA GeForce RTX 5070 Ti 16303MiB\n1: NVIDIA GeForce RTX 5090 D 32607MiB", []),
    ],
)
def test_one_profile_or_none(text: str, ids: list[str]) -> None:
    assert [gpu.id for gpu in fitting_gpus(parse_startup_log(text)).profiles] == ids


@pytest.mark.parametrize(
    ("total", "among"),
    [
        ("79.25", ["a100-80gb-sxm", "h100-sxm", "h100-pcie"]),
        ("11.63", ["rtx-3060", "rtx-3080-ti", "rtx-4070"]),
        ("44.42", ["l40s", "l40", "a40"]),
        ("23.55", ["rtx-3090", "rtx-4090"]),
    ],
)
def test_cards_of_one_size_are_not_told_apart(total: str, among: list[str]) -> None:
    log = parse_startup_log(TOTAL.format(total) + "Available KV cache memory: 2.0 GiB")
    answer = explain_log(log, None, None)
    assert answer.gpu is None
    assert {gpu.id for gpu in fitting_gpus(log).profiles} >= set(among)
    assert any(f"A GPU with {total} GiB, as in the log, may be" in note for note in answer.notes)


def test_nothing_is_compared_where_the_gpus_that_fit_differ() -> None:
    log = parse_startup_log("vLLM 0.25.1\n" + TOTAL.format("79.25") + "Available KV cache memory: 50.0 GiB")
    answer = explain_log(log, resolve_model("llama-3.1-8b"), None)
    assert answer.predicted.kv_cache_tokens is None
    assert all(part.predicted_bytes is None for part in answer.parts)
    assert "So nothing is compared." in answer.notes


def test_the_total_follows_from_two_shares_and_the_graphs_estimate() -> None:
    """0.10 GiB over 1.58 GiB of graphs: what a GPU of 94.97 GiB printed."""
    text = (
        "Estimated CUDA graph memory: 1.58 GiB total\nThe current --gpu-memory-utilization=0.9500 is equivalent to "
        "--gpu-memory-utilization=0.9334 without CUDA graph memory profiling.\n"
    )
    low, high = parse_startup_log(text).memory.total_range or (0, 0)
    assert low < 94.97 * 2**30 < high
    assert (high - low) / low < 0.02
    small = text.replace("1.58", "0.45").replace("0.9334", "0.9295")
    (low, high), near = parse_startup_log(small).memory.total_range or (0, 0), 22.06 * 2**30
    assert low < near < high, "22.06 x (0.95 - 0.9295) = 0.452"


def test_bfloat16_excludes_cards_that_have_none() -> None:
    text = TOTAL.format("15.75")
    assert any(gpu.id.startswith("v100") for gpu in fitting_gpus(parse_startup_log(text)).profiles)
    brief = fitting_gpus(parse_startup_log(text + "dtype=torch.bfloat16")).profiles
    assert brief and not any(gpu.id.startswith("v100") for gpu in brief)
