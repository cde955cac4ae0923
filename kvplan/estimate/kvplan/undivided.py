"""What several ranks of kvplan's engine cannot share: said beforehand, as the engine would say it."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan.catalog.spec import (
    CompressedAttention,
    DenseFeedForward,
    LatentAttention,
    LayerSpec,
    ModelSpec,
    MoeFeedForward,
    SoftmaxAttention,
    StateMixer,
)
from kvplan.errors import UsageError, unhandled_kind
from kvplan.estimate.kvplan.scratch import layer_input_elements
from kvplan.settings import ServingSettings

_COUNT_INSTEAD = "use one rank, or vLLM, whose pool `kvplan sweep --load-format none --gpu 8xh200` counts"


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
        _check_model(spec, num_ranks, whole_experts=asked.enable_expert_parallel)


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


def _check_model(spec: ModelSpec, count: int, *, whole_experts: bool) -> None:
    found = _undivided(spec)
    if found is not None:
        raise UsageError(f"kvplan's engine does not divide {found} over ranks yet.", hint=_COUNT_INSTEAD)
    for layer, _ in spec.distinct_layers():
        _check_sizes(layer, count, whole_experts=whole_experts)


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
