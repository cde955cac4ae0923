"""``kvplan explain`` on engines that ran out of memory, and on vLLM on a CPU: what happened and what to set."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from kvplan.catalog.devices.gpus import find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.cli import main
from kvplan.explaining.explanation import LogAccount, explain_log
from kvplan.explaining.startup_log import parse_startup_log
from kvplan.settings import ServingSettings
from kvplan.units import GIB

LOGS = Path(__file__).resolve().parents[1] / "data" / "startup_logs"


def explained(name: str, model: str | None = None) -> LogAccount:
    log = parse_startup_log((LOGS / f"{name}.log").read_text(encoding="utf-8"))
    return explain_log(log, None if model is None else resolve_model(model), None)


def sentences(answer: LogAccount) -> str:
    return "\n".join(change.sentence for change in answer.changes)


CPU_STARTS = [
    # log, model; printed KV memory and tokens
    ("vllm-0.8-cpu-qwen2.5-1.5b", "qwen2.5-1.5b-instruct", 4.0, 9362 * 16),
    ("vllm-0.11-cpu-qwen2.5-0.5b", "qwen2.5-0.5b", 4.0, 349_520),
    ("vllm-0.22-cpu-qwen2.5-1.5b", "qwen2.5-1.5b-instruct", 1.48, 55_424),
    ("vllm-0.28-cpu-opt-125m", "opt-125m", 1.0, 29_056),
]


@pytest.mark.parametrize(("name", "model", "pool_gib", "tokens"), CPU_STARTS)
def test_vllm_on_a_cpu_is_explained(name: str, model: str, pool_gib: float, tokens: int) -> None:
    answer = explained(name, model)
    assert answer.log.device == "cpu" and answer.gpu is None
    assert (answer.log.memory.kv_pool_bytes or 0) / GIB == pytest.approx(pool_gib, abs=0.005)
    assert tokens in (answer.log.kv_cache_tokens, (answer.log.num_blocks or 0) * 16)
    assert answer.predicted.kv_cache_tokens == pytest.approx(tokens, rel=0.004)
    assert answer.predicted.max_concurrency == pytest.approx(answer.log.max_concurrency, rel=0.01)
    assert "VLLM_CPU_KVCACHE_SPACE" in sentences(answer)
    (gained,) = (change.gained_tokens for change in answer.changes)
    assert gained == pytest.approx(tokens / pool_gib, rel=0.005)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("vllm-0.22-cpu-busy", ["only 4.85 GiB of the host's 18.00 GiB is free", "--gpu-memory-utilization to 0.26"]),
        ("vllm-0.22-cpu-no-room", ["holds 3.99 GiB before any KV cache", "--gpu-memory-utilization above 0.23"]),
        ("vllm-cpu-refused-length", ["--max-model-len to 9344", "VLLM_CPU_KVCACHE_SPACE=5"]),
        ("vllm-cpu-space-too-large", ["12.00 GiB was asked", "2.50 GiB is free", "VLLM_CPU_KVCACHE_SPACE below 2.5"]),
    ],
)
def test_a_cpu_without_room_says_what_to_set(name: str, words: list[str]) -> None:
    answer = explained(name)
    assert answer.log.failure is not None
    assert all(word in sentences(answer) for word in words)
    assert "GPU" not in sentences(answer)


def test_weights_larger_than_the_card_are_not_answered_with_less_utilization() -> None:
    answer = explained("vllm-0.9-oom-loading-qwen3-32b", "qwen3-32b")
    assert (answer.log.model, answer.log.phase) == ("Qwen/Qwen3-32B", "loading")
    said = sentences(answer)
    assert "lower --gpu-memory-utilization" not in said and "raise --gpu-memory-utilization" not in said
    assert "--tensor-parallel-size 4 (15.49 GiB of weights each)" in said
    assert "a checkpoint in awq: 18.24 GiB instead of 61.03 GiB, with --max-model-len 4" in said, "4.2k tokens of 40k"
    assert "checkpoint in fp8" not in said


def test_a_vision_tower_that_ran_out_of_memory_is_named() -> None:
    answer = explained("vllm-oom-profiling-vision")
    assert answer.log.phase == "vision"
    assert "--limit-mm-per-prompt" in sentences(answer)


def test_memory_in_pieces_is_told_from_memory_that_lacks() -> None:
    in_pieces, lacking = explained("vllm-0.21-oom-serving-qwen3.6-27b"), explained("vllm-0.9-oom-loading-qwen3-32b")
    assert "237.94 MiB unused, more than the 46.00 MiB it asked for" in sentences(in_pieces)
    assert "expandable_segments" not in sentences(lacking)


OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.64 GiB "
    "of which 1.00 GiB is free. Process 1 has {held} GiB memory in use. Of the allocated memory 9.00 GiB is allocated "
    "by PyTorch, and 18.93 MiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("before", "phase", "words"),
    [
        ("Starting to load model gpt2...", "loading", "changes nothing here"),
        ("Starting to load model gpt2...\nModel loading took 1.00 GiB", "profiling", "--max-num-batched-tokens"),
        ("self.model_runner.profile_run()", "profiling", "the largest step does not fit"),
        ("in initialize_kv_cache", "carving", "the KV cache does not fit"),
        ("GPU KV cache size: 100 tokens\nin capture_model", "capturing", "--enforce-eager"),
        ("Application startup complete.\nin execute_model\nin embed_multimodal", "serving", "beside the KV cache"),
        ("", None, "while loading: use more GPUs"),
    ],
)
def test_the_advice_fits_what_the_engine_was_doing(before: str, phase: str | None, words: str) -> None:
    log = parse_startup_log(f"{before}\n{OUT_OF_MEMORY.format(held='22.50')}")
    assert log.phase == phase
    assert words in sentences(explain_log(log, None, None))


def test_other_programs_on_the_gpu_are_named_first() -> None:
    log = parse_startup_log(OUT_OF_MEMORY.format(held="10.00"))
    answer = explain_log(log, None, None)
    assert answer.changes[0].sentence == "other programs hold 12.64 GiB of the GPU: stop them"


def test_a_sampler_that_ran_out_of_memory_is_named() -> None:
    text = (
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests. Please try "
        "lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
    )
    log = parse_startup_log(text)
    assert log.phase == "warming up" and "256 dummy requests" in (log.failure or "")
    assert "lower --max-num-seqs" in sentences(explain_log(log, None, None))


def test_the_command_explains_a_cpus_log(printed_by: Callable[..., str]) -> None:
    shown = printed_by("explain", str(LOGS / "vllm-0.28-cpu-opt-125m.log"))
    assert "on a CPU" in shown and "GiB of the host" in shown
    assert "log 29,056, kvplan 29,127" in shown, "the model is read off its folder in the cache"


def test_a_log_on_standard_input_may_hold_any_bytes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kvplan", "explain", "-"],
        input=b"Model loading took 3.0 GiB \xff\xfe\n",
        env=os.environ | {"PYTHONUTF8": "1", "PYTHONIOENCODING": "utf-8:strict"},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0 and b"Traceback" not in done.stderr
    assert b"weights" in done.stdout


@pytest.mark.parametrize(
    ("name", "is_written", "stands"),
    [
        ("vllm-0.11-cpu-qwen2.5-0.5b", "kv_cache_dtype=auto", "kv_cache_dtype=nvfp4"),
        ("vllm-0.19-llama-3.1-8b-h100", "kv_cache_dtype=auto", "kv_cache_dtype=nvfp4"),
        ("sglang-qwq-32b-tp4-l4", "kv_cache_dtype='auto'", "kv_cache_dtype='fp4_e2m1'"),
        ("vllm-0.11-cpu-qwen2.5-0.5b", "kv_cache_dtype=auto", "kv_cache_dtype=a"),
    ],
)
def test_a_cache_in_a_format_that_kvplan_does_not_know_is_named(name: str, is_written: str, stands: str) -> None:
    text = (LOGS / f"{name}.log").read_text(encoding="utf-8")
    log = parse_startup_log(text.replace(is_written, stands))
    answer = explain_log(log, resolve_model("qwen2.5-0.5b"), None)
    assert answer.predicted.kv_cache_tokens is None
    assert any(note.startswith("No prediction: Unknown ") for note in answer.notes)


def test_sglang_is_told_by_the_option_that_it_names() -> None:
    log = parse_startup_log("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.")
    assert log.engine == "sglang"
    assert "--mem-fraction-static" in sentences(explain_log(log, None, None))


@pytest.mark.parametrize("name", ["vllm-0.6.4-llama-3.1-8b-refused", "vllm-cpu-refused-length"])
def test_no_change_ends_in_a_colon(name: str) -> None:
    assert not [each for each in explained(name).changes if each.sentence.endswith(":")]


REFUSED = [
    # log; the sentence it stopped with, the phase, words of the first change
    ("vllm-refused-state-blocks", "max_num_seqs (1024) exceeds", None, "set --max-num-seqs 939: each"),
    ("vllm-oom-capturing-gemma-4-e4b", "memory allocation failed with OOM", "capturing", "--enforce-eager"),
    ("vllm-oom-mig-gemma-3-1b", "NVML_SUCCESS == r", "warming up", "lower --max-num-seqs"),
    ("sglang-no-room-glm-4.7-flash", "Loaded weights leave no GPU memory", None, "use more GPUs (--tp)"),
]


@pytest.mark.parametrize(("name", "failure", "phase", "words"), REFUSED)
def test_an_engine_that_refused_is_not_called_healthy(name: str, failure: str, phase: str | None, words: str) -> None:
    answer = explained(name)
    assert answer.log.failure is not None and answer.log.failure.startswith(failure)
    assert answer.log.phase == phase
    assert words in answer.changes[0].sentence


def test_a_refused_hybrid_says_how_many_sequences_it_has_states_for() -> None:
    log = explained("vllm-refused-state-blocks").log
    assert (log.settings.max_num_seqs, log.num_state_blocks) == (1024, 939)


def test_memory_that_an_allocator_counts_in_bytes_is_read() -> None:
    memory = explained("vllm-oom-capturing-gemma-4-e4b").log.memory
    assert (memory.tried_bytes, memory.free_bytes, memory.total_bytes) == (2_097_152, 2_031_616, 23_661_248_512)


@pytest.mark.parametrize(
    ("least", "words"),
    [("0.912", "raise --mem-fraction-static above 0.912"), ("1.120", "at any --mem-fraction-static: use more GPUs")],
)
def test_a_static_share_is_never_above_the_whole_gpu(least: str, words: str) -> None:
    text = (
        (LOGS / "sglang-no-room-glm-4.7-flash.log").read_text(encoding="utf-8").replace("above 1.000", f"above {least}")
    )
    assert words in sentences(explain_log(parse_startup_log(text), None, None))


def test_memory_that_sglang_leaves_unused_is_not_answered_with_more_than_all() -> None:
    answer = explain_log(explained("sglang-hybrid-gb10").log, resolve_model("qwen3.5-27b"), find_gpu("gb10"))
    said = sentences(answer)
    assert "29.76 GiB is left beside the caches: raise --mem-fraction-static" in said
    assert "to 1." not in said


def test_a_pool_that_was_given_is_not_predicted_from_a_share() -> None:
    answer = explain_log(explained("vllm-0.29-given-pool").log, resolve_model("qwen2.5-7b"), find_gpu("gb10"))
    pool = next(part for part in answer.parts if part.name == "KV cache")
    assert (pool.logged_bytes, pool.predicted_bytes) == (3 * GIB, None)
    assert answer.predicted.kv_cache_tokens is None
    assert "raise --kv-cache-memory-bytes (now 3.00 GiB)" in sentences(answer)
    assert "raise --gpu-memory-utilization" not in sentences(answer)


@pytest.mark.parametrize(
    ("text", "stopped"),
    [
        (
            "ERROR [core.py:700] EngineCore failed to start.\nERROR [core.py:700] ValueError: no such dtype\n"
            "RuntimeError: Engine core initialization failed. See root cause above.",
            "ValueError: no such dtype",
        ),
        ("Scheduler hit an exception: Traceback\nKeyError: 'model.layers'", "KeyError: 'model.layers'"),
        ("vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.", "EngineDeadError"),
    ],
)
def test_an_error_that_is_not_about_memory_is_told_without_advice(text: str, stopped: str) -> None:
    healthy = "GPU KV cache size: 100 tokens\nMaximum concurrency for 10 tokens per request: 10.0x\nmax_num_seqs=2\n"
    answer = explain_log(parse_startup_log(healthy + text), None, None)
    assert (answer.log.stopped, answer.log.failure, answer.changes) == (stopped, None, ())


def test_an_engine_that_was_told_to_stop_did_not_fail() -> None:
    """The end of vllm.log of sostrowsk/dgx-spark-local-llm (0.25.1)."""
    ended = (
        "(EngineCore pid=23397) INFO 08-01 21:34:51 [core.py:1214] [shutdown] EngineCore: trigger received "
        "signal=SIGTERM\n"
        "(APIServer pid=23283) INFO 08-01 21:34:51 [launcher.py:100] [shutdown] API server: shutdown triggered\n"
        "(APIServer pid=23283) ERROR 08-01 21:34:51 [async_llm.py:704] AsyncLLM output_handler failed.\n"
    )
    gone = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)\n"
    figures = "GPU KV cache size: 94,135 tokens\n"
    assert parse_startup_log(figures + ended + gone).stopped is None
    assert parse_startup_log(figures + gone + ended).stopped == "EngineDeadError"
    assert parse_startup_log(figures + ended + "KeyError: 'layers'\n" + gone).stopped == "KeyError: 'layers'"


ODD_NUMBERS = [
    "9" * 300_000 + "\nModel loading took 1.0 GiB",
    "max_model_len=" + "9" * 5000 + "\nModel loading took 1.0 GiB",
    "GPU KV cache size: " + "9" * 5000 + " tokens\nModel loading took 1.0 GiB",
    "CUDA out of memory. Tried to allocate " + "9" * 400 + " GiB.",
    "Model loading took " + "9" * 400 + " GiB\nAvailable KV cache memory: 1.5 GiB",
    "CUDA out of memory. Tried to allocate 1.2.3 GiB.",
    "Model loading took 1.0 GiB\nMaximum concurrency for 10 tokens per request: 1.2.3x",
    "Model loading took 1.0 GiB\ntensor_parallel_size=0, max_model_len=0",
    "Model loading took 1.0 GiB\ngpu_memory_utilization (9.5)",
]


@pytest.mark.parametrize("text", ODD_NUMBERS, ids=range(len(ODD_NUMBERS)))
def test_numbers_that_count_nothing_are_passed_over(text: str) -> None:
    answer = explain_log(parse_startup_log(text), resolve_model("gpt2"), find_gpu("h100"))
    settings = replace(answer.log.settings, max_model_len=None)
    assert settings == ServingSettings(has_flashinfer=False, language_model_only=False)


def test_of_a_long_log_both_ends_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    served = "INFO: 200 OK\n" * 200_000
    end = (LOGS / "vllm-refused-state-blocks.log").read_text(encoding="utf-8")
    (tmp_path / "long.log").write_text(f"Model loading took 1.5 GiB\n{served}{end}", encoding="utf-8")
    assert main(["explain", str(tmp_path / "long.log")]) == 0
    shown = capsys.readouterr()
    assert "weights         1.50" in shown.out and "max_num_seqs (1024) exceeds" in shown.out
    assert "the first and the last 1 MiB were read" in shown.err


def test_a_model_whose_path_no_file_can_have_is_unknown(tmp_path: Path, said_by: Callable[..., str]) -> None:
    (tmp_path / "start.log").write_text(f"model='/{'a' * 400}'\nModel loading took 1.5 GiB\n", encoding="utf-8")
    assert "is not known here" in said_by("explain", str(tmp_path / "start.log"), code=0)
