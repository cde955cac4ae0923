"""The engine's process as the API's sees it: its waits, its commands and its ending."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket

import pytest

from kvplan_engine.description.division import Rank
from kvplan_engine.errors import EngineError, RankDied
from kvplan_engine.execution.ranks.group import RankGroup
from kvplan_engine.server.engine_client.client import EngineClient
from kvplan_engine.server.engine_client.in_flight import CommandsInFlight
from kvplan_engine.server.engine_client.process import describe_ending
from kvplan_engine.server.engine_process.loop import ApiGone, Channel
from kvplan_engine.server.messages import Stop, frame


def test_a_message_or_another_descriptor_ends_the_wait() -> None:
    own, api = socket.socketpair()
    read, write = os.pipe()
    with own, api:
        channel = Channel(own)
        channel.wake_by([read])
        api.sendall(frame(Stop()))
        assert channel.receive(wait=True) == [Stop()]
        os.close(write)
        assert channel.receive(wait=True) == []
        api.close()
        with pytest.raises(ApiGone):
            channel.receive(wait=True)
    os.close(read)


def test_a_rank_that_dies_while_nothing_runs_is_named() -> None:
    group = RankGroup([Rank(0, 2), Rank(1, 2)])
    try:
        group.check()
        os.kill(group.pids[0], signal.SIGKILL)
        assert select.select(group.descriptors, [], [], 60)[0]
        with pytest.raises(RankDied, match="rank 1 of 2 was ended by SIGKILL"):
            group.check()
        assert group.has_ended
    finally:
        group.close()


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
