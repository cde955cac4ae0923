"""Tables of deployments: by what one decides, and where memory goes."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.commands.printing.render import print_markdown, print_table
from kvplan.planner.choices.deployment import DeploymentChoice, PlannedDeployment
from kvplan.planner.question.slo import Statistic
from kvplan.planner.search.plan import PlanAnswer
from kvplan.planner.search.rule_of_thumb import users_by_rule
from kvplan.units import format_gib

_SHOWN = 8
DEPLOYMENT_HEAD = ("deployment", "TTFT p50 ms", "TTFT p99 ms", "TPOT p50 ms", "tok/s", "$/h", "$/Mtok out", "sure")
_MEMORY_HEAD = (
    "deployment", "weights", "KV", "weights GiB", "KV pool GiB", "at ctx-avg", "at ctx-max", "by rule", "step tokens",
    "limit",
)  # fmt: skip


def shown(found: PlanAnswer) -> list[PlannedDeployment]:
    """The first eight, of each number of a GPU in the same formats the best layout alone."""
    firsts: dict[tuple[object, ...], PlannedDeployment] = {}
    for each in found.deployments:
        firsts.setdefault((each.choice.gpu.id, each.num_gpus, each.choice.formats, each.verdict.meets), each)
    return list(firsts.values())[:_SHOWN]


def print_deployments(deployments: Sequence[PlannedDeployment], *, as_markdown: bool = False) -> None:
    """What each gives and costs, by the middle of what is expected."""
    rows = deployment_rows(deployments)
    if as_markdown:
        print_markdown(DEPLOYMENT_HEAD, rows)
    else:
        print_table(None, DEPLOYMENT_HEAD, rows)


def deployment_rows(deployments: Sequence[PlannedDeployment]) -> list[tuple[str, ...]]:
    """A row for each, below ``DEPLOYMENT_HEAD``."""
    return [_row(each) for each in deployments]


def full_name(deployment: PlannedDeployment) -> str:
    """``2 x l40s, tp 2, fp8 KV, 96 seats``: with what is not as published, or not for everybody."""
    choice = deployment.choice
    return ", ".join(filter(None, [deployment.name, formats_text(choice), choice.settings_text]))


def print_memory(found: PlanAnswer, deployments: Sequence[PlannedDeployment]) -> None:
    """Where each GPU's memory goes, what the pools hold, and what limits each deployment."""
    rows = [_memory_row(each, found) for each in deployments]
    print_table(None, _MEMORY_HEAD, rows, text_columns=(0, 1, 2, 9))


def formats_text(choice: DeploymentChoice) -> str:
    """``awq, fp8 KV``; "" as published."""
    weights, kv_cache_dtype = choice.weights, choice.kv_cache_dtype
    parts = [] if weights.is_published else [weights.name]
    return ", ".join(parts if kv_cache_dtype == "auto" else [*parts, f"{kv_cache_dtype} KV"])


def confidence_text(deployment: PlannedDeployment) -> str:
    """How sure it is that ``deployment`` serves the load as asked."""
    return sure_text(deployment.verdict.confidence)


def sure_text(confidence: float) -> str:
    """``82 %``: never quite certain of what was predicted."""
    return f"{min(100 * confidence, 99):.0f} %"


def _row(deployment: PlannedDeployment) -> tuple[str, ...]:
    cost = deployment.middle_usd_per_million_output_tokens()
    return (
        full_name(deployment),
        _milliseconds(deployment, "ttft", "p50"),
        _milliseconds(deployment, "ttft", "p99"),
        _milliseconds(deployment, "tpot", "p50"),
        f"{deployment.output_tokens_per_second.middle:,.0f}",
        "-" if deployment.usd_per_hour is None else f"{deployment.usd_per_hour:,.2f}",
        "-" if cost is None else f"{cost:,.2f}",
        confidence_text(deployment),
    )


def _milliseconds(deployment: PlannedDeployment, name: str, statistic: Statistic) -> str:
    found = deployment.expected.time(name, statistic)
    return "-" if found is None or found.middle == float("inf") else f"{1000 * found.middle:,.0f}"


def _memory_row(deployment: PlannedDeployment, found: PlanAnswer) -> tuple[str, ...]:
    rank, capacity, settings = deployment.prediction.rank, deployment.capacity, deployment.prediction.settings.serving
    return (
        deployment.name,
        deployment.weights_name,
        settings.kv_cache_dtype,
        format_gib(rank.weight_bytes),
        format_gib(max(rank.available_kv_bytes, 0)),
        f"{capacity.average_sequences * deployment.replicas:,}",
        f"{capacity.worst_sequences * deployment.replicas:,}",
        "-" if found.rule is None else f"{users_by_rule(found.rule, deployment):,}",
        f"{settings.max_num_batched_tokens:,}",
        deployment.limit,
    )
