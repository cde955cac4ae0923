"""What a drafter takes on one rank of vLLM: its weights, its layers in the KV cache, its part of the profile run.

The drafter is loaded after the model, on the same tensor-parallel ranks and never divided into pipeline stages; the
last stage has it. Embedding and head are the model's where both are alike (vllm/v1/spec_decode/llm_base_proposer.py,
_maybe_share_embeddings and _maybe_share_lm_head), its layers cache in the same pool.
"""

from __future__ import annotations

from dataclasses import replace

from kvplan.catalog.devices.gpus import GpuProfile
from kvplan.catalog.releases.vllm import VllmRelease
from kvplan.catalog.spec import Drafter, LayerSpec, ModelSpec, QuantizationSpec
from kvplan.catalog.tensors import Tensor
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.vllm.activation import ActivationPeak, blas_workspace_bytes, decoder_bytes
from kvplan.estimate.vllm.kernels import RepeatedScales
from kvplan.estimate.vllm.weights import AllocatorKind, StoredFormats, rank_weight_bytes
from kvplan.estimate.weights import quantized_bytes, served_bytes
from kvplan.settings import FilledSettings

_STATES_KEPT = {"eagle3": 3, "eagle": 1, "mtp": 1}
"""Hidden states of the model, per token, that a drafter reads after it."""
_JOINT = "eh_proj"
"""The projection of both inputs: an unquantized matrix in every family."""


class MultiTokenFormats(StoredFormats):
    """How a checkpoint stores its multi-token-prediction layers."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec.quantization)
        self._first = spec.num_layers

    def of(self, tensor: Tensor, layer: int | None) -> QuantizationSpec | None:
        if self.quantization is None or tensor.name == _JOINT:
            return None
        return self.quantization.of_multi_token(tensor, layer or 0, self._first)


def drafter_weight_bytes(
    spec: ModelSpec,
    drafter: Drafter,
    layout: ParallelLayout,
    dtype: str,
    max_model_len: int,
    *,
    absorbs_latents: bool = False,
    allocator: AllocatorKind = "splitting",
    repeats_block_scales: RepeatedScales = "none",
) -> int:
    """Bytes of the drafter on one rank of the last stage.

    With pipeline stages the last one has no embedding to share, and loads one.
    """
    model = drafter.model
    if model is None:
        return 0
    is_own = drafter.method == "mtp"
    formats = MultiTokenFormats(spec) if is_own else StoredFormats(model.quantization)
    alone = replace(layout, pipeline_parallel_size=1)
    total = rank_weight_bytes(
        model,
        range(model.num_layers),
        layout=alone,
        dtype=dtype,
        formats=formats,
        max_model_len=max_model_len,
        absorbs_latents=absorbs_latents,
        allocator=allocator,
        repeats_block_scales=repeats_block_scales,
    )
    if is_own:
        total = int(total * _stored_share(spec, model, formats, dtype)) or _stored_bytes(spec, layout, dtype)
    if layout.pipeline_parallel_size > 1 and drafter.method in _STATES_KEPT and not spec.tie_word_embeddings:
        total += _embedding_bytes(spec, layout, dtype)
    return total


def _stored_share(spec: ModelSpec, model: ModelSpec, formats: StoredFormats, dtype: str) -> float:
    """What the checkpoint stores of these layers over what the formulas give; 1 where it is not at hand."""
    if spec.checkpoint is None or not spec.checkpoint.multi_token:
        return 1.0
    expected = sum(
        _tensor_bytes(tensor, formats.of(tensor, index), dtype)
        for index, layer in enumerate(model.layers)
        for tensor in layer.all_tensors
    )
    return served_bytes(spec.checkpoint.multi_token, dtype) / expected if expected else 0.0


def _tensor_bytes(tensor: Tensor, found: QuantizationSpec | None, dtype: str) -> int:
    return tensor.num_elements * element_bytes(dtype) if found is None else quantized_bytes(tensor.shape, found)


def _stored_bytes(spec: ModelSpec, layout: ParallelLayout, dtype: str) -> int:
    """Layers that only the checkpoint knows, evenly divided."""
    stored = spec.checkpoint.multi_token if spec.checkpoint is not None else ()
    return -(-served_bytes(stored, dtype) // layout.tensor_parallel_size)


def _embedding_bytes(spec: ModelSpec, layout: ParallelLayout, dtype: str) -> int:
    elements = sum(tensor.num_elements for tensor in spec.tensors if tensor.role == "embedding")
    return -(-elements // layout.tensor_parallel_size) * element_bytes(dtype)


def cached_layers(drafter: Drafter | None) -> tuple[LayerSpec, ...]:
    """The drafter's layers that keep K and V."""
    if drafter is None or drafter.model is None:
        return ()
    return tuple(layer for layer in drafter.model.layers if layer.mixers)


def with_drafter_peak(
    peak: ActivationPeak,
    spec: ModelSpec,
    gpu: GpuProfile,
    settings: FilledSettings,
    release: VllmRelease,
) -> ActivationPeak:
    """The peak of a profile run that runs the drafter after the model, whose hidden states it reads are kept."""
    drafter = spec.drafter
    if drafter is None or drafter.model is None:
        return peak
    streams = (drafter.model if drafter.method == "mtp" else spec).residual_streams
    states = _STATES_KEPT.get(drafter.method, 0) * streams
    kept = states * settings.max_num_batched_tokens * spec.hidden_size
    inside = decoder_bytes(drafter.model, drafter.model.layers, settings, release)
    drafting = blas_workspace_bytes(gpu, release) + kept * element_bytes(settings.dtype) + inside
    if drafting <= peak.warm_peak_bytes:
        return peak
    decided_by = "drafter" if drafting > peak.compiling_bytes else peak.decided_by
    return replace(peak, decoder_bytes=drafting, decided_by=decided_by)
