"""Values as people write them in Python, as the command's options take them; rows as a DataFrame."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvplan.catalog.speculation.config import with_speculative_config
from kvplan.errors import UsageError
from kvplan.setting_values import read_settings
from kvplan.settings import KNOBS, ServingSettings

if TYPE_CHECKING:
    import pandas


def named_settings(
    given: Mapping[str, Any], speculative_config: Mapping[str, Any] | None = None, **more: str
) -> ServingSettings:
    """Read settings by vLLM's names; ``device_memory`` is the option's name for ``device_memory_bytes``."""
    named = {"device_memory_bytes" if name == "device_memory" else name: value for name, value in given.items()}
    settings = read_settings({name: _written(name, value) for name, value in (named | more).items()})
    return with_speculative_config(settings, json_text(speculative_config))


def _written(name: str, value: Any) -> Any:
    """Return a value as the command line has it: bytes and tokens as text."""
    return str(value) if value is not None and KNOBS[name].kind in ("bytes", "tokens") else value


def json_text(values: Mapping[str, Any] | None) -> str | None:
    """Return an object as the option with JSON takes it."""
    return None if values is None else json.dumps(dict(values))


def named_numbers(values: Mapping[str, float]) -> str:
    """``{"in": 0.6, "out": 2.4}`` -> ``in=0.6,out=2.4``."""
    return ",".join(f"{name}={value}" for name, value in values.items())


def text(value: object) -> str | None:
    """Return one value as an option takes it."""
    return None if value is None else str(value)


def texts(values: object) -> Sequence[str]:
    """Return one or several values as an option that takes several does."""
    if values is None:
        return ()
    if isinstance(values, Iterable) and not isinstance(values, str):
        return [str(value) for value in values]
    return [str(values)]


def frame(rows: Sequence[Mapping[str, Any]]) -> pandas.DataFrame:
    """Return rows as a DataFrame. UsageError without pandas."""
    try:
        import pandas
    except ModuleNotFoundError:
        raise UsageError("to_frame() needs pandas, which is not installed.", hint="pip install pandas") from None

    return pandas.DataFrame(rows)
