"""``kvplan estimate``: parse, ask, print. The arithmetic is in kvplan.estimate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from kvplan.catalog.gpus import DEFAULT_GPUS, find_gpu
from kvplan.catalog.models import resolve_model
from kvplan.commands.render import OutputFormat, print_csv, print_json, print_markdown, print_table
from kvplan.errors import UsageError
from kvplan.estimate.answer import Deployment, Estimate, EstimateRequest, deployment_figures, make_estimate
from kvplan.estimate.dtypes import KV_CACHE_DTYPES, SERVING_DTYPES, canonical_dtype
from kvplan.estimate.kv_cache import KvComponent
from kvplan.units import format_bytes, format_gib, format_tokens, parse_bytes, parse_tokens

DEFAULTS = EstimateRequest()


def estimate(
    model: Annotated[
        str, typer.Argument(help="Short name, Hugging Face id, directory, config.json or .gguf.", metavar="MODEL")
    ],
    ctx: Annotated[
        str | None, typer.Option(help="Tokens per sequence; 32k is 32,768. Default: the model's longest.")
    ] = None,
    gpu: Annotated[list[str] | None, typer.Option(help="GPU name; repeat for several.")] = None,
    device_memory: Annotated[
        str | None, typer.Option(help="Memory per GPU instead of the profile's, such as 79.19GiB.")
    ] = None,
    tensor_parallel_size: Annotated[
        int, typer.Option("--tensor-parallel-size", "--tp", help="GPUs that share every layer.")
    ] = DEFAULTS.tensor_parallel_size,
    pipeline_parallel_size: Annotated[
        int, typer.Option("--pipeline-parallel-size", "--pp", help="GPUs that share the stack of layers.")
    ] = DEFAULTS.pipeline_parallel_size,
    dtype: Annotated[str, typer.Option(help="Weights and activations: " + ", ".join(SERVING_DTYPES))] = DEFAULTS.dtype,
    kv_cache_dtype: Annotated[
        str, typer.Option(help="KV cache: " + ", ".join(KV_CACHE_DTYPES))
    ] = DEFAULTS.kv_cache_dtype,
    block_size: Annotated[int, typer.Option(help="Tokens per KV block.")] = DEFAULTS.block_size,
    gpu_memory_utilization: Annotated[
        float, typer.Option(help="Share of the GPU's memory that the engine may use.")
    ] = DEFAULTS.gpu_memory_utilization,
    max_num_seqs: Annotated[int, typer.Option(help="Sequences in one step.")] = DEFAULTS.max_num_seqs,
    max_num_batched_tokens: Annotated[int, typer.Option(help="Tokens in one step.")] = DEFAULTS.max_num_batched_tokens,
    engine: Annotated[str, typer.Option(help="kvplan, vllm or vllm@VERSION.")] = DEFAULTS.engine,
    output_format: Annotated[OutputFormat, typer.Option("--format", help="How to print.")] = OutputFormat.table,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
    assume: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE for a key the config lacks; repeat for several.")
    ] = None,
) -> None:
    """Size a model: weights, KV cache, and how many sequences fit on which GPU."""
    request = EstimateRequest(
        context_tokens=parse_tokens(ctx) if ctx is not None else None,
        gpus=tuple(find_gpu(name) for name in gpu or DEFAULT_GPUS),
        device_memory_bytes=parse_bytes(device_memory) if device_memory is not None else None,
        tensor_parallel_size=_at_least_one(tensor_parallel_size, "--tensor-parallel-size"),
        pipeline_parallel_size=_at_least_one(pipeline_parallel_size, "--pipeline-parallel-size"),
        dtype=canonical_dtype(dtype, SERVING_DTYPES, option="--dtype"),
        kv_cache_dtype=canonical_dtype(kv_cache_dtype, KV_CACHE_DTYPES, option="--kv-cache-dtype"),
        block_size=_at_least_one(block_size, "--block-size"),
        gpu_memory_utilization=_share(gpu_memory_utilization),
        max_num_seqs=_at_least_one(max_num_seqs, "--max-num-seqs"),
        max_num_batched_tokens=_at_least_one(max_num_batched_tokens, "--max-num-batched-tokens"),
        engine=engine,
    )
    spec = resolve_model(model, assumptions=parse_assumptions(assume or []))
    print_estimate(make_estimate(spec, request), OutputFormat.json if as_json else output_format)


def parse_assumptions(texts: list[str]) -> dict[str, str]:
    """``["head_dim=128"]`` -> ``{"head_dim": "128"}``. UsageError for anything without a ``=``."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise UsageError(f"--assume '{text}' is not KEY=VALUE.", hint="for instance --assume head_dim=128")
        found[key.strip()] = value.strip()
    return found


def _at_least_one(number: int, option: str) -> int:
    if number < 1:
        raise UsageError(f"{option} is {number}, but at least 1 is expected.", hint=f"for instance {option} 16")
    return number


def _share(number: float) -> float:
    if not 0 < number <= 1:
        raise UsageError(
            f"--gpu-memory-utilization is {number:g}, but a share above 0 and up to 1 is expected.",
            hint="for instance --gpu-memory-utilization 0.9",
        )
    return number


def print_estimate(answer: Estimate, output_format: OutputFormat) -> None:
    if output_format is OutputFormat.json:
        print_json(estimate_document(answer))
    elif output_format is OutputFormat.csv:
        print_csv(deployment_figures(answer.deployments))
    elif output_format is OutputFormat.md:
        _print_markdown(answer)
    else:
        _print_text(answer)


def estimate_document(answer: Estimate) -> dict[str, Any]:
    """The answer in the schema ``kvplan.estimate/1``."""
    spec, cache = answer.spec, answer.cache
    return {
        "schema": "kvplan.estimate/1",
        "model": {
            "id": spec.id,
            "architecture": spec.architecture,
            "num_layers": spec.num_layers,
            "num_parameters": spec.num_parameters,
            "num_active_parameters": spec.num_active_parameters,
            "weight_bytes": answer.weight_bytes,
            "max_position_embeddings": spec.max_position_embeddings,
            "dtype": answer.dtype,
        },
        "context_tokens": answer.context_tokens,
        "kv_cache": {
            "dtype": answer.kv_dtype,
            "bytes_per_token": cache.bytes_per_token,
            "fixed_bytes_per_sequence": cache.fixed_bytes_per_sequence,
            "logical_bytes": cache.logical_bytes,
            "components": [_component_document(component) for component in cache.components],
        },
        "deployments": deployment_figures(answer.deployments),
        "assumptions": list(answer.assumptions),
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


def _deployment_rows(answer: Estimate) -> list[list[str]]:
    rows = []
    for row in answer.deployments:
        cells = [column.cell(row) for column in _COLUMNS]
        rows.append([row.gpu, *cells, "" if row.fits else (row.limit or "does not fit")])
    return rows


def _print_text(answer: Estimate) -> None:
    spec, cache = answer.spec, answer.cache
    print(f"{spec.id}: {spec.architecture}, {spec.num_layers} layers, {_parameters(answer)}")
    print()
    print(f"Weights   {format_bytes(answer.weight_bytes)} ({answer.dtype})")
    print(f"KV cache  {cache.bytes_per_token:,} B per token ({answer.kv_dtype})")
    for component in cache.components:
        print(f"            {_component_line(component)}")
    context = format_tokens(answer.context_tokens)
    print(f"One sequence of {context} tokens: {format_bytes(cache.logical_bytes)}")
    if answer.deployments:
        print()
        _print_deployments(answer, context)
    for sentence in answer.assumptions:
        print(f"note: {sentence}")


def _print_deployments(answer: Estimate, context: str) -> None:
    engine = answer.deployments[0].engine
    title = f"Sequences of {context} tokens that fit at once, with the {engine} engine:"
    print_table(
        title, ["GPU", *(column.head for column in _COLUMNS), ""], _deployment_rows(answer), text_columns=(0, 8)
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
    print(f"**{answer.spec.id}**: {_parameters(answer)}, weights {format_bytes(answer.weight_bytes)}")
    print()
    print(f"KV cache: {answer.cache.bytes_per_token:,} B per token ({answer.kv_dtype})")
    for component in answer.cache.components:
        print(f"- {component.kind}: {_component_line(component)}")
    print()
    print_markdown(["GPU", *(column.head for column in _COLUMNS), "limit"], _deployment_rows(answer))
