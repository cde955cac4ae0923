"""Bytes of a checkpoint's weights: which format each tensor has, what its scales add, and the sum by kind.

Which tensor is quantized is decided by the published lists (``ignore``, ``targets``), whose entries are module names
with layer numbers, globs, or regular expressions after ``re:``. Matrices of layers and experts are candidates;
embeddings, heads, routers, norms, biases and convolutions are never.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import translate
from functools import lru_cache
from math import ceil, prod

from kvplan.catalog.checkpoint.stored import StoredCheckpoint, StoredKind, StoredWeights
from kvplan.catalog.spec import ModelSpec, QuantizationSpec
from kvplan.catalog.tensors import Tensor
from kvplan.errors import UsageError
from kvplan.estimate.dtypes import element_bytes
from kvplan.settings import GROUP_SIZES, GROUPED_FORMATS

WeightKind = StoredKind
_QUANTIZED_ROLES = ("linear", "expert")

_ALIASES: dict[str, tuple[str, ...]] = {
    "gate_proj": ("gate_up_proj", "w1"),
    "up_proj": ("gate_up_proj", "w3", "fc1"),
    "down_proj": ("w2", "fc2"),
    "in_proj_qkvz": ("in_proj_qkv",),
    "in_proj_ba": ("in_proj_b",),
    "g_proj": ("linear_gate",),
    "q_proj": ("qkv_proj",),
    "k_proj": ("qkv_proj",),
    "v_proj": ("qkv_proj",),
}
"""Other names under which published lists know a module of ours."""

_LEFT_ALONE = ("mtp",)
"""Tools that quantize a checkpoint load it without its multi-token-prediction layers, and copy them as they are."""

NAMED_FORMATS: dict[str, QuantizationSpec] = {
    "fp8": QuantizationSpec("fp8", 8, "tensor", scale_dtype="float32"),
    "fp8-block": QuantizationSpec("fp8", 8, "block", block_shape=(128, 128), scale_dtype="float32"),
    "int8": QuantizationSpec("compressed-tensors", 8, "channel", scale_dtype="float32", ignore=_LEFT_ALONE),
    "awq": QuantizationSpec("awq", 4, "group", group_size=128, has_zero_points=True, ignore=_LEFT_ALONE),
    "gptq": QuantizationSpec(
        "gptq", 4, "group", group_size=128, has_zero_points=True, has_act_order=True, ignore=_LEFT_ALONE
    ),
    "int4": QuantizationSpec(
        "compressed-tensors", 4, "group", group_size=128, scale_dtype="bfloat16", ignore=_LEFT_ALONE
    ),
    "mxfp4": QuantizationSpec("mxfp4", 4, "group", group_size=32, scale_dtype="fp8"),
    "nvfp4": QuantizationSpec(
        "nvfp4", 4, "group", group_size=16, scale_dtype="fp8", static_input_scale=True, ignore=_LEFT_ALONE
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
    if group_size < 0:
        return replace(found, granularity="channel", group_size=None)
    return replace(found, group_size=group_size)


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


@dataclass(frozen=True, slots=True)
class _Names:
    """A published list of modules, sorted by how its entries are compared."""

    exact: frozenset[str]
    globs: re.Pattern[str] | None
    patterns: tuple[re.Pattern[str], ...]

    def has(self, candidates: Sequence[str]) -> bool:
        return any(self._has(candidate) for candidate in candidates)

    def _has(self, name: str) -> bool:
        parts = name.split(".")
        # A listed module covers everything below it; a bare name ("gate") covers every module of that name.
        for start in range(len(parts)):
            for end in range(start + 1, len(parts) + 1):
                if ".".join(parts[start:end]) in self.exact and (start == 0 or parts[start] != "layers"):
                    return True
        if self.globs is not None and (self.globs.match(name) or self.globs.match(f"model.{name}")):
            return True
        return any(pattern.match(f"model.{name}") for pattern in self.patterns)


@lru_cache(maxsize=64)
def _compiled(entries: tuple[str, ...]) -> _Names:
    exact, globs, patterns = set(), [], []
    for entry in entries:
        if entry.startswith("re:"):
            try:
                patterns.append(re.compile(entry[3:]))
            except re.error:
                continue
            continue
        if entry.startswith("mtp"):
            continue  # multi-token layers: kvplan.estimate.vllm.drafters
        name = re.sub(r"^.*?(?=layers\.\d)", "", entry)
        name = re.sub(r"experts\.\d+\.", "experts.*.", name)
        if "*" in name.replace("experts.*.", ""):
            globs.append(name)
        else:
            exact.add(name)
    # One expression for all globs: lists of hundreds are asked about thousands of names.
    joined = re.compile("|".join(translate(glob) for glob in globs)) if globs else None
    return _Names(frozenset(exact), joined, tuple(patterns))


def candidate_names(tensor_name: str) -> list[str]:
    """The names under which published lists may know a module of a layer."""
    head, _, last = tensor_name.rpartition(".")
    names = [tensor_name, *(f"{head}.{alias}" if head else alias for alias in _ALIASES.get(last, ()))]
    if head == "self_attn":
        names.append(f"mixer.{last}")  # Nemotron-H calls every kind of layer so
    return names


def _candidates(tensor_name: str, layer_index: int | None) -> list[str]:
    names = candidate_names(tensor_name)
    return names if layer_index is None else [f"layers.{layer_index}.{name}" for name in names]


def format_of(
    quantization: QuantizationSpec | None, tensor: Tensor, layer_index: int | None
) -> QuantizationSpec | None:
    """How the checkpoint stores ``tensor`` of layer ``layer_index`` (None: outside the layers); None: unquantized."""
    if quantization is None or tensor.role not in _QUANTIZED_ROLES or len(tensor.shape) < 2 or tensor.never_quantized:
        return None
    if quantization.method == "mxfp4" and tensor.role != "expert" and quantization.ignore:
        return None
    candidates = _candidates(tensor.name, layer_index)
    if quantization.ignore and _compiled(quantization.ignore).has(candidates):
        return None
    for each in (*quantization.others, quantization):
        if each.targets and _compiled(each.targets).has(candidates):
            return each
    return None if quantization.targets else quantization


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
    return _kind_of_module(tensor.name)


def _kind_of_module(name: str) -> WeightKind:
    first = name.split(".", 1)[0].casefold()
    if "attn" in first or "attention" in first:
        return "state mixer" if first == "linear_attn" else "attention"
    return "state mixer" if first in ("mixer", "mamba", "conv") and "_proj" in name else "feed-forward"


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor, the layer it stands in (None: outside), and in how many layers it stands the same way."""

    tensor: Tensor
    layer_index: int | None
    repeats: int


def _placed(spec: ModelSpec, quantization: QuantizationSpec | None) -> Iterable[_Place]:
    """Every tensor; layers that are one and the same object are counted once with how often they occur."""
    for tensor in spec.tensors:
        yield _Place(tensor, None, 1)
    if _names_layers(quantization):
        groups = [(layer, index, 1) for index, layer in enumerate(spec.layers)]
    else:
        groups = [(layer, 0, count) for layer, count in spec.distinct_layers()]
    for layer, index, repeats in groups:
        for tensor in layer.all_tensors:
            yield _Place(tensor, index, repeats)


def _names_layers(quantization: QuantizationSpec | None) -> bool:
    """Whether the published lists tell layers apart by number."""
    if quantization is None:
        return False
    entries = (
        *quantization.ignore,
        *quantization.targets,
        *(name for each in quantization.others for name in each.targets),
    )
    return any("layers." in entry for entry in entries)


def size_weights(spec: ModelSpec, dtype: str, *, quantized: bool = True) -> WeightBytes:
    """The weights with everything unquantized in ``dtype``; ``quantized=False`` as if they were published plain."""
    if quantized and spec.checkpoint is not None:
        return WeightBytes(tuple(_stored_components(spec.checkpoint, dtype)))
    quantization = spec.quantization if quantized else None
    sums: dict[tuple[WeightKind, str], tuple[int, int]] = {}
    for place in _placed(spec, quantization):
        tensor = place.tensor
        found = format_of(quantization, tensor, place.layer_index)
        if tensor.stored_bytes is not None:
            label, size = f"{8 * tensor.stored_bytes:g}-bit table", int(tensor.num_elements * tensor.stored_bytes)
        elif found is None:
            label, size = dtype, tensor.num_elements * element_bytes(dtype)
        else:
            label, size = format_label(found), quantized_bytes(tensor.shape, found)
        key = (_kind(tensor), label)
        elements, total = sums.get(key, (0, 0))
        sums[key] = (elements + place.repeats * tensor.num_elements, total + place.repeats * size)
    components = (WeightComponent(kind, label, *sums[kind, label]) for kind, label in sums)
    return WeightBytes(tuple(components))


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
