"""Reading the body of a request into the shape that its endpoint expects."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from kvplan_engine.server.http.exchange import Exchange
from kvplan_engine.server.http.state import ServerState
from kvplan_engine.server.openai.errors import bad_request
from kvplan_engine.server.openai.json_size import MOST_CONTAINERS, MOST_VALUES, is_decoded_soon
from kvplan_engine.server.openai.parameters import parse_body

# Larger ones are looked through in a thread.
_LARGE_BODY_BYTES = 1 << 18

Body = TypeVar("Body")


async def read_body(state: ServerState, exchange: Exchange, kind: type[Body]) -> Body:
    """400 for what is not JSON of this shape, or would take long to decode; see also ``Exchange.body``."""
    body = await exchange.body(state.options.max_body_bytes)
    most_values = max(MOST_VALUES, 2 * state.client.pool.max_model_len)
    if len(body) > _LARGE_BODY_BYTES:
        is_small = await asyncio.to_thread(is_decoded_soon, body, most_values)
    else:
        is_small = is_decoded_soon(body, most_values)
    if not is_small:
        raise bad_request(
            f"The request body is not valid: it has more than {most_values:,} values, or {MOST_CONTAINERS:,} lists and "
            "objects."
        )
    return parse_body(body, kind)
