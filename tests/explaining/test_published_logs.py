"""Every start-up log at hand: the settings read, how it ended, and the advice that its people followed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from data_rows import data_rows

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.explaining.explanation import LogAccount, difference_gib, explain_log
from kvplan.explaining.startup_log import parse_startup_log
from kvplan.explaining.which_gpu import fitting_gpus
from kvplan.settings import KNOBS
from kvplan.units import GIB

LOGS = Path(__file__).resolve().parents[1] / "data" / "startup_logs"


def explained(row: dict[str, Any]) -> LogAccount:
    log = parse_startup_log((LOGS / f"{row['log']}.log").read_text(encoding="utf-8"))
    model = row.get("model") or log.model
    spec = None if model is None or model.startswith(("/", "zai-org")) else resolve_model(model)
    return explain_log(log, spec, find_gpu(row["gpu"]) if "gpu" in row else None)


@pytest.mark.parametrize("row", data_rows("published_logs"), ids=lambda row: row["log"])
def test_a_published_log_is_read_and_answered(row: dict[str, Any]) -> None:
    answer = explained(row)
    settings, stopped = row.get("settings", {}), row.get("stopped", "")
    assert {name: getattr(answer.log.settings, name) for name in settings} == settings
    assert (answer.log.stopped or "").startswith(stopped) and bool(answer.log.stopped) == bool(stopped)
    said = "\n".join(change.sentence for change in answer.changes)
    assert [words for words in row.get("says", ()) if words not in said] == []
    assert [words for words in row.get("never", ()) if words in said] == []
    if "gpu_is" in row:
        assert answer.gpu is not None and answer.gpu.id == row["gpu_is"]


EVERY = sorted(path.stem for path in LOGS.glob("*.log"))
_SHARE = re.compile(r"--(?:gpu-memory-utilization|mem-fraction-static)(?: to| above)? (\d+(?:\.\d+)?)")
_GPUS = re.compile(r"use (\d+) GPUs in all instead of (\d+)")


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("gpu", ["gb10", "l4"])
def test_no_advice_is_impossible(name: str, gpu: str) -> None:
    log = parse_startup_log((LOGS / f"{name}.log").read_text(encoding="utf-8"))
    answer = explain_log(log, resolve_model("qwen3.5-27b"), find_gpu(gpu))
    used = log.settings.gpu_memory_utilization
    for change in answer.changes:
        for share in map(float, _SHARE.findall(change.sentence)):
            assert share < 1
            assert "raise" not in change.sentence or used is None or share > used
        for more, now in _GPUS.findall(change.sentence):
            assert int(more) > int(now) >= log.settings.tensor_parallel_size
    assert all(KNOBS[name].check(getattr(log.settings, name)) is None for name in ("max_num_seqs", "max_model_len"))


def test_from_027_on_the_peak_has_the_graphs_in_it() -> None:
    """What was printed: 110.06 - 55.99 - 3.78 = 50.29, of which the graphs' estimate is 1.94 and the weights 51.35."""
    memory = parse_startup_log((LOGS / "vllm-0.27-qwen3.8-27b-gb10.log").read_text(encoding="utf-8")).memory
    apart = (memory.consumed_bytes, memory.weight_bytes, memory.non_torch_bytes, memory.activation_bytes)
    assert [round((number or 0) / GIB, 2) for number in apart] == [55.99, 51.35, 4.64, 1.84]
    graphs = (memory.graph_estimate_bytes, memory.graph_bytes)
    assert [round((number or 0) / GIB, 2) for number in graphs] == [1.94, 0.94]


def test_a_peak_whose_graphs_are_not_printed_is_compared_with_both() -> None:
    text = (
        "Initializing a V1 LLM engine (v0.31.0) with config: model='org/m', enforce_eager=False\n"
        "Free memory on device (78.84/79.25 GiB) on startup. Desired GPU memory utilization is (0.92, 72.91 GiB). "
        "Actual usage is 15.26 GiB for consumed memory (weights + non-torch), 1.44 GiB for peak activation, and 0.23 "
        "GiB for CUDAGraph memory.\nModel loading took 15.0 GiB memory\n"
    )
    log = parse_startup_log(text)
    assert log.memory.activation_bytes is None
    answer = explain_log(log, resolve_model("llama-3.1-8b"), find_gpu("a100-80gb-sxm"))
    parts = {part.name: part for part in answer.parts}
    assert "activations (peak)" not in parts
    together = parts["activations and graphs"]
    assert together.logged_bytes == round(1.44 * GIB)
    assert abs(difference_gib(together) or 9) < 0.75
    eager = parse_startup_log(text.replace("enforce_eager=False", "enforce_eager=True"))
    assert eager.memory.activation_bytes == round(1.44 * GIB)


def test_before_027_the_peak_is_the_activations() -> None:
    memory = parse_startup_log((LOGS / "vllm-0.19-llama-3.1-8b-h100.log").read_text(encoding="utf-8")).memory
    assert (memory.consumed_bytes, memory.activation_bytes) == (None, round(1.89 * GIB))


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
