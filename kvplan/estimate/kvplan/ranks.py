"""What one rank of kvplan's engine has of a model that several share: every layer in parts, as Tensor.split says.

The engine declares its splits on its own (``kvplan_engine/description/division.py``); tests/agreement compares the two.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from kvplan.catalog.spec import (
    CompressedAttention,
    DenseFeedForward,
    FeedForward,
    LatentAttention,
    LayerSpec,
    ModelSpec,
    MoeFeedForward,
    SoftmaxAttention,
    StateMixer,
)
from kvplan.catalog.tensors import Tensor
from kvplan.errors import UsageError
from kvplan.estimate.kvplan.scratch import layer_input_elements
from kvplan.settings import ServingSettings

_NORM_OF_EMBEDDING = "word_embeddings_layernorm"


def stage_specs(spec: ModelSpec, asked: ServingSettings) -> list[ModelSpec]:
    """What each rank has, stage by stage: parts of a run of layers, with the embedding first and the head last.

    The first stages have one layer more where they do not divide. UsageError where the engine would refuse.
    """
    count, num_ranks = asked.pipeline_parallel_size, asked.tensor_parallel_size
    if count * num_ranks == 1:
        return [spec]
    _check_settings(spec, asked)
    if count > 1:
        _check_stages(spec, count)
    if num_ranks > 1:
        _check_model(spec, num_ranks)
    size, more = divmod(spec.num_layers, count)
    firsts = [index * size + min(index, more) for index in range(count + 1)]
    return [_rank_spec(_stage(spec, range(*run), spec.num_layers), num_ranks) for run in pairwise(firsts)]


def _stage(spec: ModelSpec, layers: range, num_layers: int) -> ModelSpec:
    is_first, is_last = layers.start == 0, layers.stop == num_layers
    tensors = []
    for tensor in spec.tensors:
        is_input = tensor.role in ("embedding", "position") or tensor.name.startswith(_NORM_OF_EMBEDDING)
        is_both = tensor.role == "embedding" and spec.tie_word_embeddings
        if (is_first and is_input) or (is_last and (is_both or not is_input)):
            tensors.append(tensor)
    # what a quantised checkpoint would hold is not asked for: such weights are refused, or widened
    return replace(spec, layers=spec.layers[layers.start : layers.stop], tensors=tuple(tensors), checkpoint=None)


def _check_stages(spec: ModelSpec, count: int) -> None:
    if count > spec.num_layers:
        raise UsageError(f"{spec.num_layers} layers cannot be divided over {count} stages.", hint="use a smaller --pp")
    for layer, _ in spec.distinct_layers():
        is_alike = all(
            isinstance(mixer, SoftmaxAttention) and mixer.window_kind == "full" and mixer.kv_shared_with is None
            for mixer in layer.mixers
        )
        if not is_alike or layer.cross_attention is not None:
            raise UsageError(
                "kvplan's engine does not divide layers that keep unlike tokens into stages yet.", hint="use --pp 1"
            )
    if layer_input_elements(spec) or any(tensor.name.startswith("altup") for tensor in spec.tensors):
        raise UsageError("kvplan's engine does not divide such a model into stages yet.", hint="use --pp 1")


def _rank_spec(spec: ModelSpec, count: int) -> ModelSpec:
    """A model with the layers, and the rows of embedding and head, that each of ``count`` ranks has.

    The vocabulary's size stays that of the whole.
    """
    if count == 1:
        return spec
    parts: dict[int, LayerSpec] = {}
    for layer in spec.layers:
        if id(layer) not in parts:
            parts[id(layer)] = _part_of_layer(layer, count)
    layers = tuple(parts[id(layer)] for layer in spec.layers)
    tensors = tuple(_part(tensor, count, 1) for tensor in spec.tensors)
    return replace(spec, layers=layers, tensors=tensors)


def _part_of_layer(layer: LayerSpec, count: int) -> LayerSpec:
    mixer, part = layer.mixer, layer.feed_forward
    assert mixer is None or isinstance(mixer, SoftmaxAttention)
    heads = 1
    if mixer is not None:
        heads, tensors = mixer.num_kv_heads, tuple(_part(each, count, mixer.num_kv_heads) for each in mixer.tensors)
        mixer = replace(mixer, num_heads=mixer.num_heads // count, num_kv_heads=max(heads // count, 1), tensors=tensors)
    around = tuple(_part(tensor, count, heads) for tensor in layer.tensors)
    return replace(layer, mixer=mixer, feed_forward=_part_of_feed_forward(part, count), tensors=around)


def _part_of_feed_forward(part: FeedForward | None, count: int) -> FeedForward | None:
    if part is None:
        return None
    tensors = tuple(_part(tensor, count, 1) for tensor in part.tensors)
    if isinstance(part, DenseFeedForward):
        return replace(part, intermediate_size=part.intermediate_size // count, tensors=tensors)
    shared = part.shared_intermediate_size // count
    inner = part.expert_intermediate_size // count
    return replace(part, expert_intermediate_size=inner, shared_intermediate_size=shared, tensors=tensors)


def _part(tensor: Tensor, count: int, kv_heads: int) -> Tensor:
    """``tensor`` on one rank. kv_heads: of its layer, each of which is on some rank as a whole."""
    shape = tensor.shape
    if tensor.split == "replicated" or not shape:
        return tensor
    axis = len(shape) - 1 if tensor.split == "row" else max(len(shape) - 2, 0)
    if tensor.split in ("vocab", "ranks"):
        axis = 0
    size = -(-shape[axis] // count)
    if tensor.split == "kv":
        size = max(size, shape[axis] // kv_heads)
    return replace(tensor, shape=(*shape[:axis], size, *shape[axis + 1 :]))


# ---- what the engine refuses


def _check_settings(spec: ModelSpec, asked: ServingSettings) -> None:
    quantization = asked.quantization.casefold()
    undivided = {
        "adapters": asked.max_loras is not None,
        "weights in few bits": quantization not in ("auto", "none")
        or (quantization == "auto" and spec.quantization is not None),
        "whole experts on each rank": asked.enable_expert_parallel,
    }
    found = next((name for name, is_there in undivided.items() if is_there), None)
    if found is not None:
        raise UsageError(f"kvplan's engine does not divide {found} over ranks yet.", hint="use one rank, or vLLM")


def _check_model(spec: ModelSpec, count: int) -> None:
    found = _undivided(spec)
    if found is not None:
        raise UsageError(f"kvplan's engine does not divide {found} over ranks yet.", hint="use one rank, or vLLM")
    for layer, _ in spec.distinct_layers():
        _check_sizes(layer, count)


def _undivided(spec: ModelSpec) -> str | None:
    kinds = {
        LatentAttention: "latent attention",
        CompressedAttention: "compressed attention",
        StateMixer: "layers with a state",
    }
    for layer, _ in spec.distinct_layers():
        for mixer in layer.mixers:
            if type(mixer) in kinds:
                return kinds[type(mixer)]
            if isinstance(mixer, SoftmaxAttention):
                if mixer.qk_norm == "full":
                    return "a norm across all heads"
                if mixer.indexer is not None:
                    return "an index of keys"
        if layer.cross_attention is not None:
            return "cross attention"
    if any(tensor.name.startswith("altup") for tensor in spec.tensors):
        return "streams beside the residual one"
    has_positions = spec.rope is not None or any(tensor.role == "position" for tensor in spec.tensors)
    return None if has_positions else "positions that are slopes (ALiBi)"


def _check_sizes(layer: LayerSpec, count: int) -> None:
    mixer, part = layer.mixer, layer.feed_forward
    sizes: list[tuple[int, str]] = []
    if isinstance(mixer, SoftmaxAttention):
        sizes.append((mixer.num_heads, "attention heads"))
    if isinstance(part, DenseFeedForward):
        sizes.append((part.intermediate_size, "inner elements of an MLP"))
    if isinstance(part, MoeFeedForward):
        sizes += [
            (part.expert_intermediate_size, "inner elements of an expert"),
            (part.shared_intermediate_size, "inner elements of the shared expert"),
        ]
    for number, what in sizes:
        if number % count:
            raise UsageError(
                f"{number:,} {what} cannot be divided over {count} ranks.",
                hint=f"choose a --tensor-parallel-size that divides {number:,}",
            )
    heads = mixer.num_kv_heads if isinstance(mixer, SoftmaxAttention) else count
    if heads % count and count % heads:
        raise UsageError(
            f"{heads} KV heads cannot be divided over {count} ranks, nor each be held by as many of them.",
            hint=f"choose a --tensor-parallel-size that divides {heads}, or a multiple of it",
        )
