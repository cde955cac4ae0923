"""Which ``load_format`` reads weights from what. A new one is a file like ``safetensors.py`` and a line in LOADERS."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan_engine.checkpoints.config_json import load_model_config
from kvplan_engine.checkpoints.dummy import fill_dummy, open_dummy
from kvplan_engine.checkpoints.gguf import open_gguf, read_gguf_config
from kvplan_engine.checkpoints.quantised.held import HeldWeights, plan_held
from kvplan_engine.checkpoints.quantised.reader import Checkpoint
from kvplan_engine.checkpoints.quantised.rounding import RoundingReader
from kvplan_engine.checkpoints.safetensors import open_safetensors, read_safetensors_config
from kvplan_engine.checkpoints.weights import Weights, fill_weights
from kvplan_engine.description.division import Rank, with_whole_experts
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.weight_format import recipe_of
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
    open: Callable[[ModelDescription, Path], Checkpoint]
    read_config: Callable[[Path], dict[str, Any]] | None = None


def _is_gguf(path: Path) -> bool:
    return path.suffix == ".gguf"


LOADERS = {
    "gguf": Loader("a .gguf file", _is_gguf, _is_gguf, open_gguf, read_gguf_config),
    "safetensors": Loader(
        "a directory with safetensors",
        Path.is_dir,
        lambda path: any(path.glob("*.safetensors")),
        open_safetensors,
        read_safetensors_config,
    ),
}
"""Loaders by name, in the order in which "auto" tries them. "dummy" needs no source and is not among them."""


def read_config(source: Any, *, whole_experts: bool = False) -> ModelDescription:
    """The config of ``source``: a dict, a path or a shipped profile's name (see ``load_model_config``).

    whole_experts: ranks divide a mixture's experts among them; EngineError where there is no mixture.
    """
    model = load_model_config(_config_in(source))
    return with_whole_experts(model) if whole_experts else model


def _config_in(source: Any) -> Any:
    """The config.json that the format of ``source`` brings itself, or ``source``."""
    if isinstance(source, (str, Path)):
        for loader in LOADERS.values():
            if loader.read_config is not None and loader.is_source(Path(source)):
                return loader.read_config(Path(source))
    return source


def load_weights(
    weights: Weights,
    model: ModelDescription,
    source: Any,
    load_format: str,
    seed: int,
    rank: Rank = Rank(),
    first_layer: int = 0,
) -> bool:
    """Fill ``weights`` from ``source``; whether they are dummies, whose values mean nothing.

    model: the whole one, of which ``weights`` are the part of ``rank``, with layers from ``first_layer`` on.
    EngineError when ``load_format`` is not "auto" and does not fit ``source``.
    """
    loader = _choose(source, load_format)
    if loader is not None:
        checkpoint = loader.open(model, Path(source))
        read = (checkpoint.read, checkpoint.where)
        fill_weights(
            weights,
            checkpoint.parameters,
            *read,
            rank=rank,
            first_layer=first_layer,
            open_part=checkpoint.open_part,
        )
        return False
    if load_format == "auto":
        logger.warning("no weights found: they are random numbers (shapes and speed are right, text is not)")
    fill_dummy(weights, model, seed, rank, first_layer)
    return True


def plan_held_weights(
    model: ModelDescription,
    source: Any,
    load_format: str,
    quantization: str | None,
    seed: int,
    group_size: int | None = None,
) -> HeldWeights:
    """The weights that are held in few bits: as they are stored, or as ``quantization`` rounds dense ones.

    quantization: a name of RECIPES; None: as ``source`` has them; "none": no weight is. group_size: as for recipe_of.
    EngineError where it is to round what is quantised already.
    """
    if quantization == "none":
        return HeldWeights()
    loader = _choose(source, load_format)
    if loader is None and quantization is None:
        return HeldWeights()
    checkpoint = open_dummy(model, seed) if loader is None else loader.open(model, Path(source))
    reader = checkpoint.quantised
    if reader is not None and quantization is not None:
        raise EngineError(
            f"{checkpoint.where} is quantised already, so '{quantization}' cannot be made of it.",
            hint="leave --quantization out, or start from the weights it was made of",
        )
    if quantization is not None:
        reader = RoundingReader(checkpoint.read, checkpoint.parameters, recipe_of(quantization, group_size))
    if reader is None:
        return HeldWeights()
    with_ends = quantization is None  # rounded, they would cost the most and save the least
    return plan_held(model, checkpoint.parameters, reader, checkpoint.where, with_ends=with_ends)


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
