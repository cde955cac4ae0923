"""Adapters of SGLang and TensorRT-LLM, which follow documentation and logs that others published."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from kvplan.catalog.models import resolve_model
from kvplan.engines.documented.models import package_version
from kvplan.engines.documented.sglang import Sglang
from kvplan.engines.documented.trtllm import TrtLlm
from kvplan.engines.interface import Ending, EngineAdapter, StartOrder
from kvplan.errors import KvplanError
from kvplan.machine.device import Device
from kvplan.metrics.page import read_page
from kvplan.runs.trials import TrialSettings
from kvplan.units import GIB

DATA = Path(__file__).resolve().parents[1] / "data"
SETTINGS = TrialSettings(
    gpu_memory_utilization=0.85, max_num_seqs=32, block_size=32, max_model_len=8192, max_num_batched_tokens=4096
)
H100 = Device("cuda", "NVIDIA H100 80GB HBM3", 80 * GIB, 16)


def log(name: str) -> str:
    return (DATA / f"{name}.log").read_text(encoding="utf-8")


def order(directory: Path, settings: TrialSettings = SETTINGS, load_format: str = "auto") -> StartOrder:
    return StartOrder("Qwen/Qwen3-8B", settings, 8123, directory, load_format, "model", 7)


def option(words: tuple[str, ...], name: str) -> str:
    return words[words.index(name) + 1]


def test_sglang_is_started_with_its_own_names(tmp_path: Path) -> None:
    adapter = Sglang("/opt/sglang/bin/python", given={"enable-mixed-chunk": "", "mem-fraction-static": "0.8"})
    words = adapter.command(order(tmp_path, SETTINGS.with_changes(kv_cache_dtype="fp8_e4m3"), "dummy")).argv
    assert words[:3] == ("/opt/sglang/bin/python", "-m", "sglang.launch_server")
    assert option(words, "--max-running-requests") == "32"
    assert option(words, "--context-length") == "8192"
    assert option(words, "--chunked-prefill-size") == "4096"
    assert option(words, "--mem-fraction-static") == "0.8"
    assert option(words, "--kv-cache-dtype") == "fp8_e4m3"
    assert option(words, "--load-format") == "dummy"
    assert {"--enable-metrics", "--enable-mixed-chunk"} <= set(words)
    assert "--dtype" not in words


def test_sglang_without_prefixes(tmp_path: Path) -> None:
    words = Sglang().command(order(tmp_path, SETTINGS.with_changes(enable_prefix_caching=False))).argv
    assert "--disable-radix-cache" in words


def test_sglang_says_its_pools() -> None:
    found = Sglang().started(log("startup_logs/sglang-qwq-32b-tp4-l4"), None)
    assert found.kv_cache_tokens == 46_611
    assert found.weights_bytes == round(15.54 * GIB)
    assert found.kv_pool_bytes == round(2.84 * GIB)
    assert found.resolved["max_num_seqs"] == 2049


def test_sglang_tells_its_tokens_on_the_metrics_page_too() -> None:
    page = 'sglang:max_total_num_tokens{model_name="m"} 46611.0\nsglang:num_running_reqs{model_name="m"} 0.0\n'
    assert Sglang().started("", read_page(page)).kv_cache_tokens == 46_611


def test_sglang_has_no_room_for_a_pool() -> None:
    failure = Sglang().failure(Ending("starting", 1, log("engine_outputs/sglang/no-pool")))
    assert (failure.status, failure.oom_phase) == ("oom_kv_init", "kv_init")


def test_sglang_out_of_memory_by_what_it_had_done() -> None:
    refused = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
    refused += "23.57 GiB of which 1.50 GiB is free.\n"
    up = log("engine_outputs/sglang/capturing-qwen3-4b")
    loading = Sglang().failure(Ending("starting", 1, "sglang Load weight begin. avail mem=23.00 GB\n" + refused))
    assert (loading.status, loading.oom_requested_bytes) == ("oom_weights", 2 * GIB)
    capturing = Sglang().failure(Ending("starting", 1, up + refused))
    assert (capturing.status, capturing.oom_phase) == ("oom_kv_init", "graph_capture")
    serving = Sglang().failure(Ending("serving", 1, up + "The server is fired up and ready to roll!\n" + refused))
    assert (serving.status, serving.oom_phase) == ("oom_runtime", "runtime")


def test_sglang_is_predicted_as_explain_predicts_it() -> None:
    pool = Sglang().model(resolve_model("llama-3.1-8b"), H100).memory(SETTINGS)
    assert pool.outcome == "ok"
    assert pool.kv_cache_tokens * pool.layout.bytes_per_token == pytest.approx(pool.block_bytes * pool.num_blocks)
    large = Sglang().model(resolve_model("llama-3.1-70b"), H100).memory(SETTINGS)
    assert large.outcome == "oom_weights"


def test_trtllm_is_started_with_a_file_for_its_cache(tmp_path: Path) -> None:
    adapter = TrtLlm("/opt/trt/bin/python", given={"max-beam-width": "1"})
    words = adapter.command(order(tmp_path, SETTINGS.with_changes(kv_cache_dtype="fp8_e4m3"), "dummy")).argv
    assert words[:2] == ("/opt/trt/bin/trtllm-serve", "Qwen/Qwen3-8B")
    assert option(words, "--max_batch_size") == "32"
    assert option(words, "--max_num_tokens") == "4096"
    assert option(words, "--max_seq_len") == "8192"
    assert option(words, "--max_beam_width") == "1"
    document = json.loads(Path(option(words, "--extra_llm_api_options")).read_text(encoding="utf-8"))
    pool = {"free_gpu_memory_fraction": 0.85, "tokens_per_block": 32, "enable_block_reuse": True, "dtype": "fp8"}
    assert document["kv_cache_config"] == pool
    assert document["load_format"] == "dummy"
    assert document["enable_iter_perf_stats"] is True


def test_trtllm_says_its_pool() -> None:
    found = TrtLlm().started(log("engine_outputs/trtllm/up-triton"), None)
    assert (found.kv_cache_tokens, found.num_blocks, found.block_size) == (3_731_744, 116_617, 32)
    assert found.kv_cache_tokens == 32 * 116_617
    assert found.kv_pool_bytes == round(78.30 * GIB)


def test_the_pool_in_which_trtllm_measures_is_not_the_one_it_keeps() -> None:
    first = log("engine_outputs/trtllm/estimating-gpt-oss-20b")
    assert TrtLlm().started(first + log("engine_outputs/trtllm/up-triton"), None).kv_cache_tokens == 3_731_744


@pytest.mark.parametrize(
    ("name", "sentence", "free_gib"),
    [
        ("no-room-for-kv-qwen3-235b", "The KV cache does not fit. Lower gpu_memory_utilization.", 108.86),
        ("no-room-for-kv-gpt-oss", "The KV cache does not fit. Lower gpu_memory_utilization.", 200.47),
        (
            "no-room-beside-deepseek-v3",
            "No memory was left for: Additional executor resources. Lower max_num_batched_tokens.",
            16.95,
        ),
    ],
)
def test_trtllm_names_the_component_that_did_not_fit(name: str, sentence: str, free_gib: float) -> None:
    failure = TrtLlm().failure(Ending("starting", 1, log(f"engine_outputs/trtllm/{name}")))
    assert (failure.status, failure.oom_phase, failure.error) == ("oom_kv_init", "kv_init", sentence)
    assert failure.oom_free_bytes == round(free_gib * GIB)


def test_trtllm_model_that_does_not_fit() -> None:
    text = "RuntimeError: Executor creation failed due to insufficient GPU memory.\n\n"
    text += "The following component could not be created: Model\n"  # py_executor_creator.py
    assert TrtLlm().failure(Ending("starting", 1, text)).status == "oom_weights"


def test_trtllm_is_predicted_from_what_is_free() -> None:
    spec = resolve_model("llama-3.1-8b")
    half = TrtLlm().model(spec, H100).memory(SETTINGS.with_changes(gpu_memory_utilization=0.45))
    whole = TrtLlm().model(spec, H100).memory(SETTINGS.with_changes(gpu_memory_utilization=0.9))
    assert whole.outcome == "ok"
    assert whole.kv_cache_tokens == pytest.approx(2 * half.kv_cache_tokens, abs=64)
    assert whole.kv_cache_tokens % 32 == 0


def test_a_context_beyond_the_models_positions_is_refused_not_a_crash() -> None:
    words = "ValueError: User-specified context_length (200000) is greater than the derived context_length (40960)."
    failure = Sglang().failure(Ending("starting", 1, f"Traceback\n{words}\n"))
    assert (failure.status, failure.context_limited_by) == ("rejected_ctx", "model")
    assert failure.error.endswith("Lower max_model_len.")


@pytest.mark.parametrize("adapter", [Sglang(), TrtLlm()], ids=lambda adapter: adapter.name)
def test_other_ends_are_crashes(adapter: EngineAdapter) -> None:
    killed = adapter.failure(Ending("serving", -signal.SIGKILL, ""))
    assert (killed.status, killed.error.endswith("was killed by signal 9 (SIGKILL).")) == ("crash", True)
    raised = adapter.failure(Ending("starting", 1, "Traceback\nValueError: no such model.\n"))
    assert raised.error.endswith("ended: ValueError: no such model.")
    host = adapter.failure(Ending("serving", -signal.SIGKILL, "", out_of_host_memory=True))
    assert host.error == "The kernel killed it: this machine's memory ran out."


@pytest.mark.parametrize("adapter", [Sglang(command_words=("run",)), TrtLlm(command_words=("run",))])
def test_nobody_is_told_that_they_were_tried(adapter: EngineAdapter) -> None:
    (notice,) = adapter.identify().notices
    assert "has not been run against it" in notice


def test_versions_are_those_of_the_interpreter() -> None:
    assert package_version(sys.executable, "pytest") == pytest.__version__
    with pytest.raises(KvplanError, match="has no package no-such-engine"):
        package_version(sys.executable, "no-such-engine")
    with pytest.raises(KvplanError, match="'/nowhere/python' cannot be run"):
        package_version("/nowhere/python", "sglang")
