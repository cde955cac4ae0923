"""Where the shipped data lies: inside the package (wheel), else in the checkout (editable install)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from kvplan.errors import KvplanError

T = TypeVar("T")


@cache
def profiles_dir() -> Path:
    """The folder with models/, gpus/ and measured/."""
    package = Path(__file__).resolve().parent
    for candidate in (package / "profiles", package.parent / "profiles"):
        if (candidate / "models").is_dir():
            return candidate
    raise KvplanError("kvplan's profiles are missing from this installation.", hint="reinstall kvplan")


def read_shipped(name: str, make: Callable[[Any], T]) -> T:
    """What ``make`` makes of the JSON document ``name`` below ``profiles_dir``. KvplanError where it is damaged."""
    path = profiles_dir() / name
    try:
        return make(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KvplanError(f"{path} cannot be used: {error}.", hint="reinstall kvplan") from error


def user_cache_dir() -> Path:
    """The user's cache folder for kvplan ($KVPLAN_CACHE_DIR, else $XDG_CACHE_HOME/kvplan, else ~/.cache/kvplan)."""
    explicit = os.environ.get("KVPLAN_CACHE_DIR")
    if explicit:
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else _home() / ".cache") / "kvplan"


def user_profiles_dir() -> Path:
    """The user's own profiles ($KVPLAN_PROFILES_DIR, else $XDG_CONFIG_HOME/kvplan/profiles, else ~/.config/...)."""
    explicit = os.environ.get("KVPLAN_PROFILES_DIR")
    if explicit:
        return Path(explicit)
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else _home() / ".config") / "kvplan" / "profiles"


def user_state_dir() -> Path:
    """What kvplan remembers for this user ($KVPLAN_STATE_DIR, else $XDG_STATE_HOME/kvplan, else ~/.local/state/...)."""
    explicit = os.environ.get("KVPLAN_STATE_DIR")
    if explicit:
        return Path(explicit)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else _home() / ".local" / "state") / "kvplan"


def _home() -> Path:
    """The user's home; a folder that is nowhere for a user whom the system does not know, as containers have them."""
    try:
        return Path.home()
    except RuntimeError:
        return Path("/nonexistent")
