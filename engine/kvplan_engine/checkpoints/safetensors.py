"""Weights from a directory's safetensors files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch

from kvplan_engine.checkpoints.config_json import read_config_json
from kvplan_engine.checkpoints.families import names_of
from kvplan_engine.checkpoints.parameters import stored_parameters
from kvplan_engine.checkpoints.quantised.bitsandbytes import BitsAndBytesReader
from kvplan_engine.checkpoints.quantised.compressed import CompressedReader
from kvplan_engine.checkpoints.quantised.floats import Fp8Reader, ModelOptReader, Mxfp4Reader
from kvplan_engine.checkpoints.quantised.reader import Checkpoint, QuantisedReader, StoredTensors, read_checked
from kvplan_engine.checkpoints.quantised.words import AwqReader, GptqReader
from kvplan_engine.checkpoints.weights import OpenPart, ReadTensor, StoredPart
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.errors import EngineError
from kvplan_engine.files import open_file, read_json_object

# Which reader takes a checkpoint whose config.json has a ``quantization_config``.


_READERS: dict[str, Callable[[StoredTensors, dict[str, Any]], QuantisedReader]] = {
    "gptq": GptqReader,
    "awq": AwqReader,
    "compressed-tensors": CompressedReader,
    "fp8": Fp8Reader,
    "mxfp4": Mxfp4Reader,
    "modelopt": ModelOptReader,
    "modelopt_fp4": ModelOptReader,
    "bitsandbytes": BitsAndBytesReader,
}
"""Readers by ``quant_method``. Each refuses what it does not know of its method."""


def open_quantised(tensors: StoredTensors, folder: Path) -> QuantisedReader | None:
    """The reader for ``folder``; None where its weights are dense. EngineError for a method that none reads."""
    config = read_config_json(folder) if (folder / "config.json").is_file() else {}
    section = config.get("quantization_config") or config.get("compression_config")
    if not section:
        return None
    method = str(section.get("quant_method") or ("modelopt" if "quant_algo" in section else ""))
    if method not in _READERS:
        raise EngineError(
            f"{folder} is quantised by '{method}', which the engine does not load.",
            hint="it loads " + ", ".join(sorted(_READERS)) + "; load_format='dummy' runs the shapes",
        )
    return _READERS[method](tensors, section)


def widening(tensors: StoredTensors, quantised: QuantisedReader) -> ReadTensor:
    """Reads any tensor in a float dtype, also one that is quantised."""

    def read(name: str) -> torch.Tensor:
        return tensors.read(name) if tensors.is_dense(name) else read_checked(name, quantised).dequantised()

    return read


_DTYPES_WIDEST_FIRST = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
_LARGEST_HEADER = 100_000_000
"""Bytes; the format's own limit."""


def open_safetensors(model: ModelDescription, folder: Path) -> Checkpoint:
    """A directory's ``*.safetensors``: one file, or several with an index. EngineError where one is damaged."""
    own, prefixes = names_of(model)
    assert own is not None, "a family without names is refused before"
    parameters = stored_parameters(model, own)
    first_name = parameters[0].sources[0].name
    read, open_stored, names = _open(folder)
    prefix = next((each for each in prefixes if _stored_name(first_name, each, names) in names), "")
    tensors = StoredTensors(read, lambda name: _stored_name(name, prefix, names), frozenset(names))
    quantised = open_quantised(tensors, folder)
    if quantised is not None:
        return Checkpoint(str(folder), parameters, widening(tensors, quantised), quantised)
    return Checkpoint(
        str(folder), parameters, tensors.read, open_part=lambda name: open_stored(tensors.stored_name(name))
    )


def _stored_name(name: str, prefix: str, names: set[str]) -> str:
    """What the checkpoint calls ``name``: the prefix may not stand before the head, or stand for "model."."""
    candidates = (prefix + name, prefix + name.removeprefix("model."), name)
    return next((candidate for candidate in candidates if candidate in names), prefix + name)


def read_safetensors_config(folder: Path) -> dict[str, Any]:
    """The directory's config.json; where it names no dtype, that of the stored weights, the widest there is."""
    config = read_config_json(folder)
    if config.get("dtype") or config.get("torch_dtype"):
        return config
    stored = _stored_dtypes(folder)
    found = next((name for name in _DTYPES_WIDEST_FIRST if name in stored), None)
    return config if found is None else {**config, "dtype": _DTYPES_WIDEST_FIRST[found]}


def _stored_dtypes(folder: Path) -> set[str]:
    """The dtypes in the files' headers: 8 bytes with its length, then JSON. None for what is no safetensors file."""
    found: set[str] = set()
    for file in sorted(folder.glob("*.safetensors")):
        with open_file(file) as content:
            length = int.from_bytes(content.read(8), "little")
            try:
                header = json.loads(content.read(length)) if length <= _LARGEST_HEADER else {}
                found |= {entry["dtype"] for name, entry in header.items() if name != "__metadata__"}
            except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
                continue  # damaged: what loads the weights says so
    return found


def _open(folder: Path) -> tuple[ReadTensor, OpenPart, set[str]]:
    """A reader of tensors by name, one of parts of them, and the names there are."""
    from safetensors import SafetensorError, safe_open

    handles = {}
    try:
        for file in _files(folder):
            with open_file(file):  # a regular one: safe_open would wait for a pipe's writer
                pass
            handle = safe_open(str(file), framework="pt")
            handles.update(dict.fromkeys(handle.keys(), handle))
    except (OSError, ValueError, SafetensorError) as problem:
        raise EngineError(f"{folder} holds a damaged safetensors file: {problem}.", hint="download it again") from None
    return (
        lambda name: handles[name].get_tensor(name),
        lambda name: cast(StoredPart, handles[name].get_slice(name)),
        set(handles),
    )


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = _indexed_names(index)
        missing = [name for name in sorted(names) if not os.path.exists(folder / name)]
        if missing:
            raise EngineError(f"{folder} lacks {missing[0]}, which its index names.", hint="download the missing files")
        return [folder / name for name in sorted(names)]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise EngineError(f"{folder} holds no safetensors.", hint="load_format='dummy' runs the shapes without weights")
    return files


def _indexed_names(index: Path) -> set[str]:
    """EngineError where it is no index, or names what is not beside it."""
    weight_map = read_json_object(index).get("weight_map")
    names = weight_map.values() if isinstance(weight_map, dict) else ()
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise EngineError(f"{index} names no weight files beside it.", hint="download it again")
    return set(names)
