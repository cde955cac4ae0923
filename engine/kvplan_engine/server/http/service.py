"""What clients and monitors ask of a server beside answers: models, health, version, metrics, tokens."""

from __future__ import annotations

from functools import cache
from importlib import metadata
from typing import Any

import msgspec

from kvplan_engine.server.http.exchange import Exchange
from kvplan_engine.server.http.prompts import encode, render_chat
from kvplan_engine.server.http.state import ServerState, read_body
from kvplan_engine.server.metrics.exposition import CONTENT_TYPE
from kvplan_engine.server.openai.errors import bad_request
from kvplan_engine.server.openai.requests import DetokenizeBody, TokenizeBody

MODEL_PATH = "/v1/models/"


@cache
def version() -> str:
    """kvplan's, read once: it lies in a file."""
    try:
        return metadata.version("kvplan")
    except metadata.PackageNotFoundError:
        return "unknown"


def _model_card(state: ServerState, name: str) -> dict[str, Any]:
    adapter = state.adapters.get(name)
    return {
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "kvplan",
        "root": state.client.model.model_id if adapter is None else adapter.path,
        "parent": None if adapter is None else state.options.model_names[0],
        "max_model_len": state.client.pool.max_model_len,
        "permission": [],
    }


async def models(state: ServerState, exchange: Exchange) -> None:
    cards = [_model_card(state, name) for name in (*state.options.model_names, *state.adapters)]
    await exchange.answer(200, msgspec.json.encode({"object": "list", "data": cards}))


async def model(state: ServerState, exchange: Exchange) -> None:
    """GET /v1/models/NAME; names may contain slashes."""
    name = state.served_name(exchange.path.removeprefix(MODEL_PATH))
    await exchange.answer(200, msgspec.json.encode(_model_card(state, name)))


async def health(state: ServerState, exchange: Exchange) -> None:
    """200 while requests can be served; 503 when the engine has died, or the server is about to end."""
    await exchange.answer(503 if state.client.is_dead or state.is_draining else 200, b"")


async def load(state: ServerState, exchange: Exchange) -> None:
    """Requests to the endpoints that generate which are not answered yet, as vLLM counts them for load balancers."""
    await exchange.answer(200, msgspec.json.encode({"server_load": state.server_load}))


async def show_version(state: ServerState, exchange: Exchange) -> None:
    await exchange.answer(200, msgspec.json.encode({"version": version()}))


async def show_metrics(state: ServerState, exchange: Exchange) -> None:
    await exchange.answer(200, state.exposition.text(), [(b"content-type", CONTENT_TYPE)])


async def tokenize(state: ServerState, exchange: Exchange) -> None:
    body = await read_body(state, exchange, TokenizeBody)
    state.served_name(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise bad_request("Give either 'prompt' or 'messages'.", "prompt")
    if body.messages is not None:
        text = await render_chat(state, body, body.messages, is_whole=False)
    else:
        text = body.prompt or ""
    default = body.messages is None
    special = default if body.add_special_tokens is None else body.add_special_tokens
    token_ids = await encode(state, text, add_special_tokens=special)
    strings = await state.tokenizer.token_strings(token_ids) if body.return_token_strs and state.tokenizer else None
    answer = {
        "count": len(token_ids),
        "max_model_len": state.client.pool.max_model_len,
        "tokens": token_ids,
        "token_strs": strings,
    }
    await exchange.answer(200, msgspec.json.encode(answer))


async def detokenize(state: ServerState, exchange: Exchange) -> None:
    body = await read_body(state, exchange, DetokenizeBody)
    state.served_name(body.model)
    if state.tokenizer is None:
        raise bad_request(state.client.model.no_tokenizer, "tokens")
    vocab_size = state.client.model.vocab_size
    max_model_len = state.client.pool.max_model_len
    if len(body.tokens) > max_model_len:
        raise bad_request(
            f"This model's maximum context length is {max_model_len} tokens. However, you gave {len(body.tokens):,}.",
            "tokens",
        )
    if body.tokens and not (min(body.tokens) >= 0 and max(body.tokens) < vocab_size):
        raise bad_request(f"A token lies outside the vocabulary of {vocab_size:,}.", "tokens")
    text = await state.tokenizer.decode_long(body.tokens, skip_special_tokens=False)
    await exchange.answer(200, msgspec.json.encode({"prompt": text}))
