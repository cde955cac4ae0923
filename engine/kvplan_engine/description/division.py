"""What one rank has of a model where several share every layer (``tensor_parallel_size``). No torch.

    attention    query heads divided; KV heads divided, or one on each rank where there are fewer heads than ranks
    MLP          its inner elements divided; of a mixture those of every expert and of the shared one
                 (``enable_expert_parallel``: a run of whole experts, and inner elements of the shared one)
    vocabulary   rows of embedding and head divided, rounded up
    all else     on every rank

A rank's part is a model of its own, with smaller layers: what the pool, the workspace and the kernels need follows from
it as from any other. Which part of each parameter it has is said by ``Parameter.split``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvplan_engine.description.feed_forward import FeedForward, Mixture, Mlp
from kvplan_engine.description.mixers import (
    FULL,
    Attention,
    CompressedAttention,
    CrossAttention,
    LatentAttention,
    Mixer,
    State,
)
from kvplan_engine.description.model import Layer, ModelDescription, Stage
from kvplan_engine.description.parameters.parameter import Parameter
from kvplan_engine.errors import SettingsError

# What several ranks cannot share: refused by name, before anything is loaded.


def check_stages(model: ModelDescription, count: int) -> None:
    """SettingsError where ``count`` stages cannot share the stack."""
    if count > model.num_layers:
        raise SettingsError(
            f"{model.num_layers} layers cannot be divided over {count} stages.", hint="lower pipeline_parallel_size"
        )
    attention = [mixer for layer in model.distinct_layers for mixer in layer.mixers]
    is_alike = all(isinstance(each, Attention) and each.kept == FULL for each in attention)
    named = {
        "layers that keep unlike tokens": not is_alike,
        "layers that read what others keep": any(getattr(each, "reads_layer", None) is not None for each in attention),
        "inputs of each layer's own": model.layer_inputs is not None,
        "parameters of no part": bool(model.others),
    }
    found = next((name for name, is_there in named.items() if is_there), None)
    if found is not None:
        raise SettingsError(
            f"the engine does not divide {model.architecture} into stages yet: it has {found}.",
            hint="use pipeline_parallel_size=1",
        )


def check_division(model: ModelDescription, count: int) -> None:
    """SettingsError, with the first thing in ``model`` that ``count`` ranks cannot share."""
    undivided = next(filter(None, map(_undivided, model.distinct_layers)), None)
    undivided = undivided or ("parameters of no part" if model.others else None)
    if undivided is not None:
        raise SettingsError(
            f"the engine does not divide {model.architecture} over {count} ranks yet: it has {undivided}.",
            hint="use tensor_parallel_size=1",
        )
    for number, what in (each for layer in model.distinct_layers for each in _divided_sizes(layer)):
        _divided(number, count, what)
    for layer in model.distinct_layers:
        for mixer in layer.mixers:
            if isinstance(mixer, Attention):
                _kv_heads(mixer.num_kv_heads, count)
        _check_experts(layer, count)


def _check_experts(layer: Layer, count: int) -> None:
    """Refuse fewer experts than ranks: whole ones need not divide, but each rank has one."""
    part = layer.feed_forward
    if isinstance(part, Mixture) and part.whole_experts and part.num_experts < count:
        raise SettingsError(
            f"{part.num_experts} whole experts cannot be divided over {count} ranks.",
            hint="lower tensor_parallel_size, or leave enable_expert_parallel out",
        )


def _divided_sizes(layer: Layer) -> Iterator[tuple[int, str]]:
    for mixer in layer.mixers:
        if isinstance(mixer, Attention):
            yield mixer.num_heads, "attention heads"
    part = layer.feed_forward
    if isinstance(part, Mlp):
        yield part.size, "inner elements of an MLP"
    if isinstance(part, Mixture):
        if not part.whole_experts:
            yield part.expert.size, "inner elements of an expert"
        if part.shared is not None:
            yield part.shared.size, "inner elements of the shared expert"


def _undivided(layer: Layer) -> str | None:
    """What of ``layer`` no split is declared for, or needs more than sums over ranks."""
    lacking = [_undivided_mixer(mixer) for mixer in layer.mixers]
    lacking.append("parameters of no part" if layer.others else None)
    return next(filter(None, lacking), None)


_UNDIVIDED_MIXERS: dict[type[Mixer], str] = {
    LatentAttention: "latent attention",
    CompressedAttention: "compressed attention",
    State: "layers with a state",
    CrossAttention: "cross attention",
}


def _undivided_mixer(mixer: Mixer) -> str | None:
    if not isinstance(mixer, Attention):
        return _UNDIVIDED_MIXERS[type(mixer)]
    named = {
        "slopes (ALiBi)": mixer.alibi,
        "a norm across all heads": mixer.head_norm == "all",
        "an index of keys": mixer.indexer is not None,
        "attention that layers share": mixer.shared_weights,
    }
    return next((name for name, is_there in named.items() if is_there), None)


@dataclass(frozen=True, slots=True)
class Rank:
    """Rank ``index`` of ``count`` that share every layer of stage ``stage``, of ``num_stages``."""

    index: int = 0
    count: int = 1
    stage: int = 0
    num_stages: int = 1

    @property
    def number(self) -> int:
        """Among all ranks, stage by stage."""
        return self.stage * self.count + self.index

    @staticmethod
    def all_of(count: int, num_stages: int) -> list[Rank]:
        """``count`` ranks for each stage."""
        return [Rank(number % count, count, number // count, num_stages) for number in range(count * num_stages)]


@dataclass(frozen=True, slots=True)
class Share:
    """A rank's part of a parameter: runs of its first axis, one behind the other, and a run of its last axis, None for
    all of it.

    num_rows: of the rank's tensor; those behind ``rows`` are zeros.
    """

    rows: tuple[range, ...]
    num_rows: int
    inputs: range | None = None


def share_of(parameter: Parameter, rank: Rank) -> Share:
    """What ``rank`` has of ``parameter``, which is the whole model's."""
    size = parameter.shape[0]
    match parameter.split:
        case "none":
            return Share((range(size),), size)
        case "once":
            return Share((range(size),) if rank.index == 0 else (), size)
        case "inputs":
            return Share((range(size),), size, _part(parameter.shape[-1], rank))
        case "vocabulary":
            num_rows = -(-size // rank.count)
            first = min(rank.index * num_rows, size)
            return Share((range(first, min(first + num_rows, size)),), num_rows)
        case "experts":
            rows_each = size // parameter.num_experts
            held = experts_of(parameter.num_experts, rank)
            return Share((range(held.start * rows_each, held.stop * rows_each),), len(held) * rows_each)
        case "outputs" | "heads":
            rows = tuple(_runs(parameter, rank))
            return Share(rows, sum(map(len, rows)))


def _runs(parameter: Parameter, rank: Rank) -> Iterator[range]:
    stacked = parameter.rows if parameter.split == "outputs" else ()
    first = 0
    for label, size in stacked or (("", parameter.shape[0]),):
        has_heads = parameter.kv_heads and label in ("", "key", "value")
        part = _part_of_heads(size, parameter.kv_heads, rank) if has_heads else _part(size, rank)
        yield range(first + part.start, first + part.stop)
        first += size


def _part(size: int, rank: Rank) -> range:
    assert size % rank.count == 0, f"{size} cannot be divided by {rank.count}: check_division comes first"
    return range(size // rank.count * rank.index, size // rank.count * (rank.index + 1))


def _part_of_heads(size: int, num_heads: int, rank: Rank) -> range:
    """Rows of KV heads: the rank's, or the one that it shares with others."""
    if num_heads >= rank.count:
        return _part(size, rank)
    head, head_size = rank.index * num_heads // rank.count, size // num_heads
    return range(head * head_size, (head + 1) * head_size)


def experts_of(num_experts: int, rank: Rank) -> range:
    """Numbers of the experts that ``rank`` has where experts are whole; the first ranks have one more if need be.

    So vLLM places them by default ("linear": determine_expert_map in vllm/model_executor/layers/fused_moe).
    """
    size, more = divmod(num_experts, rank.count)
    first = rank.index * size + min(rank.index, more)
    return range(first, first + size + (rank.index < more))


def with_whole_experts(model: ModelDescription) -> ModelDescription:
    """``model``, of whose mixtures each rank will have some experts as a whole.

    SettingsError where it has no mixture.
    """
    marked = {layer: replace(layer, feed_forward=_whole(layer.feed_forward)) for layer in model.distinct_layers}
    if all(layer == same for layer, same in marked.items()):
        raise SettingsError(
            f"enable_expert_parallel is for mixtures of experts, and {model.architecture} has none.",
            hint="leave enable_expert_parallel out",
        )
    return replace(model, layers=tuple(marked[layer] for layer in model.layers))


def _whole(part: FeedForward | None) -> FeedForward | None:
    return replace(part, whole_experts=True) if isinstance(part, Mixture) else part


def part_of(model: ModelDescription, rank: Rank) -> ModelDescription:
    """The part of ``rank``: layers of its stage, and its share of each. SettingsError where there is none."""
    return rank_model(stage_model(model, rank.stage, rank.num_stages), rank)


def stage_model(model: ModelDescription, index: int, count: int) -> ModelDescription:
    """Stage ``index`` of ``count``: a run of layers; the first stages have one more where they do not divide.

    The first stage has the embedding, the last one the head, and both have what is one and the other. SettingsError
    where layers are not alike in what they keep, or read what others keep.
    """
    if count == 1:
        return model
    check_stages(model, count)
    size, more = divmod(model.num_layers, count)
    first = index * size + min(index, more)
    layers = model.layers[first : first + size + (index < more)]
    return replace(model, layers=layers, stage=Stage(index, count, first))


def rank_model(model: ModelDescription, rank: Rank) -> ModelDescription:
    """The share of ``rank`` of every layer of ``model``: as large on all of them, the first ranks' the largest where
    whole experts do not divide. SettingsError where it cannot be divided.
    """
    if rank.count == 1:
        return model
    check_division(model, rank.count)
    parts = {layer: _part_of_layer(layer, rank) for layer in model.distinct_layers}
    return replace(model, layers=tuple(parts[layer] for layer in model.layers), num_ranks=rank.count)


def _part_of_layer(layer: Layer, rank: Rank) -> Layer:
    mixers = tuple(_part_of_attention(mixer, rank.count) for mixer in layer.mixers if isinstance(mixer, Attention))
    feed_forward = None if layer.feed_forward is None else _part_of_feed_forward(layer.feed_forward, rank)
    return replace(layer, mixers=mixers, feed_forward=feed_forward)


def _part_of_attention(attention: Attention, count: int) -> Attention:
    heads, kv_heads = attention.num_heads // count, max(attention.num_kv_heads // count, 1)
    return replace(attention, num_heads=heads, num_kv_heads=kv_heads)


def _part_of_feed_forward(part: FeedForward, rank: Rank) -> FeedForward:
    if isinstance(part, Mlp):
        return replace(part, size=part.size // rank.count)
    shared = None if part.shared is None else replace(part.shared, size=part.shared.size // rank.count)
    if part.whole_experts:
        return replace(part, held=experts_of(part.num_experts, rank), shared=shared)
    return replace(part, expert=replace(part.expert, size=part.expert.size // rank.count), shared=shared)


# What one rank keeps of every sequence, for models that no rank computes a part of yet (``load_format="none"``).
#
# ``rank_model`` says what a rank computes, and refuses what it cannot. To count blocks, what is kept is enough:
#
#     attention, cross attention    KV heads divided, or one on each rank where there are fewer heads than ranks
#     latents and index keys        whole on every rank: all heads read the same vectors
#     states                        heads and channels divided; Mamba-2's groups, which heads share, at least one a rank
#     n-grams' inputs               whole on every rank


def counted_part(model: ModelDescription, layers: range, num_ranks: int) -> ModelDescription:
    """``layers`` of ``model`` as one of ``num_ranks`` keeps them. SettingsError where heads cannot be divided."""
    kept = model.layers[layers.start : layers.stop]
    parts = {layer: _kept_by_rank(layer, num_ranks) for layer in dict.fromkeys(kept)}
    return replace(model, layers=tuple(parts[layer] for layer in kept), num_ranks=num_ranks)


def _kept_by_rank(layer: Layer, num_ranks: int) -> Layer:
    return replace(layer, mixers=tuple(_mixer_part(mixer, num_ranks) for mixer in layer.mixers))


def _mixer_part(mixer: Mixer, num_ranks: int) -> Mixer:
    match mixer:
        case Attention() | CrossAttention():
            return replace(mixer, num_kv_heads=_kv_heads(mixer.num_kv_heads, num_ranks))
        case State():
            return _state_part(mixer, num_ranks)
        case _:
            return mixer


def _kv_heads(heads: int, num_ranks: int) -> int:
    if heads % num_ranks and num_ranks % heads:
        raise SettingsError(
            f"{heads} KV heads cannot be divided over {num_ranks} ranks, nor each be held by as many of them.",
            hint=f"choose a tensor_parallel_size that divides {heads}, or a multiple of it",
        )
    return max(heads // num_ranks, 1)


def _state_part(state: State, num_ranks: int) -> State:
    channels = state.conv_channels
    if state.kind == "mamba2":
        heads, rows, columns = state.recurrent_shape
        of_groups = 2 * max(state.num_groups, 1) * columns
        assert of_groups + heads * rows == channels, "Mamba-2 convolves its inputs, B and C"
        if state.num_groups % num_ranks:  # each rank has a whole group of its own
            channels += 2 * num_ranks * columns - of_groups
    if state.kind != "ngram_conv":
        channels = _divided(channels, num_ranks, "channels of a convolution")
    shape = state.recurrent_shape
    if shape:
        shape = (_divided(shape[0], num_ranks, "heads of a state"), *shape[1:])
    return replace(state, conv_channels=channels, recurrent_shape=shape)


def _divided(number: int, num_ranks: int, what: str) -> int:
    if number % num_ranks:
        raise SettingsError(
            f"{number:,} {what} cannot be divided over {num_ranks} ranks.",
            hint=f"choose a tensor_parallel_size that divides {number:,}",
        )
    return number // num_ranks
