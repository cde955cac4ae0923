"""A plan as the JSON document ``kvplan.plan/1``. Bytes are per GPU; times in milliseconds as ranges [low, high]."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvplan.catalog.devices.gpu_profile import REACHED_SHARE, host_bytes_per_second
from kvplan.catalog.devices.slices import slice_note
from kvplan.catalog.vllm_refusals import service_note
from kvplan.estimate.mixers import speed_caveats
from kvplan.estimate.speed.latency import Range
from kvplan.estimate.speed.queues import queues_document, scale_document
from kvplan.estimate.speed.steps.collectives import bridge_note, network_note
from kvplan.planner.answer.money import cost_columns, cost_document
from kvplan.planner.answer.notes import drafting_document, hits_document
from kvplan.planner.choices.deployment import Miss, PlannedDeployment
from kvplan.planner.choices.verdict import Figure
from kvplan.planner.launch.engines import command_note, launch_commands
from kvplan.planner.launch.replicas import balancer_command, vllm_processes
from kvplan.planner.question.prices import ApiPrice
from kvplan.planner.search.fixes import Fix
from kvplan.planner.search.plan import PlanAnswer, left_out
from kvplan.planner.search.rule_of_thumb import RuleOfThumb, users_by_rule
from kvplan.units import plural

SCHEMA = "kvplan.plan/1"


def plan_document(plan: PlanAnswer, fix: Fix | None = None) -> dict[str, Any]:
    """The whole answer; ``fix``: what would give the plan one, where it has none."""
    workload, slo, slots = plan.workload, plan.request.slo, plan.request.settings.lora_slots
    api = plan.request.api_price
    return {
        "schema": SCHEMA,
        "model": {
            "id": plan.spec.served_id,
            "sized_as": plan.spec.sized_as,
            "architecture": plan.spec.architecture,
            "num_parameters": plan.spec.num_parameters,
            "num_active_parameters": plan.spec.num_active_parameters,
        },
        "request": {
            "num_users": workload.num_users,
            "requests_per_second": workload.requests_per_second,
            "average_context_tokens": workload.average_context,
            "longest_context_tokens": workload.longest_context,
            "input_tokens": workload.input_tokens,
            "output_tokens": workload.output_tokens,
            "slo_ms": {
                "ttft": _milliseconds(slo.ttft_seconds),
                "tpot": _milliseconds(slo.tpot_seconds),
                "e2el": _milliseconds(slo.e2el_seconds),
            },
            "slo_statistics": {bound.name: bound.statistic for bound in slo.bounds()},
            "confidence": plan.request.goal.confidence if plan.request.goal.is_asked else None,
            "max_gpus": plan.request.max_gpus,
            "max_loras": 0 if slots is None else slots.number,
            "max_lora_rank": None if slots is None else slots.rank,
            "api_usd_per_million_tokens": None
            if api is None
            else {"input": api.usd_per_million_input, "output": api.usd_per_million_output},
        },
        "rule_of_thumb": None
        if plan.rule is None
        else {
            "formula": "weights + 1.2 GB x users + 5 GB",
            "weight_bytes": plan.rule.weight_bytes,
            "total_bytes": plan.rule.total_bytes,
        },
        "deployments": [deployment_document(each, plan.spec.served_id, plan.rule, api) for each in plan.deployments],
        "alternatives": [
            deployment_document(each.deployment, plan.spec.served_id, plan.rule, api) | {"caveats": list(each.caveats)}
            for each in plan.alternatives
        ],
        "left_out": dict(left_out(plan)),
        "nearest_miss": None if plan.nearest_miss is None else miss_document(plan.nearest_miss),
        "fix": None
        if fix is None
        else {
            "change": fix.sentence,
            "deployment": deployment_document(fix.deployment, plan.spec.served_id, plan.rule, api),
        },
        "num_tried": plan.num_tried,
        "num_played": plan.num_played,
        "assumptions": [*plan.spec.assumptions, *workload.assumptions, *plan_assumptions(plan, fix)],
    }


def load_assumption(plan: PlanAnswer) -> str:
    """How requests are taken to come and to resemble each other."""
    return plan.workload.pattern.sentence(of_users=plan.workload.num_users is not None)


def limit_assumption(plan: PlanAnswer) -> str | None:
    """How many GPUs a plan may have where nobody said so."""
    request = plan.request
    if request.max_gpus is not None:
        return None
    most = {request.most_gpus(gpu) for gpu in request.gpus}
    if request.usd_per_hour is not None:
        return f"At most as many GPUs as ${request.usd_per_hour:,.2f} per hour rents (--max-gpus limits them)."
    return f"At most {plural(max(most), 'GPU')} in all (--max-gpus)."


def plan_assumptions(plan: PlanAnswer, fix: Fix | None = None) -> list[str]:
    """How users are taken to behave, where memory and times come from, and what crosses nodes."""
    deployments = plan.deployments or ((fix.deployment,) if fix is not None else ())
    rooflines = any(deployment.served.speed.origin == "roofline" for deployment in deployments) or not deployments
    of_model = (service_note(plan.spec.architecture, plan.request.engine.version), command_note(plan.spec))
    sentences = [
        load_assumption(plan),
        *filter(None, (limit_assumption(plan), *of_model)),
        *speed_caveats(plan.spec.layers),
        *adapter_notes(plan),
        *offload_notes(deployments),
        *bridge_notes(deployments),
        *network_notes(deployments),
    ]
    if rooflines:
        sentences.append(
            "Memory is vLLM's; times are roofline estimates, from well-tuned to ordinary kernels, not measurements."
        )
    return sentences + calibration_notes(deployments) + scale_notes(deployments)


def scale_notes(deployments: Iterable[PlannedDeployment]) -> list[str]:
    """What times are scaled by, where their user measured such a server."""
    notes = (each.speed_model.scale.note for each in deployments if each.speed_model.scale is not None)
    return [f"Times are {note}." for note in dict.fromkeys(notes)]


def offload_notes(deployments: Iterable[PlannedDeployment]) -> list[str]:
    """What weights in the host's memory mean for times; [] without any."""
    reached = {
        f"{each.choice.gpu.id} {host_bytes_per_second(each.choice.gpu) / 1e9:.0f} GB/s": None
        for each in deployments
        if each.speed_model.offloaded_bytes
    }
    if not reached:
        return []
    return [
        "--cpu-offload-gb: each step reads what is offloaded from the host's memory once, at "
        f"{100 * REACHED_SHARE:.0f} % of PCIe ({', '.join(reached)}); long prompts may read it more often. No such "
        "server was compared, so no answer is called sure."
    ]


def adapter_notes(plan: PlanAnswer) -> list[str]:
    """What the slots of adapters count as; [] without any."""
    slots = plan.request.settings.lora_slots
    if slots is None:
        return []
    are = "are" if slots.number > 1 else "is"
    return [
        f"Adapters: {plural(slots.number, 'slot')} of rank up to {slots.rank} {are} part of the weights of every GPU "
        "and read in every step; what adapters add to activations, CUDA graphs and launches is not counted."
    ]


def bridge_notes(deployments: Iterable[PlannedDeployment]) -> list[str]:
    """What is assumed of the bridges between cards that can have one, each with the GPUs that it is said of."""
    gpus: dict[str, dict[str, None]] = {}
    for each in deployments:
        note = bridge_note(each.choice.gpu, each.choice.layout)
        if note is not None:
            gpus.setdefault(note, {})[each.choice.gpu.id] = None
    return [f"{', '.join(names)}: {note}" for note, names in gpus.items()]


def network_notes(deployments: Iterable[PlannedDeployment]) -> list[str]:
    """What instances over several nodes talk over, once for each GPU and link, and what MIG slices are."""
    deployments = tuple(deployments)
    found = (network_note(each.choice.gpu, each.choice.layout) for each in deployments)
    slices = (slice_note(each.choice.gpu) for each in deployments if each.choice.gpu.part_of is not None)
    return list(dict.fromkeys([*(note for note in found if note is not None), *slices]))


def calibration_notes(deployments: Iterable[PlannedDeployment]) -> list[str]:
    """One sentence for each measured profile that times were taken from."""
    found = dict.fromkeys(
        (deployment.choice.gpu.id, deployment.served.speed.origin, deployment.served.speed.note)
        for deployment in deployments
        if deployment.served.speed.note is not None
    )
    return [_times_note(*each) for each in found]


def _times_note(gpu: str, origin: str, note: str | None) -> str:
    if origin in ("kernels", "scaled"):
        return f"Times on {gpu} are added up from {note}; they are not those of a whole server."
    return f"Times on {gpu} come from kvplan's engine ({origin}): {note}."


def deployment_document(
    deployment: PlannedDeployment, model_id: str, rule: RuleOfThumb | None = None, api: ApiPrice | None = None
) -> dict[str, Any]:
    """One ranked deployment."""
    choice, prediction, speed = deployment.choice, deployment.prediction, deployment.served.speed
    settings, capacity, layout = prediction.settings.serving, deployment.capacity, choice.layout
    throughput, supply = deployment.output_tokens_per_second.between, deployment.served.supply
    output, verdict, expected = speed.output_tokens_per_request, deployment.verdict, deployment.expected

    def _requests(each: float) -> float:
        return round(each * deployment.replicas, 3)

    return {
        "gpu": choice.gpu.id,
        "num_gpus": deployment.num_gpus,
        "replicas": deployment.replicas,
        "spare_replicas": deployment.num_spare,
        "nodes": deployment.num_nodes,
        "tensor_parallel_size": layout.tensor_parallel_size,
        "pipeline_parallel_size": layout.pipeline_parallel_size,
        "data_parallel_size": layout.data_parallel_size,
        "enable_expert_parallel": layout.enable_expert_parallel,
        "quantization": deployment.weights_name,
        "kv_cache_dtype": settings.kv_cache_dtype,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "max_num_seqs": settings.max_num_seqs,
        "enforce_eager": settings.enforce_eager,
        "max_model_len": settings.max_model_len,
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "block_size": prediction.block_size,
        "memory": memory_document(deployment),
        "capacity": {
            "average_sequences": capacity.average_sequences * deployment.replicas,
            "worst_case_sequences": capacity.worst_sequences * deployment.replicas,
            "rule_of_thumb_users": None if rule is None else users_by_rule(rule, deployment),
            "bytes_per_average_sequence": capacity.average_bytes,
            "bytes_per_worst_case_sequence": capacity.worst_bytes,
        },
        "users_per_replica": deployment.users_per_replica,
        "limit": deployment.limit,
        "prefix_cache": hits_document(deployment),
        "speculation": drafting_document(deployment),
        "performance": {
            "origin": speed.origin,
            "profile": speed.note,
            "scaled_by": scale_document(deployment.speed_model.scale),
            "ttft_ms": _ends(expected.time("ttft", "p50")),
            "tpot_ms": _ends(expected.time("tpot", "p50")),
            "e2el_ms": _ends(expected.time("e2el", "p50")),
            "output_throughput": [round(throughput.low, 1), round(throughput.high, 1)],
            "request_throughput": [round(throughput.low / output, 3), round(throughput.high / output, 3)],
            "request_capacity": None if supply is None else [_requests(supply.low), _requests(supply.high)],
            "slo": "met" if verdict.meets else "likely",
            "confidence": round(verdict.confidence, 3),
            "server_share": round(deployment.served.server_share, 3),
        },
        "queueing": queues_document(deployment.queues),
        "cost": cost_document(deployment, api),
        "commands": launch_commands(deployment, model_id),
        "processes": [process.line for process in vllm_processes(deployment, model_id)],
        "balancer": balancer_command(deployment, model_id),
    }


def memory_document(deployment: PlannedDeployment) -> dict[str, int]:
    """Where each byte of one GPU goes, with the pool's use at average and at worst case."""
    rank, settings = deployment.prediction.rank, deployment.prediction.settings.serving
    pool = max(rank.available_kv_bytes, 0)
    users = -(-int(deployment.served.num_running) // deployment.choice.layout.data_parallel_size)
    return {
        "total_bytes": settings.device_memory_bytes,
        "budget_bytes": rank.requested_bytes,
        "weight_bytes": rank.weight_bytes,
        "activation_bytes": rank.activation.peak_bytes,
        "overhead_bytes": rank.state_bytes + rank.non_torch_bytes + rank.cudagraph_bytes,
        "kv_pool_bytes": pool,
        "kv_used_average_bytes": min(users * deployment.capacity.average_bytes, pool),
        "kv_used_worst_case_bytes": min(users * deployment.capacity.worst_bytes, pool),
    }


def miss_document(miss: Miss) -> dict[str, Any]:
    """The choice that came nearest, and what it lacks."""
    return {
        "gpu": miss.choice.gpu.id,
        "num_gpus": miss.replicas * miss.choice.layout.num_gpus,
        "tensor_parallel_size": miss.choice.layout.tensor_parallel_size,
        "quantization": miss.choice.weights.name,
        "kv_cache_dtype": miss.choice.kv_cache_dtype,
        "limit": miss.reason,
        "missing_bytes_per_gpu": miss.missing_bytes,
        "sentence": miss.sentence,
    }


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)


def _ends(found: Figure | None) -> list[float | None] | None:
    """Milliseconds; null where nothing bounds it, or there is no such time."""
    return None if found is None else _range(found.between)


def _range(found: Range) -> list[float | None]:
    return [round(found.low * 1000, 1), round(found.high * 1000, 1) if found.is_bounded else None]


def plan_row(deployment: PlannedDeployment, model_id: str, api: ApiPrice | None = None) -> dict[str, Any]:
    """One row of CSV: what varies between deployments, in the units of the JSON document."""
    document = deployment_document(deployment, model_id, api=api)
    settings, performance = document["memory"], document["performance"]
    low_high = {
        f"{name}_{end}": None if performance[name] is None else performance[name][index]
        for name in ("ttft_ms", "tpot_ms", "e2el_ms", "output_throughput", "request_throughput")
        for index, end in enumerate(("low", "high"))
    }
    return {
        **{name: value for name, value in document.items() if isinstance(value, (str, int, float, bool))},
        "balancer": document["balancer"],  # None with one replica, and the rows have the same columns
        **settings,
        "average_sequences": document["capacity"]["average_sequences"],
        "worst_case_sequences": document["capacity"]["worst_case_sequences"],
        **low_high,
        "slo": performance["slo"],
        "confidence": performance["confidence"],
        **cost_columns(document["cost"]),
    }
