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
from kvplan_engine.description.mixers import Attention
from kvplan_engine.description.model import Layer, ModelDescription, Stage
from kvplan_engine.description.parameters.parameter import Parameter
from kvplan_engine.description.undivided import check_division, check_stages
from kvplan_engine.errors import SettingsError


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
