"""The messages between a sweep and its worker: one JSON object per line, over the worker's stdin and stdout.

    parent -> worker   DEVICE               which GPU do you open? asked before the sweep is planned
                       RESERVE              load the engine of a trial: what would you keep free of the GPU?
                       TrialOrder           run one trial
    worker -> parent   Hello                once, when the engine is imported
                       DeviceMessage        the answer to DEVICE
                       ReserveMessage       the answer to RESERVE, and on a GPU before the pool of a trial is made
                       NoticeMessage        something that the user should know
                       StageMessage         a stage of the trial begins
                       ProgressMessage      a few times per second while requests are served
                       ResultMessage        the trial has ended

When the parent closes the worker's stdin, on purpose or by dying, the worker ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, TypedDict

from kvplan.machine.device import Reserve
from kvplan.runs.columns import Row
from kvplan.runs.directory import Series
from kvplan.runs.request_lines import RequestLine
from kvplan.workload.requests import RequestSpec

Stage = Literal["compiling", "loading", "setup", "warmup", "serving"]


class Hello(TypedDict):
    """What the process runs. architectures: those that its engine can run; known_architectures: those it can count."""

    type: Literal["hello"]
    pid: int
    engine_version: str
    torch_version: str
    architectures: list[str]
    known_architectures: list[str]


WITHOUT_KERNELS: Final = (
    "kvplan's engine runs on plain torch, 5 to 26 times slower: capacity is measured as always, speeds say nothing"
)
"""What a user is told where there are no compiled kernels."""

DEVICE: Final = "device"
"""The type of the question which GPU a process opens, and of its answer."""


class DeviceMessage(TypedDict):
    """gpu: as OpenedGpu has it; none: as NoGpu. One of them is None."""

    type: Literal["device"]
    gpu: dict[str, Any] | None
    none: dict[str, Any] | None


RESERVE: Final = "reserve"
"""The type of the question what an engine would keep free of its GPU, and of what it says of that."""


class ReserveMessage(TypedDict):
    """reserve: as Reserve has it; None as an answer where the engine could not be loaded."""

    type: Literal["reserve"]
    reserve: dict[str, int] | None


class NoticeMessage(TypedDict):
    """A line for the user, said once by each process, at the latest before the first trial is served."""

    type: Literal["notice"]
    text: str


class StageMessage(TypedDict):
    """memory_share: of the device's memory that the process holds; None on a GPU, or if not yet known."""

    type: Literal["stage"]
    stage: Stage
    memory_share: float | None


class ProgressMessage(TypedDict):
    """share: of the trial's output tokens that have been generated. output_tokens_per_second: None if not computed."""

    type: Literal["progress"]
    output_tokens_per_second: float | None
    kv_usage: float
    num_running: int
    num_waiting: int
    share: float
    memory_share: float | None


class _ResultOfRequests(TypedDict, total=False):
    requests: list[RequestLine]


class ResultMessage(_ResultOfRequests):
    """row: the columns that the worker measured. worker_usable: False if the parent should start a new process."""

    type: Literal["result"]
    trial_id: str
    row: Row
    series: Series | None
    worker_usable: bool


Event = NoticeMessage | StageMessage | ProgressMessage
Message = Hello | DeviceMessage | ReserveMessage | NoticeMessage | StageMessage | ProgressMessage | ResultMessage


@dataclass(frozen=True, slots=True)
class TrialOrder:
    """Everything a worker needs for one trial.

    engine: engine arguments that stay for the life of its weights (model, device, seed, ...). settings: those of this
    trial, as the engine takes them. requests: already clipped to max_model_len.
    slo_seconds: upper bounds of ttft, tpot and e2el, for goodput.
    """

    trial_id: str
    engine: dict[str, Any]
    settings: dict[str, Any]
    requests: tuple[RequestSpec, ...]
    max_concurrency: int | None
    seed: int
    vocab_size: int
    slo_seconds: dict[str, float] = field(default_factory=dict)

    @property
    def is_counted(self) -> bool:
        """Whether the engine only counts (load format none)."""
        return bool(self.engine["load_format"] == "none")

    @property
    def num_adapters(self) -> int:
        """Slots for adapters; each gets one."""
        return int(self.settings.get("max_loras", 0))

    def as_json(self) -> dict[str, Any]:
        return {"type": "trial", **asdict(self)}

    def as_question(self) -> dict[str, Any]:
        """The question what the engine would keep free of its GPU for this trial."""
        return {**self.as_json(), "type": RESERVE}

    @staticmethod
    def from_json(message: dict[str, Any]) -> TrialOrder:
        values = {key: value for key, value in message.items() if key != "type"}
        values["requests"] = _requests(values["requests"])
        return TrialOrder(**values)


def _requests(records: Sequence[dict[str, Any]]) -> tuple[RequestSpec, ...]:
    return tuple(RequestSpec(**{**record, "block_ids": tuple(record["block_ids"])}) for record in records)


@dataclass(slots=True)
class TrialResult:
    """The worker's part of a row. worker_usable: False if the next trial needs a new process. requests: served ones.

    reserve: what the engine said before it made the pool, or refused to; None on a CPU, and where it did not get there.
    """

    row: Row
    series: Series | None = None
    worker_usable: bool = True
    requests: list[RequestLine] = field(default_factory=list)
    reserve: Reserve | None = None

    def as_message(self, trial_id: str) -> ResultMessage:
        return {
            "type": "result",
            "trial_id": trial_id,
            "row": self.row,
            "series": self.series,
            "worker_usable": self.worker_usable,
            "requests": self.requests,
        }

    @staticmethod
    def from_message(message: ResultMessage) -> TrialResult:
        return TrialResult(message["row"], message["series"], message["worker_usable"], message.get("requests", []))
