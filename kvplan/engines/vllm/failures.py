"""A vLLM that did not come up, or ended under load, as one of the sweep's statuses: the cause and the way out.

The texts are vLLM's own (v1/core/kv_cache_utils.py, v1/worker/{gpu,cpu}_worker.py, v1/engine/core_client.py) and
torch's and the operating system's refusals of memory.
"""

from __future__ import annotations

import re
from typing import Final

from kvplan.engines.interface import Ending, Failure
from kvplan.explaining.explanation import explain_log
from kvplan.explaining.startup_log import Phase, StartupLog, parse_startup_log
from kvplan.runs.statuses import Status

_CONTEXT: Final = re.compile(r"max seq len|larger than the maximum number of tokens")
_TOO_LONG: Final = re.compile(
    r"User-specified max_model_len \((\d+)\) is greater than the derived max_model_len \(\w+=([\d.]+)"
)
_NO_BLOCKS: Final = re.compile(r"No common block size for (\d+) \(([^\n]*?)\)\.?$", re.MULTILINE)
_REFUSED_MEMORY: Final = re.compile(
    r"(?:DefaultCPUAllocator: (?:can't|not enough) .*memory|std::bad_alloc|Cannot allocate memory|MemoryError)[^\n]*"
)
_TRIED: Final = re.compile(r"you tried to allocate (\d+) bytes")
_BY_PHASE: Final[dict[Phase | None, tuple[Status, str]]] = {
    "loading": ("oom_weights", "weights"),
    "profiling": ("oom_kv_init", "kv_init"),
    "vision": ("oom_kv_init", "kv_init"),
    "carving": ("oom_kv_init", "kv_init"),
    "capturing": ("oom_kv_init", "graph_capture"),
    "warming up": ("oom_kv_init", "graph_capture"),
    "serving": ("oom_runtime", "runtime"),
    None: ("oom_kv_init", "kv_init"),
}
_USAGE: Final = re.compile(r"error: ((?:unrecognized arguments|argument|ambiguous option|the following)[^\n]*)")
_RAISED: Final = re.compile(r"^(?:\([^)]*\) )?(?:\w+ \d\d-\d\d [\d:]+ \[[^\]]*\] )?"
                            r"(\w+(?:\.\w+)*(?:Error|Exception|Interrupt)): (.+)$", re.MULTILINE)  # fmt: skip
_SECONDHAND: Final = ("EngineDeadError", "EngineCore", "Engine core", "WorkerProc", "cancelled")
_MOST_CHARACTERS: Final = 300


def read_failure(ending: Ending) -> Failure:
    """The status of an ending. What only an operating system saw is told by the phase that the log had reached."""
    usage = _USAGE.search(ending.log)
    if usage:
        return Failure("crash", f"vLLM refuses its command line: {usage.group(1)}", stops_sweep=True)
    too_long = _TOO_LONG.search(ending.log)
    if too_long and ending.stage == "starting":
        asked, longest = int(too_long[1]), int(float(too_long[2].rstrip(".")))
        sentence = f"max_model_len {asked:,} is longer than the model's {longest:,} positions."
        return Failure("rejected_ctx", sentence, largest_max_model_len=longest, context_limited_by="model")
    blocks = _NO_BLOCKS.search(ending.log)
    if blocks and ending.stage == "starting":
        return Failure(
            "rejected_block_size", f"vLLM has no kernel here for blocks of {blocks[1]} tokens ({blocks[2]})."
        )
    found = parse_startup_log(ending.log)
    if found.failure is not None and ending.stage == "starting":
        return _recognised(found)
    refused = _REFUSED_MEMORY.search(ending.log)
    if ending.out_of_host_memory or refused or found.is_out_of_memory:
        return _out_of_memory(ending, found, refused)
    return Failure("crash", f"{_how(ending)}{_cause(ending.log)}.")


def _recognised(found: StartupLog) -> Failure:
    assert found.failure is not None
    sentence = _sentence(found)
    if _CONTEXT.search(found.failure):
        longest = found.largest_max_model_len
        return Failure("rejected_ctx", sentence, largest_max_model_len=longest, context_limited_by="pool")
    if found.num_state_blocks is not None:
        reason = found.failure.partition(". ")[0].rstrip(".")
        return Failure("rejected_seqs", f"{reason}. Lower --max-num-seqs to {found.num_state_blocks} or less.")
    if found.is_out_of_memory:
        status, phase = _BY_PHASE[found.phase]
        memory = found.memory
        return Failure(
            status,
            sentence,
            phase,
            oom_requested_bytes=memory.tried_bytes,
            oom_free_bytes=memory.free_bytes,
        )
    return Failure("oom_kv_init", sentence, "kv_init")


def _out_of_memory(ending: Ending, found: StartupLog, refused: re.Match[str] | None) -> Failure:
    """Memory of the host that ran out, or of a GPU under load."""
    phase: Phase | None = "serving" if ending.stage == "serving" else _phase_reached(found)
    status, column = _BY_PHASE[phase]
    text = refused.group(0).strip() if refused else found.failure or "the kernel killed it for memory"
    tried = _TRIED.search(text)
    said = text.rstrip(".")[:_MOST_CHARACTERS]
    return Failure(
        status,
        f"Out of memory while {phase}: {said}.",
        column,
        oom_requested_bytes=int(tried.group(1)) if tried else None,
    )


def _phase_reached(found: StartupLog) -> Phase:
    if found.memory.weight_bytes is None:
        return "loading"
    return "carving" if found.kv_cache_tokens is None else "warming up"


def _sentence(found: StartupLog) -> str:
    """The log's own words and the first change that ``kvplan explain`` suggests."""
    cause = re.split(r"(?<=[.)]) (?:Try|See|To resolve|Based on|Decrease|Reduce)", found.failure or "", maxsplit=1)[0]
    changes = explain_log(found, None, None).changes
    way_out = changes[0].sentence.rstrip(":.") if changes else ""
    return f"{cause.rstrip('.')[:_MOST_CHARACTERS]}." + (f" {way_out[:1].upper()}{way_out[1:]}." if way_out else "")


def _how(ending: Ending) -> str:
    code, when = ending.exit_code, "under load" if ending.stage == "serving" else "before it served"
    if "EngineDeadError" in ending.log:
        return f"vLLM's engine process died {when}"
    if code is None:
        return f"vLLM stopped answering {when}"
    return f"vLLM was ended by signal {-code} {when}" if code < 0 else f"vLLM ended with exit code {code} {when}"


def _cause(log: str) -> str:
    """The first error that is not only a report of another one; '' where all are."""
    raised = [f"{name}: {text.strip()}" for name, text in _RAISED.findall(log)]
    told = next((text for text in raised if not any(words in text for words in _SECONDHAND)), "")
    return f" ({told.rstrip('.')[:_MOST_CHARACTERS]})" if told else ""
