"""Random weights from the config alone, for capacity and speed, which do not depend on the weights' values."""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from dataclasses import replace

import torch

from kvplan_engine.checkpoints.families import names_of
from kvplan_engine.checkpoints.parameters import Source, StoredParameter, stored_parameters
from kvplan_engine.checkpoints.quantised.reader import Checkpoint
from kvplan_engine.checkpoints.weights import Weights, name_on_stage
from kvplan_engine.description.division import Rank, Share, share_of
from kvplan_engine.description.model import Layer, ModelDescription
from kvplan_engine.description.parameters import model_parameters, num_parameters

# Layers that share one copy of dummy weights (``dummy_layers="shared"``). No torch.
#
# A large shape can then step on a small machine: equal layers read the same bytes again. Reading a small layer again
# and again would be reading caches instead of memory, and faster than the model is. So equal layers take turns over as
# many copies as are larger than any cache.


LARGER_THAN_CACHES_BYTES = 512 * 1024**2
"""Twice the last-level cache of the larger servers of today."""


def weight_owners(model: ModelDescription, element_bytes: int) -> list[int]:
    """Return for each layer the one whose weights it uses: itself, or an equal layer before it."""
    seen: dict[Layer, list[int]] = defaultdict(list)
    turns: dict[Layer, int] = defaultdict(int)
    owners = []
    for index, layer in enumerate(model.layers):
        copies = seen[layer]
        if len(copies) < _num_copies(model, layer, element_bytes):
            copies.append(index)
            owners.append(index)
        else:
            owners.append(copies[turns[layer] % len(copies)])
            turns[layer] += 1
    return owners


def _num_copies(model: ModelDescription, layer: Layer, element_bytes: int) -> int:
    without = num_parameters(replace(model, layers=()))
    layer_bytes = (num_parameters(replace(model, layers=(layer,))) - without) * element_bytes
    return math.ceil(LARGER_THAN_CACHES_BYTES / max(layer_bytes, 1))


# Values repeat after this many elements: drawing each of billions would take minutes and change nothing.
# A prime, so that no row of a matrix repeats the one before it.
_PERIOD = 1_000_003
_STANDARD_DEVIATION = 0.02
_ROWS_AT_A_TIME = 256


def fill_dummy(weights: Weights, model: ModelDescription, seed: int, rank: Rank = Rank(), first_layer: int = 0) -> None:
    """Normal(0, 0.02) matrices, unit norms, zero biases; the same for the same seed.

    rank: whose part of the whole ``model`` the weights are, with layers from ``first_layer`` on: it has the values that
    a single one has in its place.
    """
    generator = torch.Generator().manual_seed(seed)
    values = torch.empty(_PERIOD).normal_(0.0, _STANDARD_DEVIATION, generator=generator)
    values = values.to(next(iter(weights.values())).device)
    offset = 0
    for parameter in model_parameters(model):
        name = name_on_stage(parameter, first_layer)
        if name not in weights:
            # the layer uses another one's, or is on another stage
            offset += parameter.num_elements if rank.num_stages > 1 and parameter.kind in ("matrix", "other") else 0
            offset %= _PERIOD
            continue
        tensor = weights[name]
        if parameter.kind in ("matrix", "other"):
            if rank.count == 1:
                offset = _fill_repeating(tensor.view(-1), values, offset)
            else:
                _fill_share(tensor, share_of(parameter, rank), parameter.shape[-1], values, offset)
                offset = (offset + parameter.num_elements) % _PERIOD
        else:
            tensor.fill_(1.0 if parameter.kind == "norm" else 0.0)


def open_dummy(model: ModelDescription, seed: int) -> Checkpoint:
    """Random tensors under the names of the model's family, for weights that are rounded when they are loaded."""
    names, _ = names_of(model)
    assert names is not None, "a family without names is refused before"
    parameters = stored_parameters(model, names)
    shapes = {source.name: _stored_shape(stored, source) for stored in parameters for source in stored.sources}
    generator = torch.Generator().manual_seed(seed)
    values = torch.empty(_PERIOD).normal_(0.0, _STANDARD_DEVIATION, generator=generator)

    def read(name: str) -> torch.Tensor:
        tensor = torch.empty(shapes[name])
        _fill_repeating(tensor.view(-1), values, zlib.crc32(name.encode()) % _PERIOD)
        return tensor

    return Checkpoint("the dummy weights", parameters, read)


def _stored_shape(stored: StoredParameter, source: Source) -> tuple[int, ...]:
    shape = (source.num_rows * source.share, *stored.shape[1:])
    return tuple(reversed(shape)) if source.transposed else shape


def _fill_share(tensor: torch.Tensor, share: Share, num_inputs: int, values: torch.Tensor, offset: int) -> None:
    """The rank's part of a matrix of ``num_inputs`` columns that ``_fill_repeating`` would fill from ``offset`` on."""
    columns = range(num_inputs) if share.inputs is None else share.inputs
    within = torch.arange(columns.start, columns.stop) + offset
    filled = 0
    for run in share.rows:
        for first in range(run.start, run.stop, _ROWS_AT_A_TIME):
            rows = torch.arange(first, min(first + _ROWS_AT_A_TIME, run.stop))
            places = ((rows * num_inputs).unsqueeze(1) + within) % _PERIOD
            tensor[filled : filled + len(rows)] = values[places]
            filled += len(rows)
    tensor[filled:] = 0


def _fill_repeating(flat: torch.Tensor, values: torch.Tensor, offset: int) -> int:
    """Fill ``flat`` with ``values`` from ``offset`` on, over and over; the offset behind the last one taken."""
    done = 0
    while done < flat.numel():
        count = min(flat.numel() - done, values.numel() - offset)
        flat[done : done + count] = values[offset : offset + count]
        done += count
        offset = (offset + count) % values.numel()
    return offset
