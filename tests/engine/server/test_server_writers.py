"""Answers on their way out, from the engine's process to chunks that a connection does not take."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
from collections.abc import Iterator

import pytest

from kvplan_engine.description.division import Rank
from kvplan_engine.errors import EngineError, RankDied
from kvplan_engine.execution.ranks.group import RankGroup
from kvplan_engine.server.engine_client.client import EngineClient
from kvplan_engine.server.engine_client.generation import Mailbox, TokenEvent
from kvplan_engine.server.engine_client.in_flight import CommandsInFlight
from kvplan_engine.server.engine_client.process import describe_ending
from kvplan_engine.server.engine_process.loop import ApiGone, Channel
from kvplan_engine.server.http.connection import Outlet
from kvplan_engine.server.messages import Stop, frame


async def _take(mailbox: Mailbox, read: list[int], refused: int) -> asyncio.Task[list[TokenEvent]]:
    """A coroutine that waits for events, with a writer that refuses token ``refused``."""

    def writer(choice: int, token: int, is_late: bool) -> bool:
        if token == refused:
            return False
        read.append(token)
        return True

    task = asyncio.create_task(mailbox.take(writer))
    await asyncio.sleep(0)
    return task


def test_tokens_behind_a_refused_one_wait_with_it() -> None:
    async def scenario() -> tuple[list[int], list[int]]:
        mailbox, read = Mailbox(), list[int]()
        task = await _take(mailbox, read, refused=3)
        for token in range(1, 6):
            mailbox.put_ordinary(0, token)
        return read, [event.token for event in await task]

    assert asyncio.run(scenario()) == ([1, 2], [3, 4, 5])


def test_a_token_that_ends_an_answer_is_never_the_writers() -> None:
    async def scenario() -> tuple[list[int], list[TokenEvent]]:
        mailbox, read = Mailbox(), list[int]()
        task = await _take(mailbox, read, refused=0)
        mailbox.put_ordinary(0, 1)
        mailbox.put(TokenEvent(0, 2, "length"))
        return read, await task

    assert asyncio.run(scenario()) == ([1], [TokenEvent(0, 2, "length")])


def test_a_writer_sees_nothing_before_what_has_gathered_is_taken() -> None:
    async def scenario() -> list[int]:
        mailbox, read = Mailbox(), list[int]()
        mailbox.put_ordinary(0, 1)
        task = await _take(mailbox, read, refused=0)
        mailbox.put_ordinary(0, 2)
        assert [event.token for event in await task] == [1]
        assert read == []
        return [event.token for event in await mailbox.take()]

    assert asyncio.run(scenario()) == [2]


def test_what_a_writer_raises_is_raised_where_its_request_is_answered() -> None:
    async def scenario() -> None:
        mailbox = Mailbox()

        def broken(choice: int, token: int, is_late: bool) -> bool:
            raise ValueError(f"token {token}")

        task = asyncio.create_task(mailbox.take(broken))
        await asyncio.sleep(0)
        mailbox.put_ordinary(0, 7)
        with pytest.raises(ValueError, match="token 7"):
            await task

    asyncio.run(scenario())


def test_a_failure_wakes_who_waits_with_a_writer() -> None:
    async def scenario() -> None:
        mailbox = Mailbox()
        task = await _take(mailbox, [], refused=0)
        mailbox.fail(RuntimeError("gone"))
        with pytest.raises(RuntimeError, match="gone"):
            await task

    asyncio.run(scenario())


class _Transport:
    """The event loop's end of ``connection``: what is written to it waits."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.waiting = b""

    def get_extra_info(self, name: str) -> socket.socket:
        assert name == "socket"
        return self._connection

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def write(self, data: bytes) -> None:
        self.waiting += data


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield ours, theirs


def test_a_chunk_is_with_the_kernel_at_once(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    transport = _Transport(ours)
    Outlet(transport).send(b"data: token\n\n")  # type: ignore[arg-type]
    assert theirs.recv(100) == b"d\r\ndata: token\n\n\r\n"
    assert transport.waiting == b""


def test_a_chunk_stays_behind_what_the_event_loop_still_holds(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    transport = _Transport(ours)
    outlet = Outlet(transport)  # type: ignore[arg-type]
    outlet.send(b"1")
    outlet.write(b"2")
    outlet.send(b"3")
    assert theirs.recv(100) == b"1\r\n1\r\n"
    assert transport.waiting == b"1\r\n2\r\n1\r\n3\r\n"
    transport.waiting = b""
    outlet.send(b"4")
    assert theirs.recv(100) == b"1\r\n4\r\n"


def test_what_the_kernel_does_not_take_waits_in_the_event_loop(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    transport = _Transport(ours)
    outlet = Outlet(transport)  # type: ignore[arg-type]
    chunk = b"x" * 100_000
    while not transport.waiting:
        outlet.send(chunk)
    outlet.send(b"last")
    received = b""
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        while True:
            received += theirs.recv(1 << 20)
    framed = b"186a0\r\n" + chunk + b"\r\n"
    whole = received + transport.waiting
    assert whole.endswith(b"4\r\nlast\r\n")
    assert whole.removesuffix(b"4\r\nlast\r\n") == framed * (len(whole) // len(framed))


def test_a_client_that_is_gone_is_left_to_the_event_loop(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    transport = _Transport(ours)
    theirs.close()
    Outlet(transport).send(b"1")  # type: ignore[arg-type]
    assert transport.waiting == b"1\r\n1\r\n"


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
