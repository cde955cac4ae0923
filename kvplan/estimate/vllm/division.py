"""Whether vLLM can divide a model over the ranks of a layout: what it would refuse while loading, said beforehand."""

from __future__ import annotations

from kvplan.catalog.spec import LayerSpec, ModelSpec, MoeFeedForward, SoftmaxAttention
from kvplan.errors import UsageError
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.weights import format_of


def check_division(spec: ModelSpec, layout: ParallelLayout) -> None:
    """UsageError where heads, experts or the blocks of an 8-bit format do not divide."""
    seen: set[int] = set()  # layers share their parts: most models have one or two kinds
    for index, layer in enumerate(spec.layers):
        _check_heads(layer, layout.tensor_parallel_size)
        part = layer.feed_forward
        if isinstance(part, MoeFeedForward) and id(part) not in seen:
            seen.add(id(part))
            _check_experts(spec, index, part, layout)


def _check_heads(layer: LayerSpec, tensor_parallel_size: int) -> None:
    if isinstance(layer.mixer, SoftmaxAttention) and layer.mixer.num_heads % tensor_parallel_size:
        raise UsageError(
            f"{layer.mixer.num_heads} attention heads cannot be divided over {tensor_parallel_size} GPUs.",
            hint="choose a --tensor-parallel-size that divides the heads",
        )


def _check_experts(spec: ModelSpec, index: int, part: MoeFeedForward, layout: ParallelLayout) -> None:
    """A rank's slice of an expert must be whole scale blocks (vllm/model_executor/layers/quantization/fp8.py)."""
    if layout.expert_groups > part.num_experts:
        raise UsageError(
            f"{part.num_experts} experts cannot be divided over {layout.expert_groups} GPUs.",
            hint=f"use at most {part.num_experts} ranks, or leave --enable-expert-parallel out",
        )
    experts = next((tensor for tensor in part.tensors if tensor.role == "expert"), None)
    stored = format_of(spec.quantization, experts, index) if experts is not None else None
    if stored is None or stored.block_shape is None:
        return
    rows = stored.block_shape[0]
    if part.expert_intermediate_size % (layout.expert_slices * rows):
        width = part.expert_intermediate_size / layout.expert_slices
        raise UsageError(
            f"A slice of an expert on {layout.expert_slices} GPUs is {width:g} wide, which is not a multiple of the "
            f"{rows} that share a scale in this checkpoint.",
            hint="use --enable-expert-parallel, or fewer GPUs per expert",
        )
