"""Commands that the engine has been sent and has not answered."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

from kvplan_engine.errors import EngineError
from kvplan_engine.server.messages import Reply


class CommandsInFlight:
    """One future for each command, by its number, for the coroutine that awaits what it returns."""

    def __init__(self) -> None:
        self._replies: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count()

    def next_number(self) -> int:
        """The number of a new command."""
        return next(self._numbers)

    def add(self, number: int) -> asyncio.Future[Any]:
        """Where the value of command ``number`` will be. EngineError there when it fails."""
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        return reply

    def take(self, message: Reply) -> None:
        reply = self._replies.pop(message.number)
        if reply.done():
            return
        if message.error is None:
            reply.set_result(message.value)
        else:
            reply.set_exception(EngineError(message.error, hint=message.hint))

    def fail(self, error: Exception) -> None:
        """No reply will come any more: all that wait are told ``error``."""
        for reply in self._replies.values():
            if not reply.done():  # whoever waited may have been cancelled
                reply.set_exception(error)
        self._replies.clear()
