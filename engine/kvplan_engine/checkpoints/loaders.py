"""Which ``load_format`` reads weights from what. A new one is a file like ``safetensors.py`` and a line in LOADERS."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan_engine.checkpoints.config_json import load_model_config
from kvplan_engine.checkpoints.dummy import fill_dummy
from kvplan_engine.checkpoints.gguf import fill_from_gguf
from kvplan_engine.checkpoints.gguf_config import read_gguf_config
from kvplan_engine.checkpoints.safetensors import fill_from_safetensors, read_safetensors_config
from kvplan_engine.checkpoints.weights import Weights
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.errors import EngineError

logger = logging.getLogger("kvplan_engine")


@dataclass(frozen=True, slots=True)
class Loader:
    """One format of weights on disk.

    needs: what it is read from, for the user. is_source: whether a path is of that kind. has_weights: whether the
    weights are there too, so that ``load_format="auto"`` takes it. read_config: the config.json that the format brings
    itself, or completes; None where that is a file of its own.
    """

    needs: str
    is_source: Callable[[Path], bool]
    has_weights: Callable[[Path], bool]
    fill: Callable[[Weights, ModelDescription, Path], None]
    read_config: Callable[[Path], dict[str, Any]] | None = None


def _is_gguf(path: Path) -> bool:
    return path.suffix == ".gguf"


LOADERS = {
    "gguf": Loader("a .gguf file", _is_gguf, _is_gguf, fill_from_gguf, read_gguf_config),
    "safetensors": Loader(
        "a directory with safetensors",
        Path.is_dir,
        lambda path: any(path.glob("*.safetensors")),
        fill_from_safetensors,
        read_safetensors_config,
    ),
}
"""By name, in the order in which "auto" tries them. "dummy" needs no source and is not among them."""


def read_config(source: Any) -> ModelDescription:
    """The config of ``source``: a dict, a path or a shipped profile's name (see ``load_model_config``)."""
    if isinstance(source, (str, Path)):
        for loader in LOADERS.values():
            if loader.read_config is not None and loader.is_source(Path(source)):
                return load_model_config(loader.read_config(Path(source)))
    return load_model_config(source)


def load_weights(weights: Weights, model: ModelDescription, source: Any, load_format: str, seed: int) -> bool:
    """Fill ``weights`` from ``source``; whether they are dummies, whose values mean nothing.

    EngineError when ``load_format`` is not "auto" and does not fit ``source``.
    """
    loader = _choose(source, load_format)
    if loader is not None:
        loader.fill(weights, model, Path(source))
        return False
    if load_format == "auto":
        logger.warning("no weights found: running with dummy weights (shapes and speed are right, text is not)")
    fill_dummy(weights, model, seed)
    return True


def _choose(source: Any, load_format: str) -> Loader | None:
    path = Path(source) if isinstance(source, (str, Path)) else None
    if load_format in LOADERS:
        loader = LOADERS[load_format]
        if path is None or not loader.is_source(path):
            raise EngineError(f"load_format '{load_format}' needs {loader.needs}, got '{source}'.")
        return loader
    if load_format == "auto" and path is not None:
        return next((loader for loader in LOADERS.values() if loader.has_weights(path)), None)
    return None
