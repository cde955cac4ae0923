"""Start-up logs read: figures as printed by vLLM 0.6, 0.7, 0.10, 0.19 and SGLang, and the account made of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvplan.catalog.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.errors import KvplanError
from kvplan.estimate.sglang import CONTEXT_BYTES, SglangSettings, predict_sglang
from kvplan.planner.explanation import difference_gib, explain_log
from kvplan.planner.startup_log import parse_startup_log
from kvplan.units import GIB

LOGS = Path(__file__).resolve().parents[1] / "data" / "startup_logs"


def read(name: str) -> str:
    return (LOGS / f"{name}.log").read_text(encoding="utf-8")


V019 = read("vllm-0.19-llama-3.1-8b-h100")
V07 = read("vllm-0.7-no-room")
V010_REFUSED = read("vllm-0.10-refused-length")
SGLANG = read("sglang-llama-3.1-8b")


def gib(number: int | None) -> float | None:
    return None if number is None else round(number / GIB, 2)


def test_vllm_019() -> None:
    log = parse_startup_log(V019)
    settings, memory = log.settings, log.memory
    assert (log.engine, settings.version, settings.model) == ("vllm", "0.19.0", "meta-llama/Llama-3.1-8B-Instruct")
    assert (settings.gpu_memory_utilization, settings.max_model_len) == (0.95, 8192)
    assert settings.max_num_batched_tokens == 8192
    assert (settings.dtype, settings.quantization, settings.enforce_eager) == ("bfloat16", None, False)
    logged = (memory.total_bytes, memory.budget_bytes, memory.weight_bytes, memory.activation_bytes)
    assert [gib(number) for number in logged] == [79.19, 75.23, 14.99, 1.89]
    rest = (memory.non_torch_bytes, memory.graph_bytes, memory.kv_pool_bytes)
    assert [gib(number) for number in rest] == [0.25, 0.91, 58.11]
    assert (log.kv_cache_tokens, log.max_concurrency, log.failure) == (476016, 58.11, None)


def test_vllm_019_account_agrees_with_the_prediction() -> None:
    answer = explain_log(parse_startup_log(V019), resolve_model("llama-3.1-8b"), None)
    assert answer.gpu is not None and answer.gpu.id == "h100-sxm"
    assert {part.name for part in answer.parts if part.logged_bytes is None} == set()
    assert all(abs(difference_gib(part) or 0) < 0.15 for part in answer.parts)
    gains = {change.sentence.split(":")[0]: change.gained_tokens for change in answer.changes}
    assert any("kv-cache-dtype fp8" in change.sentence for change in answer.changes)
    assert all(gain is None or gain > 0 for gain in gains.values())
    assert not any("gpu-memory-utilization" in change.sentence for change in answer.changes)


def test_vllm_07_without_room() -> None:
    log = parse_startup_log(V07)
    memory = log.memory
    assert [gib(number) for number in (memory.total_bytes, memory.budget_bytes, memory.kv_pool_bytes)] == [
        8.0,
        5.6,
        -1.05,
    ]
    assert log.num_blocks == 0
    assert log.failure is not None and log.failure.startswith("No available memory")
    assert log.settings.gpu_memory_utilization == 0.7


def test_refused_length() -> None:
    log = parse_startup_log(V010_REFUSED)
    assert log.largest_max_model_len == 512
    assert (gib(log.memory.needed_kv_bytes), gib(log.memory.kv_pool_bytes)) == (1.0, 0.26)
    answer = explain_log(log, None, None)
    sentences = " ".join(change.sentence for change in answer.changes)
    assert "--max-model-len to 512" in sentences and "757.76 MiB" in sentences
    assert any("--model" in note for note in answer.notes)


def test_sglang() -> None:
    log = parse_startup_log(SGLANG)
    assert log.engine == "sglang"
    assert (log.kv_cache_tokens, gib(log.memory.kv_pool_bytes), gib(log.memory.weight_bytes)) == (443232, 54.1, 14.99)
    assert (log.settings.max_model_len, log.settings.gpu_memory_utilization) == (32768, 0.88)
    assert gib(log.memory.graph_bytes) == 0.94


def test_sglang_account_and_its_own_words() -> None:
    answer = explain_log(parse_startup_log(SGLANG), resolve_model("llama-3.1-8b"), find_gpu("h100"))
    assert answer.predicted.kv_cache_tokens == pytest.approx(443232, rel=0.01)
    sentences = " ".join(change.sentence for change in answer.changes)
    assert "--kv-cache-dtype fp8_e4m3" in sentences and "--tp 2" in sentences and "--mem-fraction-static" in sentences
    assert "gpu-memory-utilization" not in sentences


def test_sglang_pool_follows_the_static_share() -> None:
    spec, gpu = resolve_model("llama-3.1-8b"), find_gpu("h100")
    small, large = (predict_sglang(spec, gpu, SglangSettings(mem_fraction_static=share)) for share in (0.8, 0.9))
    free = gpu.memory_bytes - CONTEXT_BYTES
    assert large.kv_pool_bytes - small.kv_pool_bytes == pytest.approx(0.1 * free, abs=2)
    assert small.bytes_per_token == 131072
    with pytest.raises(KvplanError, match="windows"):
        predict_sglang(resolve_model("gpt-oss-20b"), gpu, SglangSettings())


def test_smallest_rank_counts() -> None:
    log = parse_startup_log("Available KV cache memory: 35.74 GiB\nAvailable KV cache memory: 35.65 GiB\n")
    assert gib(log.memory.kv_pool_bytes) == 35.65


def test_busy_gpu() -> None:
    text = (
        "ValueError: Free memory on device (10.00/23.57 GiB) on startup is less than desired GPU memory utilization "
        "(0.9, 21.21 GiB)."
    )
    sentences = " ".join(change.sentence for change in explain_log(parse_startup_log(text), None, None).changes)
    assert "13.57 GiB" in sentences and "0.42" in sentences


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(V019, encoding="utf-8")
    assert main(["explain", str(path), "--model", "llama-3.1-8b"]) == 0
    printed = capsys.readouterr().out
    assert "58.11" in printed and "476,016" in printed and "what to change" in printed
    assert main(["explain", str(path), "--model", "llama-3.1-8b", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "kvplan.explain/1"
    assert document["kv_cache_tokens"]["logged"] == 476016


def test_not_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.log"
    path.write_bytes(b"\xff\xfehello\n")
    assert main(["explain", str(path)]) == 1
    assert main(["explain", str(tmp_path / "missing.log")]) == 1
    assert capsys.readouterr().err.count("error: ") == 2
