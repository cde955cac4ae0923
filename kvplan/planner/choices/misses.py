"""What a choice lacks, in bytes and in a sentence."""

from __future__ import annotations

import math

from kvplan.estimate.speed.latency import Range
from kvplan.estimate.vllm.prediction import VllmPrediction
from kvplan.planner.choices.deployment import Capacity, Choice, Miss
from kvplan.planner.choices.load import Served
from kvplan.planner.choices.slo_check import SloCheck
from kvplan.planner.question.request import Workload
from kvplan.planner.question.slo import SLO_FIELDS
from kvplan.units import format_bytes, plural


def lacks_memory(workload: Workload, choice: Choice, replicas: int, prediction: VllmPrediction) -> Miss:
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
        return Miss(choice, replicas, "weights", "weights", missing, missing * gpus, sentence, prediction)
    longest = workload.longest_context
    sentence = f"One request of {longest:,} tokens does not fit; {prediction.largest_max_model_len:,} do."
    return Miss(choice, replicas, "context", "kv", missing, missing * gpus, sentence, prediction)


def lacks_room(
    workload: Workload,
    choice: Choice,
    replicas: int,
    prediction: VllmPrediction,
    capacity: Capacity,
    served: Served,
    worst_case: bool,
) -> Miss:
    """It runs, but for fewer users or a lower rate than asked for."""
    room = capacity.worst_sequences if worst_case else capacity.average_sequences
    context = workload.longest_context if worst_case else workload.average_context
    if workload.requests_per_second is not None and served.supply is not None:
        supply = f"{served.supply.low * replicas:,.2g} to {served.supply.high * replicas:,.2g}"
        sentence = f"It answers {supply} requests/s; {workload.requests_per_second:g} are needed."
        shortfall = workload.requests_per_second / max(replicas * served.supply.middle, 1e-9)
        return Miss(choice, replicas, "capacity", "rate", 0, shortfall, sentence, prediction)
    each = capacity.worst_bytes if worst_case else capacity.average_bytes
    groups = choice.layout.data_parallel_size
    missing = math.ceil(served.num_users / groups) * each - prediction.num_blocks * prediction.bytes_per_block
    needed = workload.num_users or 1
    sentence = f"It holds {replicas * room:,} sequences of {context:,} tokens at once; {needed:,} are needed."
    return Miss(
        choice, replicas, "capacity", "kv", max(missing, 0), needed / max(replicas * room, 1), sentence, prediction
    )


def lacks_speed(
    choice: Choice,
    replicas: int,
    prediction: VllmPrediction,
    served: Served,
    check: SloCheck,
    alone: tuple[Served, SloCheck],
) -> Miss:
    """It holds the load, but not the service level. ``alone``: the same for one request at a time."""
    is_reachable = alone[1].possible
    if not is_reachable:
        served, check = alone
    name = check.broken or "ttft"
    predicted: Range = getattr(served.speed, SLO_FIELDS[name])
    high = f"{predicted.high * 1000:,.0f}" if predicted.is_bounded else "more"
    users = max(round(served.num_users), 1)
    times = f"{name.upper()} would be {predicted.low * 1000:,.0f} to {high} ms"
    if not is_reachable:
        sentence = f"{times} even for one request alone."
    else:
        sentence = f"{times} with {plural(users, 'request')} in progress on each instance."
    return Miss(choice, replicas, "slo", name, 0, check.excess, sentence, prediction, is_final=not is_reachable)
