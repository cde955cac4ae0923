"""Bytes of the weights on one rank of vLLM: which part of each tensor it holds, and what an element costs there."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from kvplan.catalog.spec import LayerSpec, ModelSpec, QuantizationSpec, SoftmaxAttention
from kvplan.catalog.tensors import Tensor
from kvplan.estimate.dtypes import BYTES_PER_ELEMENT, element_bytes
from kvplan.units import MIB

_VOCAB_PADDING = 64
_QUANTIZED_ROLES = ("linear", "expert")
_BITS_PER_WEIGHT = {"bitsandbytes": 4.0, "awq": 4.0, "gptq": 4.0, "awq_marlin": 4.0, "gptq_marlin": 4.0, "mxfp4": 4.0}
_RUNTIME_METHODS = {
    "fp8": QuantizationSpec(method="fp8", bits=8, granularity="tensor", scale_dtype="float32"),
    "bitsandbytes": QuantizationSpec(
        method="bitsandbytes", bits=4, granularity="group", group_size=64, scale_dtype="float32"
    ),
}
"""Formats that vLLM makes itself from unquantized weights while it loads them."""


@dataclass(frozen=True, slots=True)
class WeightShare:
    """What decides a rank's part of the weights."""

    dtype: str
    quantization: QuantizationSpec | None
    tensor_parallel_size: int
    head_tokens: int
    """Rows of the KV projections that belong to one KV head, for ranks that hold a replica."""


def quantization_of(spec: ModelSpec, requested: str | None) -> QuantizationSpec | None:
    """The published format, else one that vLLM makes while loading; None for plain weights."""
    if spec.quantization is not None:
        return spec.quantization
    return _RUNTIME_METHODS.get(requested or "")


def rank_weight_bytes(
    spec: ModelSpec, layers: range, *, tensor_parallel_size: int, dtype: str, requested: str | None, max_model_len: int
) -> int:
    """Bytes of the layers ``layers`` on one rank, with embedding, head and towers where they lie, and rope tables.

    The first stage has the embedding and the towers, the last one the head (a second copy of a tied embedding when
    they are different ranks).
    """
    quantization = quantization_of(spec, requested)
    parts: list[Tensor] = []
    total = 0
    for index in layers:
        share = _share(spec, spec.layers[index], quantization, tensor_parallel_size, dtype)
        total += _allocated_bytes(spec.layers[index].all_tensors, share)
    is_first, is_last = layers.start == 0, layers.stop == spec.num_layers
    for tensor in spec.tensors:
        is_input = tensor.role in ("embedding", "position")
        if (is_input and (is_first or (is_last and spec.tie_word_embeddings))) or (not is_input and is_last):
            parts.append(tensor)
    share = WeightShare(dtype, quantization, tensor_parallel_size, 1)
    total += _allocated_bytes(parts, share)
    if is_first:
        total += tower_bytes(spec, tensor_parallel_size, dtype)
    return total + rope_table_bytes(spec, dtype, max_model_len)


def _share(
    spec: ModelSpec, layer: LayerSpec, quantization: QuantizationSpec | None, tensor_parallel_size: int, dtype: str
) -> WeightShare:
    head = layer.mixer.head_size_k if isinstance(layer.mixer, SoftmaxAttention) else 1
    return WeightShare(dtype, quantization, tensor_parallel_size, head)


def tensor_bytes(tensor: Tensor, share: WeightShare) -> int:
    """Bytes of one tensor on one rank, scales and zero points included."""
    shape = rank_shape(tensor, share.tensor_parallel_size, share.head_tokens)
    quantization = share.quantization
    if quantization is None or not is_quantized(tensor, quantization):
        return prod(shape) * element_bytes(share.dtype)
    return quantized_bytes(shape, quantization)


def rank_shape(tensor: Tensor, tensor_parallel_size: int, head_rows: int = 1) -> tuple[int, ...]:
    """The tensor's shape on one rank (see ``Tensor.split``); the last dimension of a matrix is its input."""
    tp = tensor_parallel_size
    shape = tensor.shape
    if tp == 1 or not shape or tensor.split == "replicated":
        return _padded_vocabulary(tensor, shape)
    if tensor.split == "vocab":
        rows = _padded_vocabulary(tensor, shape)[0]
        return (-(-rows // tp), *shape[1:])
    axis = len(shape) - 1 if tensor.split == "row" else max(len(shape) - 2, 0)
    if tensor.split == "ranks":
        axis = 0
    size = -(-shape[axis] // tp)
    if tensor.split == "kv":
        size = max(size, min(head_rows, shape[axis]))
    return (*shape[:axis], size, *shape[axis + 1 :])


def _padded_vocabulary(tensor: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    if tensor.split != "vocab" or not shape:
        return shape
    return (-(-shape[0] // _VOCAB_PADDING) * _VOCAB_PADDING, *shape[1:])


def is_quantized(tensor: Tensor, quantization: QuantizationSpec) -> bool:
    """Matrices of layers and experts are, unless the format's ignore list names them."""
    if tensor.role not in _QUANTIZED_ROLES or len(tensor.shape) < 2:
        return False
    return not any(_names(pattern, tensor.name) for pattern in quantization.ignore)


def _names(pattern: str, name: str) -> bool:
    """Whether an ignore entry of a published config means the module ``name`` (layer numbers are not in our names)."""
    import re

    if pattern.startswith("re:"):
        try:
            return re.search(pattern[3:], f"model.layers.0.{name}") is not None
        except re.error:
            return False
    bare = re.sub(r"^(.*\.)?layers\.\d+\.", "", pattern)
    return fnmatch.fnmatch(name, bare) or name == bare or name.startswith(f"{bare}.")


def quantized_bytes(shape: Sequence[int], quantization: QuantizationSpec) -> int:
    """Packed weights plus scales (and zero points) of one matrix, or of stacked matrices."""
    elements = prod(shape)
    rows, inner = prod(shape[:-1]), shape[-1]
    weight = elements * (_BITS_PER_WEIGHT.get(quantization.method, quantization.bits)) / 8
    if quantization.granularity == "group" and quantization.group_size:
        scales = rows * -(-inner // quantization.group_size)
    elif quantization.granularity == "block" and quantization.block_shape:
        block_rows, block_columns = quantization.block_shape
        scales = prod(shape[:-2]) * -(-shape[-2] // block_rows) * -(-inner // block_columns)
    else:
        scales = rows if quantization.granularity == "channel" else 1
    zero_points = scales * quantization.bits / 8 if quantization.has_zero_points else 0
    return int(weight + scales * _scale_bytes(quantization) + zero_points)


def _scale_bytes(quantization: QuantizationSpec) -> float:
    if quantization.method in ("mxfp4", "modelopt_fp4", "nvfp4"):
        return 1
    return BYTES_PER_ELEMENT.get(quantization.scale_dtype, 2)


def tower_bytes(spec: ModelSpec, tensor_parallel_size: int, dtype: str) -> int:
    """Vision and audio towers and their projectors, divided over the ranks as vLLM does; never quantized here."""
    kinds = ("vision", "audio", "encoder", "projector")
    counted = [extra.num_parameters or 0 for extra in spec.extras if extra.kind in kinds]
    return -(-sum(counted) // tensor_parallel_size) * element_bytes(dtype)


def rope_table_bytes(spec: ModelSpec, dtype: str, max_model_len: int) -> int:
    """cos and sin of every position the config knows: vLLM keeps them in the model's dtype, one table per rope."""
    if spec.rope is None:
        return 0
    positions = spec.max_position_embeddings or max_model_len
    if spec.rope.scaling == "yarn" and spec.rope.factor and spec.rope.original_max_position_embeddings:
        positions = int(spec.rope.original_max_position_embeddings * spec.rope.factor)
    return positions * spec.rope.rotary_size * element_bytes(dtype)


_MERGED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_LARGE_ALLOCATION = 10 * MIB
_SEGMENT_STEP = 2 * MIB
_SPLIT_ABOVE = MIB


def _allocated_bytes(tensors: Iterable[Tensor], share: WeightShare) -> int:
    """Bytes as PyTorch's allocator counts them: a large tensor takes whole steps of 2 MiB.

    What is left of the last step counts when it is at most 1 MiB: more than that is split off and used for others.
    vLLM merges q, k and v, and gate and up, into one tensor each.
    """
    total, merged = 0, [0] * len(_MERGED)
    for tensor in tensors:
        size = tensor_bytes(tensor, share)
        place = _merged_place(tensor.name)
        if place is None:
            total += _rounded(size)
        else:
            merged[place] += size
    return total + sum(_rounded(size) for size in merged)


def _merged_place(name: str) -> int | None:
    last = name.rsplit(".", 1)[-1]
    for place, names in enumerate(_MERGED):
        if last in names:
            return place
    return None


def _rounded(size: int) -> int:
    if size < _LARGE_ALLOCATION:
        return size
    left = -size % _SEGMENT_STEP
    return size + left if left <= _SPLIT_ABOVE else size
