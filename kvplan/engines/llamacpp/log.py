"""What llama-server prints when it starts: contexts, cells and buffers.

The words are those of b11434 with ``--log-verbosity 4``; of earlier releases those lines that kept their form (the KV
cache's total was ``KV self size`` until May 2025).

How llama-server fails, by what it prints.

Recorded from b11434 (tests/data/engine_outputs/llamacpp); the lines of CUDA from public reports:
ggml-org/llama.cpp issue 20431 (weights) and pull request 26297 (compute buffers).
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import Final

from kvplan.engines.interface import Ending, Failure
from kvplan.units import MIB, format_bytes

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
_CONTEXT: Final = "n_seq_max"
_CELLS: Final = re.compile(
    r"size = +([\d.]+) MiB \( *(\d+) cells, +(\d+) layers, +(\d+)(?:/ *(\d+))? seqs\), K \((\w+)\)"
)
_KV_SELF_SIZE: Final = re.compile(r"KV self size += +([\d.]+) MiB")
_BUFFERS: Final = re.compile(r" (model|output|compute) buffer size = +([\d.]+) MiB")
_SLOTS: Final = re.compile(r"n_slots = (\d+)(?:, n_ctx_slot = (\d+))?")
_NUMBERS: Final = {
    "batch_tokens": re.compile(r"n_batch +=? +(\d+)"),
    "context_tokens": re.compile(r"\bn_ctx +=? +(\d+)"),
}


@dataclass(frozen=True, slots=True)
class CellsLine:
    """One KV cache, as printed: of the layers with all tokens, or of those with a window.

    num_streams: parts of ``num_cells`` cells each, for one slot or for all. size_bytes: rounded by 0.01 MiB.
    """

    size_bytes: int
    num_cells: int
    num_layers: int
    num_streams: int
    key_type: str


@dataclass(frozen=True, slots=True)
class StartLog:
    """A start. None, or no caches: not printed (a lower verbosity). Bytes are rounded by 0.01 MiB."""

    caches: tuple[CellsLine, ...]
    num_slots: int | None
    slot_tokens: int | None
    context_tokens: int | None
    batch_tokens: int | None
    weight_bytes: int | None
    output_bytes: int | None
    compute_bytes: int | None
    kv_self_bytes: int | None

    @property
    def kv_cache_tokens(self) -> int | None:
        """Cells of all slots in layers that keep every token, which are those printed first."""
        if self.caches:
            return self.caches[0].num_cells * self.caches[0].num_streams
        return self.context_tokens

    @property
    def kv_pool_bytes(self) -> int | None:
        return sum(cache.size_bytes for cache in self.caches) or self.kv_self_bytes


def read_start(log: str) -> StartLog:
    """The last start in a log: with ``--fit`` it may lay out contexts before the one that it keeps."""
    lines = log.splitlines()
    begin = max((number for number, line in enumerate(lines) if _CONTEXT in line), default=0)
    text = "\n".join(lines[begin:])
    slots = _SLOTS.search(text)
    return StartLog(
        caches=tuple(_cells(found) for found in _CELLS.finditer(text)),
        num_slots=int(slots[1]) if slots else None,
        slot_tokens=int(slots[2]) if slots and slots[2] else None,
        context_tokens=_first(_NUMBERS["context_tokens"], text),
        batch_tokens=_first(_NUMBERS["batch_tokens"], text),
        weight_bytes=_buffers(log, "model"),
        output_bytes=_buffers(text, "output"),
        compute_bytes=_buffers(text, "compute"),
        kv_self_bytes=_mebibytes(found[1]) if (found := _KV_SELF_SIZE.search(text)) else None,
    )


def _cells(found: re.Match[str]) -> CellsLine:
    size, cells, layers, sequences, streams, key_type = found.groups()
    # Releases before streams had one pool, and printed only how many sequences may share it.
    return CellsLine(_mebibytes(size), int(cells), int(layers), int(streams) if streams and sequences else 1, key_type)


def _buffers(text: str, kind: str) -> int | None:
    """The sum over devices; weights that were repacked stand there beside the mapped file."""
    sizes = [_mebibytes(size) for each, size in _BUFFERS.findall(text) if each == kind]
    return sum(sizes) if sizes else None


def _first(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return int(found[1]) if found else None


def _mebibytes(text: str) -> int:
    return round(float(text) * MIB)


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
