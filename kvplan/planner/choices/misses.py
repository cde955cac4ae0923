"""What a choice lacks, in bytes and in a sentence."""

from __future__ import annotations

import math
from typing import Final

from kvplan.estimate.vllm.prediction import VllmPrediction
from kvplan.planner.choices.deployment import Capacity, DeploymentChoice, Miss
from kvplan.planner.choices.load import LoadedReplica
from kvplan.planner.choices.verdict import ExpectedBound, Verdict
from kvplan.planner.question.request import Workload
from kvplan.units import format_bytes, plural

_BUSY: Final = 0.99
"""Share of its time that a server works where it, not the engine, bounds what is answered."""


def lacks_memory(workload: Workload, choice: DeploymentChoice, replicas: int, prediction: VllmPrediction) -> Miss:
    """The weights do not fit, or not one request beside them."""
    rank = prediction.rank
    gpus = choice.layout.num_gpus
    if prediction.outcome == "oom_weights":
        missing = rank.weight_bytes - rank.requested_bytes
        sentence = (
            f"The weights take {format_bytes(rank.weight_bytes)} on each GPU, of which "
            f"{format_bytes(rank.requested_bytes)} may be used."
        )
        return Miss(
            choice, replicas, "weights", "weights", missing, missing * gpus, sentence, prediction, is_final=True
        )
    missing = prediction.missing_bytes
    if prediction.outcome == "oom_kv_init":
        sentence = "Weights and activations leave no room for a KV cache."
        if choice.layout.exchanges_tokens:
            groups = plural(choice.layout.data_parallel_size, "data-parallel group")
            sentence += f" Experts' buffers hold a step of all {groups}: --max-num-batched-tokens shortens it."
        return Miss(choice, replicas, "weights", "weights", missing, missing * gpus, sentence, prediction)
    longest = workload.longest_context
    sentence = f"One request of {longest:,} tokens does not fit; {prediction.largest_max_model_len:,} do."
    return Miss(choice, replicas, "context", "kv", missing, missing * gpus, sentence, prediction)


def lacks_room(
    workload: Workload,
    choice: DeploymentChoice,
    replicas: int,
    prediction: VllmPrediction,
    capacity: Capacity,
    served: LoadedReplica,
    seats: int,
    worst_case: bool,
) -> Miss:
    """It runs, but for fewer users or a lower rate than asked for. seats: of a replica's steps, whatever its pool."""
    room = capacity.worst_sequences if worst_case else capacity.average_sequences
    context = workload.longest_context if worst_case else workload.average_context
    if workload.requests_per_second is not None and served.supply is not None:
        low, high = served.supply.low * replicas, served.supply.high * replicas
        # The server works on what is answered, not on what is asked for: it is the bound where it is busy at both ends.
        is_server = served.server_share * low / workload.requests_per_second > _BUSY
        why = f", all that {plural(replicas, 'server')} of vLLM {'has' if replicas == 1 else 'have'} time for"
        told = f"{_rounded(low, 3)} requests/s{why}", f"{_rounded(low)} to {_rounded(high)} requests/s"
        supply = told[0] if is_server else told[1]
        sentence = f"It answers {supply}; {_rounded(workload.requests_per_second, 6)} are needed."
        shortfall = workload.requests_per_second / max(replicas * served.supply.middle, 1e-9)
        return Miss(choice, replicas, "capacity", "rate", 0, shortfall, sentence, prediction)
    each = capacity.worst_bytes if worst_case else capacity.average_bytes
    groups = choice.layout.data_parallel_size
    missing = math.ceil(served.num_users / groups) * each - prediction.num_blocks * prediction.bytes_per_block
    needed = workload.num_users or 1
    if workload.pattern.think_seconds:
        needed = math.ceil(served.num_users * replicas)
    if seats < room:
        tokens = prediction.settings.serving.max_num_batched_tokens
        steps = f"steps of {plural(tokens, 'token')} have" if tokens * groups == seats else "steps have"
        sentence = f"Its {steps} room for {plural(replicas * seats, 'sequence')}; {needed:,} are needed."
        return Miss(choice, replicas, "capacity", "seats", 0, needed / (replicas * seats), sentence, prediction)
    sentence = f"It holds {replicas * room:,} sequences of {context:,} tokens at once; {needed:,} are needed."
    return Miss(
        choice, replicas, "capacity", "kv", max(missing, 0), needed / max(replicas * room, 1), sentence, prediction
    )


def lacks_speed(
    choice: DeploymentChoice, replicas: int, prediction: VllmPrediction, served: LoadedReplica, verdict: Verdict
) -> Miss:
    """It holds the load, but does not keep the goal as surely as asked."""
    worst = _worst(verdict)
    if worst is None:
        sure, asked = f"{verdict.confidence:.0%}", f"{verdict.goal.confidence:.0%}"
        sentence = f"It serves the load with a confidence of {sure}; {asked} is asked for."
        return Miss(choice, replicas, "slo", "kv", 0, 0.0, sentence, prediction)
    users = plural(max(round(served.num_users), 1), "request")
    sentence = f"{_times(worst)} with {users} in progress on each instance."
    return Miss(choice, replicas, "slo", worst.bound.name, 0, worst.ratio - 1, sentence, prediction)


def too_slow_alone(choice: DeploymentChoice, replicas: int, prediction: VllmPrediction, alone: Verdict) -> Miss:
    """Not even one request at a time keeps the goal, as ``alone`` says: more replicas would not help."""
    worst = _worst(alone)
    assert worst is not None, "a bound is missed"
    sentence = f"{_times(worst)} even for one request alone."
    return Miss(choice, replicas, "slo", worst.bound.name, 0, worst.ratio - 1, sentence, prediction, is_final=True)


def _worst(verdict: Verdict) -> ExpectedBound | None:
    return verdict.broken or verdict.weakest


def _rounded(number: float, digits: int = 2) -> str:
    """``1,300`` of 1,274, ``0.0071`` of 0.00712."""
    return f"{float(f'{number:.{digits}g}'):,.10g}"


def _times(seen: ExpectedBound) -> str:
    """``TTFT would average 449 to 835 ms``, ``TTFT p99 would be ...``; why not, where a load cannot be played."""
    bound, (middle, ends) = seen.bound, seen.figure
    is_average = bound.statistic == "mean"
    name = bound.name.upper() + ("" if is_average else f" {bound.statistic}")
    if math.isinf(middle):
        return f"{name} is not known, as the server's own work on so many requests would fill its time,"
    high = f"to {ends.high * 1000:,.0f} ms" if ends.is_bounded else "ms and up"
    return f"{name} would {'average' if is_average else 'be'} {ends.low * 1000:,.0f} {high}"
