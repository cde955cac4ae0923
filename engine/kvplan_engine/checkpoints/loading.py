"""Weights into memory: from safetensors, from GGUF, or dummy values from the shapes alone.

All tensors are allocated first and then filled one by one, so that the most a load needs beyond the weights is one
tensor, and running out of memory shows as what it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from kvplan_engine.checkpoints.config import ModelConfig
from kvplan_engine.checkpoints.parameters import model_parameters
from kvplan_engine.device.allocation import allocating
from kvplan_engine.errors import EngineError

Weights = dict[str, torch.Tensor]
ReadTensor = Callable[[str], torch.Tensor]

# Dummy values repeat after this many elements: drawing each of billions would take minutes and change nothing.
# A prime, so that no row of a matrix repeats the one before it.
_DUMMY_PERIOD = 1_000_003
_DUMMY_STANDARD_DEVIATION = 0.02

# Of each tensor, for its fingerprint.
_SAMPLED_ELEMENTS = 256

_OTHER_CONFIG = "is it a checkpoint of this config?"


def allocate_weights(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Weights:
    """Uninitialised tensors for every parameter; OutOfDeviceMemory(phase="weights") when they do not fit."""
    parameters = model_parameters(config)
    num_bytes = sum(torch.Size(p.shape).numel() for p in parameters) * dtype.itemsize
    with allocating("weights", num_bytes):
        return {p.name: torch.empty(p.shape, dtype=dtype, device=device) for p in parameters}


def weight_bytes(weights: Weights) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in weights.values())


def weight_fingerprint(weights: Weights) -> bytes:
    """16 bytes that differ when weights differ: names, shapes and a sample of every tensor."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(weights.items()):
        flat = tensor.detach().reshape(-1)
        sample = flat[:: max(1, flat.numel() // _SAMPLED_ELEMENTS)].cpu().contiguous().view(torch.uint8)
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(sample.numpy().tobytes())
    return digest.digest()


def fill_dummy(weights: Weights, config: ModelConfig, seed: int) -> None:
    """Normal(0, 0.02) matrices, unit norms, zero biases; the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.empty(_DUMMY_PERIOD).normal_(0.0, _DUMMY_STANDARD_DEVIATION, generator=generator)
    values = values.to(weights["embedding"].device)
    offset = 0
    for parameter in model_parameters(config):
        tensor = weights[parameter.name]
        if parameter.kind == "matrix":
            offset = _fill_repeating(tensor.view(-1), values, offset)
        else:
            tensor.fill_(1.0 if parameter.kind == "norm" else 0.0)


def _fill_repeating(flat: torch.Tensor, values: torch.Tensor, offset: int) -> int:
    done = 0
    while done < flat.numel():
        count = min(flat.numel() - done, values.numel() - offset)
        flat[done : done + count] = values[offset : offset + count]
        done += count
        offset = (offset + count) % values.numel()
    return offset


def fill_from_safetensors(weights: Weights, config: ModelConfig, folder: Path) -> None:
    """Read a directory's ``*.safetensors`` (one file or an index of several)."""
    with _open_safetensors(folder) as (read, names):
        prefix = _common_prefix(config, names)
        _fill(weights, config, lambda name: read(prefix + name), str(folder))


def _fill(weights: Weights, config: ModelConfig, read: ReadTensor, where: str) -> None:
    for parameter in model_parameters(config):
        row = 0
        for source in parameter.sources:
            try:
                tensor = read(source.name)
            except KeyError:
                raise EngineError(
                    f"{where} holds no tensor '{source.name}'.", hint="is it a checkpoint of this config?"
                ) from None
            if source.transposed and tensor.dim() == 2:
                tensor = tensor.t()
            target = weights[parameter.name][row : row + source.num_rows]
            if tensor.shape != target.shape:
                raise EngineError(
                    f"'{source.name}' in {where} has shape {list(tensor.shape)}, the config says {list(target.shape)}.",
                    hint=_OTHER_CONFIG,
                )
            target.copy_(tensor)
            row += source.num_rows


@contextmanager
def _open_safetensors(folder: Path) -> Iterator[tuple[ReadTensor, set[str]]]:
    from safetensors import SafetensorError, safe_open

    files = _safetensors_files(folder)
    handles = {}
    try:
        for file in files:
            handle = safe_open(str(file), framework="pt")
            handles.update(dict.fromkeys(handle.keys(), handle))
    except (OSError, SafetensorError) as problem:
        raise EngineError(f"{folder} holds a damaged safetensors file: {problem}.", hint="download it again") from None
    yield (lambda name: handles[name].get_tensor(name)), set(handles)


def _safetensors_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        missing = [name for name in sorted(names) if not (folder / name).is_file()]
        if missing:
            raise EngineError(f"{folder} lacks {missing[0]}, which its index names.", hint="download the missing files")
        return [folder / name for name in sorted(names)]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise EngineError(f"{folder} holds no safetensors.", hint="load_format='dummy' runs the shapes without weights")
    return files


def _common_prefix(config: ModelConfig, names: set[str]) -> str:
    """Checkpoints of GPT-2 come with and without ``transformer.`` before each name."""
    first = "wte.weight" if config.family == "gpt2" else "model.embed_tokens.weight"
    return next((prefix for prefix in ("", "transformer.") if prefix + first in names), "")
