"""A class of transformers with its weights, checked against the engine's description of the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kvplan_engine.checkpoints.loaders import LOADERS
from kvplan_engine.config import EngineConfig
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.description.parameters import num_parameters
from kvplan_engine.errors import EngineError
from kvplan_engine.transformers_backend.ways import find_class, raw_config

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


def load_class(
    config: EngineConfig, source: Any, description: ModelDescription, dtype: torch.dtype, device: torch.device
) -> tuple[PreTrainedModel, bool]:
    """The model of ``source`` on ``device``, and whether its weights are dummies.

    EngineError where weights are quantised or missing, or where it has other parameters than ``description``.
    """
    made = find_class(source)
    settings = _config_of(made, source)
    folder = _folder_of(source, config.load_format)
    if folder is None and getattr(settings, "quantization_config", None) is not None:
        del settings.quantization_config  # dummies are in the dtype that is computed in
    with _quiet():
        if folder is None:
            with torch.random.fork_rng(devices=[]), torch.device(device):
                torch.manual_seed(config.seed)
                model = made._from_config(settings, dtype=dtype)
        else:
            model = _read(made, folder, settings, dtype).to(device)  # type: ignore[arg-type]
    _check_parameters(model, description)
    return model.eval().requires_grad_(False), folder is None


def _config_of(made: type[PreTrainedModel], source: Any) -> PretrainedConfig:
    raw = {key: _with_infinity(value) for key, value in raw_config(source).items() if key != "auto_map"}
    assert made.config_class is not None, "every class of a published architecture has one"
    settings: PretrainedConfig = made.config_class.from_dict(raw)
    settings.use_cache = True
    if getattr(settings, "output_router_logits", False):
        settings.output_router_logits = False
    return settings


def _with_infinity(value: Any) -> Any:
    """``value`` of a config.json, in which transformers writes {"__float__": "Infinity"}: JSON has no infinity."""
    if isinstance(value, dict):
        return float(value["__float__"]) if "__float__" in value else {k: _with_infinity(v) for k, v in value.items()}
    return [_with_infinity(each) for each in value] if isinstance(value, list) else value


def _folder_of(source: Any, load_format: str) -> Path | None:
    """Where the weights are; None for dummies."""
    loader = LOADERS["safetensors"]
    path = Path(source) if isinstance(source, (str, Path)) else None
    has_weights = path is not None and loader.is_source(path) and loader.has_weights(path)
    if load_format == "safetensors" and not has_weights:
        raise EngineError(f"load_format 'safetensors' needs {loader.needs}, got '{source}'.")
    return path if has_weights and load_format != "dummy" else None


def _read(made: type[PreTrainedModel], folder: Path, settings: PretrainedConfig, dtype: torch.dtype) -> PreTrainedModel:
    """From safetensors. transformers fills what a checkpoint lacks with random values; here that is an error."""
    if getattr(settings, "quantization_config", None) is not None:
        raise EngineError(
            "model_impl 'transformers' loads no quantised weights.", hint="use a checkpoint as it was before"
        )
    model: PreTrainedModel
    report: dict[str, Any]
    try:
        model, report = made.from_pretrained(
            folder, config=settings, dtype=dtype, local_files_only=True, use_safetensors=True, output_loading_info=True
        )  # type: ignore[misc]  # two with output_loading_info
    except (OSError, RuntimeError, ValueError) as problem:
        first = str(problem).strip().splitlines()[0]
        raise EngineError(f"transformers cannot load {folder}: {first}") from None
    lacking = [*report["missing_keys"], *report["mismatched_keys"]]
    if lacking:
        raise EngineError(
            f"{folder} lacks '{lacking[0]}' and {len(lacking) - 1} more.", hint="is it a checkpoint of this config?"
        )
    return model


def _check_parameters(model: PreTrainedModel, description: ModelDescription) -> None:
    """EngineError unless the class holds as many numbers as the description says, from which weights are accounted."""
    expected, found = num_parameters(description), model.num_parameters()
    with_buffers = sum({tensor.data_ptr(): tensor.numel() for tensor in model.state_dict().values()}.values())
    if expected not in (found, with_buffers):  # some buffers are weights (corrections of a router), some are not
        raise EngineError(
            f"{type(model).__name__} of transformers has {found:,} parameters, and {expected:,} as the "
            "engine describes it."
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers' progress bars and reports are not this engine's."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
