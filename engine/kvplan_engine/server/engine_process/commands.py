"""What the API process may ask of the engine beside requests. Each command is a function of the engine.

A command returns what msgpack can carry, and raises EngineError for what a user can cause.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvplan_engine.config import knobs
from kvplan_engine.engine import Engine
from kvplan_engine.errors import EngineError
from kvplan_engine.requests.adapter import LoRARequest


def reset_prefix_cache(engine: Engine) -> bool:
    """Whether the cache was emptied: not while requests are unfinished."""
    return engine.reset_prefix_cache()


def statistics(engine: Engine) -> dict[str, Any]:
    """``Engine.get_stats``, after every invariant of scheduler and pool has been checked."""
    engine.check()
    return engine.get_stats()


def reconfigure(engine: Engine, **changes: Any) -> None:
    """Carve the memory anew with ``changes``.

    When they do not fit, the engine goes back to what it was, and the EngineError says what did not fit.
    """
    if engine.has_unfinished_requests():
        raise EngineError("settings cannot change while requests run.", hint="wait for them to finish")
    unknown = sorted(changes.keys() - knobs().keys())
    if unknown:
        names = ", ".join(name for name, knob in knobs().items() if knob.reconfigurable)
        raise EngineError(f"unknown setting {', '.join(unknown)}.", hint=f"one of {names}")
    before = engine.config
    try:
        engine.reconfigure(**changes)
    except (EngineError, TypeError) as problem:
        if engine.config is not before or not engine.has_pool:
            engine.reconfigure(**{name: getattr(before, name) for name in changes})
        if isinstance(problem, TypeError):
            raise EngineError(f"a setting has a value of the wrong type: {problem}.") from None
        raise


def load_adapter(engine: Engine, adapter: str, path: str) -> None:
    """Read the adapter now, so that what is wrong with it shows before a request needs it.

    One that has the same name is forgotten first: it may have been trained further.
    """
    unload_adapter(engine, adapter)
    engine.load_adapter(LoRARequest(adapter, path))


def unload_adapter(engine: Engine, adapter: str) -> None:
    """Forget an adapter, if host memory still holds it."""
    if engine.model.adapters is not None and adapter in engine.model.adapters.names:
        engine.unload_adapter(adapter)


COMMANDS: dict[str, Callable[..., Any]] = {
    "reset_prefix_cache": reset_prefix_cache,
    "statistics": statistics,
    "reconfigure": reconfigure,
    "load_adapter": load_adapter,
    "unload_adapter": unload_adapter,
}
