"""What parent and worker say to each other: one JSON object a line, over the worker's stdin and stdout.

    parent -> worker   {"type": "trial", ...TrialOrder}      run one trial
    worker -> parent   {"type": "hello", "engine_version", "torch_version", "pid", "architectures"}
                       {"type": "stage", "stage": "loading" | "setup" | "warmup" | "serving", "memory_share"?}
                       {"type": "progress", "output_tokens_per_second", "kv_usage", "num_running", "num_waiting",
                        "share", "memory_share"}    of the trial's output tokens, of the device's memory (or null)
                       {"type": "result", "trial_id", "row": {...}, "series": {...} | null, "worker_usable": bool}

The parent closing the worker's stdin, by intention or by dying, ends the worker.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from kvplan.workload.requests import RequestSpec

Stage = Literal["starting", "loading", "setup", "warmup", "serving"]


@dataclass(frozen=True, slots=True)
class TrialOrder:
    """Everything a worker needs for one trial.

    engine: arguments of the engine that stay for the life of its weights (model, device, dtype, seed, ...).
    settings: arguments of this trial. requests: already shortened to max_model_len.
    slo_ms: the most that ttft, tpot and e2el may be, for goodput.
    """

    trial_id: str
    engine: dict[str, Any]
    settings: dict[str, Any]
    requests: tuple[RequestSpec, ...]
    max_concurrency: int | None
    seed: int
    vocab_size: int
    slo_ms: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {"type": "trial", **asdict(self)}

    @staticmethod
    def from_json(message: dict[str, Any]) -> TrialOrder:
        values = {key: value for key, value in message.items() if key != "type"}
        values["requests"] = _requests(values["requests"])
        return TrialOrder(**values)


def _requests(records: Sequence[dict[str, Any]]) -> tuple[RequestSpec, ...]:
    return tuple(RequestSpec(**record) for record in records)


def encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes | str) -> dict[str, Any]:
    """The message in a line. ValueError where it is none."""
    message = json.loads(line)
    if not isinstance(message, dict) or "type" not in message:
        raise ValueError(f"not a message: {line!r}")
    return message
