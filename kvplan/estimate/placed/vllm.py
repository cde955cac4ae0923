"""A deployment under vLLM: what its prediction gives a person, and the notes on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.vllm import vllm_release
from kvplan.catalog.spec import ModelSpec
from kvplan.estimate.placed.placement import Placement, SizedDeployment
from kvplan.estimate.vllm.groups import blocks_per_request
from kvplan.estimate.vllm.modalities import taken_modalities
from kvplan.estimate.vllm.prediction import VllmPrediction, drafter_bytes, predict_vllm, request_shape
from kvplan.estimate.vllm.ranges import Cause, KvRange, kv_range, split_loss_bytes
from kvplan.estimate.vllm.runners import embedded_step_bytes
from kvplan.settings import ServingSettings
from kvplan.units import GIB, MIB, format_bytes

_NOTED_ENCODER_BYTES: Final = GIB
_NOTED_SEGMENT_BYTES: Final = 32 * MIB
"""Fewer change no answer."""


def place_vllm(spec: ModelSpec, gpu: GpuProfile, settings: ServingSettings, version: str) -> Placement:
    """Return the deployment as vLLM ``version`` would start it. UsageError for settings that it refuses."""
    return as_placed(spec, gpu, predict_vllm(spec, gpu, settings, version))


def as_placed(
    spec: ModelSpec, gpu: GpuProfile, found: VllmPrediction, explained: frozenset[Cause] = frozenset()
) -> Placement:
    """Return the deployment that ``found`` predicts for ``spec`` on ``gpu``. explained: as for ``kv_range``."""
    rank = found.rank
    groups = found.settings.serving.data_parallel_size
    is_given = rank.given_pool_bytes is not None
    within = (_given_range(found) if is_given else kv_range(spec, gpu, found, explained=explained)).of_groups(groups)
    deployment = SizedDeployment(
        gpu=gpu.id,
        engine=f"vllm@{found.version}",
        settings=found.settings.serving,
        budget_bytes=rank.requested_bytes,
        weight_bytes=rank.weight_bytes,
        activation_peak_bytes=rank.activation.peak_bytes,
        overhead_bytes=rank.state_bytes + rank.non_torch_bytes + rank.subtracted_graph_bytes,
        kv_pool_bytes=max(rank.available_kv_bytes, 0),
        num_blocks=groups * found.num_blocks,
        block_size=found.block_size,
        kv_cache_tokens=groups * found.kv_cache_tokens,
        max_concurrency=groups * found.max_concurrency,
        fits=found.fits,
        limit=_vllm_limit(found, within),
        longest_context=found.largest_max_model_len or None if found.outcome == "rejected_ctx" else None,
        kv_range=within,
        most_num_seqs=found.most_num_seqs,
        graph_bytes=rank.cudagraph_bytes,
        drafter_bytes=drafter_bytes(spec, gpu, found.settings.serving, vllm_release(found.version)),
        graphs_in_overhead=rank.subtracted_graph_bytes > 0,
    )
    shape = request_shape(found.settings, vllm_release(found.version))

    def sequences_of(num_tokens: int) -> int:
        each = blocks_per_request(rank.blocks, replace(shape, max_model_len=num_tokens, in_flight_tokens=1))
        return groups * (found.num_blocks // max(each, 1))

    notes = (*found.settings.notes, *_option_notes(spec, found, gpu), *_overhead_notes(spec, found))
    notes += _parallel_notes(spec, found)
    return Placement(deployment, sequences_of, notes)


def _given_range(found: VllmPrediction) -> KvRange:
    """A pool of a given size is exactly that."""
    pool, tokens, concurrency = found.rank.available_kv_bytes, found.kv_cache_tokens, found.max_concurrency
    seqs = None if found.most_num_seqs is None else (found.most_num_seqs, found.most_num_seqs)
    return KvRange((pool, pool), (tokens, tokens), (concurrency, concurrency), (), num_seqs=seqs)


def _option_notes(spec: ModelSpec, found: VllmPrediction, gpu: GpuProfile) -> Iterator[str]:
    """What options mean for the figures, where that is not what one may think."""
    settings = found.settings.serving
    if settings.kv_cache_memory_bytes is not None:
        yield (
            "--kv-cache-memory-bytes: the pool is that, and gpu_memory_utilization says only what must be free at the "
            "start; weights, activations, overhead and pool must fit the GPU."
        )
    if settings.cpu_offload_gb and gpu.unified_memory:
        yield f"--cpu-offload-gb changes nothing on {gpu.id}: its memory is the host's."
    elif settings.cpu_offload_gb:
        yield "--cpu-offload-gb: what is offloaded is read over the bus in each step, which no speed here counts."
    if settings.decode_context_parallel_size > 1:
        yield (
            "--decode-context-parallel-size: the pool counts tokens over all ranks that share a context. No start-up "
            "with it has been compared, and its speed is not modelled."
        )
    if settings.enforce_eager:
        yield (
            "--enforce-eager: a step takes at least the launches of its layers, which are taken as 0.57 ms each; 0.40 "
            "and 0.80 were measured elsewhere."
        )
    peak = found.rank.activation
    if peak.peak_bytes > peak.warm_peak_bytes and settings.kv_cache_memory_bytes is None:
        loss = split_loss_bytes(spec, gpu, found)
        still = f"; with vLLM {found.version} it may have {format_bytes(loss)} less still, which the low end counts"
        yield (
            "A first start, which compiles kernels while vLLM measures its peak, has "
            f"{format_bytes(peak.peak_bytes - peak.warm_peak_bytes)} less for the KV cache than a later one, "
            f"which finds them in its compile cache (--warm-start){still if loss else ''}."
        )
    others = max(peak.decoder_bytes, peak.sampler_bytes, peak.compiling_bytes)
    if peak.encoder_bytes - others >= _NOTED_ENCODER_BYTES:
        none = ",".join(f"{name}=0" for name in taken_modalities(spec) or ("image", "video"))
        yield (
            f"{format_bytes(peak.encoder_bytes - others)} of the activations are the encoder's, for the largest image "
            f"or video that a prompt may have: --limit-mm-per-prompt lowers it, {none} gives all of it back."
        )
    if settings.skip_mm_profiling:
        yield "--skip-mm-profiling: the encoder's own peak is not set aside, and can run out of memory later."


def _overhead_notes(spec: ModelSpec, found: VllmPrediction) -> Iterator[str]:
    """What the overhead holds besides libraries and graphs: what the second model runner keeps, and free segments."""
    if found.rank.state_bytes:
        kept, seqs = format_bytes(found.rank.state_bytes), found.settings.serving.max_num_seqs
        seen = " and for a step's embedded tokens" if embedded_step_bytes(spec, found.settings.serving) else ""
        yield (
            f"Model Runner V2, vLLM {found.version}'s default for this model: {kept} of the overhead is what it keeps "
            f"for {seqs} sequences (penalties, grammars){seen}; --max-num-seqs lowers it."
        )
    if found.rank.segment_bytes >= _NOTED_SEGMENT_BYTES:
        yield (
            f"{format_bytes(found.rank.segment_bytes)} of the overhead lies free in memory that PyTorch keeps from "
            f"loading the weights, which vLLM {found.version} counts as used."
        )
    if found.rank.pinned_bytes >= _NOTED_SEGMENT_BYTES:
        yield (
            f"{format_bytes(found.rank.pinned_bytes)} of the overhead is memory of the first start's compilation that "
            f"vLLM {found.version} cannot give back; a later start has it (--warm-start), and vLLM 0.31 mends it."
        )
    if found.rank.local.grown_bytes >= _NOTED_SEGMENT_BYTES:
        yield (
            f"{format_bytes(found.rank.local.grown_bytes)} of the overhead is local memory, which the driver keeps for "
            f"registers that a kernel of vLLM {found.version} spills on this GPU."
        )
    if found.rank.local.possible_bytes:
        yield (
            f"Up to {format_bytes(found.rank.local.possible_bytes)} more may go to local memory: how much this model's "
            "kernels spill on this GPU is not known, and the low end counts it."
        )


def _parallel_notes(spec: ModelSpec, found: VllmPrediction) -> tuple[str, ...]:
    """What several data-parallel groups mean for the figures."""
    groups = found.settings.serving.data_parallel_size
    if groups == 1:
        return ()
    each = f"{groups} data-parallel groups: each prints {found.kv_cache_tokens:,} tokens of its own KV cache"
    if spec.is_mixture:
        return (f"{each}; the buffers of their shared experts are derived, not measured.",)
    return (f"{each}.",)


def _vllm_limit(found: VllmPrediction, within: KvRange) -> str | None:
    if found.fits:
        return None
    if found.outcome == "rejected_seqs":
        sure = within.num_seqs[0] if within.num_seqs is not None else 0
        return (
            f"max_num_seqs {found.settings.serving.max_num_seqs:,} exceeds {found.num_blocks:,} state blocks "
            f"(--max-num-seqs {sure or found.num_blocks})"
        )
    if found.outcome == "oom_weights":
        lacking = found.rank.weight_bytes - found.rank.requested_bytes
        return f"the weights do not fit: {format_bytes(lacking)} short"
    missing = format_bytes(found.missing_bytes)
    if found.rank.lacking_bytes and found.rank.given_pool_bytes is not None:
        return f"no room for --kv-cache-memory-bytes: {missing} short"
    if found.outcome == "rejected_ctx" and found.largest_max_model_len:
        return f"longest sequence that fits: {found.largest_max_model_len:,} tokens"
    return f"no room for one sequence: {missing} short"
