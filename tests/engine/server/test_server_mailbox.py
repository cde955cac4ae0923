"""The mailbox between frames and coroutines: tokens used on the spot, and those that have to wait."""

from __future__ import annotations

import asyncio

import pytest

from kvplan_engine.server.engine_client.generation import Mailbox, TokenEvent


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
