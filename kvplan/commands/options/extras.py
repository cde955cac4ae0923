"""Packages that only some commands need: what to say where they are not installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final

from kvplan.errors import UsageError

EXTRAS: Final[dict[str, tuple[str, ...]]] = {
    "report": ("pandas", "matplotlib", "numpy", "jinja2", "markupsafe"),
    "engine": ("torch", "transformers", "huggingface_hub", "numpy", "jinja2", "safetensors", "gguf", "tqdm"),
    "serve": ("uvicorn", "httptools", "msgspec", "prometheus_client", "tokenizers"),
    "load": ("httptools", "msgspec"),
    "cluster": ("ray",),
}
"""Packages by their import names that each extra of pyproject.toml brings itself."""

INCLUDES: Final = {"engine": "report", "serve": "engine", "load": "report", "cluster": "engine"}
"""The extra that each of some others brings as well."""

_NAMED = 3


def need_extra(what: str, extra: str) -> None:
    """Raise UsageError, with the line to type, if a package of ``extra`` is missing for ``what`` (``sweep --ray``)."""
    missing = [name for name in _packages(extra) if not _is_installed(name)]
    if missing:
        are = "a package that is not installed" if len(missing) == 1 else "packages that are not installed"
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise UsageError(
            f"`kvplan {what}` needs {are}: {', '.join(missing[:_NAMED])}{more}.", hint=f"pip install 'kvplan[{extra}]'"
        )


def _is_installed(name: str) -> bool:
    """Return whether a package can be imported; one that was imported already can."""
    return sys.modules[name] is not None if name in sys.modules else find_spec(name) is not None


def _packages(extra: str) -> tuple[str, ...]:
    included = _packages(INCLUDES[extra]) if extra in INCLUDES else ()
    return tuple(dict.fromkeys((*EXTRAS[extra], *included)))
