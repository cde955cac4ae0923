"""Packages that only some commands need: what to say where they are not installed."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Final

from kvplan.errors import KvplanError

LOAD_PACKAGES: Final = ("httptools", "msgspec")
"""By their import names, without which no load can be sent."""

CLUSTER_PACKAGES: Final = ("ray",)
"""The same, without which no cluster can be joined."""


def need_packages(command: str, extra: str, packages: Sequence[str]) -> None:
    """KvplanError with the extra to install if one of the packages (by import name) is missing."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        are = "a package that is not installed" if len(missing) == 1 else "packages that are not installed"
        raise KvplanError(
            f"`kvplan {command}` needs {are}: {', '.join(missing)}.", hint=f"pip install 'kvplan[{extra}]'"
        )
