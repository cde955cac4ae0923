"""Whether vLLM can divide a model over the ranks of a layout: what it would refuse while loading, said beforehand."""

from __future__ import annotations

from typing import Final

from kvplan.catalog.architectures import architectures
from kvplan.catalog.spec import LayerSpec, ModelSpec, MoeFeedForward, QuantizationSpec, SoftmaxAttention
from kvplan.catalog.tensors import Tensor
from kvplan.errors import UsageError
from kvplan.estimate.parallel import ParallelLayout
from kvplan.estimate.vllm.weights import rank_shape
from kvplan.estimate.weights import format_of
from kvplan.settings import GROUP_SIZES


def check_has_experts(spec: ModelSpec, whole_experts: bool | None) -> None:
    """UsageError for whole experts of a model without any (vllm/config/model.py, _verify_with_expert_parallelism)."""
    if whole_experts and not spec.is_mixture:
        raise UsageError(
            f"vLLM does not start {spec.served_id} with whole experts on each GPU: it has none.",
            hint="leave --enable-expert-parallel out",
        )


def check_division(spec: ModelSpec, layout: ParallelLayout) -> None:
    """UsageError where heads, experts, the blocks of an 8-bit format or the groups of a 4-bit one do not divide."""
    check_has_experts(spec, layout.enable_expert_parallel)
    if layout.pipeline_parallel_size > 1 and spec.index_pool > 1:  # vllm/models/glm5next/common/model.py
        raise UsageError(
            f"vLLM does not divide {spec.served_id} over pipeline stages.", hint="leave --pipeline-parallel-size out"
        )
    if layout.pipeline_parallel_size > 1 and spec.lookup_elements:  # vllm/model_executor/models/config.py, Qwen4Exp
        raise UsageError(
            f"vLLM does not divide {spec.served_id} into stages: its tables of n-grams are for the first alone.",
            hint="use --pipeline-parallel-size 1",
        )
    if layout.pipeline_parallel_size > 1 and spec.repeated_elements:  # classes without SupportsPP: hrm_text.py, dory.py
        raise UsageError(
            f"vLLM does not divide {spec.served_id} over pipeline stages: it goes through layers again.",
            hint="use --pipeline-parallel-size 1",
        )
    _check_class(spec, layout)
    _check_groups(spec, layout)
    seen: set[int] = set()  # layers share their parts: most models have one or two kinds
    for index, layer in enumerate(spec.layers):
        _check_heads(layer, layout.tensor_parallel_size)
        part = layer.feed_forward
        if isinstance(part, MoeFeedForward) and id(part) not in seen:
            seen.add(id(part))
            _check_experts(spec, index, part, layout)


def _check_class(spec: ModelSpec, layout: ParallelLayout) -> None:
    """UsageError for what the architecture's class refuses (vllm/model_executor/models: alice_ai.py, dory.py)."""
    row = architectures().get(spec.architecture)
    if row is None:
        return
    for is_taken, number, option in (
        (row.vllm.stages, layout.pipeline_parallel_size, "--pipeline-parallel-size"),
        (row.vllm.ranks, layout.tensor_parallel_size, "--tensor-parallel-size"),
    ):
        if not is_taken and number > 1:
            raise UsageError(f"vLLM's class of {spec.architecture} takes no {option} above 1.", hint=f"use {option} 1")


def _check_heads(layer: LayerSpec, tensor_parallel_size: int) -> None:
    if not isinstance(layer.mixer, SoftmaxAttention) or layer.mixer.num_heads % tensor_parallel_size == 0:
        return
    heads = layer.mixer.num_heads
    fewer = max(size for size in range(1, min(heads, tensor_parallel_size) + 1) if heads % size == 0)
    more = next((size for size in range(tensor_parallel_size, heads + 1) if heads % size == 0), None)
    raise UsageError(
        f"{heads} attention heads cannot be divided over {tensor_parallel_size} GPUs.",
        hint=f"choose a number that divides the heads: {fewer}{f' or {more}' if more else ''} "
        "(--tensor-parallel-size, or the count in --gpu)",
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


_WITH_WHOLE_GROUPS: Final = ("awq", "compressed-tensors")
"""Those that vLLM 0.32 refuses where a rank's inputs are no whole groups, whatever kernel it would choose."""


def _check_groups(spec: ModelSpec, layout: ParallelLayout) -> None:
    """The inputs of a product must be whole groups; on each rank, but for GPTQ, whose kernels differ in that.

    vLLM 0.32: create_weights in auto_awq.py and verify_group_size_divides_partition in compressed_tensors_wNa16.py
    (vllm/model_executor/layers/quantization), can_implement in kernels/linear/mixed_precision/{marlin,exllama}.py.
    """
    published = spec.quantization
    if published is None:
        return
    sizes = {each.group_size for each in published.formats if each.granularity == "group"} - {None}
    for index, layer in enumerate(spec.layers if sizes else ()):
        for tensor in layer.all_tensors:
            if tensor.role != "linear" or len(tensor.shape) != 2:
                continue
            width, on_rank = tensor.shape[-1], rank_shape(tensor, layout)[-1]
            if all(width % size == 0 and on_rank % size == 0 for size in sizes if size):
                continue  # names are matched for the few that may not divide alone
            stored = format_of(published, tensor, index)
            if stored is not None and stored.method in (*_WITH_WHOLE_GROUPS, "gptq"):
                _check_group(stored, tensor, on_rank if stored.method in _WITH_WHOLE_GROUPS else width)


def _check_group(stored: QuantizationSpec, tensor: Tensor, width: int) -> None:
    if stored.granularity != "group" or not stored.group_size or width % stored.group_size == 0:
        return
    fitting = [str(size) for size in GROUP_SIZES if size > 0 and width % size == 0]
    is_whole = width == tensor.shape[-1]
    raise UsageError(
        f"{tensor.name} has {width:,} inputs{'' if is_whole else ' on each GPU'}, which are no whole groups of "
        f"{stored.group_size}: vLLM refuses such {stored.method} weights.",
        hint=f"use --group-size {' or '.join((*fitting, '-1'))}" if is_whole else "use fewer GPUs for each layer",
    )
