"""A client that goes away while its answer is made: the engine should not go on for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from kvplan_engine.server.engine_client.generation import Mailbox
from kvplan_engine.server.http.exchange import ClientGone, Exchange


@asynccontextmanager
async def watched(exchange: Exchange) -> AsyncIterator[Mailbox]:
    """A mailbox that fails with ClientGone when the client disconnects. The body must have been read."""
    mailbox = Mailbox()

    async def watch() -> None:
        while (await exchange.receive())["type"] != "http.disconnect":
            pass
        mailbox.fail(ClientGone())

    task = asyncio.create_task(watch())
    try:
        yield mailbox
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
