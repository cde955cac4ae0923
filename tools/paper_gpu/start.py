"""Starts vLLM on the paper GPU until its KV cache is sized, and prints what it measured as JSON behind "MEASURED ".

Run by vLLM's Python with a file: {"config": config.json, "arguments": EngineArgs, "rank": of several GPUs or null,
"history": folder or null, "processor": {"tokens": {word: its id, or the config's key for it}, further files' names:
their JSON} or null}. With ``history`` PyTorch's record of allocations after loading and after the profile run is
written there, as pickles that https://docs.pytorch.org/memory_viz shows.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# the engine's process is this one, so that what it measures can be read; nothing is asked of the network
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}

import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader import dummy_loader
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.worker import gpu_worker

MIB = 1 << 20


class _Sized(BaseException):
    """Raised where the pool would be allocated; not an Exception, which vLLM would catch."""


def _segments() -> dict[int, int]:
    """Free bytes of each large segment that is partly in use, by its address."""
    return {
        each["address"]: each["total_size"] - each["allocated_size"]
        for each in torch.cuda.memory_snapshot()
        if each["segment_type"] == "large" and 0 < each["allocated_size"] < each["total_size"]
    }


def _watch(measured: dict[str, Any], history: Path | None) -> None:
    """Replace what loads, profiles and allocates by what does the same and writes it down."""

    def record(name: str) -> None:
        if history is not None:
            (history / f"{name}.pickle").write_bytes(pickle.dumps(torch.cuda.memory._snapshot()))

    load, profiling = gpu_worker.Worker.load_model, gpu_worker.memory_profiling
    size = gpu_worker.Worker.determine_available_memory
    results: list[Any] = []

    def load_model(worker: Any, *args: Any, **options: Any) -> Any:
        if history is not None:
            torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")
        result = load(worker, *args, **options)
        record("load")
        measured["weights"] = int(worker.model_runner.model_memory_usage)
        return result

    @contextlib.contextmanager
    def memory_profiling(*args: Any, **options: Any) -> Iterator[Any]:
        loaded, measured["allocated_before"] = _segments(), torch.cuda.memory_allocated()
        with profiling(*args, **options) as result:
            yield result
            record("profile")
        measured["allocated_after"] = torch.cuda.memory_allocated()
        measured["peak"] = torch.cuda.max_memory_allocated()
        measured["reserved_after"] = result.after_profile.torch_memory
        measured["consumed"] = getattr(result, "total_consumed", None)
        measured["headroom"] = getattr(result, "transient_peak_headroom", None)
        results.append(result)
        measured["pinned"] = sum(free for address, free in _segments().items() if address not in loaded and free >= MIB)

    def determine_available_memory(worker: Any) -> Any:
        available = size(worker)
        # read only now: releases that capture graphs within the profile run take their peak from before
        measured["non_kv"] = int(results[-1].non_kv_cache_memory)
        return available

    def initialize_from_config(worker: Any, *args: Any, **options: Any) -> None:
        raise _Sized

    gpu_worker.Worker.load_model = load_model
    gpu_worker.Worker.determine_available_memory = determine_available_memory
    gpu_worker.Worker.initialize_from_config = initialize_from_config
    gpu_worker.memory_profiling = memory_profiling
    # random numbers are drawn on the host for some formats, and would be written to a GPU that keeps nothing
    dummy_loader.initialize_dummy_weights = lambda *args, **options: None


def _write_processor(folder: Path, config: dict[str, Any], files: dict[str, Any]) -> None:
    """Write what a model's processor is made from: its files, and a tokenizer of single letters and ``tokens``."""
    ids = {word: config[key] if isinstance(key, str) else key for word, key in files["tokens"].items()}
    plain = {"special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
    letters = {chr(code): 1000 + code for code in range(ord("!"), ord("~") + 1)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": word, **plain} for word, number in ids.items()],
        "model": {"type": "WordLevel", "vocab": {**letters, **ids}, "unk_token": "!"},
    }
    for name, content in {**files, "tokenizer.json": tokenizer}.items():
        if name.endswith(".json"):
            (folder / name).write_text(json.dumps(content))


def main() -> None:
    case = json.loads(Path(sys.argv[1]).read_text())
    measured: dict[str, Any] = {}
    _watch(measured, case["history"] and Path(case["history"]))
    if case["rank"] is not None:
        from ranks import be_one_of  # a process alone is not changed

        be_one_of(case["rank"])
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(case["config"]))
        if case["processor"]:
            _write_processor(Path(folder), case["config"], case["processor"])
        arguments = {"model": folder, "load_format": "dummy", **case["arguments"]}
        arguments["skip_tokenizer_init"] = not case["processor"]
        try:
            LLMEngine.from_engine_args(EngineArgs(**arguments), usage_context=UsageContext.OPENAI_API_SERVER)
        except _Sized:
            pass
        except Exception as error:  # noqa: BLE001  # whatever vLLM raises is the case's result
            traceback.print_exc()
            # a model too large for the pool is refused behind the profile run, and was measured
            measured |= {} if "non_kv" in measured else {"error": f"{type(error).__name__}: {error}"}
    print("MEASURED " + json.dumps(measured), flush=True)
    os._exit(0)  # vLLM's threads would wait for a GPU


if __name__ == "__main__":
    main()
