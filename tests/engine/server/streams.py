"""Many streams at once through OpenAI's client, and what they give."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
from server_process import ServerProcess, plain

NUM_STREAMS = 64
PROMPTS = [
    f"{'the cache ' * (1 + number % 5)}{number} äö 🙂 {'block ' * (number % 9)}" for number in range(NUM_STREAMS)
]


async def _streamed(client: openai.AsyncOpenAI, prompt: str, fields: dict[str, Any]) -> tuple[list[int], str]:
    tokens: list[int] = []
    text = ""
    extra = {"return_token_ids": True, "ignore_eos": fields.pop("ignore_eos", False)}
    stream = await client.completions.create(model="small", prompt=prompt, stream=True, extra_body=extra, **fields)
    async for chunk in stream:
        tokens += chunk.choices[0].token_ids  # type: ignore[attr-defined]
        text += chunk.choices[0].text
    return tokens, plain(text)


async def all_streamed(server: ServerProcess, fields: list[dict[str, Any]]) -> list[tuple[list[int], str]]:
    """Tokens and text of every one of PROMPTS, all in flight together."""
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none") as client:
        work = (_streamed(client, prompt, dict(own)) for prompt, own in zip(PROMPTS, fields, strict=True))
        return await asyncio.gather(*work)
