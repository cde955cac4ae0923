"""Runs a request's prompts through the engine, and gives its answer whole or as a stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from kvplan_engine.requests.sampling_params import SamplingParams
from kvplan_engine.server.engine_client.client import EngineClient
from kvplan_engine.server.engine_client.generation import Generation, Mailbox
from kvplan_engine.server.openai.choices import Choice, Delta
from kvplan_engine.server.openai.shapes import DONE, Shape
from kvplan_engine.server.openai.usage import request_metrics, usage
from kvplan_engine.server.text.decoding import NoText, StreamDecoder

Write = Callable[[bytes], Awaitable[None]]


class Answering:
    """One HTTP request's prompts in the engine. A context manager: what is unfinished when it is left is aborted.

    Entering it raises EngineDead, or Overloaded when too much is queued; then nothing runs.
    """

    def __init__(
        self, client: EngineClient, shape: Shape, params: list[SamplingParams], arrival: float, mailbox: Mailbox
    ) -> None:
        self._client = client
        self._shape = shape
        self._params = params
        self._arrival = arrival
        self._mailbox = mailbox
        self._generations: list[Generation] = []
        shape.generations = self._generations
        self._choices = [self._choice(index) for index in range(len(params) * shape.context.num_samples)]
        self._num_unfinished = len(self._choices)

    def _choice(self, index: int) -> Choice:
        context = self._shape.context
        params = self._params[index // context.num_samples]
        if context.tokenizer is None:
            return Choice(NoText(), context.options, params.min_tokens)
        decoder = StreamDecoder(
            context.tokenizer,
            context.prompt_of(index).token_ids,
            skip_special_tokens=context.options.skip_special_tokens,
        )
        return Choice(decoder, context.options, params.min_tokens)

    def __enter__(self) -> Answering:
        try:
            for number, (prompt, params) in enumerate(zip(self._shape.context.prompts, self._params, strict=True)):
                self._generations.append(
                    self._client.submit(prompt.token_ids, params, self._arrival, self._mailbox, number * params.n)
                )
        except BaseException:
            self._abort()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._abort()

    def _abort(self) -> None:
        for generation in self._generations:
            self._client.abort(generation)

    async def _next(self) -> list[Delta]:
        """What the next tokens add, at least one; [] when all choices are complete."""
        choices = self._choices
        while self._num_unfinished:
            events = await self._mailbox.take()
            deltas = [delta for event in events if (delta := choices[event.choice].take(event)) is not None]
            for delta in deltas:
                if delta.finish_reason is not None:
                    self._finish(delta)
            if deltas:
                return deltas
        return []

    def _finish(self, delta: Delta) -> None:
        """A choice is complete; the engine need not go on with it."""
        self._num_unfinished -= 1
        if delta.stopped_early:
            generation = self._generations[delta.choice // self._shape.context.num_samples]
            self._client.end_answer(generation, delta.choice)

    @property
    def _num_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self._choices)

    async def whole(self) -> dict[str, Any]:
        """The answer, when it is complete."""
        gathered: list[list[Delta]] = [[] for _ in self._choices]
        while deltas := await self._next():
            for delta in deltas:
                gathered[delta.choice].append(delta)
        counts = usage(self._generations, self._num_tokens)
        return self._shape.answer(gathered, counts, request_metrics(self._generations))

    async def stream(self, write: Write) -> None:
        """Write every chunk as its token arrives. Tokens that gathered meanwhile are written at once, a chunk each."""
        shape, options = self._shape, self._shape.context.options
        opening = shape.opening()
        num_tokens = 0
        while deltas := await self._next():
            chunks: list[bytes] = [opening] if opening else []
            opening = b""
            for delta in deltas:
                num_tokens += 1
                counts = usage(self._generations, num_tokens) if options.continuous_usage else None
                chunks.append(shape.chunk(delta, counts))
            await write(chunks[0] if len(chunks) == 1 else b"".join(chunks))
        ending = DONE
        if options.include_usage:
            counts = usage(self._generations, self._num_tokens)
            ending = shape.usage_chunk(counts, request_metrics(self._generations)) + ending
        await write(ending)
