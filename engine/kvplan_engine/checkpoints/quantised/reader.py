"""An open checkpoint, what a quantised one offers, and what becomes of it among a model's weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Protocol

import torch

from kvplan_engine.checkpoints.parameters import Source, StoredParameter
from kvplan_engine.checkpoints.weights import OpenPart, ReadTensor
from kvplan_engine.description.feed_forward import Mixture, Mlp
from kvplan_engine.description.mixers import Attention, LatentAttention, Mixer, State
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.parameters import Parameter
from kvplan_engine.description.weight_format import WeightFormat
from kvplan_engine.errors import EngineError
from kvplan_engine.kernels.quantised_weight import QuantisedWeight, bits_of, stacked

# The tensors of a checkpoint, under the names that a family's parameters have.


_BESIDE = ("weight_scale", "weight_scale_inv", "weight.absmax", "SCB")
"""What a tensor that is called as a dense one has beside it where it is quantised."""


@dataclass(frozen=True, slots=True)
class StoredTensors:
    """read_stored: by the checkpoint's name. stored_name: what it calls a tensor. names: all that there are."""

    read_stored: ReadTensor
    stored_name: Callable[[str], str]
    names: frozenset[str]

    def has(self, name: str) -> bool:
        return self.stored_name(name) in self.names

    def is_dense(self, name: str) -> bool:
        """Whether ``name`` itself is there, without scales beside it."""
        return self.has(name) and not any(self.has_part(name, leaf) for leaf in _BESIDE)

    def read(self, name: str) -> torch.Tensor:
        """Tensor ``name``; KeyError where there is none."""
        return self.read_stored(self.stored_name(name))

    def part(self, name: str, leaf: str) -> torch.Tensor:
        """What stands beside weight ``name``: "...q_proj.weight" and "qzeros" make "...q_proj.qzeros"."""
        beside = f"{name.removesuffix('weight')}{leaf}"
        if not self.has(beside):
            raise EngineError(f"the checkpoint holds no tensor '{beside}'.", hint="is it quantised as its config says?")
        return self.read(beside)

    def has_part(self, name: str, leaf: str) -> bool:
        return self.has(f"{name.removesuffix('weight')}{leaf}")


_FLAG = "rounds_inputs"  # an empty tensor where it is so


class QuantisedReader(Protocol):
    """The quantised tensors of one checkpoint."""

    def format_of(self, name: str, num_inputs: int) -> WeightFormat | None:
        """How tensor ``name`` ("...q_proj.weight") is held; None where it is not quantised, or cannot be held so."""
        ...

    def read(self, name: str) -> QuantisedWeight:
        """Tensor ``name``, for one that has a format. EngineError where it is damaged."""
        ...


def may_be_held(parameter: Parameter, model: ModelDescription) -> bool:
    """Whether a parameter is only ever a product's weight, or looked up, so that it need not be widened.

    Wide stay what takes latents to keys and values (``kv_up``), whose heads are multiplied apart and half of them
    transposed; what decides how fast a state decays, which is small; an index; mixers that stand side by side; and
    experts whose outputs are scaled, which are changed when they are loaded.
    """
    if parameter.layer is None:
        return parameter.name in ("embedding.weight", "head.weight")
    layer = model.layers[parameter.layer]
    if parameter.leaf == "weight" and len(layer.mixers) == 1 and parameter.part in _matrices_of_mixer(layer.mixers[0]):
        return True
    if isinstance(layer.feed_forward, Mixture):
        return parameter.leaf == "weight" and parameter.part in _matrices_of(layer.feed_forward)
    return parameter.name.endswith((".up.weight", ".down.weight")) and isinstance(layer.feed_forward, Mlp)


def _matrices_of_mixer(mixer: Mixer) -> tuple[str, ...]:
    match mixer:
        case Attention():
            return ("qkv", "output", "gate")
        case LatentAttention():
            return ("query", "query_down", "query_up", "kv_down", "output")
        case State():
            return ("in", "qkv", "out")
    return ()


def _matrices_of(mixture: Mixture) -> tuple[str, ...]:
    shared = ("shared.up", "shared.down")
    return shared if mixture.apart else ("experts.up", "experts.down", *shared)


def read_parts(stored: StoredParameter, reader: QuantisedReader, where: str) -> list[QuantisedWeight]:
    """The parameter's rows: one weight where its sources are stored alike, otherwise one for each run that is.

    EngineError where experts are not stored alike.
    """
    weights = [_read_source(source, reader, stored.shape[1], where) for source in stored.sources]
    if stored.num_experts is not None:
        return [_of_experts(stored, weights, stored.num_experts, where)]
    parts: list[list[QuantisedWeight]] = []
    for weight in weights:
        if parts and weight.can_follow(parts[-1][-1]):
            parts[-1].append(weight)
        else:
            parts.append([weight])
    return [stacked(run) for run in parts]


def _of_experts(stored: StoredParameter, weights: list[QuantisedWeight], count: int, where: str) -> QuantisedWeight:
    """All experts' rows; where inputs have an order, one for each expert, or for all where one tensor has all."""
    each = max(1, len(weights) // count)
    experts = [weights[first : first + each] for first in range(0, len(weights), each)]
    if not all(one.is_alike(weights[0]) and one.can_follow(expert[0]) for expert in experts for one in expert):
        raise EngineError(f"the experts of '{stored.name}' in {where} are not all stored in one way.")
    orders = [expert[0].order for expert in experts if expert[0].order is not None]
    every = orders * (count // len(orders)) if orders else []
    return replace(stacked(weights), order=torch.cat(every) if every else None)


def read_checked(name: str, reader: QuantisedReader) -> QuantisedWeight:
    """Tensor ``name``. EngineError where a scale is no number: so a damaged file is refused, not computed with."""
    weight = reader.read(name)
    for part in (weight.wide_scales, weight.wide_minimums):
        if part is not None and not part.isfinite().all():
            raise EngineError(f"'{name}' has scales that are no numbers.", hint="download it again")
    return weight


def _read_source(source: Source, reader: QuantisedReader, num_inputs: int, where: str) -> QuantisedWeight:
    weight = read_checked(source.name, reader)
    shape, wanted = [weight.num_outputs, weight.num_inputs], [source.num_rows * source.share, num_inputs]
    if shape != wanted:
        raise EngineError(
            f"'{source.name}' in {where} has shape {shape}, the config says {wanted}.",
            hint="is it a checkpoint of this config?",
        )
    weight = weight if source.arrange is None else weight.with_rows(source.arrange)
    return weight if source.scaling is None else weight.scaled(source.scaling)


def as_tensors(name: str, parts: list[QuantisedWeight]) -> dict[str, torch.Tensor]:
    """The parts of parameter ``name`` as entries of a model's weights, none of which is called "{name}.weight"."""
    tensors = {
        f"{name}.quantised.{index}.{field.name}": tensor
        for index, part in enumerate(parts)
        for field in fields(part)
        if isinstance(tensor := getattr(part, field.name), torch.Tensor)
    }
    flags = {
        f"{name}.quantised.{index}.{_FLAG}": torch.ones(0) for index, part in enumerate(parts) if part.rounds_inputs
    }
    return tensors | flags


def take_parts(weights: dict[str, torch.Tensor], name: str) -> list[QuantisedWeight]:
    """The inverse: the parts, removed from ``weights``; [] where the parameter is not quantised."""
    parts: list[QuantisedWeight] = []
    while f"{name}.quantised.{len(parts)}.codes" in weights:
        prefix = f"{name}.quantised.{len(parts)}."
        codes, scales, book = (weights.pop(prefix + each) for each in ("codes", "scales", "book"))
        minimums, order, blocks = (weights.pop(prefix + each, None) for each in ("minimums", "order", "block_scales"))
        rounds_inputs = weights.pop(prefix + _FLAG, None) is not None
        parts.append(QuantisedWeight(codes, scales, minimums, book, order, rounds_inputs, blocks))
    return parts


def shape_of(weights: dict[str, torch.Tensor], name: str) -> tuple[int, int] | None:
    """[num_outputs, num_inputs] of a quantised parameter; None where it is not quantised."""
    outputs = inputs = index = 0
    while (codes := weights.get(f"{name}.quantised.{index}.codes")) is not None:
        outputs += codes.shape[0]
        inputs = codes.shape[1] * 8 // bits_of(weights[f"{name}.quantised.{index}.book"])
        index += 1
    return (outputs, inputs) if index else None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """where: for messages. read: one tensor in a float dtype, widened where it is stored in few bits. quantised: the
    tensors that are; None where none are. open_part: reads parts of tensors; None where only whole ones can be read.
    """

    where: str
    parameters: list[StoredParameter]
    read: ReadTensor
    quantised: QuantisedReader | None = None
    open_part: OpenPart | None = None
