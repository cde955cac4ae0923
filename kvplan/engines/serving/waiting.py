"""From a command to a server that answers: whose answer it is, and why there is none."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from kvplan.engines.serving.keeper import descendants
from kvplan.engines.serving.ports import HOST, listens
from kvplan.engines.serving.process import ServerProcess
from kvplan.errors import KvplanError
from kvplan.metrics.http import PersistentConnection, ServerAddress

_POLL_SECONDS: Final = 0.1
_ANSWER_SECONDS: Final = 5.0
_OK: Final = 200


@dataclass(frozen=True, slots=True)
class Readiness:
    """seconds: from the call to the first good answer, None where there was none. is_late: it still ran, unready."""

    seconds: float | None
    is_late: bool = False


def wait_until_ready(process: ServerProcess, port: int, health_path: str, limit_seconds: float) -> Readiness:
    """Until the server answers, ends, or takes longer than the limit.

    KvplanError if somebody else answers on its port: a foreign server must not be measured in its place.
    """
    started = time.monotonic()
    while time.monotonic() - started < limit_seconds:
        if not process.is_running:
            return Readiness(None)
        if answers(port, health_path):
            if listens(port, [process.keeper_pid, *descendants(process.keeper_pid)]) is False and process.is_running:
                raise KvplanError(f"Another server listens on port {port}.", hint="run the sweep again")
            return Readiness(time.monotonic() - started)
        time.sleep(_POLL_SECONDS)
    return Readiness(None, is_late=True)


def answers(port: int, path: str) -> bool:
    """Whether a good answer comes from there now."""
    try:
        with PersistentConnection(
            ServerAddress.parse(f"{HOST}:{port}"), None, timeout_seconds=_ANSWER_SECONDS
        ) as connection:
            return connection.get(path).status == _OK
    except KvplanError:
        return False
