"""Physical memory of an engine with each format of weights, beside the sum that it accounts for.

    python benchmarks/resident_memory.py                                   # gpt2 and llama-135m, every format
    python benchmarks/resident_memory.py --model llama-1b --format int4    # one process, one row

A fresh process for each row: it imports the engine's libraries, loads dummy weights in bfloat16 (rounded to the format
as they are made), touches the whole KV pool, answers two prompts, and reads VmHWM, the most that was ever resident. The
rule, fixed before anything was measured: that is at most

    libraries (resident before the load) + weights + workspace + pool + 128 MiB (kept back: device/overhead.py)
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

FORMATS = ("none", "int8", "fp8", "fp8-block", "int4", "awq", "gptq", "mxfp4", "nvfp4", "bitsandbytes")
LLAMA_1B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
}
"""Llama 3.2 1B's layers."""
MODELS: dict[str, Any] = {"gpt2": "gpt2", "llama-135m": "smollm2-135m", "llama-1b": LLAMA_1B}
POOL_TOKENS = 2048
SETTINGS: dict[str, Any] = {"device": "cpu", "dtype": "bfloat16", "max_model_len": 1024, "block_size": 16} | {
    "max_num_seqs": 16,
    "max_num_batched_tokens": 512,
}
MIB = 1024**2
_COLUMNS = ("libraries", "weights", "workspace", "pool", "kept back", "sum", "peak")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 where a peak is beyond its sum."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", choices=MODELS)
    parser.add_argument("--format", action="append", choices=FORMATS)
    parser.add_argument("--row", action="store_true", help="measure in this process, and print JSON")
    options = parser.parse_args(arguments)
    models, formats = options.model or ["gpt2", "llama-135m"], options.format or FORMATS
    if options.row:
        print(json.dumps(measure(MODELS[models[0]], formats[0])))
        return 0
    print(f"| {'model':10} | {'format':12} | " + " | ".join(f"{name:>9}" for name in _COLUMNS) + " |")
    print("| --- | --- | " + " | ".join("---:" for _ in _COLUMNS) + " |", flush=True)
    is_within = True
    for model in models:
        for name in formats:
            words = [sys.executable, __file__, "--row", "--model", model, "--format", name]
            row = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
            cells = " | ".join(f"{row[column] / MIB:9,.1f}" for column in _COLUMNS)
            print(f"| {model:10} | {name:12} | {cells} |", flush=True)
            is_within &= row["peak"] <= row["sum"]
    return 0 if is_within else 1


def measure(model: Any, quantization: str) -> dict[str, int]:
    """The columns in bytes, of this process."""
    import torch

    from kvplan_engine import LLM, SamplingParams
    from kvplan_engine.device.process_memory import peak_resident_bytes, resident_memory_bytes

    torch.ones(64, 64) @ torch.ones(64, 64)  # threads and BLAS belong to the libraries
    libraries = resident_memory_bytes()
    loaded = {"load_format": "dummy", "quantization": quantization}
    with LLM(model, **SETTINGS | loaded | {"device_memory": _device_memory(model, quantization)}) as llm:
        llm.engine._runner.kv.planes.zero_()
        params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
        llm.generate([{"prompt_token_ids": list(range(1, 500))}, {"prompt_token_ids": [1, 2, 3]}], params)
        memory = llm.engine.memory
        parts = {
            "libraries": libraries,
            "weights": memory.weight_bytes,
            "workspace": memory.activation_bytes,
            "pool": memory.kv_pool_bytes,
            "kept back": memory.overhead_bytes,
        }
        return parts | {"sum": sum(parts.values()), "peak": peak_resident_bytes()}


def _device_memory(model: Any, quantization: str) -> int:
    """As much as leaves room for POOL_TOKENS at the usual share, counted without loading anything."""
    from kvplan_engine import LLM

    counted = {"load_format": "none", "quantization": quantization, "device_memory": "16GiB"}
    with LLM(model, **SETTINGS | counted) as llm:
        memory, share = llm.engine.memory, llm.engine.config.gpu_memory_utilization
    fixed = memory.weight_bytes + memory.activation_bytes + memory.overhead_bytes
    return int((fixed + POOL_TOKENS // memory.block_size * memory.block_bytes) / share) + 1


if __name__ == "__main__":
    sys.exit(main())
