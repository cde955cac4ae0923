"""The experiments, the order that the parent sends to the worker, and the sizes of the workloads. No torch.

The messages between a bench and its worker.

parent -> worker   BenchOrder       once
worker -> parent   NoticeMessage    before the first experiment, where the user should know something of the kernels
                   StartMessage     an experiment begins
                   ExperimentMessage    it has ended
                   DoneMessage      all have; the worker ends
                   ErrorMessage     the engine refused; the worker ends
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, TypedDict

from kvplan.sweeps.worker.protocol import NoticeMessage

__all__ = ["DoneMessage", "ErrorMessage", "ExperimentMessage", "Message", "NoticeMessage", "StartMessage"]
EXPERIMENTS: dict[str, str] = {
    "reservation": "paged vs contiguous KV memory",
    "scheduling": "continuous vs static batching",
    "prefix": "a repeated 900-token prefix with and without the prefix cache",
    "tiers": "the same prefix kept in the pool, in host memory and on disk",
    "chunking": "running sequences while a long prompt arrives, in one step and in chunks",
    "sharing": "eight samples of one prompt vs eight requests",
    "swap": "swapping vs recomputing in an overfull pool",
    "transformers": "kvplan's engine vs transformers' generate",
}
ON_ONE_LAYER: Final = ("reservation", "sharing")
"""Experiments on a model cut down to one layer: those that run whatever its size."""


@dataclass(frozen=True, slots=True)
class BenchOrder:
    """Everything the worker needs. engine: engine arguments, including ``model`` (a config)."""

    engine: dict[str, Any]
    model_name: str
    experiments: tuple[str, ...]
    num_rounds: int
    is_quick: bool
    seed: int

    def as_json(self) -> dict[str, Any]:
        return {"type": "bench", **asdict(self)}

    @staticmethod
    def from_json(record: Mapping[str, Any]) -> BenchOrder:
        values = {name: value for name, value in record.items() if name != "type"}
        return BenchOrder(**{**values, "experiments": tuple(record["experiments"])})


@dataclass(frozen=True, slots=True)
class BenchScale:
    """Sizes of the workloads: tokens and requests.

    Lengths of the reservation workload are ShareGPT's as the PagedAttention paper gives them (mean prompt 161, mean
    answer 338 tokens; Kwon et al., 2023, section 6.1). Answers of the scheduling workload are exponentially
    distributed and capped at twelve times their mean, as in Anyscale's comparison of batching policies (2023: mean 128,
    cap 1,536), an eighth as long. Prompts are shorter still, 16 tokens instead of 512: on a CPU a
    prompt token takes as long as an output token, on a GPU a small fraction of that.
    """

    mean_prompt: int = 161
    mean_answer: int = 338
    num_reserved_sequences: int = 8
    warm_steps: int = 400
    measured_steps: int = 600
    batch_size: int = 16
    num_batches: int = 4
    batch_prompt: int = 16
    batch_mean_answer: int = 16
    batch_max_answer: int = 192
    prefix_tokens: int = 900
    question_tokens: int = 32
    num_questions: int = 2
    stall_sequences: int = 8
    chunk_tokens: int = 128
    num_samples: int = 8
    swap_sequences: int = 6
    swap_prompt: int = 176
    swap_answer: int = 48

    @staticmethod
    def of(is_quick: bool) -> BenchScale:
        if not is_quick:
            return BenchScale()
        return BenchScale(
            warm_steps=100,
            measured_steps=200,
            batch_size=8,
            num_batches=3,
            batch_mean_answer=12,
            batch_max_answer=64,
            num_questions=1,
            swap_sequences=4,
            swap_prompt=64,
            swap_answer=24,
        )


class StartMessage(TypedDict):
    type: Literal["start"]
    experiment: str


class ExperimentMessage(TypedDict):
    """experiment: an Experiment as JSON."""

    type: Literal["result"]
    experiment: dict[str, Any]


class DoneMessage(TypedDict):
    """other_cpu_pct: CPU time that other processes used meanwhile, in percent of all cores' time.

    kernels: as in the column of a sweep's rows.
    """

    type: Literal["done"]
    torch_version: str
    num_threads: int
    kernels: str | None
    other_cpu_pct: float | None


class ErrorMessage(TypedDict):
    type: Literal["error"]
    message: str
    hint: str | None


Message = NoticeMessage | StartMessage | ExperimentMessage | DoneMessage | ErrorMessage
