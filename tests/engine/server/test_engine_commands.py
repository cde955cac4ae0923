"""Commands on their way to the engine's process, and how its end is told to those who wait."""

from __future__ import annotations

import asyncio
import signal

import pytest

from kvplan_engine.errors import EngineError
from kvplan_engine.server.engine_client.client import EngineClient
from kvplan_engine.server.engine_client.commands import CommandsInFlight
from kvplan_engine.server.engine_client.process import describe_ending


def test_a_command_whose_caller_has_gone_keeps_nobody_else_waiting() -> None:
    async def ended() -> list[BaseException | None]:
        commands = CommandsInFlight()
        gone, waiting = (commands.add(commands.next_number()) for _ in range(2))
        gone.cancel()
        commands.fail(EngineError("the engine has ended."))
        return [waiting.exception()]

    (error,) = asyncio.run(ended())
    assert isinstance(error, EngineError)


def test_a_command_that_cannot_be_sent_awaits_no_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    client = object.__new__(EngineClient)
    client._commands, client._ended, client._transport = CommandsInFlight(), asyncio.Event(), object()  # type: ignore[assignment]
    with pytest.raises(OverflowError):
        asyncio.run(client.command("reconfigure", swap_space=10**20))
    assert not client._commands._replies


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, "closed its connection"),
        (3, "ended with exit code 3"),
        (-signal.SIGKILL, "was ended by SIGKILL"),
        (-(signal.SIGRTMIN + 3), f"was ended by signal {signal.SIGRTMIN + 3}"),
    ],
)
def test_every_ending_has_words(code: int | None, words: str) -> None:
    assert describe_ending(code) == words
