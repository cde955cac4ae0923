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
