"""Bytes of a checkpoint's weights: which format each tensor has, what its scales add, and the sum by kind.

Which tensor is quantized, and how, is decided module by module by what the config lists (kvplan.catalog.quantization).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from kvplan.catalog.checkpoint.stored import StoredCheckpoint, StoredKind, StoredWeights
from kvplan.catalog.quantization.formats import MATRICES, ModuleRules, QuantizationSpec, Rule
from kvplan.catalog.quantization.matching import Names
from kvplan.catalog.spec import ModelSpec
from kvplan.catalog.tensors import Tensor
from kvplan.errors import UsageError
from kvplan.estimate.dtypes import element_bytes
from kvplan.settings import GROUP_SIZES, GROUPED_FORMATS

WeightKind = StoredKind

_AS_THEY_ARE = Rule(None, Names("within", ("mtp.",)))
"""Tools that quantize a checkpoint load it without its multi-token-prediction layers, and copy them as they are."""


def _without_multi_token(stored: QuantizationSpec) -> QuantizationSpec:
    return replace(stored, rules=ModuleRules((_AS_THEY_ARE, Rule(stored, kinds=MATRICES))))


NAMED_FORMATS: dict[str, QuantizationSpec] = {
    "fp8": QuantizationSpec("fp8", 8, "tensor", scale_dtype="float32"),
    "fp8-block": QuantizationSpec("fp8", 8, "block", block_shape=(128, 128), scale_dtype="float32"),
    "int8": _without_multi_token(QuantizationSpec("compressed-tensors", 8, "channel", scale_dtype="float32")),
    "awq": _without_multi_token(QuantizationSpec("awq", 4, "group", group_size=128, has_zero_points=True)),
    "gptq": _without_multi_token(
        QuantizationSpec("gptq", 4, "group", group_size=128, has_zero_points=True, has_act_order=True)
    ),
    "int4": _without_multi_token(
        QuantizationSpec("compressed-tensors", 4, "group", group_size=128, scale_dtype="bfloat16")
    ),
    "mxfp4": QuantizationSpec("mxfp4", 4, "group", group_size=32, scale_dtype="fp8"),
    "nvfp4": _without_multi_token(
        QuantizationSpec("nvfp4", 4, "group", group_size=16, scale_dtype="fp8", static_input_scale=True)
    ),
    "bitsandbytes": QuantizationSpec("bitsandbytes", 4, "group", group_size=64, scale_dtype="float32"),
}
"""What ``--quantization NAME`` makes of a model that is published unquantized: each format's usual recipe."""


def named_format(name: str, group_size: int | None = None) -> QuantizationSpec | None:
    """The recipe of ``--quantization``; None for "none" and "auto". group_size: instead of the recipe's, -1 for none.

    UsageError for a name that is none, and for a size that the format does not have.
    """
    folded = name.casefold()
    if folded not in ("none", "auto", *NAMED_FORMATS):
        raise UsageError(f"Unknown --quantization '{name}'.", hint="one of none, " + ", ".join(NAMED_FORMATS))
    check_group_size((folded,), group_size)
    found = NAMED_FORMATS.get(folded)
    if found is None or group_size is None:
        return found
    bare = replace(found, rules=None)
    if group_size < 0:
        sized = replace(bare, granularity="channel", group_size=None)
    else:
        sized = replace(bare, group_size=group_size)
    return sized if found.rules is None else _without_multi_token(sized)


def check_group_size(names: Iterable[str], group_size: int | None) -> None:
    """UsageError where none of the formats ``names`` can have groups of ``group_size``."""
    if group_size is None:
        return
    if group_size not in GROUP_SIZES:
        sizes = ", ".join(map(str, GROUP_SIZES))
        raise UsageError(f"There are no kernels for groups of {group_size}.", hint=f"--group-size takes {sizes}")
    listed = tuple(names)
    if not any(name in GROUPED_FORMATS for name in listed):
        raise UsageError(
            f"--group-size {group_size} is for weights in groups, not for --quantization {', '.join(listed)}.",
            hint="use --quantization " + ", ".join(GROUPED_FORMATS) + ", or leave --group-size out",
        )


def format_of(
    quantization: QuantizationSpec | None, tensor: Tensor, layer_index: int | None
) -> QuantizationSpec | None:
    """How the checkpoint stores ``tensor`` of layer ``layer_index`` (None: outside the layers); None: unquantized."""
    return None if quantization is None else quantization.of(tensor, layer_index)


def quantized_bytes(shape: Sequence[int], quantization: QuantizationSpec) -> int:
    """Packed weights, scales, zero points and group indices of one matrix (out, in), or of a stack of matrices."""
    matrices, rows, inner = prod(shape[:-2]), shape[-2], shape[-1]
    weight_bytes = ceil(matrices * rows * inner * quantization.bits / 8)
    scales = matrices * _scales_per_matrix(rows, inner, quantization)
    scale_bytes = scales * element_bytes(quantization.scale_dtype)
    zero_bytes = -(-scales * int(quantization.bits) // 8) if quantization.has_zero_points else 0
    index_bytes = matrices * inner * 4 if quantization.has_act_order else 0
    return weight_bytes + scale_bytes + zero_bytes + index_bytes + matrices * _constants(quantization)


def _scales_per_matrix(rows: int, inner: int, quantization: QuantizationSpec) -> int:
    if quantization.granularity == "group" and quantization.group_size:
        return rows * -(-inner // quantization.group_size)
    if quantization.granularity == "block" and quantization.block_shape:
        block_rows, block_columns = quantization.block_shape
        return -(-rows // block_rows) * -(-inner // block_columns)
    return rows if quantization.granularity in ("channel", "group") else 1


def _constants(quantization: QuantizationSpec) -> int:
    """float32 numbers kept once per matrix: NVFP4's second scale, and the scale of static activations."""
    second = 4 if quantization.method == "nvfp4" else 0
    return second + (4 if quantization.static_input_scale else 0)


@dataclass(frozen=True, slots=True)
class WeightComponent:
    """All weights of one kind in one format. ``format`` names the dtype or the quantizer."""

    kind: WeightKind
    format: str
    num_elements: int
    num_bytes: int

    @property
    def formula(self) -> str:
        bits = 8 * self.num_bytes / self.num_elements if self.num_elements else 0.0
        counted = "numbers" if self.format.endswith("as stored") else "weights"
        return f"{self.num_elements:,} {counted} x {bits:.4g} bit ({self.format})"


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """The weights of the causal language model as stored or as served, by kind."""

    components: tuple[WeightComponent, ...]

    @property
    def total_bytes(self) -> int:
        return sum(component.num_bytes for component in self.components)


def _kind(tensor: Tensor) -> WeightKind:
    if tensor.role in ("embedding", "lookup"):
        return "embedding"
    if tensor.role == "head":
        return "head"
    if tensor.role == "expert":
        return "experts"
    if tensor.role != "linear":
        return "other"
    first = tensor.name.split(".", 1)[0].casefold()
    if "attn" in first or "attention" in first:
        return "state mixer" if first == "linear_attn" else "attention"
    return "state mixer" if first in ("mixer", "mamba", "conv") and "_proj" in tensor.name else "feed-forward"


@dataclass(frozen=True, slots=True)
class _TensorPlace:
    """A tensor, the layer it stands in (None: outside), and in how many layers it stands the same way."""

    tensor: Tensor
    layer_index: int | None
    repeats: int


def _placed(spec: ModelSpec, quantization: QuantizationSpec | None) -> Iterable[_TensorPlace]:
    """Every tensor; where nothing tells layers apart, those that are one object are counted once, with their number."""
    for tensor in spec.tensors:
        yield _TensorPlace(tensor, None, 1)
    if quantization is None or quantization.rules is None or not quantization.rules.tells_layers:
        groups = [(layer, 0, count) for layer, count in spec.distinct_layers()]
    else:
        groups = [(layer, index, 1) for index, layer in enumerate(spec.layers)]
    for layer, index, repeats in groups:
        for tensor in layer.all_tensors:
            yield _TensorPlace(tensor, index, repeats)


def size_weights(spec: ModelSpec, dtype: str, *, quantized: bool = True) -> WeightBytes:
    """The weights with everything unquantized in ``dtype``; ``quantized=False`` as if they were published plain."""
    if quantized and spec.checkpoint is not None:
        return WeightBytes(tuple(_stored_components(spec.checkpoint, dtype)))
    quantization = spec.quantization if quantized else None
    sums: dict[tuple[WeightKind, str], tuple[int, int]] = {}
    for place in _placed(spec, quantization):
        label, size = _stored_size(place, quantization, dtype)
        key = (_kind(place.tensor), label)
        elements, total = sums.get(key, (0, 0))
        sums[key] = (elements + place.repeats * place.tensor.num_elements, total + place.repeats * size)
    components = (WeightComponent(kind, label, *sums[kind, label]) for kind, label in sums)
    return WeightBytes(tuple(components))


def _stored_size(place: _TensorPlace, quantization: QuantizationSpec | None, dtype: str) -> tuple[str, int]:
    """The format of one tensor, in words, and its bytes."""
    tensor, found = place.tensor, format_of(quantization, place.tensor, place.layer_index)
    if tensor.stored_bytes is not None:
        return f"{8 * tensor.stored_bytes:g}-bit table", int(tensor.num_elements * tensor.stored_bytes)
    if found is None:
        return dtype, tensor.num_elements * element_bytes(dtype)
    return format_label(found), quantized_bytes(tensor.shape, found)


def lookup_bytes(spec: ModelSpec, dtype: str) -> int:
    """Bytes of the tables inside layers, of which each token has some rows."""
    tables = (place for place in _placed(spec, spec.quantization) if place.tensor.role == "lookup")
    return sum(place.repeats * _stored_size(place, spec.quantization, dtype)[1] for place in tables)


def served_bytes(stored: Iterable[StoredWeights], dtype: str) -> int:
    """Bytes of stored weights once they are loaded: floats in ``dtype``, everything else as it is stored."""
    return sum(each.num_elements * element_bytes(dtype) if each.is_float else each.num_bytes for each in stored)


def _stored_components(checkpoint: StoredCheckpoint, dtype: str) -> Iterable[WeightComponent]:
    """The language model as a checkpoint stores it and an engine loads it. A packed number holds several weights."""
    sums: dict[tuple[StoredKind, str], tuple[int, int]] = {}
    for each in checkpoint.language_model:
        as_it_is = each.type_name if each.kind == "stored" else f"{each.type_name} as stored"
        key = (each.kind, dtype if each.is_float else as_it_is)
        elements, total = sums.get(key, (0, 0))
        sums[key] = (elements + each.num_elements, total + served_bytes((each,), dtype))
    return (WeightComponent(kind, label, *sums[kind, label]) for kind, label in sums)


def format_label(quantization: QuantizationSpec) -> str:
    """``awq 4-bit, group 128`` and the like."""
    bits = f"{quantization.bits:g}-bit"
    if quantization.granularity == "group":
        return f"{quantization.method} {bits}, group {quantization.group_size}"
    if quantization.granularity == "block" and quantization.block_shape:
        return f"{quantization.method} {bits}, block {quantization.block_shape[0]} x {quantization.block_shape[1]}"
    return f"{quantization.method} {bits}, per {quantization.granularity}"


def extra_bytes(spec: ModelSpec, dtype: str) -> int:
    """Towers and projectors beside the language model, which servers load too; those without a count add nothing."""
    if spec.checkpoint is not None and spec.checkpoint.towers:
        return served_bytes(spec.checkpoint.towers, dtype)
    kinds = ("vision", "audio", "encoder", "projector")
    counted = (extra.num_parameters or 0 for extra in spec.extras if extra.kind in kinds)
    return sum(counted) * element_bytes(dtype)
