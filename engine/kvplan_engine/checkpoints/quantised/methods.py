"""Which reader takes a checkpoint whose config.json has a ``quantization_config``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from kvplan_engine.checkpoints.config_json import read_config_json
from kvplan_engine.checkpoints.quantised.bitsandbytes import BitsAndBytesReader
from kvplan_engine.checkpoints.quantised.compressed import CompressedReader
from kvplan_engine.checkpoints.quantised.floats import Fp8Reader, ModelOptReader, Mxfp4Reader
from kvplan_engine.checkpoints.quantised.reader import QuantisedReader, StoredTensors, read_checked
from kvplan_engine.checkpoints.quantised.words import AwqReader, GptqReader
from kvplan_engine.checkpoints.weights import ReadTensor
from kvplan_engine.errors import EngineError

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
"""By ``quant_method``. What no reader of a method knows, it refuses."""


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
