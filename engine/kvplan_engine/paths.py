"""Where the engine's data is: inside the package (wheel), or in the checkout (editable install)."""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from pathlib import Path

from kvplan_engine.errors import EngineError

_PACKAGE = Path(__file__).resolve().parent


@cache
def source_dir() -> Path:
    """The folder csrc/ with the kernels' sources; EngineError when it is missing."""
    for candidate in (_PACKAGE / "csrc", _PACKAGE.parents[1] / "csrc"):
        if (candidate / "cpu").is_dir() and (candidate / "cuda").is_dir():
            return candidate
    raise EngineError("the kernels' sources are missing from this installation.", hint="reinstall kvplan")


def model_profile_folders() -> list[Path]:
    """Folders with the shipped models' configs."""
    return [folder / "models" for folder in _profile_folders() if (folder / "models").is_dir()]


def architectures_file() -> Path:
    """The table of the architectures' names; EngineError when it is missing."""
    for folder in _profile_folders():
        if (folder / "architectures.json").is_file():
            return folder / "architectures.json"
    raise EngineError("the table of architectures is missing from this installation.", hint="reinstall kvplan")


def _profile_folders() -> list[Path]:
    """Folders with data that planner and engine both read. Imports no planner code."""
    folders = [_PACKAGE.parents[1] / "profiles"]
    planner = importlib.util.find_spec("kvplan")
    if planner is not None and planner.submodule_search_locations:
        folders.append(Path(planner.submodule_search_locations[0]) / "profiles")
    return folders


def kernel_cache_dir() -> Path:
    """Compiled kernels are kept in $KVPLAN_CACHE_DIR/kernels, or in kvplan/kernels in the user's cache folder."""
    return _cache_dir() / "kernels"


def tokenizer_cache_dir() -> Path:
    """Tokenizers that were converted from .gguf files, beside the kernels."""
    return _cache_dir() / "tokenizers"


def _cache_dir() -> Path:
    explicit = os.environ.get("KVPLAN_CACHE_DIR")
    if explicit:
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "kvplan"
    except RuntimeError:  # a user whom the system does not know, as containers have them
        raise EngineError("this user has no home directory.", hint="set KVPLAN_CACHE_DIR") from None
