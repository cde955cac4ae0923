"""A deployment under kvplan's own engine: what its prediction gives a person, and the notes on it."""

from __future__ import annotations

from kvplan.catalog.devices.device_support import compute_capability
from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.kvplan.memory import EnginePrediction, predict
from kvplan.estimate.kvplan.settings import EngineDevice
from kvplan.estimate.placed.placement import Placement, SizedDeployment
from kvplan.estimate.vllm.ranges import KvRange
from kvplan.settings import ServingSettings
from kvplan.units import format_bytes


def place_kvplan(spec: ModelSpec, gpu: GpuProfile, settings: ServingSettings, _version: str) -> Placement:
    """Return the deployment under kvplan's engine, which has one version. UsageError for settings that it refuses."""
    device = EngineDevice(
        memory_bytes=gpu.memory_bytes,
        kind="cpu" if gpu.is_cpu else "cuda",
        compute_capability=compute_capability(gpu),
    )
    found = predict(spec, settings, device)
    groups = found.settings.serving.data_parallel_size
    deployment = SizedDeployment(
        gpu=gpu.id,
        engine="kvplan",
        settings=found.settings.serving,
        budget_bytes=found.budget_bytes,
        weight_bytes=found.weight_bytes,
        activation_peak_bytes=found.activation_bytes,
        overhead_bytes=found.overhead_bytes + found.graph_bytes,
        kv_pool_bytes=found.kv_pool_bytes,
        num_blocks=groups * found.num_blocks,
        block_size=found.settings.serving.block_size,
        kv_cache_tokens=groups * found.kv_cache_tokens,
        max_concurrency=groups * found.max_concurrency,
        fits=found.outcome == "ok",
        limit=_kvplan_limit(found),
        longest_context=found.largest_context or None if found.outcome == "rejected_ctx" else None,
        kv_range=_kvplan_range(found),
        graph_bytes=found.graph_bytes,
    )

    def sequences_of(num_tokens: int) -> int:
        return groups * (found.num_blocks // max(found.layout.blocks_for(num_tokens), 1))

    return Placement(deployment, sequences_of, _kvplan_notes(found))


def _kvplan_range(found: EnginePrediction) -> KvRange | None:
    """On a CPU the engine allocates what is predicted, to the byte; on a GPU nothing has been measured."""
    if found.settings.device.kind != "cpu":
        return None
    pool, tokens, requests = found.kv_pool_bytes, found.kv_cache_tokens, found.max_concurrency
    one = KvRange((pool, pool), (tokens, tokens), (requests, requests), ())
    return one.of_groups(found.settings.serving.data_parallel_size)


def _kvplan_notes(found: EnginePrediction) -> tuple[str, ...]:
    """What several engines mean for the figures, and what is not known beforehand of a GPU."""
    groups = found.settings.serving.data_parallel_size
    each = (
        () if groups == 1 else (f"{groups} engines: each holds {found.kv_cache_tokens:,} tokens of its own KV cache.",)
    )
    if found.settings.device.kind == "cpu":
        return each
    reserve = (
        f"{format_bytes(found.overhead_bytes, digits=0)} of the overhead is reserved for the driver and libraries. Not "
        "measured: the engine raises it at start-up where it finds more."
    )
    return (*each, reserve) if found.graphs is None else (*each, found.graphs.sentence(), reserve)


def _kvplan_limit(found: EnginePrediction) -> str | None:
    if found.outcome == "ok":
        return None
    if found.outcome == "rejected_ctx":
        return f"longest sequence that fits: {found.largest_context:,} tokens"
    needed = max(found.layout.blocks_for(1), 1)
    short = format_bytes(found.fixed_bytes + needed * found.block_bytes - found.budget_bytes)
    return f"{short} short of {'one block' if needed == 1 else f'the {needed:,} blocks of one token'}"
