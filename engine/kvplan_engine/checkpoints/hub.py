"""Where a model's files come from: a local path, the local Hugging Face cache, the hub, or nowhere (dummy weights)."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan_engine.checkpoints.config_json import find_profile
from kvplan_engine.errors import EngineError

logger = logging.getLogger("kvplan_engine")

_WEIGHT_FILES = ["*.safetensors", "model.safetensors.index.json"]
_OTHER_FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "chat_template*",
]
_WITHOUT_WEIGHTS = ("dummy", "none")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """loadable: what the engine's loader takes, a path or a config. tokenizer_path: where a tokenizer may lie."""

    loadable: Any
    tokenizer_path: Path | None


def resolve_source(model: Any, load_format: str) -> ModelSource:
    """Find the files of ``model``; EngineError when the name is unknown and nothing can be fetched.

    A name that is neither a path nor in the local cache is fetched from the hub, weights and all, unless
    ``load_format`` is dummy or none. Without a network the shipped profile's config is used.
    """
    if isinstance(model, dict):
        return ModelSource(model, None)
    path = Path(model)
    if path.exists():
        return ModelSource(str(path), path)
    profile = find_profile(str(model))
    has_weights = load_format not in _WITHOUT_WEIGHTS
    if profile is not None and not has_weights:
        return ModelSource(profile["config"], None)
    repository = profile["id"] if profile is not None else str(model)
    snapshot = _snapshot(repository, _OTHER_FILES + (_WEIGHT_FILES if has_weights else []))
    if snapshot is not None:
        return ModelSource(str(snapshot), snapshot)
    if profile is not None and load_format == "auto":
        return ModelSource(profile["config"], None)
    raise EngineError(
        f"'{model}' is not a local path and could not be fetched from the Hugging Face hub.",
        hint="give a directory with the model's files, a .gguf file, or a name from `kvplan models`",
    )


def _snapshot(repository: str, files: list[str]) -> Path | None:
    """The folder of a cached or freshly fetched repository, or None."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    for local_only in (True, False):
        if not local_only and constants.is_offline_mode():
            return None
        try:
            return Path(snapshot_download(repository, allow_patterns=files, local_files_only=local_only))
        except HFValidationError:
            return None
        except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as problem:
            logger.debug("hub: %s", problem)
    return None
