"""How vLLM 0.20 to 0.33, SGLang 0.5.23, torch and drivers word refusals and pools; options beside a log."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvplan
from kvplan.cli import main
from kvplan.errors import UsageError
from kvplan.explaining.explanation import LogAccount, explain_log, of_engine
from kvplan.explaining.startup_log import parse_startup_log
from kvplan.settings import ServingSettings
from kvplan.units import GIB

LOGS = Path(__file__).resolve().parents[1] / "data" / "startup_logs"


def explained(text: str) -> LogAccount:
    return explain_log(parse_startup_log(text), None, None)


def sentences(answer: LogAccount) -> str:
    return "\n".join(change.sentence for change in answer.changes)


REFUSALS = [
    # what is printed; words of the advice
    (
        "ValueError: Cannot auto-fit max_model_len: not enough GPU memory available to serve even a single token.",
        "raise --gpu-memory-utilization, or use more GPUs",
    ),
    (
        "RuntimeError: Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization to free",
        "the weights do not fit in what was free: use more GPUs",
    ),
    (
        "ValueError: Externally held weights on device cuda:0 (60.0/79.1 GiB) exceed the desired GPU memory "
        "utilization (0.5, 39.6 GiB).",
        "held outside the engine",
    ),
    (
        "ValueError: Free memory on device cuda:0 (10.0/79.1 GiB) on startup is less than the engine's budget after "
        "excluding external process's weights (0.9, 71.2 GiB).",
        "other programs use 69.10 GiB of the GPU",
    ),
    (
        "AssertionError: Error in memory profiling. Initial free memory 20.1 GiB, current free memory 21.0 GiB.",
        "another program gave memory back while vLLM measured",
    ),
    (
        "RuntimeError: Worker failed with error 'max_num_seqs (1024) exceeds available Mamba cache blocks (600). Each",
        "set --max-num-seqs 600",
    ),
    (
        "ValueError: The worker already uses 30.1 GiB (model weights and runtime), more than the 20.0 GiB of CPU "
        "memory reserved for it on node 0, leaving none for the KV cache. To resolve: increase "
        "`--gpu-memory-utilization` to more than 0.76, or set",
        "above 0.76, or set VLLM_CPU_KVCACHE_SPACE",
    ),
    (
        "RuntimeError: Not enough GPU memory for hybrid (mamba/linear-attention) state cache. Computed "
        "max_mamba_cache_size=0 (total_rest_memory=0.50 GB). Try: (1) reduce --max-running-requests, (2) increase "
        "--mem-fraction-static",
        "lower --max-running-requests, raise --mem-fraction-static",
    ),
    (
        "ValueError: The DSV4 SWA pool cap (4096 tokens, 1.00 GB) leaves no room for the full KV pool within 0.50 GB.",
        "lower --max-running-requests or raise --mem-fraction-static",
    ),
    (
        "RuntimeError: byte budget 1000 cannot fit ONE worst-case request (bs=1 floor 2000). Raise "
        "--mem-fraction-static",
        "lower --context-length",
    ),
    ("ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes.", "stop them"),
    (
        "Capture cuda graph failed: CUDA out of memory. Tried to allocate 20.00 MiB.\nPossible solutions:\n1. set "
        "--mem-fraction-static to a smaller value",
        "--disable-cuda-graph",
    ),
    ("torch.OutOfMemoryError: XPU out of memory. Tried to allocate 2.00 GiB.", "use more GPUs or fewer bits"),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "fewer bits"),
    ("RuntimeError: Triton Error [CUDA]: out of memory\nin capture_model", "CUDA graphs need memory"),
    (
        "in profile_run\nvllm/v1/attention/ops/vit_attn_wrappers.py\nRuntimeError: HIP out of memory. Tried to "
        "allocate 256.00 GiB. GPU 0 has a total capacity of 63.98 GiB of which 50.00 GiB is free.",
        "Start without trying it (--skip-mm-profiling), or allow fewer and smaller ones (--limit-mm-per-prompt)",
    ),
    ("(Worker pid=3) died unexpectedly\nvllm exited with code 137", "the host is out of memory"),
]


@pytest.mark.parametrize(("text", "words"), REFUSALS, ids=range(len(REFUSALS)))
def test_a_refusal_is_seen_and_answered(text: str, words: str) -> None:
    answer = explained(f"Model loading took 3.0 GiB\n{text}" if "oad" not in text else text)
    assert answer.log.stopped is not None
    assert words in sentences(answer)


@pytest.mark.parametrize(
    ("text", "stopped"),
    [
        ("Traceback (most recent call last):\n  File x\nKeyError: 'layers.0'", "KeyError: 'layers.0'"),
        ("(EngineCore pid=1) ERROR 06-01 [core.py:1] pydantic.ValidationError: no", "pydantic.ValidationError: no"),
        ("(EngineCore pid=1) WARNING 06-01 [import_utils.py:408] AssertionError: odd", None),
        ("Application startup complete.\nKeyError: 'of a request'", None),
    ],
)
def test_an_error_that_stands_alone_has_ended_the_engine(text: str, stopped: str | None) -> None:
    assert parse_startup_log(f"Model loading took 3.0 GiB\n{text}").stopped == stopped


POOLS = [
    # what is printed; GiB and tokens
    ("Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: 9, KV size: 20.16 GB", 20.16, 9),
    ("KV Cache VA upper bound. dtype: x, #tokens: 99, K size: 9.0 GB, V size: 9.0 GB\nmax_total_num_tokens=9", None, 9),
    (
        "KV Cache is allocated. #tokens: 7, K size: 1.0 GB, V size: 1.0 GB\nKV Cache is allocated. #tokens: 9, K size: "
        "5.0 GB, V size: 5.0 GB\nSWAKVPool mem usage: 12.00 GB, swa size: 7, full size: 9\nmax_total_num_tokens=9",
        12.0,
        9,
    ),
    ("SWAKVPool mem usage: 12.34 GB, swa size: 7, full size: 9", 12.34, 9),
    (
        "DSV4 pool sizes: full=9, swa=4, c4=2, c128=1\nDSV4 memory calculation: unified=False, "
        "bytes_per_full_token=5.0, available_bytes=20.50 GB, full_token=9",
        20.5,
        9,
    ),
    (
        "Mamba Cache is allocated. max_mamba_cache_size: 360,\nconv_state size: 0.99GB, ssm_state size: 50.77GB",
        51.76,
        None,
    ),
]


@pytest.mark.parametrize(("text", "pool_gib", "tokens"), POOLS)
def test_sglangs_pools_are_read(text: str, pool_gib: float | None, tokens: int | None) -> None:
    log = parse_startup_log(text)
    assert log.engine == "sglang" and log.kv_cache_tokens == tokens
    pool = log.memory.kv_pool_bytes
    assert pool is pool_gib is None or (pool or 0) / GIB == pytest.approx(pool_gib, abs=0.001)


@pytest.mark.parametrize(
    ("text", "pool_gib", "is_given"),
    [
        (
            "Applying persisted startup plan (fingerprint a): kv_cache_memory_bytes=3221225472 (3.00 GiB), recorded",
            3,
            True,
        ),
        (
            "Available KV cache memory: 20.0 GiB\nReserving 2.5 GiB of GPU memory for frontend multimodal decoding (1 "
            "GiB); KV cache memory reduced to 17.5 GiB.",
            17.5,
            False,
        ),
        ("vllm serve org/m --kv-cache-memory-bytes 2147483648\nModel loading took 3.0 GiB", 2, True),
    ],
)
def test_vllms_pools_are_read(text: str, pool_gib: float, is_given: bool) -> None:
    log = parse_startup_log(text)
    assert (log.memory.kv_pool_bytes, log.has_given_pool) == (round(pool_gib * GIB), is_given)


@pytest.mark.parametrize(
    "text",
    [
        "Tried to allocate 2.00 GiB. GPU 0 has a total capacty of 23.65 GiB of which 1.50 GiB is free.",
        "Tried to allocate 2.00 GiB (GPU 0; 23.65 GiB total capacity; 21.00 GiB already allocated; 1.50 GiB free; 1)",
        "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which 1.50 GiB is free. Including",
    ],
)
def test_torch_words_a_refusal_by_its_release(text: str) -> None:
    memory = parse_startup_log(f"torch.cuda.OutOfMemoryError: CUDA out of memory. {text}").memory
    figures = (memory.total_bytes, memory.free_bytes, memory.tried_bytes)
    assert [round((number or 0) / GIB, 2) for number in figures] == [23.65, 1.5, 2.0]


def test_a_given_pool_is_what_is_lowered() -> None:
    """A share of the GPU has no effect beside --kv-cache-memory-bytes."""
    answer = explained(
        "reserved 3.0 GiB memory for KV Cache as specified by kv_cache_memory_bytes config and skipped profiling\n"
        "CUDA out of memory. Tried to allocate 2.00 GiB.\nin capture_model"
    )
    assert "lower --kv-cache-memory-bytes or --max-num-seqs" in sentences(answer)


def test_an_option_counts_before_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    log = str(LOGS / "vllm-0.22-stated-utilization.log")
    options = ("--gpu", "l40s", "--gpu-memory-utilization", "0.9", "--tp", "2", "--engine", "vllm@0.25")
    assert main(["explain", log, *options]) == 0
    shown = capsys.readouterr()
    assert "vllm 0.25: Qwen/Qwen2.5-7B-Instruct on l40s" in shown.out
    assert "use 4 GPUs in all instead of 2: --tensor-parallel-size 4" in shown.out
    assert "--gpu-memory-utilization 0.9 is taken as given; the log has 0.95." in shown.err
    assert "Version 0.25 is taken as given; the log has 0.22.0." in shown.err


def test_the_python_call_takes_settings_too() -> None:
    answer = kvplan.explain(LOGS / "vllm-0.22-stated-utilization.log", gpu="l40s", tensor_parallel_size=2)
    assert answer.answer.log.settings.tensor_parallel_size == 2
    with pytest.raises(UsageError, match="has no argument 'acceptance_rate'"):
        kvplan.explain(LOGS / "vllm-0.22-stated-utilization.log", acceptance_rate=0.5)


def test_the_settings_that_were_read_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(LOGS / "vllm-0.27-qwen3.8-27b-gb10.log")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "settings read: --gpu-memory-utilization 0.92, --max-model-len 786432, --no-enable-prefix-caching" in shown
    read = kvplan.explain(LOGS / "sglang-qwq-32b-tp4-l4.log").to_dict()["settings"]
    assert (read["tensor_parallel_size"], read["gpu_memory_utilization"]) == (4, 0.85)
    assert main(["explain", str(LOGS / "sglang-qwq-32b-tp4-l4.log")]) == 0
    assert "--mem-fraction-static 0.85" in " ".join(capsys.readouterr().out.split())


def test_another_engine_than_the_logs_is_refused() -> None:
    log = parse_startup_log("Available KV cache memory: 2.0 GiB")
    with pytest.raises(UsageError, match="The log is one of vllm, not of sglang"):
        of_engine(log, "sglang")
    assert of_engine(log, "vllm@0.25").version == "0.25"


def test_a_checkpoint_in_another_format_is_named_and_gets_no_advice() -> None:
    """The weights alone would take more than the GPUs have, and yet there is a KV cache."""
    text = "vllm serve org/m -tp 2 --gpu-memory-utilization 0.8\nvLLM 0.29.1\nAvailable KV cache memory: 22.5 GiB"
    kvplan_says = kvplan.explain(text, model="minimax-m2.7", gpu="gb10", quantization="none")
    assert kvplan_says.changes == ()
    assert any("name its format with --quantization" in note for note in kvplan_says.notes)
    in_four_bits = kvplan.explain(text, model="minimax-m2.7", gpu="gb10", quantization="awq")
    assert not any("name its format" in note for note in in_four_bits.notes)


def test_given_settings_replace_those_that_were_read() -> None:
    log = parse_startup_log("max_num_seqs=8\nAvailable KV cache memory: 2.0 GiB")
    answer = explain_log(log, None, None, ServingSettings(max_num_seqs=16))
    assert answer.log.settings.max_num_seqs == 16
    assert answer.notes[0] == "--max-num-seqs 16 is taken as given; the log has 8."
