"""A model's weights: one tensor for each parameter, allocated first and filled afterwards.

So the most that a load needs beyond the weights is one tensor, and running out of memory shows as what it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence

import torch

from kvplan_engine.checkpoints.parameters import Source, StoredParameter
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.parameters import model_parameters, num_parameters
from kvplan_engine.device.allocation import allocating
from kvplan_engine.errors import EngineError

Weights = dict[str, torch.Tensor]
ReadTensor = Callable[[str], torch.Tensor]
"""One tensor of a checkpoint by its name; KeyError where there is none."""

_FINGERPRINT_ELEMENTS = 256  # of each tensor


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


def fill_weights(weights: Weights, parameters: list[StoredParameter], read: ReadTensor, where: str) -> None:
    """Copy the sources of all ``parameters`` in ``weights`` from the checkpoint called ``where``.

    EngineError where one does not fit.
    """
    for parameter in parameters:
        if parameter.name not in weights:
            continue  # held in few bits
        row = 0
        for source in parameter.sources:
            target = weights[parameter.name][row : row + source.num_rows]
            target.copy_(_read_source(source, read, target.shape, where))
            row += source.num_rows


def _read_source(source: Source, read: ReadTensor, shape: torch.Size, where: str) -> torch.Tensor:
    hint = "is it a checkpoint of this config?"
    try:
        tensor = read(source.name)
    except KeyError:
        raise EngineError(f"{where} holds no tensor '{source.name}'.", hint=hint) from None
    if source.transposed:
        tensor = tensor.t()
    if source.arrange is not None and tensor.numel() == source.share * shape.numel():
        tensor = source.arrange(tensor)
    if source.scaling is not None and tensor.shape == shape:
        tensor = source.scaling(tensor)
    if tensor.shape != shape:
        raise EngineError(
            f"'{source.name}' in {where} has shape {list(tensor.shape)}, the config says {list(shape)}.", hint=hint
        )
    return tensor
