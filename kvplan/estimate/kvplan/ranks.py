"""What one rank of kvplan's engine has of a model that several share: every layer in parts, as Tensor.split says.

What ranks cannot share is refused beforehand, as the engine refuses it. Of models that the engine counts blocks for and
computes no part of, it is enough to know what a rank keeps (``kept_part``). The engine declares both on its own
(``kvplan_engine/description/division.py``); tests/agreement compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from kvplan.catalog.spec import (
    CompressedAttention,
    DenseFeedForward,
    FeedForward,
    LatentAttention,
    LayerSpec,
    Mixer,
    ModelSpec,
    MoeFeedForward,
    SoftmaxAttention,
    StateMixer,
)
from kvplan.catalog.tensors import Tensor
from kvplan.errors import UsageError, unhandled_kind
from kvplan.estimate.cache_entries import rank_conv_channels, rank_kv_heads
from kvplan.estimate.kvplan.scratch import layer_input_elements
from kvplan.settings import ServingSettings

_COUNT_INSTEAD = "use one rank, or vLLM, whose pool `kvplan sweep --load-format none --gpu 8xh200` counts"
_NORM_OF_EMBEDDING = "word_embeddings_layernorm"
_WHOLE = "embed_tokens_per_layer"
"""The table of inputs of each layer's own (Gemma 4), which every rank of the engine holds whole."""


def stage_specs(spec: ModelSpec, asked: ServingSettings) -> list[ModelSpec]:
    """What each rank has, stage by stage: parts of a run of layers, with the embedding first and the head last.

    The first stages have one layer more where they do not divide. UsageError where the engine would refuse.
    """
    count, num_ranks = asked.pipeline_parallel_size, asked.tensor_parallel_size
    check_division(spec, asked)
    if count * num_ranks == 1:
        return [spec]
    size, more = divmod(spec.num_layers, count)
    firsts = [index * size + min(index, more) for index in range(count + 1)]
    stages = (_stage(spec, range(*run), spec.num_layers) for run in pairwise(firsts))
    return [_rank_spec(stage, num_ranks, whole_experts=asked.enable_expert_parallel) for stage in stages]


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


def _rank_spec(spec: ModelSpec, count: int, *, whole_experts: bool) -> ModelSpec:
    """A model with the layers, and the rows of embedding and head, that each of ``count`` ranks has.

    The vocabulary's size stays that of the whole. Where whole experts do not divide, the first ranks have one more: it
    is theirs.
    """
    if count == 1:
        return spec
    parts: dict[int, LayerSpec] = {}
    for layer in spec.layers:
        if id(layer) not in parts:
            parts[id(layer)] = _part_of_layer(layer, count, whole_experts=whole_experts)
    layers = tuple(parts[id(layer)] for layer in spec.layers)
    tensors = tuple(each if each.name == _WHOLE else _part(each, count, 1) for each in spec.tensors)
    return replace(spec, layers=layers, tensors=tensors)


def _part_of_layer(layer: LayerSpec, count: int, *, whole_experts: bool) -> LayerSpec:
    mixer, part = layer.mixer, layer.feed_forward
    assert mixer is None or isinstance(mixer, SoftmaxAttention)
    heads = 1
    if mixer is not None:
        heads, tensors = mixer.num_kv_heads, tuple(_part(each, count, mixer.num_kv_heads) for each in mixer.tensors)
        mixer = replace(mixer, num_heads=mixer.num_heads // count, num_kv_heads=max(heads // count, 1), tensors=tensors)
    around = tuple(_part(tensor, count, heads) for tensor in layer.tensors)
    if whole_experts and isinstance(part, MoeFeedForward):
        part = _with_some_experts(part, count)
    elif part is not None:
        part = _part_of_feed_forward(part, count)
    return replace(layer, mixer=mixer, feed_forward=part, tensors=around)


def _with_some_experts(part: MoeFeedForward, count: int) -> MoeFeedForward:
    """Some experts as a whole, and the slice of the shared one that every rank has."""
    tensors = tuple(_some_experts(tensor, count) for tensor in part.tensors)
    return replace(part, shared_intermediate_size=part.shared_intermediate_size // count, tensors=tensors)


def _some_experts(tensor: Tensor, count: int) -> Tensor:
    if not tensor.is_stacked_experts:
        return _part(tensor, count, 1)
    return replace(tensor, shape=(-(-tensor.shape[0] // count), *tensor.shape[1:]))


def _part_of_feed_forward(part: FeedForward, count: int) -> FeedForward:
    tensors = tuple(_part(tensor, count, 1) for tensor in part.tensors)
    if isinstance(part, DenseFeedForward):
        return replace(part, intermediate_size=part.intermediate_size // count, tensors=tensors)
    if isinstance(part, MoeFeedForward):
        shared = part.shared_intermediate_size // count
        inner = part.expert_intermediate_size // count
        return replace(part, expert_intermediate_size=inner, shared_intermediate_size=shared, tensors=tensors)
    raise unhandled_kind(part, "_part_of_feed_forward")


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


def check_division(spec: ModelSpec, asked: ServingSettings) -> None:
    """UsageError where the stages and ranks of ``asked`` cannot share ``spec``."""
    if asked.enable_expert_parallel and not spec.is_mixture:
        raise UsageError(
            f"Whole experts on each rank are for mixtures of experts, and {spec.served_id} has none.",
            hint="leave --enable-expert-parallel out",
        )
    count, num_ranks = asked.pipeline_parallel_size, asked.tensor_parallel_size
    if count * num_ranks > 1:
        _check_settings(spec, asked)
    if count > 1:
        _check_stages(spec, count)
    if num_ranks > 1:
        found = _undivided(spec)
        if found is not None:
            raise UsageError(f"kvplan's engine does not divide {found} over ranks yet.", hint=_COUNT_INSTEAD)
        for layer, _ in spec.distinct_layers():
            _check_sizes(layer, num_ranks, whole_experts=asked.enable_expert_parallel)


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


def _check_settings(spec: ModelSpec, asked: ServingSettings) -> None:
    quantization = asked.quantization.casefold()
    undivided = {
        "adapters": asked.max_loras is not None,
        "weights in few bits": quantization not in ("auto", "none")
        or (quantization == "auto" and spec.quantization is not None),
    }
    found = next((name for name, is_there in undivided.items() if is_there), None)
    if found is not None:
        raise UsageError(f"kvplan's engine does not divide {found} over ranks yet.", hint=_COUNT_INSTEAD)


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


def _divided_sizes(layer: LayerSpec, *, whole_experts: bool) -> Iterator[tuple[int, str]]:
    mixer, part = layer.mixer, layer.feed_forward
    if isinstance(mixer, SoftmaxAttention):
        yield mixer.num_heads, "attention heads"
    if isinstance(part, DenseFeedForward):
        yield part.intermediate_size, "inner elements of an MLP"
    elif isinstance(part, MoeFeedForward):
        if not whole_experts:
            yield part.expert_intermediate_size, "inner elements of an expert"
        yield part.shared_intermediate_size, "inner elements of the shared expert"
    elif part is not None:
        raise unhandled_kind(part, "_divided_sizes")


def _check_sizes(layer: LayerSpec, count: int, *, whole_experts: bool) -> None:
    mixer, part = layer.mixer, layer.feed_forward
    for number, what in _divided_sizes(layer, whole_experts=whole_experts):
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
    if whole_experts and isinstance(part, MoeFeedForward) and part.num_experts < count:
        raise UsageError(
            f"{part.num_experts} whole experts cannot be divided over {count} ranks.",
            hint="choose a smaller --tensor-parallel-size, or leave --enable-expert-parallel out",
        )


def kept_part(spec: ModelSpec, layers: range, num_ranks: int) -> ModelSpec:
    """``layers`` of ``spec`` with what each of ``num_ranks`` keeps of them. UsageError where heads do not divide."""
    found = spec.layers[layers.start : layers.stop]
    known: dict[int, LayerSpec] = {}
    for layer in found:
        if id(layer) not in known:
            known[id(layer)] = _layer_part(layer, num_ranks)
    return replace(spec, layers=tuple(known[id(layer)] for layer in found))


def _layer_part(layer: LayerSpec, num_ranks: int) -> LayerSpec:
    mixer = None if layer.mixer is None else _mixer_part(layer.mixer, num_ranks)
    beside = None if layer.parallel_state is None else _state_part(layer.parallel_state, num_ranks)
    cross = layer.cross_attention
    if cross is not None:
        cross = replace(cross, num_kv_heads=rank_kv_heads(cross.num_kv_heads, num_ranks))
    return replace(layer, mixer=mixer, parallel_state=beside, cross_attention=cross)


def _mixer_part(mixer: Mixer, num_ranks: int) -> Mixer:
    """Latents and index keys are whole on every rank."""
    if isinstance(mixer, SoftmaxAttention):
        return replace(mixer, num_kv_heads=rank_kv_heads(mixer.num_kv_heads, num_ranks))
    return _state_part(mixer, num_ranks) if isinstance(mixer, StateMixer) else mixer


def _state_part(state: StateMixer, num_ranks: int) -> StateMixer:
    shape = state.recurrent_shape
    if shape:
        if shape[0] % num_ranks:
            raise UsageError(
                f"{shape[0]} heads of a state cannot be divided over {num_ranks} ranks.",
                hint=f"choose a --tensor-parallel-size that divides {shape[0]}",
            )
        shape = (shape[0] // num_ranks, *shape[1:])
    channels = rank_conv_channels(state, num_ranks)
    return replace(state, conv_channels=channels, conv_group_channels=0, recurrent_shape=shape)
