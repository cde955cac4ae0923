"""What a profile recorded: its steps as equally long columns, its requests, and the parts of the device's memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypedDict

PHASES: Final = ("schedule", "transfer", "prepare", "forward", "commit", "sample", "count", "wait", "process")
"""The parts of a step in the order in which they run: ``kvplan_engine.execution.loop.step_runner``."""

OTHER_PHASE: Final = "other"
"""What is left of a step outside its phases."""


class StepColumns(TypedDict):
    """One entry per step. Times in seconds since the first request was sent; counts are taken once the step has run,
    before finished sequences leave.

    step_seconds: the engine's call. prefill_tokens, decode_tokens: tokens computed, of prompts (and of sequences that
    are computed again) and of generation; prefill_seqs, decode_seqs: the sequences they belong to. used_blocks: held by
    sequences; cached_blocks: free, with KV that can be found again; free_blocks: free, without. used_tokens: slots of
    used blocks that hold a token. num_preemptions: so far. process_bytes: resident memory of the process above what it
    was before the engine, or on a GPU what torch's allocator has given out; None where it was not read after this step.
    """

    began_seconds: list[float]
    step_seconds: list[float]
    prefill_tokens: list[int]
    decode_tokens: list[int]
    prefill_seqs: list[int]
    decode_seqs: list[int]
    new_tokens: list[int]
    num_running: list[int]
    num_waiting: list[int]
    used_blocks: list[int]
    cached_blocks: list[int]
    free_blocks: list[int]
    used_tokens: list[int]
    num_preemptions: list[int]
    process_bytes: list[int | None]


class ProfiledRequest(TypedDict):
    """One request, in the order of arrival. Times since the first was sent; None for one that was refused."""

    request_id: str
    num_prompt_tokens: int
    num_output_tokens: int
    arrival_seconds: float
    first_token_seconds: float | None
    last_token_seconds: float | None


class MemoryParts(TypedDict):
    """What the engine's memory is used for, in bytes, as allocated."""

    device_total_bytes: int
    budget_bytes: int
    weight_bytes: int
    workspace_bytes: int
    overhead_bytes: int
    graph_bytes: int
    kv_pool_bytes: int
    block_bytes: int
    num_blocks: int
    block_size: int


class RecordingJson(TypedDict):
    """A recording as JSON. phase_seconds, operation_seconds: by name, one entry per step.

    operation_seconds: parts of ``forward``; {} where the kernels do not tell. device_is_asynchronous: it works by
    itself (a GPU), so ``forward`` and ``sample`` are the time to queue their work.
    """

    steps: StepColumns
    phase_seconds: dict[str, list[float]]
    operation_seconds: dict[str, list[float]]
    requests: list[ProfiledRequest]
    memory: MemoryParts
    duration_seconds: float
    num_threads: int
    device_is_asynchronous: bool


@dataclass(frozen=True, slots=True)
class StepRecording:
    """A recording with the figures that several readers need."""

    json: RecordingJson

    @property
    def steps(self) -> StepColumns:
        return self.json["steps"]

    @property
    def memory(self) -> MemoryParts:
        return self.json["memory"]

    @property
    def num_steps(self) -> int:
        return len(self.steps["began_seconds"])

    @property
    def step_seconds(self) -> float:
        """Time inside the engine's steps."""
        return sum(self.steps["step_seconds"])

    @property
    def idle_seconds(self) -> float:
        """Time between steps: waiting for requests to be due, and the load generator's own work."""
        return max(0.0, self.json["duration_seconds"] - self.step_seconds)

    def phases(self) -> dict[str, list[float]]:
        """Seconds of each phase that occurred, by step, in the order of a step; what is left of a step comes last."""
        found = self.json["phase_seconds"]
        named: dict[str, list[float]] = {name: found[name] for name in PHASES if name in found and any(found[name])}
        rest = [
            max(0.0, whole - sum(column[index] for column in named.values()))
            for index, whole in enumerate(self.steps["step_seconds"])
        ]
        return {**named, OTHER_PHASE: rest}

    def kinds(self) -> list[str]:
        """``prefill``, ``mixed`` or ``decode`` for each step, ``idle`` for one without tokens."""
        return [
            "mixed" if prefill and decode else "prefill" if prefill else "decode" if decode else "idle"
            for prefill, decode in zip(self.steps["prefill_tokens"], self.steps["decode_tokens"], strict=True)
        ]
