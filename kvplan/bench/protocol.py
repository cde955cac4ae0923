"""The messages between a bench and its worker.

parent -> worker   BenchOrder       once
worker -> parent   NoticeMessage    before the first experiment, where the user should know something of the kernels
                   StartMessage     an experiment begins
                   ExperimentMessage    it has ended
                   DoneMessage      all have; the worker ends
                   ErrorMessage     the engine refused; the worker ends
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from kvplan.sweeps.worker.protocol import NoticeMessage

__all__ = ["DoneMessage", "ErrorMessage", "ExperimentMessage", "Message", "NoticeMessage", "StartMessage"]


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
