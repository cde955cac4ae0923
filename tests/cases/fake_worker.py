"""A stand-in for the worker process: speaks the protocol, has no engine, and misbehaves on demand.

``FAKE_WORKER_BEHAVIOUR`` is JSON: max_num_seqs of a trial, or max_num_seqs/block_size (as text) -> one of the
behaviours below; anything else is answered at once with a plausible row. ``FAKE_WORKER_LOG`` names a file that gets one
line per trial begun.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

BEHAVIOUR = json.loads(os.environ.get("FAKE_WORKER_BEHAVIOUR", "{}"))
LARGEST_CONCURRENCY = 5  # that keeps every service level
SECONDS_PER_TRIAL = float(os.environ.get("FAKE_WORKER_SECONDS", "0"))


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def note(order: dict[str, Any]) -> None:
    path = os.environ.get("FAKE_WORKER_LOG")
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {order['trial_id']}\n")


def measured_row(order: dict[str, Any]) -> dict[str, Any]:
    settings = order["settings"]
    row = {
        "status": "ok", "duration": 1.0, "completed": len(order["requests"]), "failed": 0,
        "output_throughput": 10.0 * settings["max_num_seqs"], "total_token_throughput": 50.0,
        "request_throughput": 1.0, "median_ttft_ms": 5.0, "p99_ttft_ms": 9.0, "median_tpot_ms": 2.0, "p99_tpot_ms": 3.0,
        "kv_usage_max": 0.5, "frag_pct": 3.0, "kv_waste_pct": 3.0,
        "contiguous_utilization_pct": 20.0, "num_preemptions": 0,
        "max_running": 2, "meas_max_concurrency": 2,
    }  # fmt: skip
    if order["slo_seconds"]:
        keeps = (order["max_concurrency"] or len(order["requests"])) <= LARGEST_CONCURRENCY
        row |= {"slo_pass": keeps, "goodput_pct": 100.0 if keeps else 50.0, "request_goodput": 1.0 if keeps else 0.5}
    if settings["gpu_memory_utilization"] < 0.1:
        return {"status": "oom_weights", "oom_phase": "weights", "error": "The weights do not fit."}
    return row


def behave(name: str) -> None:
    """The misbehaviours. ``hang`` never answers; the others end this process or the conversation."""
    if name == "exit":
        print("the sky fell on the engine", file=sys.stderr, flush=True)
        sys.exit(3)
    if name == "sigkill":
        os.kill(os.getpid(), signal.SIGKILL)
    if name.startswith("sigsegv"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if name == "hang":
        time.sleep(600)
    if name == "garbage":
        sys.stdout.write("Segmentation fault, but politely\n")
        sys.stdout.flush()
        time.sleep(600)


def main() -> None:
    say({"type": "hello", "pid": os.getpid(), "engine_version": "fake", "torch_version": "none",
         "architectures": ["GPT2LMHeadModel", "LlamaForCausalLM"]})  # fmt: skip
    for line in sys.stdin:
        order = json.loads(line)
        if order["type"] == "log":
            continue
        note(order)
        say({"type": "stage", "stage": "serving"})
        time.sleep(SECONDS_PER_TRIAL)
        settings = order["settings"]
        name = BEHAVIOUR.get(str(settings["max_num_seqs"]), "")
        name = BEHAVIOUR.get(f"{settings['max_num_seqs']}/{settings['block_size']}", name)
        say({"type": "progress", "output_tokens_per_second": 12.0, "kv_usage": 0.25, "num_running": 2, "num_waiting": 1,
             "share": 0.5, "memory_share": 0.98 if name == "sigsegv-full" else 0.5})  # fmt: skip
        behave(name)
        series = {"seconds": [0.0, 1.0], "kv_usage": [0.5, 0.1], "num_running": [2, 1], "num_waiting": [1, 0],
                  "used_tokens": [64, 12], "output_tokens_per_second": [10.0, 11.0]}  # fmt: skip
        row = measured_row(order)
        served = row["status"] == "ok"
        say({"type": "result", "trial_id": order["trial_id"], "row": row, "series": series if served else None,
             "worker_usable": True})  # fmt: skip


if __name__ == "__main__":
    main()
