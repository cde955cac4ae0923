"""The state of a sequence, and why it ended. No torch."""

from __future__ import annotations

from enum import Enum


class SequenceStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    SWAPPED = "swapped"  # preempted, its KV in host memory
    PARKED = "parked"  # a beam without blocks that waits, with nothing to compute, until its siblings have reported
    FINISHED = "finished"


class FinishReason(str, Enum):
    STOP = "stop"  # the end-of-sequence token, a stop token or a stop string
    LENGTH = "length"  # max_tokens or max_model_len
    ABORT = "abort"
