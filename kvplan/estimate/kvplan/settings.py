"""The settings as kvplan's own engine resolves them on a device: what the user said, and its defaults for the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from kvplan.catalog.engines import KVPLAN_DEFAULTS
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate.dtypes import cache_dtype
from kvplan.settings import FilledSettings, ServingSettings


@dataclass(frozen=True, slots=True)
class EngineDevice:
    """The one device of a kvplan engine. ``compute_capability``: of a GPU, None where it is not known.

    overhead_bytes, graph_bytes: what was measured on a GPU, None for what is usual and for what is counted.
    is_counted: the engine allocates nothing on it (``load_format`` none). Then no graphs are captured, and weights that
    are published in a quantized format have their published size.
    """

    memory_bytes: int
    kind: Literal["cpu", "cuda"] = "cpu"
    has_bfloat16_units: bool = False
    compute_capability: tuple[int, int] | None = None
    is_counted: bool = False
    overhead_bytes: int | None = None
    graph_bytes: int | None = None


_WITH_MULTI_TOKEN: Final = (
    *("DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "Glm4MoeForCausalLM", "Glm4MoeLiteForCausalLM"),
    *("HYV3ForCausalLM", "MiMoForCausalLM"),
)
"""Architectures whose layer for multi-token prediction the engine runs."""


@dataclass(frozen=True, slots=True)
class KvplanSettings:
    """The settings that the engine runs with, and the device it runs on."""

    serving: FilledSettings
    device: EngineDevice


def resolve_settings(spec: ModelSpec, asked: ServingSettings, device: EngineDevice) -> KvplanSettings:
    """``asked`` with the engine's defaults. UsageError for a setting out of range.

    KvplanError when neither the settings nor the config say how long a sequence may be.
    """
    asked.check()
    _refuse_drafter(spec, asked, device)
    max_model_len = asked.max_model_len or spec.max_position_embeddings
    if max_model_len is None:
        raise KvplanError(
            f"The config of {spec.served_id} gives no maximum length.", hint="give one: --max-model-len 4096"
        )
    dtype = engine_dtype(spec, asked.dtype, device)
    defaults = KVPLAN_DEFAULTS
    serving = FilledSettings.of(
        asked,
        gpu_memory_utilization=asked.gpu_memory_utilization or defaults.gpu_memory_utilization,
        max_model_len=max_model_len,
        max_num_batched_tokens=asked.max_num_batched_tokens or defaults.max_num_batched_tokens,
        max_num_seqs=asked.max_num_seqs or defaults.max_num_seqs,
        block_size=asked.block_size or defaults.block_size,
        device_memory_bytes=asked.device_memory_bytes or device.memory_bytes,
        dtype=dtype,
        kv_cache_dtype=cache_dtype(dtype, asked.kv_cache_dtype),
    )
    return KvplanSettings(serving, device)


def _refuse_drafter(spec: ModelSpec, asked: ServingSettings, device: EngineDevice) -> None:
    """UsageError for a drafter that the engine does not run, or not there."""
    drafter = spec.drafter
    if drafter is None or not asked.num_speculative_tokens or drafter.method == "ngram":
        return
    if drafter.method not in ("draft_model", "mtp") or drafter.model is None:
        raise UsageError(
            f"kvplan's engine proposes tokens by n-grams, a draft model or a layer of the model's own, not by "
            f"{drafter.method}.",
            hint="use --engine vllm",
        )
    refuse_multi_token(spec)
    is_on_gpu = device.kind != "cpu" and not device.is_counted
    if is_on_gpu or asked.tensor_parallel_size * asked.pipeline_parallel_size > 1:
        raise UsageError(
            "kvplan's engine runs a drafter with layers on a CPU, in one process.", hint="use --engine vllm"
        )
    if engine_dtype(drafter.model, asked.dtype, device) != engine_dtype(spec, asked.dtype, device):
        raise UsageError("kvplan's engine runs a draft model in the dtype of the model.", hint="name one: --dtype")


def refuse_multi_token(spec: ModelSpec) -> None:
    """UsageError where layers for multi-token prediction draft that the engine does not have."""
    drafter = spec.drafter
    if drafter is None or drafter.method != "mtp" or drafter.model is None:
        return
    if spec.architecture not in _WITH_MULTI_TOKEN or drafter.model.num_layers > 1:
        raise UsageError(
            f"kvplan's engine does not run the layers for multi-token prediction of {spec.served_id}.",
            hint="use --engine vllm, or the speculative method ngram",
        )


def engine_dtype(spec: ModelSpec, requested: str, device: EngineDevice) -> str:
    """``requested``; "auto" on a CPU: bfloat16 where it computes in that, else float32.

    "auto" on a GPU: as published, in bfloat16 where that is float32, and in float16 where the GPU has no bfloat16.
    """
    if requested != "auto":
        return requested
    if device.kind != "cuda":
        return "bfloat16" if device.has_bfloat16_units and spec.dtype != "float32" else "float32"
    has_bfloat16 = device.compute_capability is None or device.compute_capability >= (8, 0)
    return "bfloat16" if spec.dtype != "float16" and has_bfloat16 else "float16"


def sampled_rows(settings: FilledSettings) -> int:
    """Most rows of a step that tokens are drawn behind: one of each sequence, and one of each of its drafts."""
    return min(settings.max_num_seqs * (1 + settings.num_speculative_tokens), settings.max_num_batched_tokens)
