"""A model's weights: one tensor for each parameter, allocated first and filled afterwards.

So the most that a load needs beyond the weights is one tensor, and running out of memory shows as what it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch

from kvplan_engine.checkpoints.parameters import Source, StoredParameter
from kvplan_engine.description.division import Rank, Share, share_of
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.parameters import Parameter, model_parameters, num_parameters
from kvplan_engine.device.allocation import allocating
from kvplan_engine.errors import EngineError

Weights = dict[str, torch.Tensor]
ReadTensor = Callable[[str], torch.Tensor]
"""One tensor of a checkpoint by its name; KeyError where there is none."""


class StoredPart(Protocol):
    """A tensor that is not read yet: parts of it are, where it is indexed with slices."""

    def get_shape(self) -> list[int]: ...

    def __getitem__(self, place: Any) -> torch.Tensor: ...


OpenPart = Callable[[str], StoredPart]
"""As ReadTensor, of a format that reads parts of tensors."""

_FINGERPRINT_ELEMENTS = 256  # of each tensor
_HINT = "is it a checkpoint of this config?"

T = TypeVar("T")


def allocate_weights(
    model: ModelDescription,
    dtype: torch.dtype,
    device: torch.device,
    owners: Sequence[int] | None = None,
    without: Collection[str] = (),
) -> Weights:
    """Uninitialised tensors for every parameter; OutOfDeviceMemory(phase="weights") when they do not fit.

    owners: for each layer the one whose weights it uses; only those get tensors. None: every layer has its own.
    without: names of parameters that are held in another way.
    """
    skipped = unowned(owners)
    with allocating("weights", num_parameters(model) * dtype.itemsize):
        return {
            p.name: torch.empty(p.shape, dtype=dtype, device=device)
            for p in model_parameters(model)
            if not p.name.startswith(skipped) and p.name not in without
        }


def unowned(owners: Sequence[int] | None) -> tuple[str, ...]:
    """What the names of parameters begin with that another layer's stand in for."""
    return () if owners is None else tuple(f"layers.{i}." for i, owner in enumerate(owners) if owner != i)


def weight_fingerprint(weights: Weights) -> bytes:
    """16 bytes that differ when weights differ: names, shapes and a sample of every tensor."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(weights.items()):
        flat = tensor.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // _FINGERPRINT_ELEMENTS)].cpu().contiguous().view(torch.uint8)
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(sample.numpy().tobytes())
    return digest.digest()


def fill_weights(
    weights: Weights,
    parameters: list[StoredParameter],
    read: ReadTensor,
    where: str,
    *,
    rank: Rank = Rank(),
    first_layer: int = 0,
    open_part: OpenPart | None = None,
) -> None:
    """Copy the sources of all ``parameters`` in ``weights`` from the checkpoint called ``where``.

    rank: whose part of each parameter ``weights`` has, of layers from ``first_layer`` on. open_part: reads no more than
    that, where a tensor is stored as it is used; None: whole tensors are read, one at a time. EngineError where one
    does not fit.
    """
    reader = _Reader(read, open_part if rank.count > 1 else None, where)
    for parameter in parameters:
        name = name_on_stage(parameter.parameter, first_layer)
        if name in weights:  # otherwise held in few bits, or another stage's
            _fill_parameter(weights[name], parameter, share_of(parameter.parameter, rank), reader)


def name_on_stage(parameter: Parameter, first_layer: int) -> str:
    """What a parameter of the whole model is called on a stage whose layers begin at ``first_layer``."""
    if parameter.layer is None:
        return parameter.name
    return replace(parameter, layer=parameter.layer - first_layer).name


def _fill_parameter(target: torch.Tensor, parameter: StoredParameter, share: Share, reader: _Reader) -> None:
    first = filled = 0
    for source in parameter.sources:
        rows = [_overlap(run, first, source.num_rows) for run in share.rows]
        number = sum(map(len, rows))
        if number:
            shape = torch.Size((source.num_rows, *parameter.shape[1:]))
            target[filled : filled + number].copy_(reader.read(source, shape, [run for run in rows if run], share))
        first, filled = first + source.num_rows, filled + number
    target[filled:] = 0


def _overlap(run: range, first: int, number: int) -> range:
    """Return those of the ``number`` rows from ``first`` on that are in ``run``, counted from ``first``."""
    return range(max(run.start - first, 0), max(min(run.stop - first, number), 0))


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads a rank's rows of one source after the other."""

    read_whole: ReadTensor
    open_part: OpenPart | None
    where: str

    def read(self, source: Source, shape: torch.Size, rows: Sequence[range], share: Share) -> torch.Tensor:
        """``rows`` of the source's tensor, whose shape as it is used is ``shape``, and ``share.inputs`` of each."""
        is_whole = share.inputs is None and len(rows) == 1 and len(rows[0]) == shape[0]
        if not is_whole and self.open_part is not None and source.arrange is source.scaling is None:
            return self._read_part(source, shape, rows, share.inputs)
        tensor = _as_used(source, self._found(source, self.read_whole), shape, self.where)
        if is_whole:
            return tensor
        cut = torch.cat([tensor[run.start : run.stop] for run in rows])
        return cut if share.inputs is None else cut[..., share.inputs.start : share.inputs.stop]

    def _read_part(
        self, source: Source, shape: torch.Size, rows: Sequence[range], inputs: range | None
    ) -> torch.Tensor:
        assert self.open_part is not None
        stored = self._found(source, self.open_part)
        found = stored.get_shape()
        _check_shape(source, tuple(reversed(found)) if source.transposed else tuple(found), shape, self.where)
        columns = () if len(shape) == 1 else (slice(None) if inputs is None else slice(inputs.start, inputs.stop),)
        parts = []
        for run in rows:
            place = (slice(run.start, run.stop), *columns)
            parts.append(stored[tuple(reversed(place))].t() if source.transposed else stored[place])
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _found(self, source: Source, find: Callable[[str], T]) -> T:
        try:
            return find(source.name)
        except KeyError:
            raise EngineError(f"{self.where} holds no tensor '{source.name}'.", hint=_HINT) from None


def _as_used(source: Source, tensor: torch.Tensor, shape: torch.Size, where: str) -> torch.Tensor:
    """The stored ``tensor`` as the parameter's rows."""
    if source.transposed:
        tensor = tensor.t()
    if source.arrange is not None and tensor.numel() == source.share * shape.numel():
        tensor = source.arrange(tensor)
    if source.scaling is not None and tensor.shape == shape:
        tensor = source.scaling(tensor)
    _check_shape(source, tuple(tensor.shape), shape, where)
    return tensor


def _check_shape(source: Source, found: tuple[int, ...], shape: torch.Size, where: str) -> None:
    if found != tuple(shape):
        raise EngineError(
            f"'{source.name}' in {where} has shape {list(found)}, the config says {list(shape)}.", hint=_HINT
        )
