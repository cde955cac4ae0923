"""A plan as the page shows it: one row for each deployment, with its commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kvplan.api import Plan
from kvplan.units import format_bytes
from kvplan.web.wording import number, span, usd_span

MOST_SHOWN: Final = 12
_FIRST_PASS: Final = 2 / 3
"""Of the loads that a search may play: the second pass may play half as many as the first."""

Document = dict[str, Any]


def plan_view(found: Plan, document: Document) -> dict[str, Any]:
    """The best first. ``problem``: why there are none, and ``fix`` what would help."""
    fix = document["fix"]
    return {
        "title": found.model,
        "rows": [_row(each) for each in document["deployments"][:MOST_SHOWN]],
        "more": max(len(document["deployments"]) - MOST_SHOWN, 0),
        "alternatives": [_row(each) | {"caveats": each["caveats"]} for each in document["alternatives"]],
        "left_out": [{"gpu": gpu, "sentence": text} for gpu, text in document["left_out"].items()],
        "problem": found.problem,
        "fix": None if fix is None else {"sentence": fix["change"], "row": _row(fix["deployment"])},
        "tried": f"{document['num_tried']:,}",
        "assumptions": document["assumptions"],
    }


def share_of_passes(show: Callable[[float], None]) -> Callable[[int, int], None]:
    """Return what ``make_plan`` tells its progress: ``show`` is called with the share of both passes that is done.

    What the first pass leaves unplayed counts as done when the second begins to count anew.
    """
    last, is_second = 0, False

    def progress(num_played: int, most: int) -> None:
        nonlocal last, is_second
        is_second = is_second or num_played <= last
        last = num_played
        share = min(num_played / most, 1)
        show(_FIRST_PASS + (1 - _FIRST_PASS) * share if is_second else _FIRST_PASS * share)

    return progress


def _row(each: Document) -> dict[str, Any]:
    performance, cost, memory = each["performance"], each["cost"], each["memory"]
    count = each["num_gpus"]
    return {
        "name": each["gpu"] if count == 1 else f"{count} x {each['gpu']}",
        "layout": _layout(each),
        "formats": f"{each['quantization']}, KV {each['kv_cache_dtype']}",
        "average": number(each["capacity"]["average_sequences"]),
        "worst": number(each["capacity"]["worst_case_sequences"]),
        "pool": format_bytes(memory["kv_pool_bytes"]),
        "ttft": span(performance["ttft_ms"], "ms"),
        "tpot": span(performance["tpot_ms"], "ms"),
        "throughput": span(performance["output_throughput"], "tokens/s"),
        "hourly": "-" if cost is None else f"${cost['usd_per_hour']:,.2f}",
        "million": "-" if cost is None else usd_span(cost["usd_per_million_output_tokens"]),
        "price": None if cost is None else f"{cost['price_source']}, {cost['price_date']}",
        "slo": performance["slo"],
        "sure": f"{min(100 * performance['confidence'], 99):.0f}\u00a0%",
        "limit": each["limit"],
        "origin": performance["origin"],
        "profile": performance["profile"],
        "commands": each["commands"],
    }


def _layout(each: Document) -> str:
    sizes = {
        "TP": each["tensor_parallel_size"],
        "PP": each["pipeline_parallel_size"],
        "DP": each["data_parallel_size"],
    }
    words = [f"{name} {size}" for name, size in sizes.items() if size > 1]
    words += ["EP"] if each["enable_expert_parallel"] else []
    words += [f"{each['replicas']} replicas"] if each["replicas"] > 1 else []
    return ", ".join(words)
