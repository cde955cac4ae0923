"""An estimate as the JSON document ``kvplan.estimate/1``. Bytes are per GPU; times in milliseconds as [low, high]."""

from __future__ import annotations

from typing import Any, Final

from kvplan.estimate.answer import EstimateAnswer
from kvplan.estimate.kv_cache import KvComponent
from kvplan.estimate.kvplan.layout import KvLayout
from kvplan.estimate.placed.placement import SizedDeployment
from kvplan.estimate.speculation import DeploymentSpeculation, Speculation
from kvplan.estimate.speed.device_speed import DeploymentSpeed
from kvplan.estimate.speed.latency import Range
from kvplan.estimate.speed.queues import queues_document, scale_document

SCHEMA = "kvplan.estimate/1"


def estimate_document(answer: EstimateAnswer) -> dict[str, Any]:
    """The whole answer."""
    return {
        "schema": SCHEMA,
        "model": _model_document(answer),
        "context_tokens": answer.context_tokens,
        "kv_cache": _cache_document(answer),
        "deployments": [
            deployment_figures(deployment)
            | {
                "range_causes": range_causes(deployment),
                "range_evidence": range_evidence(deployment),
                "later_start_bytes": deployment.kv_range.later_start_bytes if deployment.kv_range is not None else None,
            }
            | {"performance": None if speed is None else speed_document(speed)}
            for deployment, speed in zip(answer.deployments, answer.speeds, strict=True)
        ],
        "speculation": None if answer.speculation is None else _speculation_document(answer.speculation),
        "assumptions": list(answer.assumptions),
    }


def _speculation_document(found: Speculation) -> dict[str, Any]:
    """Speed-ups are [low, high], by the data sheet; a deployment that does not fit is null."""
    return {
        "method": found.drafter.method,
        "model": found.drafter.name,
        "num_speculative_tokens": found.drafter.num_tokens,
        "bytes_per_token": found.bytes_per_token,
        "deployments": [None if each is None else _gains_document(each) for each in found.deployments],
    }


def _gains_document(found: DeploymentSpeculation) -> dict[str, Any]:
    gains = [
        {
            "acceptance_rate": gain.acceptance_rate,
            "tokens_per_step": round(gain.tokens_per_step, 3),
            "speedup_alone": [round(gain.alone.low, 3), round(gain.alone.high, 3)],
            "speedup_full": [round(gain.full.low, 3), round(gain.full.high, 3)],
        }
        for gain in found.gains
    ]
    return {"gpu": found.gpu, "weight_bytes": found.weight_bytes, "num_users": found.num_users, "gains": gains}


def _model_document(answer: EstimateAnswer) -> dict[str, Any]:
    spec = answer.spec
    return {
        "id": spec.served_id,
        "sized_as": spec.sized_as,
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
            {"name": extra.name, "kind": extra.kind, "num_parameters": extra.num_parameters} for extra in spec.extras
        ],
        "source": spec.source,
        "weights_from": "config" if spec.checkpoint is None else "checkpoint",
    }


def _cache_document(answer: EstimateAnswer) -> dict[str, Any]:
    cache, pages = answer.kept, answer.pages
    return {
        "dtype": answer.kv_dtype,
        "bytes_per_token": cache.bytes_per_token,
        "fixed_bytes_per_sequence": cache.fixed_bytes_per_sequence,
        "window_bytes_per_token": cache.window_bytes_per_token,
        "logical_bytes": cache.logical_bytes,
        "paged_bytes": pages.paged_bytes if pages else None,
        "admission_bytes": pages.admission_bytes if pages else None,
        "in_flight_tokens": answer.in_flight_tokens,
        "admission_bytes_most": answer.most_pages.admission_bytes if answer.most_pages else None,
        "in_flight_tokens_most": answer.most_in_flight_tokens,
        "components": [_component_document(component) for component in cache.components],
        "layout": None if pages is None or pages.layout is None else _layout_document(pages.layout),
    }


def _layout_document(layout: KvLayout) -> dict[str, Any]:
    """The pool of kvplan's own engine. ``width``: blocks for ``block_size`` tokens, of a state for the sequence."""
    return {
        "block_size": layout.block_size,
        "block_bytes": layout.block_bytes,
        "groups": [
            {
                "kept": group.kept.kind,
                "kept_tokens": group.kept.tokens,
                "width": group.width,
                "unit_bytes": group.unit_bytes,
            }
            for group in layout.groups
        ],
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


def deployment_figures(deployment: SizedDeployment) -> dict[str, object]:
    """One key per figure, for JSON and CSV."""
    settings = deployment.settings
    return {
        "gpu": deployment.gpu,
        "engine": deployment.engine,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "pipeline_parallel_size": settings.pipeline_parallel_size,
        "data_parallel_size": settings.data_parallel_size,
        "enable_expert_parallel": settings.enable_expert_parallel,
        "device_memory_bytes": settings.device_memory_bytes,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        **{name: getattr(settings, name) for name in _OPTIONS},
        "budget_bytes": deployment.budget_bytes,
        "weight_bytes": deployment.weight_bytes,
        "activation_peak_bytes": deployment.activation_peak_bytes,
        "overhead_bytes": deployment.overhead_bytes,
        "kv_pool_bytes": deployment.kv_pool_bytes,
        **_ends("kv_pool_bytes", deployment.kv_pool_bytes_range),
        "num_blocks": deployment.num_blocks,
        "block_size": deployment.block_size,
        "kv_cache_tokens": deployment.kv_cache_tokens,
        **_ends("kv_cache_tokens", deployment.kv_cache_tokens_range),
        "max_concurrency": deployment.max_concurrency,
        **_ends("max_concurrency", deployment.max_concurrency_range),
        "max_model_len": settings.max_model_len,
        "max_num_seqs": settings.max_num_seqs,
        "most_num_seqs": deployment.most_num_seqs,
        **_ends("most_num_seqs", deployment.most_num_seqs_range),
        "max_num_batched_tokens": settings.max_num_batched_tokens,
        "fits": deployment.fits,
        "limit": deployment.limit,
    }


_OPTIONS: Final = (
    "kv_cache_memory_bytes",
    "enable_prefix_caching",
    "enforce_eager",
    "cpu_offload_gb",
    "limit_mm_per_prompt",
    "skip_mm_profiling",
    "warm_start",
    "expandable_segments",
)
"""Settings that change what the figures are made of; as asked for, null where the engine decides."""


def _ends(name: str, ends: tuple[float, float] | None) -> dict[str, float | None]:
    """``name_low`` and ``name_high``, between which 9 of 10 start-ups lie; None where none has been compared."""
    low, high = (None, None) if ends is None else ends
    return {f"{name}_low": low, f"{name}_high": high}


def range_causes(deployment: SizedDeployment) -> list[dict[str, object]]:
    """What the width of the interval comes from, largest first: half of it in bytes if the cause were the only one."""
    found = deployment.kv_range
    causes = () if found is None else found.causes
    return [{"cause": each.cause, "bytes": each.num_bytes, "meaning": each.sentence} for each in causes]


def range_evidence(deployment: SizedDeployment) -> dict[str, object] | None:
    """How many start-ups stand behind the interval, of which kind there are the fewest, and the sentence for people."""
    known = None if deployment.kv_range is None else deployment.kv_range.known
    if known is None:
        return None
    return {
        "num_startups": known.num_startups,
        "rarest_kind": known.rarest,
        "num_sources_of_rarest_kind": known.num_sources,
        "unseen_layout": known.unseen_layout,
        "sentence": known.sentence,
    }


def speed_document(speed: DeploymentSpeed) -> dict[str, object]:
    """The speed of one deployment, alone and full: ranges of step times, and percentiles with queues.

    server_share_full: how much of its time the server would work, were only the engine to bound it; above 1 it bounds.
    """
    return {
        "origin": speed.origin,
        "profile": speed.note,
        "scaled_by": scale_document(speed.model.scale),
        "input_tokens": speed.lengths.prompt,
        "output_tokens": speed.lengths.answer,
        "speculation": _drafting(speed),
        "ttft_ms_alone": _milliseconds(speed.alone.ttft_seconds),
        "tpot_ms_alone": _milliseconds(speed.alone.tpot_seconds),
        "num_users": speed.num_users,
        "tpot_ms_full": _milliseconds(speed.full.tpot_seconds),
        "output_throughput_full": _rounded(speed.full.output_tokens_per_second),
        "queueing_alone": queues_document(speed.queues(1)),
        "queueing_full": queues_document(speed.queues(speed.num_users)),
        "server_share_full": round(speed.model.server_share(speed.num_users), 3),
    }


def _drafting(speed: DeploymentSpeed) -> dict[str, object] | None:
    """Return the drafting that the times are of; None without a drafter."""
    drafting = speed.model.drafting
    if drafting is None:
        return None
    return {
        "num_speculative_tokens": drafting.draft.num_tokens,
        "acceptance_rate": drafting.acceptance_rate,
        "assumed": drafting.is_assumed,
        "tokens_per_step": round(drafting.tokens_per_step, 3),
    }


def _milliseconds(found: Range) -> list[float]:
    return [round(1000 * found.low, 2), round(1000 * found.high, 2)]


def _rounded(found: Range) -> list[float]:
    return [round(found.low, 1), round(found.high, 1)]
