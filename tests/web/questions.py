"""Questions that the page and the commands are asked alike: the arguments, and the words of the command."""

from __future__ import annotations

from typing import Any

LOGS = "tests/data/startup_logs"

QUESTIONS: list[tuple[str, dict[str, Any], list[str]]] = [
    (
        "estimate",
        {"model": "llama-3.1-8b", "gpu": "h100", "ctx": "16k"},
        ["llama-3.1-8b", "--gpu", "h100", "--ctx", "16k"],
    ),
    (
        "estimate",
        {"model": "qwen3-30b-a3b", "gpu": "rtx-4090", "ctx": 8192, "quantization": "awq"},
        ["qwen3-30b-a3b", "--gpu", "rtx-4090", "--ctx", "8192", "--quantization", "awq"],
    ),
    (
        "estimate",
        {"model": "deepseek-v3", "gpu": "8xh200", "ctx": "64k", "kv_cache_dtype": "fp8"},
        ["deepseek-v3", "--gpu", "8xh200", "--ctx", "64k", "--kv-cache-dtype", "fp8"],
    ),
    (
        "estimate",
        {"model": "gemma-3-27b", "gpu": "l40s", "ctx": "32k", "gpu_memory_utilization": 0.95, "max_num_seqs": 64},
        ["gemma-3-27b", "--gpu", "l40s", "--ctx", "32k", "--gpu-memory-utilization", "0.95", "--max-num-seqs", "64"],
    ),
    (
        "estimate",
        {"model": "gpt-oss-120b", "gpu": "b200", "ctx": "128k", "engine": "vllm@0.19.0", "enforce_eager": True},
        ["gpt-oss-120b", "--gpu", "b200", "--ctx", "128k", "--engine", "vllm@0.19.0", "--enforce-eager"],
    ),
    (
        "estimate",
        {"model": "qwen3-next-80b", "gpu": "4xa100-80gb", "ctx": "32k", "enable_expert_parallel": True},
        ["qwen3-next-80b", "--gpu", "4xa100-80gb", "--ctx", "32k", "--enable-expert-parallel"],
    ),
    (
        "plan",
        {"model": "llama-3.1-8b", "users": 40, "ctx_avg": "4k", "gpu": ["l4", "h100"]},
        ["llama-3.1-8b", "--users", "40", "--ctx-avg", "4k", "--gpu", "l4,h100"],
    ),
    (
        "plan",
        {"model": "gpt2", "request_rate": 2.0, "input_len": 512, "output_len": 128, "slo": "ttft:500", "gpu": ["l4"]},
        ["gpt2", "--request-rate", "2", "--input-len", "512", "--output-len", "128", "--slo", "ttft:500", "--gpu=l4"],
    ),
    (
        "explain",
        {"log": f"{LOGS}/vllm-0.19-llama-3.1-8b-h100.log"},
        [f"{LOGS}/vllm-0.19-llama-3.1-8b-h100.log"],
    ),
    (
        "explain",
        {"log": f"{LOGS}/vllm-0.7-no-room.log", "gpu": "l4"},
        [f"{LOGS}/vllm-0.7-no-room.log", "--gpu", "l4"],
    ),
]
"""A log is named by its file; the page is given its text."""
