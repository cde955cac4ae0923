"""The parent's end of `kvplan doctor`: the driver's facts, and those of a worker, which opens the device. No torch."""

from __future__ import annotations

import platform
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kvplan import __version__
from kvplan.catalog.models import resolve_model
from kvplan.doctor.driver import driver_facts
from kvplan.errors import KvplanError
from kvplan.workers.process import WorkerDied, WorkerProcess, WorkerTimeout

SCHEMA: Final = "kvplan.doctor/1"
WORKER_COMMAND: Final = (sys.executable, "-m", "kvplan.doctor.worker")
_PATIENCE_SECONDS: Final = 900.0
_AGAIN: Final = "run it again: a kernel that ended the worker is not tried a second time, and named"


def examine(model: str, device: str, dtype: str = "auto", *, checks_anew: bool = False) -> dict[str, Any]:
    """The report on this machine for ``model``. KvplanError for an unknown model, or where no GPU can be had."""
    spec = resolve_model(model)
    order = {
        "type": "order",
        "model": dict(spec.raw_config),
        "device": device,
        "dtype": dtype,
        "checks_anew": checks_anew,
    }
    found = _ask(order)
    uuid = str((found.get("gpu") or {}).pop("uuid", ""))  # whose GPU it is, is nobody's business
    report = {
        "schema": SCHEMA,
        "model": spec.served_id,
        "versions": {"kvplan": __version__, "python": platform.python_version(), "torch": found.pop("torch")},
        "system": f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
        "driver": driver_facts(uuid) if device in ("auto", "cuda") else {},
        **found,
    }
    return without_home(report)


def _ask(order: Mapping[str, Any]) -> dict[str, Any]:
    """One worker's answer."""
    process = WorkerProcess(WORKER_COMMAND)
    try:
        process.send(order)
        message = process.receive(time.monotonic() + _PATIENCE_SECONDS, "The worker did not answer in fifteen minutes.")
    except WorkerTimeout as late:
        raise KvplanError(str(late), hint=_AGAIN) from None
    except WorkerDied as death:
        is_killed = death.signal_number == signal.SIGKILL
        raise KvplanError(str(death), hint=None if is_killed else _AGAIN) from None
    finally:
        process.kill()
    if message["type"] == "error":
        raise KvplanError(message["message"], hint=message["hint"])
    return dict(message["report"])


def without_home(value: Any) -> Any:
    """The same with ``~`` for this user's home, wherever a text has it: the report is pasted into issues."""
    if isinstance(value, str):
        home = str(Path.home())
        return value if home == "/" else value.replace(home, "~")
    if isinstance(value, Mapping):
        return {key: without_home(each) for key, each in value.items()}
    return [without_home(each) for each in value] if isinstance(value, (list, tuple)) else value
