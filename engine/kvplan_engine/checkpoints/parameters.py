"""Which tensors of a checkpoint each parameter of a model is made of (``description/parameters`` says which there are).

One parameter may be several tensors stacked: the query, key and value projections are one matrix here, because one
product of three times the width is faster than three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from kvplan_engine.checkpoints.row_order import (
    arrange_heads,
    beside_queries,
    heads_of,
    latent_rows,
    scaling_of,
    state_rows,
)
from kvplan_engine.checkpoints.tensor_names import TensorNames
from kvplan_engine.description.mixers import Attention, LatentAttention, State
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.parameters import Parameter, model_parameters
from kvplan_engine.description.parameters.parameter import Rows

Arrange = Callable[[torch.Tensor], torch.Tensor]
"""A stored tensor, the rows in the parameter's order and the values as they are used."""


@dataclass(frozen=True, slots=True)
class Source:
    """One tensor of a checkpoint, and how many rows of the parameter it fills.

    transposed: stored [in, out]. arrange: what makes the parameter's rows of it, None where they are stored as used.
    scaling: what multiplies these rows with a factor each.
    share: how many such parts it has, of which ``arrange`` takes one. in_columns: matrices of experts, stored [experts,
    in, out].
    """

    name: str
    num_rows: int
    transposed: bool = False
    arrange: Arrange | None = None
    share: int = 1
    in_columns: bool = False
    scaling: Arrange | None = None


@dataclass(frozen=True, slots=True)
class StoredParameter:
    """One parameter, [sum of the sources' rows, ...], and what fills it."""

    parameter: Parameter
    sources: tuple[Source, ...]

    @property
    def name(self) -> str:
        return self.parameter.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.parameter.shape

    @property
    def num_experts(self) -> int | None:
        """How many experts' matrices it has one below the other; None for anything else."""
        rows = self.parameter.rows
        is_of_experts = self.parameter.part in ("experts.up", "experts.down") and self.parameter.kind == "matrix"
        return sum(label == rows[0][0] for label, _ in rows) if is_of_experts else None


def stored_parameters(model: ModelDescription, names: TensorNames) -> list[StoredParameter]:
    """Every parameter of the model, each once, with the tensors that a checkpoint of these names has for it."""
    return [StoredParameter(each, tuple(_sources(each, model, names))) for each in model_parameters(model)]


def _sources(parameter: Parameter, model: ModelDescription, names: TensorNames) -> Iterator[Source]:
    places = "" if parameter.layer is None else model.layers[parameter.layer].norms.places
    gated = _queries_with_gates(parameter, model)
    part = parameter.part if gated is None else "qkv"
    stored = _of_each_one(names.of(part, places), parameter)
    if part == "qkv" and len(stored) > 1:  # without the keys and values of layers that read others'
        stored = stored[: len(parameter.rows) or 1]
    rows = parameter.rows if len(stored) > 1 else (("", parameter.shape[0]),)
    transposed = names.transposed and parameter.layer is not None and parameter.kind == "matrix"
    for name, (label, size) in zip(filter(None, stored), _stacked(stored, rows), strict=True):
        full = _prefix(parameter, names) + name + _leaf(parameter, names)
        if gated is not None and label in ("", "query"):
            yield Source(full, size, transposed, beside_queries(gated, parameter.part), share=2)
        else:
            in_columns = parameter.part.startswith("experts.") and names.experts in ("columns", "turns")
            arrange = _arrange(parameter, label, model, names)
            in_columns = in_columns and parameter.kind == "matrix"
            scaling = _scaling(parameter, label, model)
            yield Source(full, size, transposed, arrange, in_columns=in_columns, scaling=scaling)


def _queries_with_gates(parameter: Parameter, model: ModelDescription) -> Attention | None:
    """The attention whose queries are stored with its gates, where ``parameter`` has ones or the others."""
    mixers = () if parameter.layer is None else model.layers[parameter.layer].mixers
    gated = (mixer for mixer in mixers if isinstance(mixer, Attention) and mixer.gate == "element")
    return next(gated, None) if parameter.part in ("qkv", "gate") else None


def _stacked(stored: Sequence[str], rows: Rows) -> Rows:
    """``rows`` with those of "" added to those before: they are in the same tensor."""
    stacked: list[tuple[str, int]] = []
    for name, (label, size) in zip(stored, rows, strict=True):
        if name:
            stacked.append((label, size))
        else:
            stacked[-1] = (stacked[-1][0], stacked[-1][1] + size)
    return tuple(stacked)


def _leaf(parameter: Parameter, names: TensorNames) -> str:
    if names.experts != "leaves" and parameter.part.startswith("experts."):
        return "" if parameter.leaf == "weight" else "_bias"
    return f".{parameter.leaf}" if parameter.leaf else ""


def _of_each_one(stored: tuple[str, ...], parameter: Parameter) -> tuple[str, ...]:
    """``stored`` names with "{}" filled in for one expert, or head, after the other."""
    if "{}" not in stored[0]:
        return stored
    return tuple(name.format(expert) for expert in range(len(parameter.rows) // len(stored)) for name in stored)


def _prefix(parameter: Parameter, names: TensorNames) -> str:
    return "" if parameter.layer is None else names.layer.format(parameter.layer) + "."


def _arrange(parameter: Parameter, label: str, model: ModelDescription, names: TensorNames) -> Arrange | None:
    """What has to happen to a stored tensor of this parameter; label: of the rows that it fills, "" for all."""
    if parameter.part == "correction":
        return _centred
    if parameter.part.startswith("experts.") and not label:
        in_turns = names.experts == "turns" and parameter.part == "experts.up"
        return partial(
            _one_below_the_other,
            is_matrix=parameter.kind == "matrix",
            is_in_columns=names.experts in ("columns", "turns"),
            turns=parameter.rows[0][1] if in_turns else 0,
        )
    layer = None if parameter.layer is None else model.layers[parameter.layer]
    kind = model.norm.kind if layer is None else layer.norms.kind
    steps: list[Arrange] = []
    for latent in () if layer is None else layer.mixers:
        if isinstance(latent, LatentAttention):
            steps.extend(filter(None, [latent_rows(latent, parameter.part)]))
        if isinstance(latent, State):
            steps.extend(filter(None, [state_rows(latent, parameter.part, len(names.of(parameter.part)))]))
    mixer = None if layer is None or not layer.mixers else layer.mixers[0]
    if isinstance(mixer, Attention) and parameter.part in ("qkv", "query_norm", "key_norm"):
        attention = mixer
        order = names.row_order if parameter.part == "qkv" else "parts"
        stored = heads_of(attention, parameter.part, label)
        if stored is not None and (stored.must_move or order != "parts"):
            steps.append(partial(arrange_heads, heads=stored, order=order))
        kind = attention.head_norm_kind or kind
    if parameter.kind == "norm" and parameter.part != "gated_norm" and kind in ("rms_plus_one", "layer_plus_one"):
        steps.append(_plus_one)
    if parameter.part.removeprefix("second.") == "conv" and parameter.kind == "matrix":  # stored [channels, 1, taps]
        steps.append(partial(torch.Tensor.flatten, start_dim=1))
    return partial(_in_turn, steps) if steps else None


def _scaling(parameter: Parameter, label: str, model: ModelDescription) -> Arrange | None:
    """The layer's factors of these rows; None where it has none."""
    factors = () if parameter.layer is None else model.layers[parameter.layer].factors
    return scaling_of(parameter, label, factors) if factors else None


def _in_turn(steps: Sequence[Arrange], tensor: torch.Tensor) -> torch.Tensor:
    for step in steps:
        tensor = step(tensor)
    return tensor


def _one_below_the_other(tensor: torch.Tensor, is_matrix: bool, is_in_columns: bool, turns: int) -> torch.Tensor:
    """All experts' matrices as [experts x out, in], their biases as [experts x out].

    tensor: of matrices [experts, out, in], or [experts, in, out] where ``is_in_columns``; rows that are in few bits are
    below one another already. Biases: [experts, out]. turns: so many outputs of an expert's gate take turns with those
    of its up, and come apart.
    """
    if is_matrix and tensor.ndim == 3 and is_in_columns:
        tensor = tensor.transpose(1, 2)
    rows = tensor.flatten(0, 1) if tensor.ndim == 3 or not is_matrix else tensor
    return rows.unflatten(0, (-1, turns, 2)).transpose(1, 2).flatten(0, 2) if turns else rows


def _centred(tensor: torch.Tensor) -> torch.Tensor:
    """Experts are chosen by how their corrections differ, which survives a rounding best around 0."""
    wide = tensor.float().flatten()
    return wide - (wide.max() + wide.min()) / 2


def _plus_one(tensor: torch.Tensor) -> torch.Tensor:
    """Gemma's RMSNorm and Nemotron's LayerNorm store their weights minus one."""
    return tensor + 1
