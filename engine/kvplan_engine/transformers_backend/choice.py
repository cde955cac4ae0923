"""Which implementation runs a model: the engine's own decoder, or the model's class of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan_engine.checkpoints.config_json import read_config_json
from kvplan_engine.checkpoints.families import architecture_of
from kvplan_engine.checkpoints.loaders import read_config
from kvplan_engine.config import EngineConfig
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.errors import EngineError
from kvplan_engine.models.known_parts import refuse_unknown_parts

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OLDEST_VERSION = (5, 22)
"""Of transformers: the caches that the engine fills from its pool have had their form since."""

_OF_TEXT = ("ForCausalLM", "LMHeadModel")
"""How the names of classes end that take text alone."""


def chosen_implementation(config: EngineConfig, source: Any) -> str:
    """ "native" or "transformers": what ``config.model_impl`` asks for; auto is native wherever the decoder can.

    EngineError where the one asked for cannot, and for auto the decoder's own where neither can.
    """
    if config.model_impl == "native":
        return "native"
    model = read_config(source, whole_experts=config.enable_expert_parallel)
    if config.model_impl == "auto":
        try:
            refuse_unknown_parts(model)
            return "native"
        except EngineError as lacking:
            if config.needs_decoder is not None or not _has_class(model, source):
                raise lacking from None
    refuse_growing_angles(model)
    find_class(source)
    return "transformers"


def _has_class(model: ModelDescription, source: Any) -> bool:
    try:
        refuse_growing_angles(model)
        find_class(source)
    except EngineError:
        return False
    return True


def refuse_growing_angles(model: ModelDescription) -> None:
    """EngineError where transformers turns all positions of a forward pass by angles that its largest one decides.

    Keys in the pool would have been turned by others than those of later steps.
    """
    for layer in model.distinct_layers:
        for rope in filter(None, (getattr(mixer, "rope", None) for mixer in layer.mixers)):
            if rope.scaling.get("rope_type") == "longrope":
                raise EngineError(
                    "transformers turns a model with the RoPE scaling 'longrope' by other angles once it is longer.",
                    hint="model_impl 'native' has it, by the angles for max_model_len",
                )


def find_class(source: Any) -> type[PreTrainedModel]:
    """The class of transformers for ``source``: a config dict, a directory, a config.json or a profile's name.

    EngineError where there is none for text alone: code that comes with the model is never run.
    """
    import transformers

    if isinstance(source, (str, Path)) and Path(source).suffix == ".gguf":
        raise EngineError(
            "model_impl 'transformers' reads no GGUF files.", hint="give a directory with safetensors, or a config.json"
        )
    installed = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    if installed < OLDEST_VERSION:
        raise EngineError(
            f"model_impl 'transformers' needs transformers {'.'.join(map(str, OLDEST_VERSION))} or newer, and "
            f"{transformers.__version__} is installed.",
            hint="pip install --upgrade transformers",
        )
    return _class_of(raw_config(source))


def raw_config(source: Any) -> dict[str, Any]:
    """The config.json of ``source`` as it stands."""
    raw: dict[str, Any] = source if isinstance(source, dict) else read_config_json(source)
    return raw


def _class_of(config: Mapping[str, Any]) -> type[PreTrainedModel]:
    import transformers

    architecture = architecture_of(config)
    found = getattr(transformers, architecture, None) if architecture.endswith(_OF_TEXT) else None
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        raise EngineError(
            f"transformers has no class {architecture} for text, and code that comes with a model is not run.",
            hint="model_impl 'native' or 'auto' takes the engine's own implementation where there is one",
        )
    return found
