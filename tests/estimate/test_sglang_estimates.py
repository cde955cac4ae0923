"""``kvplan estimate --engine sglang``: the pools of kvplan.estimate.sglang as deployments, without speeds."""

from __future__ import annotations

import json

import pytest

import kvplan
from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.errors import KvplanError
from kvplan.estimate.sglang import predict_sglang
from kvplan.settings import ServingSettings


def test_the_account_adds_up_and_is_the_predictions() -> None:
    found = kvplan.estimate("qwen3-vl-8b", gpu="h100", ctx="16k", engine="sglang@0.5.18")
    (h100,) = found.deployments
    alone = predict_sglang(
        resolve_model("qwen3-vl-8b"), find_gpu("h100"), ServingSettings(max_model_len=16384), version="0.5.18"
    )
    assert (h100.engine, h100.fits) == ("sglang@0.5.18", True)
    assert (h100.kv_cache_tokens, h100.kv_pool_bytes) == (alone.kv_cache_tokens, alone.kv_pool_bytes)
    assert h100.settings.gpu_memory_utilization == alone.mem_fraction_static
    parts = h100.weight_bytes + h100.activation_peak_bytes + h100.overhead_bytes + h100.kv_pool_bytes
    assert parts == h100.settings.device_memory_bytes
    assert h100.max_concurrency == pytest.approx(alone.kv_cache_tokens / 16384)
    assert h100.kv_range is None and found.answer.speeds == (None,)


def test_as_a_release_printed_it() -> None:
    """392,920 tokens and 0.83 (tests/data/startup_logs/sglang-0.5.18-qwen3-30b-a3b-fp8-h100.log)."""
    (h100,) = kvplan.estimate("Qwen/Qwen3-30B-A3B-FP8", gpu="h100", ctx="8k", engine="sglang@0.5.18").deployments
    assert h100.kv_cache_tokens == pytest.approx(392_920, rel=0.01)
    assert round(h100.settings.gpu_memory_utilization, 3) == 0.83


def test_seats_and_windows_limit_what_runs_at_once() -> None:
    few = kvplan.estimate("llama-3.1-8b", gpu="h200", ctx="1k", max_num_seqs=16, engine="sglang").deployments[0]
    assert few.max_concurrency == 16
    states = kvplan.estimate("qwen3.6-27b", gpu="h200", ctx="1k", engine="sglang").deployments[0]
    assert states.max_concurrency == states.settings.max_num_seqs
    within = kvplan.estimate("gpt-oss-20b", gpu="h100", ctx=128, engine="sglang", max_num_seqs=10**6).deployments[0]
    assert within.max_concurrency == pytest.approx(0.8 * within.kv_cache_tokens / 128, rel=0.001)


def test_what_does_not_fit_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "llama-3.1-70b", "--gpu", "h100", "--engine", "sglang"]) == 1
    assert "the weights leave nothing of mem_fraction_static: " in capsys.readouterr().err
    words = ["estimate", "llama-3.1-8b", "--gpu", "l40s", "--engine", "sglang", "--ctx"]
    assert main([*words, "256k"]) == 1
    shown = capsys.readouterr().err
    assert "longest sequence that fits: " in shown and "--ctx " in shown
    longest = int(shown.split("--ctx ")[1].split(",")[0].split()[0])
    assert main([*words, str(longest)]) == 0


def test_the_table_says_what_it_is_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "llama-3.1-8b", "--ctx", "8k", "--engine", "sglang", "--explain"]) == 0
    shown = capsys.readouterr()
    assert "fit at once, sglang@0.5.23 (GiB):" in shown.out and "mem_fraction_static" in shown.out
    assert "no speed is told" in shown.err and "TTFT" not in shown.out and "mi300x" not in shown.out
    assert main(["estimate", "gemma-3-27b", "--gpu", "2xh100", "--engine", "sglang", "--json"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["deployments"]
    assert document["engine"] == "sglang@0.5.23" and document["performance"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--engine sglang@new", "'new' is not a version of SGLang."),
        ("--engine sglang --gpu mi300x", "SGLang's memory is not modelled on mi300x."),
        ("--engine sglang --gpu v100-32gb", "SGLang does not run on v100-32gb."),
        ("--engine sglang --gpu h100 --ctx 8k --plot x.png", "No speed is told of these deployments"),
        ("--engine sglang --gpu h100 --block-size 64", "--engine sglang has no --block-size."),
        ("--engine sglang --gpu h100 --enforce-eager", "--engine sglang has no --enforce-eager."),
        ("--engine sglang --gpu h100 --cpu-offload-gb 4", "--engine sglang has no --cpu-offload-gb."),
    ],
)
def test_what_is_not_modelled_is_refused(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "llama-3.1-8b", *words.split()]) in (1, 2)
    shown = capsys.readouterr().err
    assert f"error: {said}" in shown and "hint: " in shown


@pytest.mark.parametrize("command", ["plan llama-3.1-8b --users 4", "cache trace.jsonl llama-3.1-8b"])
def test_other_commands_refuse_it_in_a_sentence(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--engine", "sglang"]) == 2
    shown = capsys.readouterr().err
    assert "error: Only vLLM's scheduler and prefix cache are modelled here, not SGLang's." in shown
    assert "kvplan estimate --engine sglang sizes its memory" in shown
    with pytest.raises(KvplanError, match="not SGLang's"):
        kvplan.plan("llama-3.1-8b", users=4, engine="sglang")
