"""Failures provoked for real, and the row that each one becomes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from engines.runs import vllm_options
from kvplan.engines.serving.keeper import descendants
from sweeping import KVPLAN, options, rows_of

_SMALL: Final = {"max_num_seqs": "4", "block_size": "64", "max_model_len": "512", "kv_cache_memory_bytes": "100MB"}
_LOAD: Final = {"num_prompts": "8", "input_len": "64", "output_len": "16"}
_LONG_LOAD: Final = {"num_prompts": "16", "input_len": "64", "output_len": "440"}
_DATA_LIMIT: Final = 6 << 30
"""Bytes of private memory: more than vLLM takes before it has weights, less than with them."""


def _memory(python: str, directory: Path) -> list[str]:
    """Weights of 13 GiB in a process that may hold 6."""
    words = vllm_options(python, "llama-2-7b", directory)
    limited = f"prlimit --data={_DATA_LIMIT} {python} -m vllm.entrypoints.openai.api_server"
    return [*words, "--engine-command", limited, *options(_SMALL | {"max_model_len": "256"}), *options(_LOAD)]


def _pool(python: str, directory: Path) -> list[str]:
    return _gpt2(python, directory, {"kv_cache_memory_bytes": "1TiB"}, _LOAD)


def _context(python: str, directory: Path) -> list[str]:
    return _gpt2(python, directory, {"kv_cache_memory_bytes": "10MiB"}, _LOAD)


def _long(python: str, directory: Path) -> list[str]:
    return _gpt2(python, directory, {}, _LONG_LOAD)


def _gpt2(python: str, directory: Path, changes: Mapping[str, str], load: Mapping[str, str]) -> list[str]:
    return [*vllm_options(python, "gpt2", directory), *options(_SMALL | dict(changes)), *options(load)]


FAILURES: Final[Mapping[str, tuple[str, Callable[[str, Path], list[str]], str]]] = {
    "failure: weights": ("oom_weights", _memory, ""),
    "failure: pool": ("oom_kv_init", _pool, ""),
    "failure: context": ("rejected_ctx", _context, ""),
    "failure: engine killed under load": ("crash", _long, "EngineCore"),
    "failure: server killed under load": ("crash", _long, "APIServer"),
}
"""By name: the status, the sweep that ends so, and whom to kill under load (by its name in the log)."""


def provoked(name: str, work: Path) -> dict[str, Any] | None:
    """The row of a failure; None where it was not provoked yet."""
    return next(iter(rows_of(_directory(name, work))), None)


def _directory(name: str, work: Path) -> Path:
    return work / name.replace(": ", "-").replace(" ", "-")


def provoke(name: str, python: str, work: Path) -> None:
    """Provoke it. One that is there from an earlier call is not provoked again."""
    _, words_of, victim = FAILURES[name]
    directory = _directory(name, work)
    if provoked(name, work) is not None:
        return
    shutil.rmtree(directory, ignore_errors=True)
    print(f"provoking: {name}", flush=True)
    sweep = subprocess.Popen([*KVPLAN, "sweep", *words_of(python, directory), "--json"], stdout=subprocess.DEVNULL)
    if victim:
        _kill_under_load(sweep, victim, directory)
    sweep.wait()
    left = descendants(os.getpid())
    assert not left, f"processes are left: {left}"


def _kill_under_load(sweep: subprocess.Popen[bytes], victim: str, directory: Path) -> None:
    """Once the server answers requests."""
    log = ""
    while sweep.poll() is None and "POST /v1/completions" not in log:
        logs = (directory / "engine-logs").glob("*.log")
        log = "".join(path.read_text(errors="replace") for path in logs)
        time.sleep(0.2)
    time.sleep(1.0)
    pids = {int(pid) for pid in re.findall(rf"\({victim} pid=(\d+)\)", log)}
    for pid in pids.intersection(descendants(sweep.pid)):
        os.kill(pid, signal.SIGKILL)
