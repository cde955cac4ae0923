"""Every start-up log at hand: the settings read, how it ended, and the advice that its people followed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.explaining.explanation import LogAccount, difference_gib, explain_log
from kvplan.explaining.startup_log import parse_startup_log
from kvplan.settings import KNOBS
from kvplan.units import GIB

LOGS = Path(__file__).resolve().parents[1] / "data" / "startup_logs"


@dataclass(frozen=True)
class Published:
    """A log, what it states, and what is right to say of it; ``model``, ``gpu``: given where it names none."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    stopped: str | None = None
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    gpu_is: str | None = None
    model: str | None = None
    gpu: str | None = None


PUBLISHED = [
    Published(
        "vllm-0.22-stated-utilization",
        {"gpu_memory_utilization": 0.95, "max_model_len": 4096},
        never=("raise --gpu-memory-utilization",),
        gpu="l40s",
        gpu_is="l40s",
    ),
    # The thread's fix was a utilization of 0.85 instead of 0.8.
    Published(
        "vllm-0.29-refused-length-minimax-gb10",
        {"max_model_len": 196608},
        "To serve at least one request",
        ("--max-model-len to 190272", "768.00 MiB more KV cache", "raise --gpu-memory-utilization"),
        gpu="gb10",
        gpu_is="gb10",
    ),
    Published(
        "vllm-0.27-qwen3.8-27b-gb10",
        {"gpu_memory_utilization": 0.92, "max_model_len": 786432, "enable_prefix_caching": False},
        never=("--gpu-memory-utilization to 0.95",),
        gpu_is="gb10",
        model="qwen3.5-27b",
    ),
    Published(
        "vllm-0.25-deepseek-v4-flash-tp2",
        {
            "gpu_memory_utilization": 0.95,
            "max_model_len": 1048576,
            "tensor_parallel_size": 2,
            "max_num_batched_tokens": 4096,
            "max_num_seqs": 64,
            "num_speculative_tokens": 2,
        },
        never=("use 2 GPUs", "raise --gpu-memory-utilization"),
        model="deepseek-v4-flash",
        gpu="rtx-pro-6000",
        gpu_is="rtx-pro-6000",
    ),
    Published(
        "vllm-0.22-qwen3.6-35b-a3b-nvfp4-gb10",
        {"gpu_memory_utilization": 0.85, "max_num_batched_tokens": 8192, "max_num_seqs": 4, "kv_cache_dtype": "fp8"},
        never=("--gpu-memory-utilization to 0.95",),
        gpu_is="gb10",
    ),
    Published(
        "vllm-0.23-qwen3.6-27b-nvfp4-gb10",
        {"gpu_memory_utilization": 0.7, "max_num_batched_tokens": 65536, "max_num_seqs": 8, "max_model_len": 262144},
        gpu_is=None,
    ),
    # The recipe was changed to fewer sequences.
    Published(
        "vllm-refused-state-blocks",
        {"max_num_seqs": 1024},
        "max_num_seqs (1024) exceeds",
        ("set --max-num-seqs 939",),
    ),
    Published("vllm-oom-capturing-gemma-4-e4b", {}, "memory allocation failed", ("--enforce-eager",), ("raise",)),
    Published("vllm-oom-mig-gemma-3-1b", {"max_model_len": 32768}, "NVML_SUCCESS", ("(MIG)",), ("raise",)),
    Published(
        "vllm-0.29-given-pool",
        {"max_model_len": 200000},
        says=("raise --kv-cache-memory-bytes (now 3.00 GiB)",),
        never=("raise --gpu-memory-utilization",),
    ),
    Published(
        "sglang-no-room-glm-4.7-flash",
        {"gpu_memory_utilization": 0.85, "max_model_len": 32768},
        "Loaded weights leave no GPU memory",
        ("use more GPUs (--tp)",),
        ("above 1",),
    ),
    Published(
        "sglang-hybrid-gb10",
        {"max_num_seqs": 72},
        never=("to 1.",),
        model="qwen3.5-27b",
        gpu="gb10",
        gpu_is="gb10",
    ),
    Published(
        "sglang-0.5.18-qwen3-30b-a3b-fp8-h100",
        {"gpu_memory_utilization": 0.83, "max_num_batched_tokens": 8192},
        never=("raise --mem-fraction-static",),
        model="Qwen/Qwen3-30B-A3B-FP8",
        gpu_is="h100-sxm",
    ),
    Published("vllm-0.7-no-room", {"gpu_memory_utilization": 0.7}, "No available memory", ("1.05 GiB more",)),
    Published(
        "vllm-0.9-oom-loading-qwen3-32b",
        {},
        "CUDA out of memory",
        ("--tensor-parallel-size",),
        ("lower --gpu-memory-utilization",),
    ),
]


def explained(case: Published) -> LogAccount:
    log = parse_startup_log((LOGS / f"{case.name}.log").read_text(encoding="utf-8"))
    model = case.model or log.model
    spec = None if model is None or model.startswith(("/", "zai-org")) else resolve_model(model)
    return explain_log(log, spec, None if case.gpu is None else find_gpu(case.gpu))


@pytest.mark.parametrize("case", PUBLISHED, ids=lambda case: case.name)
def test_a_published_log_is_read_and_answered(case: Published) -> None:
    answer = explained(case)
    read = {name: getattr(answer.log.settings, name) for name in case.settings}
    assert read == case.settings
    assert (answer.log.stopped or "").startswith(case.stopped or "") and bool(answer.log.stopped) == bool(case.stopped)
    said = "\n".join(change.sentence for change in answer.changes)
    assert [words for words in case.says if words not in said] == []
    assert [words for words in case.never if words in said] == []
    if case.gpu_is is not None:
        assert answer.gpu is not None and answer.gpu.id == case.gpu_is


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
