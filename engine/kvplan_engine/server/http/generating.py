"""POST /v1/completions and POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec

from kvplan_engine.server.engine_client.generation import Mailbox
from kvplan_engine.server.http.exchange import ClientGone, Exchange
from kvplan_engine.server.http.prompts import chat_prompt, completion_prompts
from kvplan_engine.server.http.state import ServerState, read_body
from kvplan_engine.server.openai.answering import Answering
from kvplan_engine.server.openai.errors import bad_request
from kvplan_engine.server.openai.parameters import answer_options, refuse_unsupported, sampling_params
from kvplan_engine.server.openai.requests import ChatBody, CompletionBody, SamplingFields
from kvplan_engine.server.openai.shapes import AnswerContext, AnswerShape, ChatShape, CompletionShape, Prompt

# A client that goes away while its answer is made: the engine should not go on for nobody.


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


_LONGEST_REQUEST_ID = 128
_LONGEST_RANK = 9
"""In digits: more are neither read nor repeated."""


async def completions(state: ServerState, exchange: Exchange) -> None:
    with state.counting_load():
        body = await read_body(state, exchange, CompletionBody)
        await _generate(state, exchange, body, CompletionShape, "cmpl")


async def chat_completions(state: ServerState, exchange: Exchange) -> None:
    with state.counting_load():
        body = await read_body(state, exchange, ChatBody)
        await _generate(state, exchange, body, ChatShape, "chatcmpl")


async def _generate(
    state: ServerState, exchange: Exchange, body: SamplingFields, shape: type[AnswerShape], prefix: str
) -> None:
    model = state.served_name(body.model)
    refuse_unsupported(body)
    options = answer_options(body)
    exchange.request_id = _request_id(exchange, body)
    prompts = await _prompts(state, body)
    context = AnswerContext(
        answer_id=f"{prefix}-{exchange.request_id}",
        created=int(time.time()),
        model=model,
        options=options,
        prompts=prompts,
        num_samples=1 if body.n is None else body.n,
        tokenizer=state.tokenizer,
        lora_request=state.adapters.get(model),
        engine=_chosen_engine(exchange, len(state.client.engines)),
        cache_salt=body.cache_salt,
    )
    async with watched(exchange) as mailbox:
        await _answer(state, exchange, body, shape, context, mailbox)


def _request_id(exchange: Exchange, body: SamplingFields) -> str:
    """The client's, or one of ours. It goes into a header of the answer."""
    name = body.request_id or exchange.header(b"x-request-id").decode("latin-1") or uuid.uuid4().hex
    if len(name) > _LONGEST_REQUEST_ID or not (name.isascii() and name.isprintable()):
        raise bad_request(f"A request id has at most {_LONGEST_REQUEST_ID} printable ASCII characters.", "request_id")
    return name


def _chosen_engine(exchange: Exchange, num_engines: int) -> int | None:
    """Return the engine that vLLM's header names. 400 if it does not exist, since an upstream router relies on it."""
    text = exchange.header(b"x-data-parallel-rank").decode("latin-1")
    if not text:
        return None
    if not text.isdecimal() or len(text) > _LONGEST_RANK or int(text) >= num_engines:
        text = text[:_LONGEST_RANK]
        raise bad_request(f"X-data-parallel-rank must be from 0 to {num_engines - 1}, got {text}.")
    return int(text)


async def _prompts(state: ServerState, body: SamplingFields) -> list[Prompt]:
    if isinstance(body, CompletionBody):
        return await completion_prompts(state, body)
    assert isinstance(body, ChatBody)
    return [await chat_prompt(state, body)]


async def _answer(
    state: ServerState,
    exchange: Exchange,
    body: SamplingFields,
    shape: type[AnswerShape],
    context: AnswerContext,
    mailbox: Mailbox,
) -> None:
    client = state.client
    await client.wait_until_open()
    max_model_len, vocab_size = client.pool.max_model_len, client.model.vocab_size
    lengths = [len(prompt.token_ids) for prompt in context.prompts]
    params = sampling_params(body, lengths, max_model_len, vocab_size)
    if (body.n or 1) > client.pool.max_num_seqs:
        raise bad_request(f"'n' must be at most max_num_seqs {client.pool.max_num_seqs:,}: samples run at once.", "n")

    def prepare() -> Answering:
        return Answering(client, shape(context), params, exchange.arrival_seconds, mailbox)

    with await asyncio.to_thread(prepare) if context.is_large else prepare() as answering:
        if not context.options.stream:
            await exchange.answer(200, msgspec.json.encode(await answering.whole()))
            return
        await exchange.begin_stream()
        await answering.stream(exchange)
        await exchange.end_stream()
