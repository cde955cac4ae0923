"""Weights that kvplan's engine holds in few bits, to the byte.

Every format that it reads becomes one: codes of 4, 6 or 8 bits, a scale for each group of inputs of an output, and
where the format has zero points or minimums one of these beside each scale. Held so are the matrices of attention, of
MLPs and of experts, and what projects into states and out of them, of a GGUF file the embedding and the head too;
everything else is in the dtype that it computes in: what takes latents to keys and values, what makes a state's steps,
decays and strengths, and an index. Powers of two (MXFP4) stay in bytes, and so do ggml's integers beside the float16 of
a block; other scales are as wide as the tables here say. On a GPU codes of 6 bits take 8, and integers become float32.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import gcd, prod

from kvplan.catalog.checkpoint.stored import StoredCheckpoint, StoredTensor
from kvplan.catalog.parts import LATENT_PROJECTIONS
from kvplan.catalog.spec import (
    CompressedAttention,
    DenseFeedForward,
    LatentAttention,
    LayerSpec,
    Mixer,
    ModelSpec,
    MoeFeedForward,
    QuantizationSpec,
    SoftmaxAttention,
    StateMixer,
)
from kvplan.catalog.tensors import Tensor
from kvplan.errors import unhandled_kind
from kvplan.estimate.dtypes import element_bytes
from kvplan.estimate.weights import format_of, named_format

_GROUPS = (256, 128, 64, 32, 16, 8)


@dataclass(frozen=True, slots=True)
class HeldFormat:
    """scale_bytes: of a scale; a minimum takes as many. has_order: 4 bytes for each input beside it.

    block: inputs whose scales share a float16, and whose minimums share one; 0 where they share none.
    """

    bits: int
    group: int
    scale_bytes: int
    has_minimums: bool = False
    has_order: bool = False
    block: int = 0

    def num_bytes(self, num_elements: int) -> int:
        """Return the bytes of whole groups and blocks."""
        scales = num_elements // self.group * self.scale_bytes + (num_elements // self.block * 2 if self.block else 0)
        return num_elements * self.bits // 8 + scales * (2 if self.has_minimums else 1)

    @property
    def on_gpu(self) -> HeldFormat:
        """What the same weight is there."""
        bits, scale_bytes = 8 if self.bits == 6 else self.bits, 4 if self.block else self.scale_bytes
        return replace(self, bits=bits, scale_bytes=scale_bytes, block=0)


GGUF_TYPES = {
    "Q4_0": HeldFormat(4, 32, 2),
    "Q4_1": HeldFormat(4, 32, 2, has_minimums=True),
    "Q5_0": HeldFormat(6, 32, 2),
    "Q5_1": HeldFormat(6, 32, 2, has_minimums=True),
    "Q8_0": HeldFormat(8, 32, 2),
    "Q4_K": HeldFormat(4, 32, 1, has_minimums=True, block=256),
    "Q5_K": HeldFormat(6, 32, 1, has_minimums=True, block=256),
    "Q6_K": HeldFormat(6, 16, 1, block=256),
    "MXFP4": HeldFormat(4, 32, 1),
}
"""ggml's types that are held as they are stored, but for 5 bits, which take 6."""

_GGUF_WEIGHTS = {
    **dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_qkv"), "qkv"),
    **dict.fromkeys(("ffn_gate", "ffn_up"), "up"),
    **dict.fromkeys(("ffn_gate_exps", "ffn_up_exps"), "up_exps"),
    **dict.fromkeys(("ffn_gate_shexp", "ffn_up_shexp"), "up_shexp"),
    **{each: each for each in ("attn_output", "ffn_down", "ffn_down_exps", "ffn_down_shexp", "token_embd", "output")},
}
"""Of llama.cpp's matrices that may be held in few bits, the one that each is a part of in the engine."""

_OF_STATES = ("in_proj", "in_proj_qkvz", "out_proj", "qkv_proj", "q_proj", "k_proj", "v_proj", "o_proj")

_SAME_INPUT = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "up", "up_proj": "up"}
"""Matrices that are one weight in the engine, and have one order of their inputs."""


def held_weight_bytes(
    spec: ModelSpec, dtype: str, quantization: str, group_size: int | None = None, *, on_gpu: bool = False
) -> int:
    """All weights, as the engine holds them on a CPU or on a GPU.

    quantization: "none" for weights that are widened, "auto" for those that are published, as they are stored, or the
    format that dense ones are rounded to, in groups of ``group_size``. UsageError as for ``named_format``.
    """
    recipe = named_format(quantization, group_size)
    if quantization.casefold() != "auto":
        return _dense(spec, dtype) if recipe is None else _by_tensor(spec, recipe, dtype)
    if spec.quantization is None:
        return _dense(spec, dtype)
    if spec.quantization.method == "gguf" and spec.checkpoint is not None:
        # By the types in the file; what is not held in few bits is widened.
        wide = sum(tensor.num_elements for tensor in spec.checkpoint.tensors) * element_bytes(dtype)
        return wide + sum(
            (held.on_gpu if on_gpu else held).num_bytes(tensor.num_elements)
            - tensor.num_elements * element_bytes(dtype)
            for tensor, held in _held_in_file(spec.checkpoint)
        )
    return _by_tensor(spec, _as_held(spec, spec.quantization), dtype)


def holds_few_bits(spec: ModelSpec, quantization: str, group_size: int | None = None) -> bool:
    """Whether any weight is held in few bits. quantization, group_size: see ``held_weight_bytes``."""
    recipe = named_format(quantization, group_size)
    if quantization.casefold() != "auto":
        return recipe is not None and any(_held_tensors(spec, recipe))
    if spec.quantization is None:
        return False
    if spec.quantization.method == "gguf" and spec.checkpoint is not None:
        return any(_held_in_file(spec.checkpoint))
    return any(_held_tensors(spec, _as_held(spec, spec.quantization)))


def holds_experts_in_few_bits(spec: ModelSpec, quantization: str, group_size: int | None = None) -> bool:
    """Whether any expert's weight is. quantization, group_size: see ``held_weight_bytes``."""
    recipe = named_format(quantization, group_size)
    if quantization.casefold() == "auto" and spec.quantization is not None:
        if spec.quantization.method == "gguf" and spec.checkpoint is not None:
            names = (tensor.name.removesuffix(".weight") for tensor, _ in _held_in_file(spec.checkpoint))
            return any(name.endswith(("exps", "shexp")) for name in names)
        recipe = _as_held(spec, spec.quantization)
    if recipe is None:
        return False
    return any(_is_of_experts(spec.layers[index], tensor) for index, tensor, _ in _held_tensors(spec, recipe))


def _is_of_experts(layer: LayerSpec, tensor: Tensor) -> bool:
    part = layer.feed_forward
    return isinstance(part, MoeFeedForward) and tensor in part.tensors


def _as_held(spec: ModelSpec, published: QuantizationSpec) -> QuantizationSpec:
    """GPTQ's checkpoints store zero points and each input's group always; they are held where the config uses them."""
    section = spec.raw_config.get("quantization_config")
    if published.method != "gptq" or not isinstance(section, Mapping):
        return published
    is_symmetric, has_order = bool(section.get("sym", True)), bool(section.get("desc_act", False))

    def held(stored: QuantizationSpec) -> QuantizationSpec:
        return replace(stored, has_zero_points=not is_symmetric, has_act_order=has_order)

    rules = None if published.rules is None else published.rules.changed(held)
    return replace(held(published), rules=rules)


def most_held(spec: ModelSpec, quantization: str) -> HeldFormat | None:
    """The format of most of the weights that are held in few bits; None where all are wide, or were read from a GGUF.

    ``spec`` stored as ``quantization`` says, which is as for ``held_weight_bytes``.
    """
    found = spec.quantization
    if found is None or found.method == "gguf":
        return None
    recipe = _as_held(spec, found) if quantization.casefold() == "auto" else found
    counts: Counter[HeldFormat] = Counter()
    for _, tensor, held in _held_tensors(spec, recipe):
        counts[held] += tensor.num_elements
    return counts.most_common(1)[0][0] if counts else None


def _dense(spec: ModelSpec, dtype: str) -> int:
    return spec.num_parameters * element_bytes(dtype)


def _held_in_file(checkpoint: StoredCheckpoint) -> Iterator[tuple[StoredTensor, HeldFormat]]:
    """Each tensor of a GGUF file that is held in few bits, and how.

    Tensors that are one weight in the engine are all held or all widened; experts are held where they are stored alike.
    """
    weights: defaultdict[str, list[StoredTensor]] = defaultdict(list)
    for tensor in checkpoint.tensors:
        layer, _, module = tensor.name.removesuffix(".weight").rpartition(".")
        weight = _GGUF_WEIGHTS.get(module) if tensor.name.endswith(".weight") else None
        if weight is not None:
            weights[f"{layer}.{weight}"].append(tensor)
    for name, tensors in weights.items():
        types = {tensor.type_name for tensor in tensors}
        if types <= GGUF_TYPES.keys() and (len(types) == 1 or not name.endswith(("exps", "shexp"))):
            yield from ((tensor, GGUF_TYPES[tensor.type_name]) for tensor in tensors)


def _by_tensor(spec: ModelSpec, quantization: QuantizationSpec, dtype: str) -> int:
    total = _dense(spec, dtype)
    ordered: dict[tuple[int, str, str], int] = {}
    for index, tensor, held in _held_tensors(spec, quantization):
        total += held.num_bytes(tensor.num_elements) - tensor.num_elements * element_bytes(dtype)
        if held.has_order:
            module, _, last = tensor.name.rpartition(".")
            mixer = spec.layers[index].mixer
            is_gated = last == "q_proj" and isinstance(mixer, SoftmaxAttention) and mixer.output_gate == "element"
            for weight in (_SAME_INPUT.get(last, last), *(["gate"] if is_gated else [])):  # stored as one, held as two
                ordered[index, module, weight] = 4 * tensor.shape[-1] * prod(tensor.shape[:-2])
    return total + sum(ordered.values())


def _held_tensors(spec: ModelSpec, quantization: QuantizationSpec) -> Iterator[tuple[int, Tensor, HeldFormat]]:
    """Each matrix that is held in few bits, with its layer and how it is held."""
    for index, layer in enumerate(spec.layers):
        for tensor in _products(layer):
            found = format_of(quantization, tensor, index)
            held = None if found is None else _held_format(found, tensor.shape[-1])
            if held is not None:
                yield index, tensor, held


def _products(layer: LayerSpec) -> Iterator[Tensor]:
    """The matrices of a layer that may be held in few bits."""
    if layer.parallel_state is None and layer.cross_attention is None and layer.mixer is not None:
        for tensor in layer.mixer.tensors:
            if tensor.role == "linear" and len(tensor.shape) == 2 and _is_product(layer.mixer, tensor):
                yield tensor
    part = layer.feed_forward
    if isinstance(part, DenseFeedForward):
        yield from (tensor for tensor in part.tensors if tensor.role == "linear")
    elif isinstance(part, MoeFeedForward):
        yield from _products_of_experts(part)
    elif part is not None:
        raise unhandled_kind(part, "_products")


def _is_product(mixer: Mixer, tensor: Tensor) -> bool:
    """Whether a mixer's matrix is nothing but multiplied with the layer's inputs, or makes its output."""
    last = tensor.name.rpartition(".")[2]
    match mixer:
        case SoftmaxAttention():
            return not last.startswith("index_")
        case LatentAttention():
            return last in ("q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj")
        case StateMixer():
            return last in _OF_STATES
        case CompressedAttention():  # which the engine does not compute yet
            return False
    raise unhandled_kind(mixer, "_is_product")


def _products_of_experts(mixture: MoeFeedForward) -> Iterator[Tensor]:
    """Experts and shared ones, not the projections around them.

    Where experts' outputs are scaled, these are wide, and so are experts of images, which the engine has no use for.
    """
    are_scaled = any(tensor.name.endswith("per_expert_scale") for tensor in mixture.tensors)
    for tensor in mixture.tensors:
        if tensor.name.startswith("mlp.images."):
            continue
        is_shared = tensor.role == "linear" and not tensor.name.endswith(LATENT_PROJECTIONS)
        if is_shared or (tensor.role == "expert" and not are_scaled):
            yield tensor


def _held_format(quantization: QuantizationSpec, num_inputs: int) -> HeldFormat | None:
    """None for bits that are not held, and for inputs that no group divides."""
    shared = num_inputs
    if quantization.granularity == "group" and quantization.group_size:
        shared = gcd(num_inputs, quantization.group_size)
    elif quantization.granularity == "block" and quantization.block_shape:
        shared = gcd(num_inputs, quantization.block_shape[1])
    group = next((size for size in _GROUPS if shared % size == 0), None)
    if quantization.bits not in (4, 8) or group is None:
        return None
    is_power = quantization.bits == 4 and quantization.scale_dtype == "fp8" and quantization.method != "nvfp4"
    return HeldFormat(
        int(quantization.bits),
        group,
        1 if is_power else 4,
        has_minimums=quantization.has_zero_points,
        has_order=quantization.has_act_order,
    )
