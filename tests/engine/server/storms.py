"""Requests of which a third of the clients leave: before the body, at once, or after some chunks."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any


def request_head(length: int) -> bytes:
    return f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n".encode()


async def _one_of_the_storm(port: int, draw: random.Random, slots: asyncio.Semaphore, budget: int) -> str:
    """A request that is read to its end, or whose client leaves: before the body, at once, or after some chunks."""
    fate = draw.choice(["stay", "stay", "leave"])
    body: dict[str, Any] = {
        "prompt": [draw.randrange(384) for _ in range(_prompt_length(draw, budget))],
        "max_tokens": draw.randrange(1, 40),
        "n": draw.choice([1, 1, 1, 2, 3, 4]),
        "stream": draw.random() < 0.7,
        "ignore_eos": True,
    }
    if draw.random() < 0.2:
        body["stop"] = ["the", "e"]
    data = json.dumps(body).encode()
    leaves_after = draw.choice([-1, 0, 0, 1, 300, 2000])
    async with slots:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            if fate == "leave" and leaves_after < 0:
                writer.write(request_head(len(data)) + data[: len(data) // 2])
                await writer.drain()
                return "left early"
            writer.write(request_head(len(data)) + data)
            await writer.drain()
            if fate == "leave":
                if leaves_after:
                    await reader.read(leaves_after)
                await asyncio.sleep(draw.random() * 0.01)
                return "left"
            answer = await reader.readuntil(b"\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200"), answer
            if body["stream"]:
                await reader.readuntil(b"0\r\n\r\n")
            else:
                length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                await reader.readexactly(length)
            return "stayed"
        finally:
            writer.close()


def _prompt_length(draw: random.Random, budget: int) -> int:
    """Short, or about as long as one step or two take of it: its last chunk may be a single token."""
    if draw.random() < 0.5:
        return draw.randrange(1, 60)
    return draw.choice([budget, 2 * budget]) + draw.choice([-1, 0, 1, 2])


async def storm(port: int, number: int, budget: int = 64) -> dict[str, int]:
    """How many of ``number`` requests stayed, left, and left early. budget: the server's max_num_batched_tokens."""
    slots = asyncio.Semaphore(48)
    draw = random.Random(number)
    work = [_one_of_the_storm(port, random.Random(draw.random()), slots, budget) for _ in range(number)]
    fates = await asyncio.gather(*work)
    return {fate: fates.count(fate) for fate in fates}
