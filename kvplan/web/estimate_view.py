"""An estimate as the page shows it: every number as text, every length of a bar as a share."""

from __future__ import annotations

from typing import Any

from kvplan.api import Estimate
from kvplan.catalog.devices.gpu_profile import usd_per_million_tokens
from kvplan.catalog.devices.gpus import find_gpu
from kvplan.commands.printing.estimate_rows import limit_cell
from kvplan.estimate.cache_entries import KIND_NAMES
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.placed.placement import SizedDeployment
from kvplan.units import format_bytes
from kvplan.web.wording import number, parameters, span, tokens, usd_span

Document = dict[str, Any]


def estimate_view(found: Estimate, name: str, document: Document, shorter: Estimate | None) -> dict[str, Any]:
    """View of the first deployment. ``shorter``: the same with sequences of average length, where asked for."""
    deployment, figures = found.deployments[0], document["deployments"][0]
    return {
        "title": f"{name} on {deployment.counted_gpu}",
        "model": _model_line(found, document),
        "verdict": _verdict(found, deployment),
        "bar": memory_bar(deployment),
        "capacity": _capacity(found, deployment, shorter),
        "weights": [
            {"kind": each["kind"], "format": each["format"], "bytes": format_bytes(each["bytes"])}
            for each in document["model"]["weights"]
        ],
        "cache": _cache(document),
        "speed": _speed(deployment, figures["performance"]),
        "causes": [
            {"cause": each["cause"], "bytes": format_bytes(each["bytes"]), "meaning": each["meaning"]}
            for each in figures["range_causes"]
        ],
        "evidence": None if figures["range_evidence"] is None else figures["range_evidence"]["sentence"],
        "notes": list(found.notes),
        "assumptions": document["assumptions"],
        "source": document["model"]["source"],
    }


def _model_line(found: Estimate, document: Document) -> str:
    model = document["model"]
    active, count = model["num_active_parameters"], model["num_parameters"]
    some = "" if active == count else f", {parameters(active)} active"
    longest = model["max_position_embeddings"]
    length = "" if longest is None else f", {tokens(longest)} at most"
    return f"{model['architecture']}, {model['num_layers']} layers, {parameters(count)} parameters{some}{length}"


def _verdict(found: Estimate, deployment: SizedDeployment) -> dict[str, Any]:
    """``state``: fits, may (the low end of the interval does not), or not."""
    context = tokens(found.context_tokens)
    if not deployment.fits:
        return {"state": "not", "headline": "Does not fit", "sentence": deployment.limit or "", "range": None}
    warning = limit_cell(deployment)
    ends = deployment.max_concurrency_range
    return {
        "state": "may" if warning else "fits",
        "headline": number(deployment.max_concurrency),
        "sentence": f"sequences of {context} fit at once",
        "range": None if ends is None else f"9 of 10 start-ups: {span(ends)}",
        "warning": warning or None,
    }


def memory_bar(deployment: SizedDeployment) -> dict[str, Any]:
    """Parts of one GPU's memory, and the ends between which the KV cache begins in 9 of 10 start-ups.

    What does not fit makes the bar longer than the memory; ``memory`` marks where that ends. CUDA graphs that are
    captured outside the budget stand behind the pool, in what the budget leaves out.
    """
    total, budget = deployment.settings.device_memory_bytes, deployment.budget_bytes
    used = deployment.weight_bytes + deployment.activation_peak_bytes + deployment.overhead_bytes
    pool = max(deployment.kv_pool_bytes, 0)
    free = max(total - max(used + pool, budget), 0)
    length = max(total, used + pool + free, 1)
    graphs = deployment.graph_bytes if deployment.graphs_in_overhead else 0
    later = 0 if deployment.graphs_in_overhead else min(deployment.graph_bytes, free)
    parts = {
        "weights": deployment.weight_bytes,
        "activations": deployment.activation_peak_bytes,
        "overhead": deployment.overhead_bytes - graphs,
        **({"CUDA graphs": graphs} if graphs else {}),
        "KV cache": pool,
        **({"CUDA graphs": later} if later else {}),
        "left out": free - later,
    }
    ends = deployment.kv_pool_bytes_range
    return {
        "parts": [
            {"kind": kind, "bytes": size, "text": format_bytes(size), "share": size / length, "meaning": _MEANING[kind]}
            for kind, size in parts.items()
        ],
        "memory": {"text": format_bytes(total), "share": total / length},
        "beyond": format_bytes(used - budget) if used > budget else None,
        "interval": None
        if ends is None or not pool
        else {
            "low": max(used + pool - ends[1], 0) / length,
            "high": min(max(used + pool - ends[0], 0) / length, 1),
            "text": f"{format_bytes(max(ends[0], 0))} to {format_bytes(ends[1])}",
        },
    }


_MEANING = {
    "weights": "as the engine holds them on one GPU",
    "activations": "peak of the largest step",
    "overhead": "CUDA context, libraries, states",
    "CUDA graphs": "captured at the start, largest batch first",
    "KV cache": "for the tokens of all sequences",
    "left out": "not used: gpu_memory_utilization",
}


def _capacity(found: Estimate, deployment: SizedDeployment, shorter: Estimate | None) -> list[dict[str, str | None]]:
    ends = deployment.kv_cache_tokens_range
    rows = [_row("KV cache tokens", f"{deployment.kv_cache_tokens:,}", _within(ends))]
    for each in (found, *(() if shorter is None else (shorter,))):
        one = each.deployments[0]
        shown = number(one.max_concurrency) if one.fits else "does not fit"
        rows.append(_row(f"sequences of {tokens(each.context_tokens)}", shown, _within(one.max_concurrency_range)))
    rows.append(_row("seats of the scheduler", f"{deployment.settings.max_num_seqs:,}", "max_num_seqs"))
    rows.append(_row("engine", deployment.engine, None))
    return rows


def _within(ends: tuple[float, float] | None) -> str | None:
    """The interval as text; None without one, or where nothing fits at either end."""
    return None if ends is None or not any(ends) else span(ends)


def _row(name: str, value: str, detail: str | None) -> dict[str, str | None]:
    return {"name": name, "value": value, "detail": detail}


def _cache(document: Document) -> dict[str, Any]:
    cache = document["kv_cache"]
    return {
        "dtype": cache["dtype"],
        "sequence": format_bytes(cache["logical_bytes"]),
        "rows": [
            {
                "kind": KIND_NAMES[each["kind"]],
                "bytes": _cost(each),
                "formula": each["formula"],
            }
            for each in cache["components"]
        ],
    }


def _cost(component: Document) -> str:
    if component["bytes_per_token"]:
        return f"{component['bytes_per_token']:,} B per token"
    if component["window_bytes_per_token"]:
        return f"{component['window_bytes_per_token']:,} B per token of {component['window_tokens']:,}"
    return f"{format_bytes(component['fixed_bytes'])} per sequence"


def _speed(deployment: SizedDeployment, performance: Document | None) -> dict[str, Any] | None:
    """Alone and full, with queues where they were played; and what a million tokens cost then."""
    if performance is None:
        return None
    alone, full = performance["queueing_alone"], performance["queueing_full"]
    rows = [
        ("TTFT, one user", alone["ttft_p50_ms"] if alone else performance["ttft_ms_alone"], "ms"),
        ("TPOT, one user", alone["tpot_p50_ms"] if alone else performance["tpot_ms_alone"], "ms"),
        ("TPOT, all at once", full["tpot_p50_ms"] if full else performance["tpot_ms_full"], "ms"),
        ("output, all at once", _throughput(performance), "tokens/s"),
    ]
    load = f"prompts of {performance['input_tokens']:,}, answers of {performance['output_tokens']:,}"
    return {
        "load": f"{load}; {performance['num_users']:,} at once",
        "origin": performance["origin"],
        "profile": performance["profile"],
        "rows": [_row(name, span(ends, unit), None) for name, ends, unit in rows if ends is not None],
        "cost": _cost_of_tokens(deployment, performance),
    }


def _throughput(performance: Document) -> list[float]:
    full = performance["queueing_full"]
    ends: list[float] = full["output_throughput"] if full else performance["output_throughput_full"]
    return ends


def _cost_of_tokens(deployment: SizedDeployment, performance: Document) -> dict[str, str] | None:
    """None where no price is known."""
    price, ends = find_gpu(deployment.gpu).price, _throughput(performance)
    if price is None or not ends[0]:
        return None
    hourly = price.usd_per_hour * ParallelLayout.of(deployment.settings).num_gpus
    each = [usd_per_million_tokens(hourly, ends[-1]), usd_per_million_tokens(hourly, ends[0])]
    return {
        "text": f"{usd_span(each)} per million output tokens",
        "detail": f"${hourly:,.2f} per hour ({price.source}, {price.date})",
    }
