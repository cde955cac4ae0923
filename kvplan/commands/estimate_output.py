"""How an estimate is printed: for people, as JSON in the schema kvplan.estimate/1, as CSV, as Markdown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvplan.commands.render import OutputFormat, print_csv, print_json, print_markdown, print_table
from kvplan.estimate.answer import Estimate
from kvplan.estimate.deployments import Deployment
from kvplan.estimate.kv_cache import KvComponent
from kvplan.units import format_bytes, format_gib, format_tokens

KIND_NAMES = {
    "full": "full attention",
    "sliding": "sliding window",
    "chunked": "chunked attention",
    "latent": "latent attention (MLA)",
    "indexer": "indexer keys",
    "compressed": "compressed attention",
    "conv_state": "convolution state",
    "recurrent_state": "recurrent state",
    "cross": "cross attention",
}


def print_estimate(answer: Estimate, output_format: OutputFormat, *, explain: bool = False) -> None:
    """Print the answer; ``explain`` adds every formula and every assumption to the table for people."""
    if output_format is OutputFormat.json:
        print_json(estimate_document(answer))
    elif output_format is OutputFormat.csv:
        print_csv([deployment.figures() for deployment in answer.deployments])
    elif output_format is OutputFormat.md:
        _print_markdown(answer)
    else:
        _print_text(answer, explain=explain)


def estimate_document(answer: Estimate) -> dict[str, Any]:
    """The answer in the schema ``kvplan.estimate/1``."""
    spec = answer.spec
    return {
        "schema": "kvplan.estimate/1",
        "model": {
            "id": spec.id,
            "architecture": spec.architecture,
            "num_layers": spec.num_layers,
            "num_parameters": spec.num_parameters,
            "num_active_parameters": spec.num_active_parameters,
            "weight_bytes": answer.weights.total_bytes,
            "max_position_embeddings": spec.max_position_embeddings,
            "dtype": answer.dtype,
            "weights": [
                {"kind": each.kind, "format": each.format, "num_elements": each.num_elements, "bytes": each.num_bytes}
                for each in answer.weights.components
            ],
            "extras": [
                {"name": extra.name, "kind": extra.kind, "num_parameters": extra.num_parameters}
                for extra in spec.extras
            ],
            "source": spec.source,
        },
        "context_tokens": answer.context_tokens,
        "kv_cache": _cache_document(answer),
        "deployments": [
            deployment.figures() | {"performance": None if speed is None else speed.document()}
            for deployment, speed in zip(answer.deployments, answer.speeds, strict=True)
        ],
        "assumptions": list(answer.assumptions),
    }


def _cache_document(answer: Estimate) -> dict[str, Any]:
    cache, pages = answer.cache, answer.pages
    return {
        "dtype": answer.kv_dtype,
        "bytes_per_token": cache.bytes_per_token,
        "fixed_bytes_per_sequence": cache.fixed_bytes_per_sequence,
        "window_bytes_per_token": cache.window_bytes_per_token,
        "logical_bytes": cache.logical_bytes,
        "paged_bytes": pages.paged_bytes if pages else None,
        "admission_bytes": pages.admission_bytes if pages else None,
        "in_flight_tokens": answer.in_flight_tokens,
        "components": [_component_document(component) for component in cache.components],
    }


def _component_document(component: KvComponent) -> dict[str, Any]:
    entry = component.entry
    return {
        "kind": component.kind,
        "num_layers": component.num_layers,
        "num_kv_heads": entry.num_kv_heads,
        "head_size": entry.head_size,
        "window_tokens": entry.window_tokens,
        "bytes_per_token": component.bytes_per_token,
        "window_bytes_per_token": component.window_bytes_per_token,
        "fixed_bytes": component.fixed_bytes,
        "formula": component.formula,
    }


@dataclass(frozen=True, slots=True)
class _Column:
    head: str
    attribute: str

    def cell(self, deployment: Deployment) -> str:
        value = getattr(deployment, self.attribute)
        if self.head.endswith("GiB"):
            return format_gib(value)
        return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


_COLUMNS = (
    _Column("memory GiB", "device_memory_bytes"),
    _Column("weights GiB", "weight_bytes"),
    _Column("activations GiB", "activation_peak_bytes"),
    _Column("overhead GiB", "overhead_bytes"),
    _Column("KV pool GiB", "kv_pool_bytes"),
    _Column("KV tokens", "kv_cache_tokens"),
    _Column("sequences", "max_concurrency"),
)
_HEAD = ("GPU", *(column.head for column in _COLUMNS), "limit")


def _deployment_rows(answer: Estimate) -> list[list[str]]:
    rows = []
    for row in answer.deployments:
        cells = [column.cell(row) for column in _COLUMNS]
        rows.append([row.gpu, *cells, "" if row.fits else (row.limit or "does not fit")])
    return rows


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
        print("Assumed, because nobody said otherwise:" if answer.assumptions else "Nothing was assumed.")
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
        print(f"            beside it, {extra.name}: {count}")


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
            kept = min(entry.window_tokens, answer.context_tokens)
            terms.append(f"{component.window_bytes_per_token:,} B x min({entry.window_tokens:,}, context) = {kept:,}")
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
    num_gpus = first.tensor_parallel_size * first.pipeline_parallel_size
    ranks = f" on {num_gpus} GPUs (bytes are per GPU)" if num_gpus > 1 else ""
    print_table(
        f"Sequences of {context} tokens that fit at once, {engine}{ranks}:", head, rows, text_columns=text_columns
    )


def _print_speeds(answer: Estimate, *, explain: bool) -> None:
    """Speeds of devices that were measured; with ``explain`` also those by data sheet."""
    for speed in answer.speeds:
        if speed is not None and (explain or speed.note is not None):
            print(f"  {speed.sentence()}")


def _print_budgets(answer: Estimate) -> None:
    for row in answer.deployments:
        print(
            f"  {row.gpu}: {format_gib(row.device_memory_bytes)} x {row.gpu_memory_utilization:g} = "
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
    print_markdown(_HEAD, _deployment_rows(answer))
