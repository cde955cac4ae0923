"""How llama-server fails, by what it prints.

Recorded from b11434 (tests/data/engine_outputs/llamacpp); the lines of CUDA from public reports:
ggml-org/llama.cpp issue 20431 (weights) and pull request 26297 (compute buffers).
"""

from __future__ import annotations

import re
import signal
from typing import Final

from kvplan.engines.interface import Ending, Failure
from kvplan.units import format_bytes

_TRIED: Final = re.compile(r"failed to allocate \S+ buffer of size (\d+)")
_TRIED_MIB: Final = re.compile(r"(?:attempted to allocate +|allocating +)([\d.]+) Mi?B")
_ERROR_LINE: Final = re.compile(r"(?:^[\d.]+ E |\berror\b|what\(\):)", re.IGNORECASE)
_PREFIX: Final = re.compile(r"^[\d.]+ [EWI] +(?:\w+ +)?")

_REASONS: Final[tuple[tuple[str, str], ...]] = (
    (r"error while handling argument \"[^\"]*\": (.*)", "It refuses an option: {0}."),
    (r"error: invalid argument: (\S+)", "It knows no option {0}: this release may be older or newer than expected."),
    (r"couldn't bind HTTP server socket, hostname: \S+ port: (\d+)", "Port {0} is taken by another process."),
    (r"failed to open GGUF file '([^']+)' \(([^)]+)\)", "The model {0} cannot be opened ({1})."),
    (r"error loading model: (tensor .* is corrupted or incomplete)", "The model's file is damaged: {0}."),
    (r"failed to read magic", "The model is not a GGUF file."),
    (r"unknown model architecture: '([^']+)'", "This release does not know the architecture {0}."),
    (r"n_seq_max must be <= (\d+)", "It has at most {0} slots (max_num_seqs)."),
    (
        r"quantized V cache (?:requires flash_attn|was requested, but this requires)",
        "A quantized V cache needs flash attention: --engine-arg flash-attn=on.",
    ),
)
"""(what is printed, what it means): refusals that have nothing to do with memory, the most telling first."""


_OF_EVERY_START: Final = tuple(
    pattern for pattern, sentence in _REASONS if sentence.startswith(("It refuses", "It knows"))
)
"""What a next trial would meet as well."""


def classify(ending: Ending) -> Failure:
    """The status of an ending, and one sentence with the cause."""
    for recognise in (_refusal, _out_of_memory, _killed):
        failure = recognise(ending)
        if failure is not None:
            return failure
    return Failure("crash", f"llama-server ended ({_exit_text(ending.exit_code)}): {_last_error(ending.log)}")


def _refusal(ending: Ending) -> Failure | None:
    for pattern, sentence in _REASONS:
        found = re.search(pattern, ending.log)
        if found is not None:
            cause = sentence.format(*(group.strip().rstrip(".,") for group in found.groups()))
            return Failure("crash", cause, stops_sweep=pattern in _OF_EVERY_START)
    return None


def _out_of_memory(ending: Ending) -> Failure | None:
    """Classify it by the first allocation that was refused, and what had been allocated by then."""
    # What it printed after it was up: at the start it may recover from an allocation that failed.
    log = ending.log.rpartition("model loaded")[2] if ending.stage == "serving" else ending.log
    if "insufficient memory" not in log and "out of memory" not in log and "failed to allocate" not in log:
        return None
    tried = _tried_bytes(log)
    size = f" of {format_bytes(tried)}" if tried else ""
    if ending.stage == "serving":
        return Failure(
            "oom_runtime", f"An allocation{size} failed while serving.", "runtime", oom_requested_bytes=tried
        )
    if not re.search(r"model buffer size|llama_context", log) or "error loading model" in log:
        sentence = f"The weights do not fit: an allocation{size} failed. Take a smaller quantization."
        return Failure("oom_weights", sentence, "weights", oom_requested_bytes=tried)
    what = "KV cache" if "allocate buffer for kv cache" in log else "compute buffers"
    sentence = f"The {what} does not fit: an allocation{size} failed. Lower max_num_seqs or max_model_len."
    return Failure("oom_kv_init", sentence.replace("buffers does", "buffers do"), "kv_init", oom_requested_bytes=tried)


def _killed(ending: Ending) -> Failure | None:
    if ending.out_of_host_memory:
        at_start = ending.stage == "starting"
        return Failure(
            "oom_kv_init" if at_start else "oom_runtime",
            "The kernel killed it: this machine's memory ran out. Lower max_num_seqs or max_model_len.",
            oom_phase="kv_init" if at_start else "runtime",
        )
    if ending.exit_code == -signal.SIGKILL:
        return Failure("crash", "llama-server was killed by signal 9 (SIGKILL).")
    return None


def _tried_bytes(log: str) -> int | None:
    found = _TRIED.search(log)
    if found is not None:
        return int(found[1])
    rough = _TRIED_MIB.search(log)
    return round(float(rough[1]) * 2**20) if rough else None


def _last_error(log: str) -> str:
    """The last line that speaks of an error, without its time and source; else the last line."""
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR_LINE.search(line)]
    return _PREFIX.sub("", (errors or lines or ["it printed nothing"])[-1]).strip()


def _exit_text(exit_code: int | None) -> str:
    if exit_code is None:
        return "it still runs"
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
