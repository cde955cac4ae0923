"""How a trial can end: the one list of names and descriptions, for rows, summary, reports and documentation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

Status = Literal[
    "ok",
    "queued",
    "preempted",
    "oom_weights",
    "oom_kv_init",
    "oom_runtime",
    "rejected_ctx",
    "rejected_seqs",
    "rejected_block_size",
    "timeout",
    "crash",
    "rank_died",
    "failed",
    "skipped_oom_dominated",
]
StatusKind = Literal["measured", "out_of_memory", "broken", "skipped"]
ContextLimit = Literal["pool", "model"]
"""What a rejected max_model_len exceeds: the KV pool, or the model's positions."""


@dataclass(frozen=True, slots=True)
class TrialStatus:
    """One way to end. ``meaning`` is the whole sentence, ``brief`` what fits into a legend."""

    name: Status
    kind: StatusKind
    brief: str
    meaning: str


STATUSES: Final[tuple[TrialStatus, ...]] = (
    TrialStatus(
        "ok",
        "measured",
        "all served, none waited for blocks",
        "every request was served and none ever waited for blocks",
    ),
    TrialStatus(
        "queued",
        "measured",
        "all served, some waited for blocks",
        "every request was served, but at least one had to wait because the pool had too few free blocks",
    ),
    TrialStatus(
        "preempted",
        "measured",
        "all served, some preempted",
        "every request was served, but at least one running sequence lost its blocks and was recomputed",
    ),
    TrialStatus(
        "rejected_ctx",
        "out_of_memory",
        "max_model_len exceeds pool or model",
        "one sequence of max_model_len tokens is more than the pool holds, or longer than the model has positions, so "
        "the engine refuses to start",
    ),
    TrialStatus(
        "rejected_seqs",
        "out_of_memory",
        "max_num_seqs exceeds the blocks",
        "the pool has fewer blocks than max_num_seqs, each of which needs one for its states, so the engine refuses to "
        "start",
    ),
    TrialStatus(
        "rejected_block_size",
        "broken",
        "no kernel for this block_size",
        "the engine has no attention kernel on this device for blocks of this size, so it refuses to start",
    ),
    TrialStatus(
        "oom_kv_init",
        "out_of_memory",
        "no room for a KV pool or graphs",
        "the weights fit, but the engine ran out of memory before it served: it had no KV pool of at least one block, "
        "or no room to capture its steps as graphs",
    ),
    TrialStatus(
        "oom_weights",
        "out_of_memory",
        "weights exceed the budget",
        "the weights do not fit into device memory x gpu_memory_utilization",
    ),
    TrialStatus(
        "oom_runtime",
        "out_of_memory",
        "an allocation failed while serving",
        "an allocation failed while requests were being served",
    ),
    TrialStatus(
        "timeout",
        "broken",
        "stopped long after its predicted time",
        "the trial took many times its predicted time and was stopped",
    ),
    TrialStatus(
        "crash",
        "broken",
        "the worker died",
        "the worker process died, or its engine failed in another way",
    ),
    TrialStatus(
        "rank_died",
        "broken",
        "a rank of the model died",
        "one of the processes that share every layer of the model died, and the engine ended the others",
    ),
    TrialStatus(
        "failed",
        "broken",
        "some requests failed",
        "a server that was loaded refused or broke off at least one request",
    ),
    TrialStatus(
        "skipped_oom_dominated",
        "skipped",
        "not run: a lighter trial failed",
        "not run: a trial that needs no more memory had already run out of it",
    ),
)
"""From best to worst."""

STATUS_MEANING: Final[dict[str, str]] = {status.name: status.meaning for status in STATUSES}
MEASURED_STATUSES: Final[frozenset[str]] = frozenset(s.name for s in STATUSES if s.kind == "measured")
OUT_OF_MEMORY_STATUSES: Final[frozenset[str]] = frozenset(s.name for s in STATUSES if s.kind == "out_of_memory")
STATUS_BRIEF: Final[dict[str, str]] = {status.name: status.brief for status in STATUSES}


def context_limit_text(largest_max_model_len: int, limited_by: str | None) -> str:
    """What the engine accepts instead of a rejected max_model_len, and why no more where it says so."""
    if limited_by == "model":
        return f"the model has {largest_max_model_len:,} positions"
    if limited_by == "pool":
        return f"the pool holds {largest_max_model_len:,} tokens"
    return f"at most {largest_max_model_len:,} tokens are accepted"


def best_to_worst(statuses: Iterable[str]) -> list[str]:
    """Each status once, from best to worst; those that a later version added come last, by name."""
    rank: dict[str, int] = {status.name: place for place, status in enumerate(STATUSES)}
    return sorted(set(statuses), key=lambda name: (rank.get(name, len(rank)), name))


def worst_of(statuses: Iterable[str]) -> str:
    """The worst of at least one status."""
    return best_to_worst(statuses)[-1]
