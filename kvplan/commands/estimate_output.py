"""How an estimate is printed: as a table, as JSON, as CSV, as Markdown."""

from __future__ import annotations

from typing import Any

from kvplan.commands.render import OutputFormat, print_csv, print_json, print_markdown, print_table
from kvplan.estimate.answer import Estimate
from kvplan.estimate.document import deployment_figures, estimate_document
from kvplan.estimate.kv_cache import KIND_NAMES, KvComponent
from kvplan.units import format_bytes, format_gib, format_tokens


def print_estimate(answer: Estimate, output_format: OutputFormat, *, explain: bool = False) -> None:
    """Print the answer; ``explain`` adds every formula and every assumption to the table for people."""
    if output_format is OutputFormat.json:
        print_json(estimate_document(answer))
    elif output_format is OutputFormat.csv:
        print_csv([deployment_figures(deployment) for deployment in answer.deployments])
    elif output_format is OutputFormat.md:
        _print_markdown(answer)
    else:
        _print_text(answer, explain=explain)


_COLUMNS = {
    "memory": "device_memory_bytes",
    "weights": "weight_bytes",
    "activations": "activation_peak_bytes",
    "overhead": "overhead_bytes",
    "KV pool": "kv_pool_bytes",
    "KV tokens": "kv_cache_tokens",
    "sequences": "max_concurrency",
}
"""Heads of the table's columns, and the figures that stand in them."""
_HEAD = ("GPU", *_COLUMNS, "limit")
_MARKDOWN_HEAD = tuple(
    f"{head}, GiB" if _COLUMNS.get(head, "").endswith("_bytes") else head for head in _HEAD
)  # no title tells the unit there


def _deployment_rows(answer: Estimate) -> list[list[str]]:
    rows = []
    for deployment in answer.deployments:
        figures = deployment_figures(deployment)
        cells = [_cell(name, figures[name]) for name in _COLUMNS.values()]
        rows.append([deployment.gpu, *cells, "" if deployment.fits else (deployment.limit or "does not fit")])
    return rows


def _cell(figure: str, value: Any) -> str:
    if figure.endswith("_bytes"):
        return format_gib(value)
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def _print_text(answer: Estimate, *, explain: bool) -> None:
    spec = answer.spec
    print(f"{spec.id}: {spec.architecture}, {spec.num_layers} layers, {_parameters(answer)}")
    print()
    _print_weights(answer, explain=explain)
    _print_cache(answer, explain=explain)
    if answer.deployments:
        print()
        _print_deployments(answer)
        if explain:
            _print_budgets(answer)
        _print_speeds(answer, explain=explain)
    if explain:
        print()
        print("Assumptions:" if answer.assumptions else "No assumptions.")
    for sentence in answer.assumptions if explain else answer.spec.assumptions:
        print(f"  - {sentence}" if explain else f"note: {sentence}")


def _print_weights(answer: Estimate, *, explain: bool) -> None:
    weights = answer.weights
    formats = " + ".join(dict.fromkeys(each.format for each in weights.components if _is_large(answer, each.num_bytes)))
    print(f"Weights   {format_bytes(weights.total_bytes)} ({formats})")
    if explain or len(formats.split(" + ")) > 1:
        for each in weights.components:
            print(f"            {each.kind}: {format_bytes(each.num_bytes)} = {each.formula}")
    for extra in answer.spec.extras:
        count = "not counted" if extra.num_parameters is None else f"{extra.num_parameters:,} parameters"
        print(f"            in addition, {extra.name}: {count}")


def _is_large(answer: Estimate, num_bytes: int) -> bool:
    return num_bytes * 50 > answer.weights.total_bytes


def _print_cache(answer: Estimate, *, explain: bool) -> None:
    cache, pages = answer.cache, answer.pages
    fixed = f" + {format_bytes(cache.fixed_bytes_per_sequence)} per sequence" if cache.fixed_bytes_per_sequence else ""
    print(f"KV cache  {cache.bytes_per_token:,} B per token{fixed} ({answer.kv_dtype})")
    for component in cache.components:
        print(f"            {KIND_NAMES[component.kind]}: {_component_line(component)}")
    context = format_tokens(answer.context_tokens)
    print(f"One sequence of {context} tokens: {format_bytes(cache.logical_bytes)}", end="")
    if pages is None:
        print()
        return
    print(f"; in blocks {format_bytes(pages.paged_bytes)}, to be admitted {format_bytes(pages.admission_bytes)}")
    if explain:
        print(f"            logical: {_affine(answer)} = {cache.logical_bytes:,} B")
        print(f"            paged: {pages.paged_formula} = {pages.paged_bytes:,} B")
        in_flight = f" (with {answer.in_flight_tokens:,} tokens in flight)"
        print(f"            admission: {pages.admission_formula} = {pages.admission_bytes:,} B{in_flight}")


def _affine(answer: Estimate) -> str:
    """fixed + per token x context, with windows still open at this context written out."""
    terms = []
    for component in answer.cache.components:
        entry = component.entry
        if component.bytes_per_token:
            terms.append(f"{component.bytes_per_token:,} B x {answer.context_tokens:,}")
        elif component.window_bytes_per_token and entry.window_tokens is not None:
            kept = f"min({entry.window_tokens:,}, {answer.context_tokens:,})"
            terms.append(f"{component.window_bytes_per_token:,} B x {kept}")
        else:
            terms.append(f"{component.fixed_bytes:,} B")
    return " + ".join(terms) or "0 B"


def _print_deployments(answer: Estimate) -> None:
    engine = answer.deployments[0].engine
    context = format_tokens(answer.context_tokens)
    rows = _deployment_rows(answer)
    head: list[str] = list(_HEAD)
    text_columns: tuple[int, ...] = (0, len(_HEAD) - 1)
    if not any(row[-1] for row in rows):
        head, rows, text_columns = head[:-1], [row[:-1] for row in rows], (0,)
    first = answer.deployments[0]
    num_gpus = first.settings.tensor_parallel_size * first.settings.pipeline_parallel_size
    ranks, unit = (f" on {num_gpus} GPUs", "GiB per GPU") if num_gpus > 1 else ("", "GiB")
    print_table(
        f"Sequences of {context} tokens that fit at once, {engine}{ranks} (memory in {unit}):",
        head,
        rows,
        text_columns=text_columns,
    )


def _print_speeds(answer: Estimate, *, explain: bool) -> None:
    """Speeds of devices that were measured; with ``explain`` also those by data sheet."""
    for speed in answer.speeds:
        if speed is not None and (explain or speed.note is not None):
            print(f"  {speed.sentence()}")


def _print_budgets(answer: Estimate) -> None:
    for row in answer.deployments:
        print(
            f"  {row.gpu}: {format_gib(row.settings.device_memory_bytes)} x {row.settings.gpu_memory_utilization:g} = "
            f"{format_gib(row.budget_bytes)} GiB budget - weights {format_gib(row.weight_bytes)} - activations "
            f"{format_gib(row.activation_peak_bytes)} - overhead {format_gib(row.overhead_bytes)} = "
            f"{format_gib(row.kv_pool_bytes)} GiB = {row.num_blocks:,} blocks of {row.block_size} tokens"
        )


def _parameters(answer: Estimate) -> str:
    total, active = answer.spec.num_parameters, answer.spec.num_active_parameters
    return f"{total:,} parameters" + (f", {active:,} active per token" if active != total else "")


def _component_line(component: KvComponent) -> str:
    if component.bytes_per_token:
        return f"{component.bytes_per_token:,} B per token = {component.formula}"
    if component.window_bytes_per_token:
        tokens = component.entry.window_tokens or 0
        return (
            f"{component.window_bytes_per_token:,} B per token up to {tokens:,} tokens = {component.formula} "
            f"(at most {format_bytes(component.fixed_bytes)})"
        )
    return f"{format_bytes(component.fixed_bytes)} per sequence = {component.formula}"


def _print_markdown(answer: Estimate) -> None:
    print(f"**{answer.spec.id}**: {_parameters(answer)}, weights {format_bytes(answer.weights.total_bytes)}")
    print()
    print(f"KV cache: {answer.cache.bytes_per_token:,} B per token ({answer.kv_dtype})")
    for component in answer.cache.components:
        print(f"- {KIND_NAMES[component.kind]}: {_component_line(component)}")
    print()
    print_markdown(_MARKDOWN_HEAD, _deployment_rows(answer))
