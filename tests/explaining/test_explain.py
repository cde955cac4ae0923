"""Start-up logs read: figures as printed by vLLM 0.6 to 0.27 and SGLang, and the account made of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.catalog.reader import read_config
from kvplan.catalog.spec import ModelSpec
from kvplan.cli import main
from kvplan.errors import KvplanError
from kvplan.estimate.sglang import CONTEXT_BYTES, predict_sglang
from kvplan.estimate.sglang_share import default_static_fraction
from kvplan.estimate.vllm.prediction import predict_vllm
from kvplan.estimate.vllm.ranges import kv_range
from kvplan.explaining.account import outside_sentences
from kvplan.explaining.explanation import difference_gib, explain_log
from kvplan.explaining.startup_log import parse_startup_log
from kvplan.settings import ServingSettings
from kvplan.units import GIB, MIB

LOGS = Path(__file__).resolve().parents[1] / "data" / "startup_logs"


def read(name: str) -> str:
    return (LOGS / f"{name}.log").read_text(encoding="utf-8")


V019 = read("vllm-0.19-llama-3.1-8b-h100")
V07 = read("vllm-0.7-no-room")
V010_REFUSED = read("vllm-0.10-refused-length")
QWQ = read("sglang-qwq-32b-tp4-l4")
STATES = read("sglang-qwen3.8-27b-fp8-h100")
CONFIGS = LOGS.parent / "vllm_startup_models.json"


def model_of(name: str) -> ModelSpec:
    config = json.loads(CONFIGS.read_text(encoding="utf-8"))["models"][name]["config"]
    return read_config(config, model_id=name)


def gib(number: int | None) -> float | None:
    return None if number is None else round(number / GIB, 2)


def test_a_log_says_whether_its_kernels_were_compiled_before() -> None:
    """The line of a first start stands beside others that were loaded, such as an encoder's."""
    text, spec, gpu = read("vllm-0.19-qwen3-8b-later-start"), resolve_model("qwen3-8b"), find_gpu("a100-40gb-sxm")
    later = parse_startup_log(text)
    assert later.settings.warm_start
    compiling = "Compiling a graph for compile range (1, 2048) takes 7.22 s"
    first = parse_startup_log(f"{text}\n(EngineCore pid=1) INFO 06-25 17:21:56 [backends.py:391] {compiling}")
    assert not first.settings.warm_start
    found, worse = (explain_log(log, spec, gpu) for log in (later, first))
    assert found.predicted.kv_cache_tokens == pytest.approx(140960, rel=0.01)
    assert worse.predicted.kv_cache_tokens < 0.98 * 140960
    again = "start it again, with the compile cache"
    assert [any(again in each.sentence for each in either.changes) for either in (found, worse)] == [False, True]


def test_vllm_019() -> None:
    log = parse_startup_log(V019)
    settings, memory = log.settings, log.memory
    assert (log.engine, log.version, log.model) == ("vllm", "0.19.0", "meta-llama/Llama-3.1-8B-Instruct")
    assert (settings.gpu_memory_utilization, settings.max_model_len) == (0.95, 8192)
    assert settings.max_num_batched_tokens == 8192
    assert (settings.dtype, settings.quantization, settings.enforce_eager) == ("bfloat16", "auto", False)
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


REAL_VLLM_LOGS = [
    # log, model, GPU; printed weights, KV memory, tokens
    ("vllm-0.27-qwen3.6-27b-fp8-h100", "Qwen/Qwen3.6-27B-FP8", "h100", 27.67, 41.03, 292522),
    ("vllm-0.25-qwen3.8-27b-int4-gb10", "RedHatAI/Qwen3.8-27B-INT4", "gb10", 18.5, 80.17, 1191213),
    ("vllm-0.19-qwen3.5-27b-tp4-rtx3090", "Qwen/Qwen3.5-27B", "rtx-3090", 13.01, 7.47, 122304),
    ("vllm-0.6.4-llama-3.1-8b-refused", "meta-llama/Llama-3.1-8B-Instruct", None, 14.99, 2.89, 23648),
]


@pytest.mark.parametrize(("name", "model", "gpu", "weights", "pool", "tokens"), REAL_VLLM_LOGS)
def test_real_vllm_logs_beside_the_prediction(
    name: str, model: str, gpu: str | None, weights: float, pool: float, tokens: int
) -> None:
    log = parse_startup_log(read(name))
    assert (gib(log.memory.weight_bytes), gib(log.memory.kv_pool_bytes), log.kv_cache_tokens) == (weights, pool, tokens)
    answer = explain_log(log, model_of(model), find_gpu(gpu) if gpu else None)
    assert answer.predicted.kv_cache_tokens == pytest.approx(tokens, rel=0.035)
    assert all(change.gained_tokens is None or change.gained_tokens > 0 for change in answer.changes)


def test_settings_that_only_logs_tell() -> None:
    text_only = parse_startup_log(read("vllm-0.27-qwen3.6-27b-fp8-h100")).settings
    assert (text_only.language_model_only, text_only.enable_prefix_caching, text_only.enforce_eager) == (
        True,
        True,
        True,
    )
    drafting = parse_startup_log(read("vllm-0.25-qwen3.8-27b-int4-gb10")).settings
    assert (drafting.num_speculative_tokens, drafting.enable_prefix_caching) == (3, False)
    assert drafting.language_model_only is False
    parallel = parse_startup_log(read("vllm-0.19-qwen3.5-27b-tp4-rtx3090")).settings
    assert (parallel.tensor_parallel_size, parallel.num_speculative_tokens) == (4, 0)


def test_a_log_without_a_version_is_told_by_its_words() -> None:
    answer = explain_log(
        parse_startup_log(read("vllm-0.6.4-llama-3.1-8b-refused")), resolve_model("llama-3.1-8b"), None
    )
    assert gib(answer.log.memory.activation_bytes) == 2.99
    assert any("compared with vLLM 0.6.4" in note for note in answer.notes)
    sentences = " ".join(change.sentence for change in answer.changes)
    assert "--max-model-len to 23648" in sentences and "--enable-chunked-prefill" in sentences


def test_a_modified_build_is_said_to_be_one() -> None:
    log = parse_startup_log(read("vllm-0.20-glm-5.1-modified-build"))
    assert (log.settings.max_num_seqs, log.settings.gpu_memory_utilization) == (64, 0.865)
    assert log.settings.estimate_cudagraphs is False
    answer = explain_log(log, model_of("lukealonso/GLM-5.1-NVFP4-MTP"), find_gpu("rtx-pro-6000"))
    assert any("neither a release nor a commit" in note for note in answer.notes)
    assert answer.predicted.kv_cache_tokens == pytest.approx(341504, rel=0.25)


def test_sglang() -> None:
    log = parse_startup_log(QWQ)
    assert log.engine == "sglang"
    assert (log.kv_cache_tokens, gib(log.memory.kv_pool_bytes), gib(log.memory.weight_bytes)) == (46611, 2.84, 15.54)
    assert (log.settings.max_model_len, log.settings.gpu_memory_utilization) == (131072, 0.85)
    assert (log.settings.tensor_parallel_size, log.settings.max_num_batched_tokens) == (4, 2048)
    left = (log.memory.free_bytes, log.memory.graph_bytes, log.memory.left_bytes)
    assert [gib(number) for number in left] == [21.63, 0.93, 0.53]


def test_sglang_account_and_its_own_words() -> None:
    answer = explain_log(parse_startup_log(QWQ), resolve_model("qwq-32b"), None)
    assert answer.gpu is not None and answer.gpu.id == "l4"
    assert answer.predicted.kv_cache_tokens == pytest.approx(46611, rel=0.05)
    sentences = " ".join(change.sentence for change in answer.changes)
    assert "--kv-cache-dtype fp8_e4m3" in sentences and "--tp 8" in sentences
    assert "only 542.72 MiB is left" in sentences and "raise --mem-fraction-static" not in sentences
    assert "gpu-memory-utilization" not in sentences


def test_a_folder_of_the_cache_is_called_by_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(LOGS / "sglang-0.5.18-qwen3-30b-a3b-fp8-h100.log")]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("sglang (version not printed): Qwen/Qwen3-30B-A3B-FP8 on h100-sxm")
    assert "SGLang's figures have no interval: too few of its start-ups were compared." in said.err


def test_sglang_states_have_a_pool_of_their_own() -> None:
    """What SGLang 0.5.18 printed: 124 slots, 17.92 GiB of states, 330,323 tokens.

    All pools are 38.08 GiB of 38.24 without and 38.14 with the 100 MiB that are kept for images. A 125th slot, 2,350
    tokens, fits by 0.4 MiB, and free memory is printed in steps of 10.
    """
    log, spec = parse_startup_log(STATES), model_of("Qwen/Qwen3.6-27B-FP8")
    assert gib(log.memory.kv_pool_bytes) == pytest.approx(0.34 + 17.58 + 2 * 10.08)
    settings = ServingSettings(gpu_memory_utilization=0.85)
    found = predict_sglang(spec, find_gpu("h100"), settings, free_bytes=int((50.01 + 28.47) * GIB))
    assert gib(found.weight_bytes) == 28.47
    assert found.state_slots == pytest.approx(124, abs=1)
    assert found.state_pool_bytes / GIB == pytest.approx(17.92, rel=0.01)
    assert found.kv_pool_bytes / GIB == pytest.approx(38.08, abs=0.06)
    assert found.kv_cache_tokens == pytest.approx(330323, rel=0.005)


def test_sglang_0_5_18_as_it_chose_by_itself() -> None:
    """0.83 of an H100 of 81,559 MiB, as printed, and 392,920 tokens."""
    log, spec = parse_startup_log(read("sglang-0.5.18-qwen3-30b-a3b-fp8-h100")), resolve_model("Qwen/Qwen3-30B-A3B-FP8")
    alone = predict_sglang(spec, find_gpu("h100"), version="0.5.18")
    assert round(alone.mem_fraction_static, 3) == log.settings.gpu_memory_utilization == 0.83
    assert alone.kv_cache_tokens == pytest.approx(392920, rel=0.01)
    beside = predict_sglang(spec, find_gpu("h100"), free_bytes=log.memory.free_bytes, version="0.5.18")
    assert beside.kv_cache_tokens == pytest.approx(log.kv_cache_tokens, rel=0.004)


def test_sglang_share_on_a_small_gpu_since_0_5_20() -> None:
    """gemma-4-26B-A4B on 32,607 MiB: "auto-chosen mem_fraction_static 0.718" in a public diagnosis of 2026-10-03."""
    spec, gpu = resolve_model("gemma-4-26b-a4b"), find_gpu("rtx-5090")
    older, newer = (predict_sglang(spec, gpu, version=version).mem_fraction_static for version in ("0.5.19", "0.5.20"))
    assert round(newer, 3) == 0.718
    assert older == pytest.approx(0.805, abs=0.001)


def test_sglang_windows_have_a_pool_of_their_own() -> None:
    """0.8 window tokens for each of the others (gpt-oss-120b printed 63,987 and 51,189)."""
    found = predict_sglang(resolve_model("gpt-oss-20b"), find_gpu("h100"))
    assert found.window_tokens == pytest.approx(0.8 * found.kv_cache_tokens, abs=1)
    used = found.kv_cache_tokens * 12 * 2048 + found.window_tokens * 12 * 2048
    assert used == pytest.approx(found.kv_pool_bytes, rel=0.001)
    alone = predict_sglang(resolve_model("mistral-7b-v0.1"), find_gpu("h100"))
    assert alone.window_tokens == alone.kv_cache_tokens
    kept = predict_sglang(resolve_model("gemma-3-27b"), find_gpu("h100"))
    assert kept.window_tokens == 0


def test_sglang_default_share_follows_the_gpu() -> None:
    """A GPU of 16,303 MiB, from a log of SGLang 0.5.6: 13.81 GiB free, 10.30 of them in pools, 15.33 before loading."""
    assert default_static_fraction(16303 * MIB, 1) == pytest.approx(1 - (13.81 - 10.30) / 15.33, abs=0.001)
    shares = [default_static_fraction(find_gpu(name).memory_bytes, 1) for name in ("l4", "t4", "h100", "h200")]
    assert shares == sorted(shares)  # an L4 reads twice as many tokens at once as a T4


def test_sglang_leaves_more_where_groups_attend_beside_each_other() -> None:
    """Of 8 H200: for each of the 512 rows of the largest graph 3 MiB and 1.5 more in each group, 18 GiB in all."""
    total = find_gpu("h200").memory_bytes
    usual, grouped = default_static_fraction(total, 8), default_static_fraction(total, 8, 8)
    extra = 512 * 8 * 4.5 + 512 + 8192 * 1.5 + 512 * 2 + 8 * 128
    assert (usual - grouped) * total / MIB == pytest.approx(
        extra - max(extra - 512 * 8 * 4.5, 10 * 1024), abs=0.001 * total / MIB
    )
    spec, sizes = resolve_model("deepseek-v3"), ServingSettings(data_parallel_size=8)
    grouped_pool, own_pool = (
        predict_sglang(spec, find_gpu("h200"), sizes, dp_attention=each).kv_pool_bytes for each in (True, False)
    )
    assert grouped_pool < own_pool


def test_sglang_pool_follows_the_static_share() -> None:
    spec, gpu = resolve_model("llama-3.1-8b"), find_gpu("h100")
    small, large = (predict_sglang(spec, gpu, ServingSettings(gpu_memory_utilization=share)) for share in (0.8, 0.9))
    free = gpu.memory_bytes - CONTEXT_BYTES
    assert large.kv_pool_bytes - small.kv_pool_bytes == pytest.approx(0.1 * free, abs=2)
    assert small.bytes_per_token == 131072
    with pytest.raises(KvplanError, match="encoder"):
        predict_sglang(resolve_model("t5-small"), gpu)


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


def test_command(tmp_path: Path, answer_of: Callable[..., Any], printed_by: Callable[..., str]) -> None:
    path = tmp_path / "vllm.log"
    path.write_text(V019, encoding="utf-8")
    printed = printed_by("explain", str(path), "--model", "llama-3.1-8b")
    assert "58.11" in printed and "476,016" in printed and "what to change" in printed
    document = answer_of("explain", str(path), "--model", "llama-3.1-8b")
    assert document["schema"] == "kvplan.explain/1"
    assert document["kv_cache_tokens"]["logged"] == 476016


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("sglang-qwen3.8-27b-fp8-h100", "Qwen/Qwen3.8-27B-FP8 is not known here. Give its config.json"),
        ("vllm-cpu-refused-length", "the log does not tell the model. Name it with --model."),
    ],
)
def test_a_model_that_is_not_known_is_not_one_that_was_not_told(name: str, reason: str) -> None:
    (note,) = (each for each in explain_log(parse_startup_log(read(name)), None, None).notes if "model" in each)
    assert note.startswith(f"No prediction: {reason}")


def test_not_a_log(tmp_path: Path, said_by: Callable[..., str]) -> None:
    path = tmp_path / "other.log"
    path.write_bytes(b"\xff\xfehello\n")
    for file in (path, tmp_path / "missing.log"):
        assert said_by("explain", str(file), code=1).count("error: ") == 1


def test_what_was_named_and_is_not_the_logs_is_said() -> None:
    log = parse_startup_log((LOGS / "vllm-0.19-llama-3.1-8b-h100.log").read_text(encoding="utf-8"))
    notes = " ".join(explain_log(log, resolve_model("qwen3-8b"), find_gpu("l4")).notes)
    assert "Qwen/Qwen3-8B is taken as given; the log has meta-llama/Llama-3.1-8B-Instruct." in notes
    assert "l4 is taken as given; the log's GPU has 79.19 GiB, not 22.16 GiB." in notes
    right = " ".join(explain_log(log, resolve_model("llama-3.1-8b"), find_gpu("h100")).notes)
    assert "taken as given" not in right


@pytest.mark.parametrize("line", ["Available KV cache memory: 3.45 GiB", "GPU KV cache size: 28,256 tokens"])
def test_a_pool_far_from_the_prediction_is_not_answered_with_gains(line: str) -> None:
    """A share of 0.3, say, that the pasted part does not show: gains from 0.92 on would be of another start."""
    account = explain_log(parse_startup_log(line), resolve_model("llama-3.1-8b"), find_gpu("h100"))
    assert "smaller than predicted: the GPU or a setting that is assumed here is another" in account.notes[-1]
    assert not account.changes and account.predicted.kv_cache_tokens


def test_a_cache_outside_the_interval_is_said(printed_by: Callable[..., str]) -> None:
    """The published start is inside; with 2 GiB less for the cache it is not, and what took them is named."""
    spec = resolve_model("llama-3.1-8b")
    answer = explain_log(parse_startup_log(V019), spec, None)
    low, high = answer.predicted.tokens_range or (0, 0)
    assert low <= 476016 <= high and not any("9 of 10" in note for note in answer.notes)
    smaller = V019.replace("58.11", "56.11").replace("476,016", "459,632").replace("1.89", "3.89")
    assert smaller != V019
    outside = explain_log(parse_startup_log(smaller), spec, None)
    (said,) = (note for note in outside.notes if "9 of 10" in note)
    assert said.startswith(
        f"The log has 459,632 KV tokens, fewer than predicted: 9 of 10 start-ups like it have {low:,} to {high:,}."
    )
    assert "Most of that is in 'activations (peak)', 2.01 GiB more than predicted." in said
    assert f"log 476,016, kvplan 476,000 ({low:,} to {high:,})" in printed_by(
        "explain", str(LOGS / "vllm-0.19-llama-3.1-8b-h100.log")
    )


def test_as_much_as_a_later_start_has_is_said_to_be_that() -> None:
    """Taken to be a first start's, its tokens are above the interval, by no more than what compiling takes."""
    spec, gpu = resolve_model("qwen3-8b"), find_gpu("rtx-4090")
    first = predict_vllm(spec, gpu, ServingSettings(max_model_len=4096), "0.29")
    later = predict_vllm(spec, gpu, ServingSettings(max_model_len=4096, warm_start=True), "0.29")
    within, log = kv_range(spec, gpu, first), parse_startup_log("")
    said = outside_sentences(replace(log, kv_cache_tokens=later.kv_cache_tokens), within, ())
    assert within.tokens[1] < later.kv_cache_tokens
    assert said is not None and "as much as a later start has" in said
    more = outside_sentences(replace(log, kv_cache_tokens=2 * later.kv_cache_tokens), within, ())
    assert more is not None and "more than predicted" in more and "--warm-start" not in more


def test_what_a_log_does_not_state_may_be_why_its_cache_lies_outside(said_by: Callable[..., str]) -> None:
    """An A100 of 40 GB is called an L40S: the log states neither its GPU, nor the share of it."""
    log = str(LOGS / "vllm-0.19-qwen3-8b-later-start.log")
    said = "The log does not state the GPU, --gpu-memory-utilization, --max-num-seqs: give"
    for words in (["explain", log, "--gpu"], ["estimate", "--from-log", log, "--gpu"]):
        assert said in said_by(*words, "l40s", code=0)
    inside = LOGS / "vllm-0.19-llama-3.1-8b-h100.log"
    assert "9 of 10" not in said_by("estimate", "--from-log", str(inside), code=0)
