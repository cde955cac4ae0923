"""A GPU that is only counted, as a server of vLLM divides its memory: what each rank takes beside the pool.

``--load-format none --gpu 8xh200`` asks what a deployment holds. kvplan's own engine computes nothing then, so its
workspace and its weights would be those of no deployment. Weights, activations and what is not a tensor are therefore
vLLM's, as ``kvplan estimate`` predicts them; the engine is given them (``rank_accounts``) and lays its own blocks into
what is left. Where all layers keep every token its pool holds as many tokens as vLLM's. Where layers are unlike, vLLM
pads their pages, and prints what it would admit: that figure is kept beside the engine's (``vllm``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvplan.catalog.devices.gpus import GpuCount
from kvplan.catalog.engines import EngineChoice
from kvplan.catalog.spec import ModelSpec
from kvplan.errors import UsageError
from kvplan.estimate.adapters import vllm_slot_bytes
from kvplan.estimate.answer import with_quantization
from kvplan.estimate.cache_entries import CacheSettings
from kvplan.estimate.kvplan.layout import KvLayout, plan_layout
from kvplan.estimate.kvplan.memory import EnginePrediction, start_outcome
from kvplan.estimate.kvplan.ranks import kept_part
from kvplan.estimate.kvplan.settings import EngineDevice, KvplanSettings, refuse_multi_token
from kvplan.estimate.question import settings_on, tensor_parallel_size
from kvplan.estimate.vllm.memo import Memo
from kvplan.estimate.vllm.prediction import RankMemory, VllmPrediction, fill_smallest, predict_ranks
from kvplan.settings import FilledSettings, ServingSettings

DEPLOYED_AS = EngineChoice("vllm")
_ENGINE_CACHES = ("float32", "bfloat16", "float16", "fp8", "fp8_e4m3", "int8_per_token_head")


@dataclass(frozen=True, slots=True)
class RankBytes:
    """What a rank of one stage takes beside its pool. weight_bytes: with the slots of adapters."""

    num_layers: int
    weight_bytes: int
    activation_bytes: int
    overhead_bytes: int
    adapter_bytes: int


@dataclass(frozen=True, slots=True)
class DeployedPool:
    """engine: what the counting engine will report. ranks: what it is told, stage by stage. vllm: what vLLM prints."""

    engine: EnginePrediction
    ranks: tuple[RankBytes, ...]
    vllm: VllmPrediction

    @property
    def dtype(self) -> str:
        return self.vllm.settings.serving.dtype

    @property
    def engine_kv_cache_dtype(self) -> str:
        """The dtype as kvplan's engine takes it."""
        found = self.vllm.settings.serving.kv_cache_dtype
        return "auto" if found == self.dtype else found


def deployed_ranks(counted: GpuCount, settings: ServingSettings) -> int:
    """The ``tensor_parallel_size`` of ``settings`` on so many GPUs. UsageError where they contradict each other."""
    return tensor_parallel_size(counted, settings)


def deployed_defaults(spec: ModelSpec, counted: GpuCount, asked: ServingSettings) -> FilledSettings:
    """``asked`` with vLLM's defaults on these GPUs."""
    return predict_ranks(spec, counted.gpu, settings_on(counted, spec, asked, DEPLOYED_AS)).resolved.serving


def predict_deployed(
    spec: ModelSpec, counted: GpuCount, asked: ServingSettings, device: EngineDevice, memo: Memo
) -> DeployedPool:
    """The pool of one server on ``counted`` GPUs. UsageError where vLLM, or the engine's layout, has no such thing."""
    if not asked.num_speculative_tokens:
        spec = replace(spec, drafter=None)
    settings = settings_on(counted, spec, replace(asked, device_memory_bytes=device.memory_bytes), DEPLOYED_AS)
    found = predict_ranks(with_quantization(spec, settings), counted.gpu, settings, memo=memo)
    serving = found.resolved.serving
    _refuse_cache(serving.kv_cache_dtype)
    cache = CacheSettings(model_dtype=serving.dtype, kv_dtype=serving.kv_cache_dtype)
    block_size = asked.block_size or serving.block_size
    kept = [kept_part(spec, part, serving.tensor_parallel_size) for part in found.parts]
    layouts = [
        plan_layout(part, cache, block_size, encoder_tokens=serving.max_model_len)
        for part in _with_drafter(spec, kept, serving.tensor_parallel_size)
    ]
    budget_bytes = int(device.memory_bytes * serving.gpu_memory_utilization)
    ranks = tuple(
        _rank_bytes(rank, part, budget_bytes, vllm_slot_bytes(spec, part, serving, serving.dtype))
        for rank, part in zip(found.ranks, found.parts, strict=True)
    )
    engine = _prediction(spec, KvplanSettings(serving, device), budget_bytes, ranks, layouts)
    return DeployedPool(engine, ranks, fill_smallest(found))


def _with_drafter(spec: ModelSpec, kept: list[ModelSpec], num_ranks: int) -> list[ModelSpec]:
    """``kept`` by the stages, with what a rank keeps for the layers of a drafter. UsageError over several stages."""
    refuse_multi_token(spec)
    if spec.drafter is None or spec.drafter.model is None:
        return kept
    if len(kept) > 1:
        raise UsageError(
            "kvplan's engine counts the blocks of a drafter with layers in one pipeline stage.",
            hint="use --tensor-parallel-size, or the speculative method ngram",
        )
    model = spec.drafter.model
    behind = kept_part(model, range(model.num_layers), num_ranks)
    return [replace(kept[0], layers=(*kept[0].layers, *behind.layers))]


def sequence_bytes(memory: EnginePrediction) -> int:
    """What must be free of the pool for one sequence of ``max_model_len`` tokens."""
    serving, layout = memory.settings.serving, memory.layout
    longest = serving.max_model_len
    return layout.blocks_for(longest, min(serving.max_num_batched_tokens, longest)) * layout.block_bytes


def _refuse_cache(kv_cache_dtype: str) -> None:
    if kv_cache_dtype not in _ENGINE_CACHES:
        raise UsageError(
            f"kvplan's engine lays down no KV cache in {kv_cache_dtype}.",
            hint="`kvplan estimate` sizes it as vLLM does; to count, use --kv-cache-dtype fp8",
        )


def _rank_bytes(rank: RankMemory, part: range, budget_bytes: int, adapter_bytes: int) -> RankBytes:
    activation_bytes = rank.activation.peak_bytes
    return RankBytes(
        num_layers=len(part),
        weight_bytes=rank.weight_bytes,
        activation_bytes=activation_bytes,
        overhead_bytes=budget_bytes - rank.weight_bytes - activation_bytes - rank.available_kv_bytes,
        adapter_bytes=adapter_bytes,
    )


def _prediction(
    spec: ModelSpec,
    settings: KvplanSettings,
    budget_bytes: int,
    ranks: tuple[RankBytes, ...],
    layouts: list[KvLayout],
) -> EnginePrediction:
    """What the engine makes of ``ranks``: all have the blocks of the one with the least room for them."""
    pools = [budget_bytes - each.weight_bytes - each.activation_bytes - each.overhead_bytes for each in ranks]
    blocks = [max(pool, 0) // layout.block_bytes for pool, layout in zip(pools, layouts, strict=True)]
    num_blocks, first, layout, serving = min(blocks), ranks[0], layouts[0], settings.serving
    longest, step_tokens = serving.max_model_len, serving.max_num_batched_tokens
    positions = spec.max_position_embeddings or longest
    return EnginePrediction(
        settings=settings,
        budget_bytes=budget_bytes,
        weight_bytes=first.weight_bytes,
        adapter_bytes=first.adapter_bytes,
        activation_bytes=first.activation_bytes,
        overhead_bytes=first.overhead_bytes,
        graphs=None,
        graph_bytes=0,
        kv_pool_bytes=max(pools[0], 0) - (blocks[0] - num_blocks) * layout.block_bytes,
        layout=layout,
        num_blocks=num_blocks,
        kv_cache_tokens=layout.pool_tokens(num_blocks, longest),
        max_concurrency=num_blocks / max(layout.blocks_for(longest), 1),
        largest_context=layout.longest_sequence(num_blocks, step_tokens, positions),
        outcome=start_outcome(
            first.weight_bytes,
            budget_bytes,
            num_blocks,
            blocks_at_least=layout.blocks_for(1),
            blocks_needed=layout.blocks_for(longest, min(step_tokens, longest)),
            too_long=longest > positions,
        ),
    )
