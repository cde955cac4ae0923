"""A model's config, from wherever it is: a dict, a config.json, a .gguf file, a shipped profile. No torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvplan_engine.checkpoints.families import architecture_of, family_of
from kvplan_engine.description.model import ModelDescription
from kvplan_engine.errors import EngineError
from kvplan_engine.files import read_json_object
from kvplan_engine.paths import model_profile_folders


def load_model_config(source: str | Path | dict[str, Any]) -> ModelDescription:
    """Read a config dict, a config.json, a directory that holds one, or a short name of a shipped profile.

    EngineError when there is none, when it is malformed, or when the engine does not know the architecture.
    """
    read = source if isinstance(source, dict) else read_config_json(source)
    # null is as good as absent, as in transformers; but a window that is null is none, and an absent one the default
    config = {key: value for key, value in read.items() if value is not None or key == "sliding_window"}
    architecture = architecture_of(config)
    family = family_of(architecture)
    try:
        return family.read(config | {"architectures": [architecture]})
    except KeyError as missing:
        problem = f"lacks {missing}"
    except (TypeError, ValueError, ArithmeticError, IndexError, AttributeError) as error:
        problem = f"is malformed: {error}"
    raise EngineError(
        f"the config of this {architecture} {problem}.", hint="use the config.json as published"
    ) from None


def read_config_json(source: str | Path) -> dict[str, Any]:
    """The raw config of a path or of a shipped profile's short name or Hugging Face id."""
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
    if not path.exists():
        profile = find_profile(str(source))
        if profile is not None:
            config: dict[str, Any] = profile["config"]
            return config
        raise EngineError(
            f"there is no model at '{source}' and no shipped profile of that name.",
            hint="give a directory with a config.json, a config.json, a .gguf file, or a name from `kvplan models`",
        )
    return read_json_object(path)


def find_profile(name: str) -> dict[str, Any] | None:
    """A shipped profile by short name, id or alias. The engine reads the data files, never the planner's code."""
    for folder in model_profile_folders():
        for file in sorted(folder.glob("*.json"), key=lambda file: (file.stem != name.lower(), file.name)):
            profile: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            names = {file.stem, profile.get("id", ""), *profile.get("aliases", [])}
            if name.lower() in {known.lower() for known in names}:
                return profile
    return None
